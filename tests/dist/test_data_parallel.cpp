#include <gtest/gtest.h>

#include <cstring>

#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/nn.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::dist {
namespace {

struct Model : nn::Module {
  explicit Model(uint64_t seed) {
    Generator g(seed);
    first = add("first", nn::Linear(5, 8, true, g));
    second = add("second", nn::Linear(8, 3, true, g));
    spare = add("spare", nn::Linear(5, 3, true, g));
    unused = add("unused", nn::Linear(2, 2, true, g));
  }
  Tensors forward(const Tensors& in) const override { return {second(relu(first(in[0])))}; }
  nn::Child<nn::Linear> first, second, spare, unused;
};

Tensor batch(int64_t rows, int width, uint64_t seed) {
  Generator g(seed);
  return randn({rows, width}, g);
}

double distance(const Tensor& a, const Tensor& b) { return amax(abs(a - b)).item(); }

// Behind backward; in small buckets while it goes on; and these in halves.
const DataParallelOptions kWays[] = {
    {},
    {.bucket_bytes = 100, .first_bucket_bytes = 10, .overlap = DataParallelOptions::Overlap::Always},
    {.overlap = DataParallelOptions::Overlap::Always, .gradient_dtype = BFloat16}};

// Nothing moves where a rank is alone, unless it was asked for: then all goes through the engine.
TEST(DataParallel, OfOneRankIsNothingOrGoesThroughTheEngine) {
  const Tensor x = batch(6, 5, 1), y = batch(6, 3, 2);
  Model alone(3);
  mse_loss(alone(x), y).backward();
  for (const bool even_alone : {false, true})
    for (const DataParallelOptions& way : kWays) {
      if (way.gradient_dtype) continue;
      run_ranks(1,
                [&](const World& world) {
                  EXPECT_EQ(world.engine(), even_alone ? "neighbours" : "none");
                  EXPECT_EQ(explain_engines(world, cpu()).find("-> neighbours") != std::string::npos, even_alone);
                  EXPECT_EQ(all_gather(x, world).shape(), x.shape());
                  EXPECT_EQ(distance(all_reduce(x, world, Mean), x), 0);
                  barrier(world);
                  Model model(3);
                  DataParallel parallel(model, world, way);
                  for (int i = 0; i < 2; ++i) {  // the second one in buckets
                    for (const Tensor& p : model.parameters()) Tensor(p).set_grad({});
                    const uint32_t before = world.state().control->place(0).calls;
                    mse_loss(model(x), y).backward();
                    EXPECT_EQ(world.state().control->place(0).calls > before, even_alone);
                    for (size_t j = 0; j < model.parameters().size(); ++j) {
                      const Tensor got = model.parameters()[j].grad(), want = alone.parameters()[j].grad();
                      ASSERT_EQ(got.defined(), want.defined());
                      if (got.defined()) {
                        EXPECT_EQ(distance(got, want), 0);
                      }
                    }
                  }
                  const Group part = world.split(7);
                  EXPECT_EQ(part.size(), 1);
                  EXPECT_EQ(distance(all_reduce(x, part), x), 0);
                },
                {.even_alone = even_alone});
    }
}

TEST(DataParallel, TrainsAsOneRankDoes) {
  const Tensor x = batch(12, 5, 1), y = batch(12, 3, 2);
  Model alone(3);
  optim::SGD optimizer(alone.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int i = 0; i < 20; ++i) {
    optimizer.zero_grad();
    mse_loss(alone(x), y).backward();
    optimizer.step();
  }
  for (const int size : {2, 3, 4})
    for (const DataParallelOptions& way : kWays) {
      run_ranks(size, [&](const World& world) {
        Model model(static_cast<uint64_t>(3 + world.rank()));  // DataParallel makes them alike
        DataParallel parallel(model, world, way);
        optim::SGD own(model.parameters(), {.lr = 0.1, .momentum = 0.9});
        const int64_t rows = 12 / size, at = world.rank() * rows;
        for (int i = 0; i < 20; ++i) {
          own.zero_grad();
          mse_loss(model(x.slice(0, at, at + rows)), y.slice(0, at, at + rows)).backward();
          own.step();
        }
        for (const auto& [name, p] : model.named_parameters())
          EXPECT_LT(distance(p, alone.state_dict().at(name)), way.gradient_dtype ? 1e-2 : 1e-5) << name;
      });
    }
}

// Another rank's in each step, of which the first shows an order of buckets that later ones do not have.
TEST(DataParallel, ParametersThatSomeRanksDoNotUse) {
  for (const DataParallelOptions& way : kWays)
    run_ranks(3, [&](const World& world) {
      Model model(3);
      DataParallel parallel(model, world, way);
      for (int step = 0; step < 4; ++step) {
        model.zero_grad();
        const Tensor x = batch(4, 5, static_cast<uint64_t>(world.rank()));
        Tensor y = model(x);
        if (step < 3 && world.rank() == step) y = y + model.spare(x);
        sum(y).backward();
        EXPECT_FALSE(model.unused->weight.grad().defined());
        ASSERT_EQ(model.spare->bias.grad().defined(), step < 3);
        const double limit = way.gradient_dtype ? 1e-2 : 1e-6;
        if (step < 3) {
          EXPECT_LT(distance(model.spare->bias.grad(), ones({3}) * (4.0 / 3)), limit);
        }
        EXPECT_LT(distance(model.second->bias.grad(), ones({3}) * 4.0), limit);
      }
    });
}

TEST(DataParallel, AccumulatesWithoutTheOthers) {
  run_ranks(2, [](const World& world) {
    Model model(3);
    DataParallel parallel(model, world);
    const Tensor x = batch(4, 5, static_cast<uint64_t>(world.rank()));
    {
      const auto local = parallel.no_sync();
      sum(model(x)).backward();
      EXPECT_EQ(model.second->bias.grad().to_vector<double>(), std::vector<double>(3, 4));
    }
    if (world.rank() == 0) sum(model(x)).backward();
    else (sum(model(x)) * 3.0).backward();
    EXPECT_EQ(model.second->bias.grad().to_vector<double>(), std::vector<double>(3, 4 + 8));
  });
}

// Neither gathered into buckets nor copied back: what backward made is what the optimizer reads.
TEST(DataParallel, SumsGradientsWhereTheyLie) {
  for (const char* engine : {"neighbours", "tcp"})
    for (const DataParallelOptions& way : kWays) {
      if (way.gradient_dtype) continue;
      run_ranks(2,
                [&](const World& world) {
                  Model model(3);
                  const Tensors parameters{model.first->weight, model.second->weight, model.second->bias};
                  std::vector<const void*> made(3), before(3);
                  for (size_t i = 0; i < 3; ++i)
                    on_gradient_ready(parameters[i], [&, i](const Tensor& p) { made[i] = p.grad().data_ptr(); });
                  DataParallel parallel(model, world, way);
                  for (int step = 0; step < 4; ++step) {  // the last ones add to the gradients that are there
                    if (step < 2) model.zero_grad();
                    sum(model(batch(4, 5, static_cast<uint64_t>(world.rank())))).backward();
                    for (size_t i = 0; i < 3; ++i) {
                      EXPECT_EQ(parameters[i].grad().data_ptr(), made[i]) << engine << " in step " << step;
                      EXPECT_TRUE(step < 3 || made[i] == before[i]);
                      before[i] = made[i];
                    }
                  }
                },
                {.engine = engine});
    }
}

TEST(DataParallel, AFailedBackwardIsForgotten) {
  for (const DataParallelOptions& way : kWays)
    run_ranks(2, [&](const World& world) {
      Model model(3);
      DataParallel parallel(model, world, way);
      sum(model(batch(2, 5, 1))).backward();
      model.zero_grad();
      const Tensor x = batch(4, 5, 1).set_requires_grad();
      x.register_hook([](const Tensor&) -> Tensor { throw Error("not this time"); });
      EXPECT_THROW(sum(model(x)).backward(), Error);
      model.zero_grad();
      sum(model(batch(2, 5, 1))).backward();
      EXPECT_EQ(model.second->bias.grad().to_vector<double>(), std::vector<double>(3, 2));
    });
}

TEST(DataParallel, EndsWithItsObject) {
  run_ranks(2, [](const World& world) {
    Model model(3);
    { DataParallel parallel(model, world); }
    (sum(model(batch(4, 5, 1))) * static_cast<double>(world.rank())).backward();  // nobody waits
    EXPECT_EQ(model.second->bias.grad().to_vector<double>(), std::vector<double>(3, 4.0 * world.rank()));
  });
}

TEST(DataParallel, RefusesModelsThatDiffer) {
  const auto error = [](const std::function<void(const World&)>& body) -> std::string {
    try {
      run_ranks(3, body);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error([](const World& w) { DataParallel(nn::Linear(w.rank() == 1 ? 4 : 3, 2), w); }),
            "DataParallel: parameters differ: rank 1 has \"weight f32[2, 4]\", and rank 0 another in its place");
  EXPECT_EQ(error([](const World& w) { DataParallel(nn::Linear(3, 2, w.rank() != 2), w); }),
            "DataParallel: rank 2 has 1 parameters, rank 0 has 2");
}

struct Normed : nn::Module {
  explicit Normed(uint64_t seed) {
    Generator g(seed);
    conv = add("conv", nn::Conv2d(2, 4, 3, {.padding = {1, 1}}, true, g));
    norm = add("norm", nn::BatchNorm2d(4));
  }
  Tensors forward(const Tensors& in) const override { return {norm(conv(in[0]), Activation::Relu)}; }
  nn::Child<nn::Conv2d> conv;
  nn::Child<nn::BatchNorm2d> norm;
};

TEST(SyncBatchNorm, IsBatchNormOfAllImages) {
  Generator g(1);
  const Tensor x = randn({6, 2, 5, 4}, g) * 3.0 + 1.0, y = randn({6, 4, 5, 4}, g);
  Normed alone(3);
  mse_loss(alone(x), y).backward();
  alone.eval();
  const Tensor evaluated = alone(x).detach();
  for (const int size : {2, 3})
    run_ranks(size, [&](const World& world) {
      Normed model(3);
      EXPECT_EQ(sync_batch_norms(model, world), 1);
      DataParallel parallel(model, world);
      const int64_t rows = 6 / size, at = world.rank() * rows;
      mse_loss(model(x.slice(0, at, at + rows)), y.slice(0, at, at + rows)).backward();
      const auto expected = alone.named_parameters(), got = model.named_parameters();
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].first, expected[i].first);
        EXPECT_LT(distance(got[i].second.grad(), expected[i].second.grad()), 2e-5) << got[i].first;
      }
      for (const auto& [name, t] : model.named_buffers())
        EXPECT_LT(distance(t, alone.state_dict().at(name)), 1e-5) << name;
      model.eval();
      EXPECT_LT(distance(model(x), evaluated), 1e-5);
    });
}

// The sum of so many gradients is that of `combine` over as many ranks.
TEST(GradientSum, IsTheTreeOfRanks) {
  for (const int count : {1, 2, 3, 4, 6, 7, 13}) {
    const Tensor p = zeros({1000}).set_requires_grad();
    GradientSum sums({p});
    for (int i = 0; i < count; ++i) {
      p.set_grad(batch(1, 1000, static_cast<uint64_t>(i)).reshape({1000}).clone());
      sums.add();
      EXPECT_FALSE(p.grad().defined());
    }
    sums.finish();
    const std::vector<float> mine = p.grad().to_vector<float>();
    run_ranks(count, [&](const World& world) {
      const Tensor all = all_reduce(batch(1, 1000, static_cast<uint64_t>(world.rank())).reshape({1000}), world);
      EXPECT_EQ(all.to_vector<float>(), mine);
    });
  }
}

}  // namespace
}  // namespace tessera::dist
