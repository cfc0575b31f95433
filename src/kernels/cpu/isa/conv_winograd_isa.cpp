#include "conv_typed.h"
#include "tile/kernels/winograd.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
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
                    static_cast<float*>(args.workspace),
                    [&](i64 image) { return store(result(image), apply(activation_of(args), acc + load(bias))); });
  };
  if (is_dense(y)) run([&](i64 image) { return strided_planes(y, image, 0, s.filters); });
  else run([&](i64 image) { return planes(y, image, 0, s.filters); });
}

void winograd_backward_images(const ConvArgs& args, Executor& executor) {
  winograd_forward(of_gradient(args), executor);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
