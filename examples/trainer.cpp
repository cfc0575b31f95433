// The training loop as a library: learns whether a point lies inside a ring, on any number of ranks, and goes on where
// it was stopped. trainer [CHECKPOINT], or: tessera launch --procs 2 -- trainer CHECKPOINT
#include <tessera/dist.h>
#include <tessera/ops.h>
#include <tessera/trainer.h>

#include <cstdio>

using namespace tessera;

int main(int argc, char** argv) try {
  const dist::World world;
  manual_seed(1);
  const Tensor x = randn({8192, 2}), radius = norm(x, {1});
  const Tensor inside = logical_and(gt(radius, full({}, 0.7)), lt(radius, full({}, 1.5))).to(Int64);
  nn::Sequential model(
      nn::Linear(2, 64), [](const Tensor& h) { return relu(h); }, nn::Linear(64, 2));
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const auto loss = [&](const Tensors& batch) { return cross_entropy(model(batch[0]), batch[1]); };
  train::Trainer trainer(model, optimizer,
                         {.batches = shuffled_rows({x, inside}, 64, 1), .loss = loss, .epoch = 8192 / 64},
                         {.until = train::epochs(20),
                          .accumulate = 4,
                          .clip = 1,
                          .save = train::epochs(5),
                          .checkpoint = argc > 1 ? argv[1] : ""},
                         &world);
  const train::Result result = trainer.run({.on_step = [&](const train::StepInfo& s) {
    if (world.rank() == 0 && s.step % 160 == 0) std::printf("step %d  loss %.9f\n", static_cast<int>(s.step), s.loss);
  }});
  return result.stopped ? 130 : result.steps.back().loss < 0.25 ? 0 : 1;
} catch (const dist::Aborted&) {
  return 1;
} catch (const Error& error) {
  return std::fprintf(stderr, "error: %s\n", error.what()), 2;
}
