// An application of its own: a small network learns whether a point lies inside a ring.
#include <tessera/tessera.h>

#include <cstdio>

using namespace tessera;

struct Net : nn::Module {
  nn::Child<nn::Linear> hidden = add("hidden", nn::Linear(2, 32)), out = add("out", nn::Linear(32, 2));
  Tensors forward(const Tensors& in) const override { return {out(tanh(hidden(one_input(in))))}; }
};

int main() {
  manual_seed(1);
  Tensor points = randn({512, 2});
  Tensor radius = norm(points, {1});
  Tensor inside = logical_and(gt(radius, full({}, 0.6)), lt(radius, full({}, 1.4))).to(Int64);

  Net net;
  optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
  double first = 0, loss = 0;
  for (int step = 0; step < 300; ++step) {
    Tensor batch_loss = cross_entropy(net(points), inside);
    net.zero_grad();
    batch_loss.backward();
    optimizer.step();
    loss = batch_loss.item();
    if (step == 0) first = loss;
  }
  std::printf("tessera %s: loss %.3f -> %.3f\n", TESSERA_VERSION, first, loss);
  return loss < 0.5 * first ? 0 : 1;
}
