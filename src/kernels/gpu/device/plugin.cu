// What the plugin exports.
#include "gpu.h"

namespace tessera::gpu_kernels {

gpu::Runtime& vendor_runtime();

extern ElementwiseTable elementwise_table;
extern const GemmTable gemm_table;

}  // namespace tessera::gpu_kernels

extern "C" __attribute__((visibility("default"))) const tessera::gpu::Plugin* tessera_plugin() {
  using namespace tessera;
  static const gpu_kernels::Tables tables{.elementwise = &gpu_kernels::elementwise_table,
                                          .gemm = &gpu_kernels::gemm_table};
  static const gpu::Plugin plugin{gpu::Plugin::current_version, &gpu_kernels::vendor_runtime(), &tables};
  return &plugin;
}
