// Collectives as operators: shapes without memory, gradients of gradients, and captured functions that hold them.
#include "dist/collective_ops.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/schema.h"
#include "tessera/autograd.h"
#include "tessera/custom_op.h"
#include "tessera/nn.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

using Collective = std::function<Tensor(const Tensor&, const Group&)>;
const std::pair<const char*, Collective> kCollectives[] = {
    {"all_reduce", [](const Tensor& x, const Group& g) { return all_reduce(x, g); }},
    {"all_reduce mean", [](const Tensor& x, const Group& g) { return all_reduce(x, g, Mean); }},
    {"reduce", [](const Tensor& x, const Group& g) { return reduce(x, 1, g); }},
    {"reduce_scatter mean", [](const Tensor& x, const Group& g) { return reduce_scatter(x, g, Mean); }},
    {"all_gather", [](const Tensor& x, const Group& g) { return all_gather(x, g); }},
    {"gather", [](const Tensor& x, const Group& g) { return gather(x, 1, g); }},
    {"scatter", [](const Tensor& x, const Group& g) { return scatter(x, 1, g); }},
    {"broadcast", [](const Tensor& x, const Group& g) { return broadcast(x, 1, g); }},
    {"all_to_all", [](const Tensor& x, const Group& g) { return all_to_all(x, g); }}};

Tensor rows_of(int rank, const Shape& shape, DType dtype = Float64) {
  Generator g(static_cast<uint64_t>(40 + rank));
  return randn(shape, g, dtype);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), static_cast<size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(CollectiveOps, KnowShapesWithoutMemory) {
  run_ranks(2, [](const World& world) {
    const Tensor x = empty({6, 5}, BFloat16, meta(cpu()));
    for (const auto& [name, fn] : kCollectives) {
      SCOPED_TRACE(name);
      const Tensor there = fn(x, world), here = fn(rows_of(world.rank(), {6, 5}, BFloat16), world);
      EXPECT_TRUE(there.device().meta);
      EXPECT_EQ(there.shape(), here.shape());
      EXPECT_EQ(there.dtype(), BFloat16);
    }
    EXPECT_EQ(refusal([&] { all_reduce(empty({2}, Int64, meta(cpu())), world, Mean); }),
              "all_reduce: a mean of i64 is none of it");
    EXPECT_EQ(refusal([&] { reduce_scatter(empty({3}, Float32, meta(cpu())), world); }),
              "reduce_scatter: [3] has not a multiple of 2 rows");
  });
}

TEST(CollectiveOps, KnowShapesOfSymbols) {
  run_ranks(2, [](const World& world) {
    const Dim rows = Dim::symbol("rows");
    const Tensor x = empty(Shape{rows, Dim(5)}, Float32, meta(cpu()));
    EXPECT_EQ(all_gather(x, world).shape()[0], rows * 2);
    EXPECT_EQ(reduce_scatter(x, world).shape()[0], rows / 2);
    EXPECT_EQ(all_reduce(x, world).shape(), x.shape());
    EXPECT_EQ(gather(x, 0, world).shape()[0], world.rank() == 0 ? rows * 2 : Dim(0));
    // One graph serves all numbers of rows; what does not divide shows when it runs.
    const Program program = capture([&](const Tensors& in) { return Tensors{reduce_scatter(in[0], world)}; }, {x});
    for (const int64_t n : {4, 10}) {
      const Tensor mine = rows_of(world.rank(), {n, 5}, Float32);
      EXPECT_TRUE(same_bits(program({mine})[0], reduce_scatter(mine, world)));
    }
    EXPECT_EQ(refusal([&] {
                program({rows_of(0, {3, 5}, Float32)});
              }),
              "reduce_scatter: [3, 5] has not a multiple of 2 rows");
  });
}

// The loss of all ranks is not linear in what comes out, so that its gradient has one. Where `reduce` gives x itself,
// the loss does not see it.
Tensor cubic_loss(const std::string& name, const Collective& fn, const Tensor& x, const World& world) {
  const Tensor y = fn(x, world);
  Generator g(static_cast<uint64_t>(7 + world.rank()));
  const double seen = name == "reduce" && world.rank() != 1 ? 0 : 1;
  return sum(y * y * y * randn(y.shape(), g, Float64)) * seen;
}

// d(sum of v_r dL/dx_r)/dx: by finite differences of one element.
TEST(CollectiveOps, HaveGradientsOfGradients) {
  constexpr double kStep = 1e-5;
  for (const auto& [name, fn] : kCollectives)
    for (int at = 0; at < 2; ++at)
      run_ranks(2, [&, name = std::string(name), &fn = fn](const World& world) {
        Generator g(static_cast<uint64_t>(90 + world.rank()));
        const Tensor v = randn({4, 3}, g, Float64);
        const auto slope = [&](const Tensor& x) {
          return sum(grad({cubic_loss(name, fn, x, world)}, {x}, {}, false, true)[0] * v);
        };
        const auto at_moved = [&](double by) {
          Tensor x = rows_of(world.rank(), {4, 3});
          if (world.rank() == at) x.data<double>()[7] += by;
          return all_reduce(reshape(slope(x.set_requires_grad()).detach(), {1}), world).item();
        };
        const Tensor x = rows_of(world.rank(), {4, 3}).set_requires_grad();
        slope(x).backward();
        const double expected = (at_moved(kStep) - at_moved(-kStep)) / (2 * kStep);
        if (world.rank() != at) return;
        EXPECT_NEAR(x.grad().data<double>()[7], expected, 1e-6 * std::max(1.0, std::abs(expected)))
            << name << " on rank " << at;
      });
}

TEST(CollectiveOps, AreHeldByCapturedFunctions) {
  for (const auto& [name, fn] : kCollectives)
    run_ranks(2, [&, name = name, &fn = fn](const World& world) {
      SCOPED_TRACE(name);
      const auto step = [&](const Tensors& in) {
        const Tensor x = in[0].detach().set_requires_grad(), y = fn(x * 2.0, world);
        return Tensors{y.detach(), grad({sum(y * y)}, {x})[0]};
      };
      const Program program = capture(step, {rows_of(0, {4, 3})});
      size_t collectives = 0;
      for (const GraphNode& node : program.graph->nodes) collectives += node.attrs.describe().find("group=") == 0;
      EXPECT_EQ(collectives, 2u) << program.graph->text();  // forward and backward
      for (int i = 1; i < 3; ++i) {
        const Tensor x = rows_of(10 * i + world.rank(), {4, 3});
        const Tensors got = program({x}), expected = step({x});
        EXPECT_TRUE(same_bits(got[0], expected[0]));
        EXPECT_TRUE(same_bits(got[1], expected[1]));
      }
    });
}

TEST(CollectiveOps, AListIsOverwrittenWhereAGraphSaysSo) {
  run_ranks(2, [](const World& world) {
    const auto sums = [&](const Tensors& in) {
      Tensor a = in[0] * 1.0, b = in[1] * 1.0;
      all_reduce_({a, b}, world);
      return Tensors{a + 1.0, b};
    };
    const Program program = capture(sums, {rows_of(0, {4}), rows_of(1, {3, 2})});
    const Tensors given{rows_of(world.rank(), {4}), rows_of(5 + world.rank(), {3, 2})};
    const Tensors got = program(given), expected = sums(given);
    EXPECT_TRUE(same_bits(got[0], expected[0]));
    EXPECT_TRUE(same_bits(got[1], expected[1]));
    EXPECT_TRUE(same_bits(given[0], rows_of(world.rank(), {4})));
    Tensor written = rows_of(0, {4});
    const Tensor x = rows_of(1, {4}).set_requires_grad(), y = x * written;
    all_reduce_({written}, world);
    EXPECT_NE(refusal([&] { y.sum().backward(); }).find("was changed in place"), std::string::npos);
    EXPECT_EQ(refusal([&] {
                all_reduce_({rows_of(0, {4}), rows_of(0, {4}, Float32)}, world);
              }),
              "all_reduce_: a list of f64 and f32");
  });
}

struct CapturedModel : nn::Module {
  explicit CapturedModel(uint64_t seed) {
    Generator g(seed);
    first = add("first", nn::Linear(5, 8, true, g));
    second = add("second", nn::Linear(8, 3, true, g));
    unused = add("unused", nn::Linear(2, 2, true, g));
    add_buffer("count", zeros({2}));
  }
  Tensors forward(const Tensors& in) const override { return {second(relu(first(in[0])))}; }
  nn::Child<nn::Linear> first, second, unused;
};

// A step of DataParallel is captured with the sums of its gradients.
TEST(CollectiveOps, AStepOfDataParallelIsCaptured) {
  using Overlap = DataParallelOptions::Overlap;
  for (const Overlap overlap : {Overlap::Never, Overlap::Always})
    run_ranks(2, [&](const World& world) {
      CapturedModel model(3), eager(3);
      DataParallel parallel(model, world, {.overlap = overlap}), parallel_eager(eager, world, {.overlap = overlap});
      const auto step = [](CapturedModel& of) {
        return [&of](const Tensors& in) {
          for (const Tensor& p : of.parameters()) p.set_grad({});
          const Tensor loss = mse_loss(of(in[0]), in[1]);
          loss.backward();
          return Tensors{loss.detach()};
        };
      };
      const Tensors like{rows_of(0, {6, 5}, Float32), rows_of(1, {6, 3}, Float32)};
      const Program program = capture(step(model), like);
      for (int i = 1; i < 4; ++i) {
        const Tensors given{rows_of(10 * i + world.rank(), {6, 5}, Float32),
                            rows_of(50 * i + world.rank(), {6, 3}, Float32)};
        EXPECT_TRUE(same_bits(program(given)[0], step(eager)(given)[0]));
        const auto mine = model.parameters(), others = eager.parameters();
        for (size_t p = 0; p < mine.size(); ++p) {
          ASSERT_EQ(mine[p].grad().defined(), others[p].grad().defined()) << p;
          if (!mine[p].grad().defined()) continue;
          EXPECT_TRUE(same_bits(mine[p].grad(), others[p].grad())) << p;
        }
      }
    });
}

TEST(CollectiveOps, AreFoundByNameAndWantAGroup) {
  run_ranks(2, [](const World& world) {
    EXPECT_EQ(signature(find_op("all_reduce")),
              "all_reduce(x, group: object = none, op: text = \"sum\", root: int = 0) -> y");
    EXPECT_EQ(refusal([] { call_op("all_gather", {ones({2})}); }),
              "all_gather: it has no group, which text cannot hold");
    EXPECT_EQ(refusal([] { read_attrs(find_op("all_reduce"), "op=\"median\""); }),
              "all_reduce: 'median' is none of sum, mean, product, max, min");
    const Program program =
        capture([&](const Tensors& in) { return Tensors{all_reduce(in[0], world, Max)}; }, {ones({2})});
    const std::string text = program.graph->text();
    EXPECT_NE(text.find("all_reduce(%0) group=a group of 2 ranks, op=\"max\""), std::string::npos) << text;
    EXPECT_NE(refusal([&] { parse_graph(text); }).find("an object cannot be read from text"), std::string::npos);
  });
}

TEST(CollectiveOps, WhatIsNoOperatorIsNotCaptured) {
  run_ranks(2, [](const World& world) {
    const auto captured = [](const std::function<void(const Tensor&)>& fn) {
      return refusal([&] { capture([&](const Tensors& in) { return fn(in[0]), in; }, {ones({2})}); });
    };
    EXPECT_EQ(captured([&](const Tensor& x) { send(x, 1 - world.rank(), world); }),
              "send: a captured function cannot hold it");
    EXPECT_EQ(captured([&](const Tensor& x) { recv(x.meta(), 1 - world.rank(), world); }),
              "recv: a captured function cannot hold it");
    EXPECT_EQ(captured([&](const Tensor&) { barrier(world); }), "barrier: a captured function cannot hold it");
    EXPECT_EQ(captured([&](const Tensor& x) { start(world, [&] { return all_reduce(x, world); }).wait(); }),
              "start: a captured function cannot hold a collective on its way");
  });
}

}  // namespace
}  // namespace tessera::dist
