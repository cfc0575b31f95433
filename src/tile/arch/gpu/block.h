// What a thread of a block asks of any GPU: who it is, what its neighbours have, to wait for the others, and fast
// powers of two. No run-time header is needed.
#pragma once
#include "../../tile.h"

#if defined(TESSERA_SIMULATED_GPU)
#include TESSERA_SIMULATED_GPU  // a test's: what this header and ptx.h declare, on the host
#else

#if !TESSERA_GPU_COMPILER
#error "arch/gpu/block.h holds device code: compile it with nvcc, NVRTC or clang for HIP"
#endif

#define TESSERA_DEVICE __device__ inline __attribute__((always_inline))
#define TESSERA_SHARED __shared__ __attribute__((aligned(16)))

/// A kernel of at most that many threads a block: TESSERA_KERNEL(256) void name(...). Registers are given out so that
/// TESSERA_KERNEL(256, 2) leaves room for two blocks on a multiprocessor, which is four SIMDs on AMD's cards.
#if defined(__HIP__)
#define TESSERA_KERNEL(threads, ...)                                  \
  __global__ __attribute__((amdgpu_flat_work_group_size(1, threads))) \
  __VA_OPT__(__attribute__((amdgpu_waves_per_eu(((__VA_ARGS__) * (threads) + 255) / 256))))
#else
#define TESSERA_KERNEL(...) __global__ __launch_bounds__(__VA_ARGS__)
#endif

TESSERA_TILE_BEGIN

// The mask tells the compiler that the index is not negative: divisions of it become shifts.
#if defined(__HIP__)
TESSERA_DEVICE int thread_in_block() { return static_cast<int>(__builtin_amdgcn_workitem_id_x() & 1023u); }
TESSERA_DEVICE i64 block_in_grid() { return __builtin_amdgcn_workgroup_id_x(); }
TESSERA_DEVICE int threads_in_block() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }
TESSERA_DEVICE int blocks_in_grid() {
  return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}
/// Waits for every thread of the block; what they wrote to shared memory is then visible.
TESSERA_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/// The same for the threads of a warp, of 32 neighbours at least.
TESSERA_DEVICE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// Powers and logarithms of two by special hardware, within 2 units in the last place or 2^-22.
#if __has_builtin(__builtin_amdgcn_exp2f)
TESSERA_DEVICE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
TESSERA_DEVICE float fast_log2(float x) { return __builtin_amdgcn_logf(x); }
#else  // clang before 17, as in hipRTC 5
TESSERA_DEVICE float fast_exp2(float x) { return __builtin_exp2f(x); }
TESSERA_DEVICE float fast_log2(float x) { return __builtin_log2f(x); }
#endif
/// 1 / x within a unit in the last place.
TESSERA_DEVICE float fast_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
#else
TESSERA_DEVICE int thread_in_block() { return static_cast<int>(threadIdx.x & 1023u); }
TESSERA_DEVICE i64 block_in_grid() { return blockIdx.x; }
TESSERA_DEVICE int threads_in_block() { return static_cast<int>(blockDim.x); }
TESSERA_DEVICE int blocks_in_grid() { return static_cast<int>(gridDim.x); }
/// Waits for every thread of the block; what they wrote to shared memory is then visible.
TESSERA_DEVICE void sync_block() { __syncthreads(); }
/// The same for the threads of a warp, of 32 neighbours at least.
TESSERA_DEVICE void sync_warp() { __syncwarp(); }

/// Powers and logarithms of two by special hardware, within 2 units in the last place or 2^-22.
TESSERA_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TESSERA_DEVICE float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x within a unit in the last place.
TESSERA_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

/// The value of lane `lane ^ mask` of this warp.
template <class T>
TESSERA_DEVICE T from_lane_xor(T value, int mask) {
  return detail::from_lane_xor(value, mask);
}

TESSERA_TILE_END

#endif

TESSERA_TILE_BEGIN

/// `width` elements that are moved at once.
template <class T, int width>
struct alignas(width * sizeof(T)) Pack {
  T lane[width];
};

TESSERA_TILE_END
