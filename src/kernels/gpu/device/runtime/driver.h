// Functions of NVIDIA's driver, which is not linked against.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

namespace tessera::gpu_kernels {

/// The driver's function of this name, as CUDA of that version has it; null where the driver is too old.
template <class Function>
Function driver_function(const char* name, unsigned version = 12000) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const auto status = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(found) : nullptr;
}

}  // namespace tessera::gpu_kernels
