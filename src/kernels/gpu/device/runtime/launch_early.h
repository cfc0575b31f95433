// Kernels that are launched before the one before them has ended.
#pragma once
#include "gpu.h"

namespace tessera::gpu_kernels {

/// kernel<<<blocks, threads, shared>>>(args...) in clusters, which may begin when the kernel before gives leave and
/// ends once it waits for that one.
template <class... P, class... A>
void launch_early(const char* what, void (*kernel)(P...), i64 blocks, int threads, size_t shared, int cluster,
                  Executor& executor, const A&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<Queue>(executor.stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  (void)cudaLaunchKernelEx(&config, kernel, args...);
  check_launch(what);
}

}  // namespace tessera::gpu_kernels
