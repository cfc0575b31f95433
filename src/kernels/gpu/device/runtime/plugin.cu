// What the plugin exports.
#include "core/gpu/plugin_version.h"
#include "core/gpu/runtime.h"
#include "gpu.h"

namespace tessera::gpu_kernels {

gpu::Runtime& vendor_runtime();

extern ElementwiseTable elementwise_table;
extern PoolTable pool_table, dense_pool_table;
extern GemmTable gemm_table;
extern NormTable norm_table;
extern SoftmaxTable softmax_table;
extern ReduceTable reduce_table;
extern ConvTable conv_table;
extern DepthwiseTable depthwise_table;
extern AttentionTable attention_table;
#if defined(__HIP__)
const Sm90GemmTable* sm90_gemm_table() { return nullptr; }
const Sm90PointwiseTable* sm90_pointwise_table() { return nullptr; }
const Sm90ConvTable* sm90_conv_table() { return nullptr; }
const Sm90NormConvTable* sm90_norm_conv_table() { return nullptr; }
const VendorGemmTable* vendor_gemm_table() { return nullptr; }  // hipBLASLt and MIOpen are not in Debian
const VendorConvTable* vendor_conv_table() { return nullptr; }
const VendorAttentionTable* vendor_attention_table() { return nullptr; }
const VendorNetTable* vendor_net_table() { return nullptr; }
#else
const Sm90GemmTable* sm90_gemm_table();
const Sm90PointwiseTable* sm90_pointwise_table();
const Sm90ConvTable* sm90_conv_table();
const Sm90NormConvTable* sm90_norm_conv_table();
const VendorGemmTable* vendor_gemm_table();
const VendorConvTable* vendor_conv_table();
const VendorAttentionTable* vendor_attention_table();
const VendorNetTable* vendor_net_table();
#endif
const CreationTable* device_creation_table();
const IndexTable* device_index_table();
const ScatterTable* device_scatter_table();
const NonzeroTable* device_nonzero_table();
const BitsTable* device_bits_table();
const RecurrentTable* device_recurrent_table();
const LinesTable* device_lines_table();
const PlaneTable* device_planes_table();
const SampleTable* device_sample_table();
const DrawTable* device_draw_table();
const StepTable* device_step_table();

}  // namespace tessera::gpu_kernels

extern "C" __attribute__((visibility("default"))) const tessera::gpu::Plugin* tessera_plugin() {
  using namespace tessera;
  static const gpu_kernels::Tables tables{.elementwise = &gpu_kernels::elementwise_table,
                                          .reduce = &gpu_kernels::reduce_table,
                                          .pool = &gpu_kernels::pool_table,
                                          .dense_pool = &gpu_kernels::dense_pool_table,
                                          .gemm = &gpu_kernels::gemm_table,
                                          .sm90_gemm = gpu_kernels::sm90_gemm_table(),
                                          .sm90_pointwise = gpu_kernels::sm90_pointwise_table(),
                                          .conv = &gpu_kernels::conv_table,
                                          .depthwise = &gpu_kernels::depthwise_table,
                                          .sm90_conv = gpu_kernels::sm90_conv_table(),
                                          .sm90_norm_conv = gpu_kernels::sm90_norm_conv_table(),
                                          .vendor_gemm = gpu_kernels::vendor_gemm_table(),
                                          .vendor_conv = gpu_kernels::vendor_conv_table(),
                                          .attention = &gpu_kernels::attention_table,
                                          .vendor_attention = gpu_kernels::vendor_attention_table(),
                                          .norm = &gpu_kernels::norm_table,
                                          .softmax = &gpu_kernels::softmax_table,
                                          .index = gpu_kernels::device_index_table(),
                                          .scatter = gpu_kernels::device_scatter_table(),
                                          .nonzero = gpu_kernels::device_nonzero_table(),
                                          .bits = gpu_kernels::device_bits_table(),
                                          .recurrent = gpu_kernels::device_recurrent_table(),
                                          .vendor_net = gpu_kernels::vendor_net_table(),
                                          .lines = gpu_kernels::device_lines_table(),
                                          .planes = gpu_kernels::device_planes_table(),
                                          .sample = gpu_kernels::device_sample_table(),
                                          .creation = gpu_kernels::device_creation_table(),
                                          .draw = gpu_kernels::device_draw_table(),
                                          .step = gpu_kernels::device_step_table()};
  static const gpu::Plugin plugin{gpu::plugin_version, &gpu_kernels::vendor_runtime(), &tables};
  return &plugin;
}
