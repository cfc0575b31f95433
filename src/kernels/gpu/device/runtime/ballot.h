// Votes of lanes that run together.
#pragma once
#include "gpu.h"

namespace tessera::gpu_kernels {

#if defined(__HIP__)
/// Which of 32 lanes that run together say so; and how many of these there are.
TESSERA_DEVICE u32 ballot(bool says) {
  return static_cast<u32>(__builtin_amdgcn_ballot_w64(says) >> (tile::thread_in_block() & 32));
}
TESSERA_DEVICE u32 count_of(u32 lanes) { return static_cast<u32>(__builtin_popcount(lanes)); }
#elif TESSERA_GPU_COMPILER
TESSERA_DEVICE u32 ballot(bool says) { return __ballot_sync(~0u, says); }
TESSERA_DEVICE u32 count_of(u32 lanes) { return static_cast<u32>(__popc(lanes)); }
#endif

}  // namespace tessera::gpu_kernels
