// An operator of one's own: Swish with a slope, x sigmoid(slope x), as a kernel with its gradient. It is called by
// name, differentiated and checked against finite differences.
#include <cmath>
#include <cstdio>

#include "tessera/tessera.h"

using namespace tessera;

int main() {
  const auto swish = [](const KernelCall& call) {  // outputs are dense, inputs may be strided
    const double slope = call.attributes.get<double>("slope");
    const std::vector<double> x = call.in[0].to_vector<double>();
    double* y = call.out[0].data<double>();
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (1 + std::exp(-slope * x[i]));
  };
  register_op({.name = "my.swish",
               .inputs = "x",
               .outputs = "y",
               .attributes = {{"slope", 1.0}},
               .infer =
                   [](std::span<const TensorMeta> in, const Attributes&) {
                     if (in[0].dtype != Float64) throw Error("my.swish: x is not f64 but " + describe(in[0]));
                     return std::vector{in[0]};
                   },
               .vjp =
                   [](const RecordedCall& call, const Tensors& grads) {  // in operators, so that it has gradients, too
                     const double slope = call.attributes.get<double>("slope");
                     const Tensor &x = call.inputs[0], &y = call.outputs[0], s = sigmoid(x * slope);
                     return Tensors{grads[0] * (s + y * slope * (1.0 - s))};
                   },
               .kernels = {{.name = "plain", .run = swish}}});

  Generator generator(1);
  const Tensor x = randn({5, 7}, generator, Float64);
  const auto loss = [](const Tensor& t) { return call_op("my.swish", {t}, {{"slope", 1.5}})[0].sum(); };
  Tensor leaf = x.clone().set_requires_grad();
  loss(leaf).backward();
  const double step = 1e-6, got = leaf.grad().sum().item();
  const double want = (loss(x + step).item() - loss(x - step).item()) / (2 * step);
  std::printf("gradient %.9f, by differences %.9f\n", got, want);
  return std::fabs(got - want) < 1e-6 * std::fabs(want) ? 0 : 1;
}
