// What the host's side of a plugin shares: the run-time library under one name, and errors. For units without kernels
// it is enough, and any compiler will do for them.
#pragma once
#if defined(__HIP__)
#if defined(__CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__)
#include <hip/hip_runtime.h>
#else  // -nogpuinc
#include "hip.h"
#endif
#define TESSERA_RT(name) hip##name
#elif !defined(TESSERA_SIMULATED_GPU)
#include <cuda_runtime.h>
#define TESSERA_RT(name) cuda##name
#endif

#include "kernels/args/gpu/tables.h"
#include "tile/base.h"

namespace tessera::gpu_kernels {

using tile::i32;
using tile::i64;
using tile::u32;
using tile::u64;
using tile::u8;

#if defined(TESSERA_SIMULATED_GPU)
using Queue = void*;
#else
using Queue = TESSERA_RT(Stream_t);
#endif

/// Throws DeviceError if the launch just made was refused; `what` names it.
void check_launch(const char* what);
#if defined(__HIP__)
/// Whether this process has ever chosen the device, and so may have work there.
bool was_chosen(int device);
#else
/// kernel<<<blocks, threads, shared, queue>>> with the arguments at these addresses, and its check, by the driver
/// itself where that can be: 0.3 us less (an H100).
void launch_kernel(const char* what, const void* kernel, unsigned blocks, unsigned threads, size_t shared,
                   const void* const* arguments, Queue queue);
#endif
/// Throws Error: this family has no kernel for what `args` asked.
[[noreturn]] void throw_unsupported(const char* what);

inline constexpr int element_size[scalar_count] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
inline int size_of(Scalar type) { return element_size[static_cast<int>(type)]; }

}  // namespace tessera::gpu_kernels
