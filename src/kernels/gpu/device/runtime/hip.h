// What kernels need of HIP's headers, for builds with `-nogpuinc -include` of this file. hip_runtime.h, and what clang
// puts in front of every file, would take a second of each unit, which is read twice.
#pragma once
// The order is clang's: functions of the host, AMD's attributes, functions of the device.
// clang-format off
#include <cmath>
#include <cstdlib>
#include <hip/amd_detail/host_defines.h>
#include <__clang_hip_libdevice_declares.h>
#include <__clang_hip_math.h>
#include <hip/hip_runtime_api.h>
// clang-format on

extern "C" __device__ __attribute__((const)) size_t __ockl_get_num_groups(unsigned);
extern "C" __device__ __attribute__((const)) size_t __ockl_get_local_size(unsigned);
extern "C" hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream);

namespace tessera::gpu_kernels {

struct GridSize {
  struct {
    __device__ operator unsigned() const { return __ockl_get_num_groups(0); }
  } x;
};
struct BlockSize {
  struct {
    __device__ operator unsigned() const { return __ockl_get_local_size(0); }
  } x;
};
inline constexpr __device__ GridSize gridDim{};
inline constexpr __device__ BlockSize blockDim{};

template <class T>
__device__ inline T atomicAdd(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline unsigned long long atomicMax(unsigned long long* at, unsigned long long value) {
  return __hip_atomic_fetch_max(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline int atomicCAS_system(int* at, int expected, int desired) {
  __hip_atomic_compare_exchange_strong(at, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_SYSTEM);
  return expected;
}
__device__ inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned __int128>(a) * b >> 64;
}

}  // namespace tessera::gpu_kernels
