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
  const auto run = [&](const auto& result) {
    conv2d_winograd_last(ExecutorRef(executor), s, images<const float>(args), filters<const float>(args),
                         static_cast<float*>(args.workspace), [&](i64 image, i64 row) {
                           float* const to = y.data + image * y.stride(0) + row * y.stride(1);
                           return store(strided(to, tuple(y.length(2), s.filters), tuple(y.stride(2), Int<1>{})),
                                        result);
                         });
  };
  if (args.bias == nullptr && args.activation == Activation::none) return run(acc);
  const float zero = 0;
  const float* const bias = args.bias ? static_cast<const float*>(args.bias) : &zero;
  const auto row = strided(bias, tuple(y.length(2), s.filters), tuple(i64{0}, i64{args.bias ? 1 : 0}));
  run(apply(AnyActivation{args.activation}, acc + load(row)));
}

void winograd_last_backward_images(const ConvArgs& args, Executor& executor) {
  winograd_last_forward(of_gradient(args), executor);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
