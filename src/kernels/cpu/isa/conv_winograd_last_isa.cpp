// Winograd's algorithm over channels that lie last.
#include "conv_typed.h"
#include "tile/kernels/winograd_last.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {

i64 winograd_last_workspace(const ConvArgs& args) {
  return max(winograd_last_size<float>(shape_of(args)), winograd_last_size<float>(shape_of(of_gradient(args)))) *
         static_cast<i64>(sizeof(float));
}

void winograd_last_forward(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  const auto run = [&](const auto& finish) {
    conv2d_winograd_last(ExecutorRef(executor), s, images<const float>(args), filters<const float>(args),
                         static_cast<float*>(args.workspace), [&](i64 image, i64 row) {
                           float* const to = y.data + image * y.stride(0) + row * y.stride(1);
                           return store(strided(to, tuple(y.length(2), s.filters), tuple(y.stride(2), Int<1>{})),
                                        finish(image, row));
                         });
  };
  const bool plain = args.bias == nullptr && args.activation == Activation::none && !args.residual.data;
  if (plain) return run([](i64, i64) { return acc; });
  const float zero = 0;
  const float* const bias = args.bias ? static_cast<const float*>(args.bias) : &zero;
  const auto of_bias = strided(bias, tuple(y.length(2), s.filters), tuple(i64{0}, i64{args.bias ? 1 : 0}));
  const ConvActivation any = activation_of(args);
  if (!args.residual.data) return run([&](i64, i64) { return apply(any, acc + load(of_bias)); });
  run([&](i64 image, i64 row) {
    return apply(any, acc + load(of_bias) + load(residual_row(args, image, row, 0, y.length(2), s.filters)));
  });
}

void winograd_last_backward_images(const ConvArgs& args, Executor& executor) {
  winograd_last_forward(of_gradient(args), executor);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
