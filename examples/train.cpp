// A model and a training loop: learns whether a point lies inside a ring. train [cpu|cuda:0|hip:0]: the device.
#include <tessera/tessera.h>

#include <cstdio>

using namespace tessera;

struct Mlp : nn::Module {
  nn::Child<nn::Linear> hidden = add("hidden", nn::Linear(2, 64)), out = add("out", nn::Linear(64, 2));
  Tensors forward(const Tensors& in) const override { return {out(hidden(one_input(in), Activation::GeluTanh))}; }
};

int main(int argc, char** argv) try {
  DeviceGuard device(parse_device(argc > 1 ? argv[1] : "cpu"));  // or "cuda:0", or "hip:0"
  manual_seed(1);
  Mlp model;
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  double loss_now = 0;
  for (int step = 1; step <= 800; ++step) {
    Tensor x = randn({256, 2}), radius = norm(x, {1});
    Tensor inside = logical_and(gt(radius, full({}, 0.7)), lt(radius, full({}, 1.5))).to(Int64);
    Tensor loss = cross_entropy(model(x), inside);
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    loss_now = loss.item();
    if (step % 200 == 0) std::printf("step %d  loss %.4f\n", step, loss_now);
  }
  return loss_now < 0.25 ? 0 : 1;
} catch (const Error& error) {
  return std::fprintf(stderr, "error: %s\n", error.what()), 2;
}
