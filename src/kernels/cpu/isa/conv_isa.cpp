#include "conv_typed.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

namespace conv {
#if defined(__AVX512F__)  // few compute in f64: AVX2's is enough
template <>
void forward_as<double>(const ConvArgs& args, Executor& executor) {
  avx2::conv_table.forward(args, executor);
}
template <>
void backward_images_as<double>(const ConvArgs& args, Executor& executor) {
  avx2::conv_table.backward_images(args, executor);
}
template <>
void backward_filters_as<double>(const ConvArgs& args, Executor& executor) {
  avx2::conv_table.backward_filters(args, executor);
}
#else
TESSERA_CONV_OF(extern, double)
#endif
}  // namespace conv

namespace {

using namespace conv;

i64 bytes(const ConvArgs& args, i64 elements) { return elements * (args.type == Scalar::f64 ? 8 : 4); }

bool supports(const ConvArgs& args) { return args.type == Scalar::f32 || args.type == Scalar::f64; }

i64 images_workspace(const ConvArgs& args) {
  const ConvShape s = shape_of(args);
  return bytes(args, padded_size(s.images, s.channels, s.h, s.w));
}
i64 outputs_workspace(const ConvArgs& args) {
  const ConvShape s = shape_of(args);
  return bytes(args, padded_size(s.images, s.filters, backward_padding(s.h), backward_padding(s.w)));
}

void forward(const ConvArgs& args, Executor& executor) {
  args.type == Scalar::f64 ? forward_as<double>(args, executor) : forward_as<float>(args, executor);
}
void backward_images(const ConvArgs& args, Executor& executor) {
  args.type == Scalar::f64 ? backward_images_as<double>(args, executor) : backward_images_as<float>(args, executor);
}
void backward_filters(const ConvArgs& args, Executor& executor) {
  args.type == Scalar::f64 ? backward_filters_as<double>(args, executor) : backward_filters_as<float>(args, executor);
}

}  // namespace

const ConvTable conv_table{.supports = supports,
                           .forward_workspace = images_workspace,
                           .backward_images_workspace = outputs_workspace,
                           .backward_filters_workspace = images_workspace,
                           .forward = forward,
                           .backward_images = backward_images,
                           .backward_filters = backward_filters,
                           .winograd_workspace = winograd_workspace,
                           .winograd_forward = winograd_forward,
                           .winograd_backward_images = winograd_backward_images,
                           .winograd_last_workspace = winograd_last_workspace,
                           .winograd_last_forward = winograd_last_forward,
                           .winograd_last_backward_images = winograd_last_backward_images,
                           .direct_workspace = direct_workspace,
                           .direct_forward = direct_forward,
                           .direct_backward_images = direct_backward_images,
                           .direct_filters_workspace = direct_filters_workspace,
                           .direct_backward_filters = direct_backward_filters,
                           .scatter_workspace = scatter_workspace,
                           .scatter_forward = scatter_forward,
                           .scatter_backward_images = scatter_backward_images,
                           .depthwise_workspace = depthwise_workspace,
                           .depthwise_forward = depthwise_forward,
                           .depthwise_backward_images = depthwise_backward_images,
                           .depthwise_filters_workspace = depthwise_filters_workspace,
                           .depthwise_backward_filters = depthwise_backward_filters,
                           .spread_workspace = spread_workspace,
                           .spread_forward = spread_forward,
                           .spread_backward_images = spread_backward_images,
                           .spread_filters_workspace = spread_filters_workspace,
                           .spread_backward_filters = spread_backward_filters,
                           .planes_workspace = planes_workspace,
                           .planes_forward = planes_forward,
                           .planes_backward_images = planes_backward_images,
                           .planes_filters_workspace = planes_filters_workspace,
                           .planes_backward_filters = planes_backward_filters};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
