// The matrix cores that attention's kernels are made for: AMD's take rows as they lie, NVIDIA's 16-byte vectors alone.
#pragma once
#if defined(__HIP__)
#include "tile/arch/cdna/attention_backward.h"
#else
#include "tile/arch/sm80/attention_backward.h"
#endif

/// Blocks that a multiprocessor of AMD's must hold; nvcc gives out registers better by itself.
#if defined(__HIP__)
#define TESSERA_ATTENTION_KERNEL(blocks) TESSERA_KERNEL(cores::attention_threads, blocks)
#else
#define TESSERA_ATTENTION_KERNEL(blocks) TESSERA_KERNEL(cores::attention_threads)
#endif

namespace tessera::gpu_kernels {

#if defined(__HIP__)
namespace cores = tile::cdna;
template <int Width, class T>
using ForwardSizes = cores::ForwardSizes<Width, T>;
template <int Width, class T>
using BackwardSizes = cores::BackwardSizes<Width, T>;
#else
namespace cores = tile::sm80;
template <int Width, class>
using ForwardSizes = cores::ForwardSizes<Width>;
template <int Width, class>
using BackwardSizes = cores::BackwardSizes<Width>;
#endif

}  // namespace tessera::gpu_kernels
