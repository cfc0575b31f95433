#include "conv_typed.h"
#include "tile/kernels/winograd.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

/// The gradient of the images as a convolution: of the gradient of the output, by the filters turned round.
ConvArgs of_gradient(const ConvArgs& args) {
  ConvArgs r = args;
  const ConvShape s = shape_of(args);
  r.channels = args.filters, r.filters = args.channels;
  r.size[0] = s.h.output(), r.size[1] = s.w.output();
  for (int d = 0; d < 2; ++d) r.padding[d] = 2 - args.padding[d];
  r.x = args.y, r.y = args.x;
  const long long* from = args.w.strides;
  r.w = {static_cast<float*>(args.w.data) + 2 * from[2] + 2 * from[3], {from[1], from[0], -from[2], -from[3]}};
  r.bias = nullptr;
  r.activation = Activation::none;
  return r;
}

}  // namespace

i64 winograd_workspace(const ConvArgs& args) {
  return winograd_size<float>(shape_of(args)) * static_cast<i64>(sizeof(float));
}

void winograd_forward(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  const float zero = 0;
  const auto bias = strided(args.bias ? static_cast<const float*>(args.bias) : &zero,
                            tuple(s.filters, s.h.output() * s.w.output()), tuple(i64{args.bias ? 1 : 0}, Int<0>{}));
  const auto run = [&](auto result) {
    conv2d_winograd(ExecutorRef(executor), s, images<const float>(args), filters<const float>(args),
                    static_cast<float*>(args.workspace), [&](i64 image) {
                      return store(result(image), apply(AnyActivation{args.activation}, acc + load(bias)));
                    });
  };
  if (is_dense(y)) run([&](i64 image) { return strided_planes(y, image, 0, s.filters); });
  else run([&](i64 image) { return planes(y, image, 0, s.filters); });
}

void winograd_backward_images(const ConvArgs& args, Executor& executor) {
  winograd_forward(of_gradient(args), executor);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
