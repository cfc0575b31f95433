// Which copy of a parameter is one, on a made-up device.
#include <algorithm>

#include "core/fake_runtime.h"
#include "core/gpu/backend.h"
#include "ops/capture.h"
#include "ops/lower_copy.h"
#include "ops/ops_check.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

class LowerCopies : public testing::Test {
 protected:
  LowerCopies() { gpu::install(DeviceType::HIP, plugin_of(*new FakeRuntime)); }
  ~LowerCopies() override { gpu::install(DeviceType::HIP, nullptr); }
  static Tensor parameter() { return empty({8}, Float32, hip(0)).set_requires_grad(); }
  /// A new copy that its owner keeps.
  static Tensor keep(LowerCopy& owner, const Tensor& p) {
    const Tensor copy = empty({8}, BFloat16, hip(0));
    owner.keep(p, copy);
    return copy;
  }
  static void write(const Tensor& t) { t.storage()->version.fetch_add(1); }
};

TEST_F(LowerCopies, OnlyTheOneThatWasWrittenStays) {
  const Tensor p = parameter();
  const auto owner = share_lower_copy(p);
  EXPECT_FALSE(owner->fresh(p).defined());
  keep(*owner, p);
  EXPECT_TRUE(owner->fresh(p).defined());
  for (int i = 0; i < 3; ++i) {  // steps that name both
    const Tensor copy = owner->writable(p);
    write(p);
    write(copy);
  }
  EXPECT_TRUE(owner->fresh(p).defined());
  const Tensor written = owner->writable(p);
  keep(*owner, p);  // replaced before the step has written the one that it names
  write(p);
  write(written);
  EXPECT_FALSE(owner->fresh(p).defined());
  EXPECT_FALSE(owner->writable(p).defined());
}

TEST_F(LowerCopies, WhatOthersHoldIsNotWritten) {
  const Tensor p = parameter();
  const auto owner = share_lower_copy(p);
  keep(*owner, p);
  Tensor saved = owner->fresh(p);
  EXPECT_FALSE(owner->writable(p).defined());
  saved = {};
  EXPECT_TRUE(owner->writable(p).defined());
}

TEST_F(LowerCopies, GoWithTheMemoryOfTheirParameter) {
  nn::Linear layer(4, 2, false);
  layer.to(hip(0));
  const auto owner = share_lower_copy(layer.weight);
  keep(*owner, layer.weight);
  EXPECT_GT(memory_stats(hip(0)).allocated, 0);
  layer.to(cpu());
  EXPECT_EQ(memory_stats(hip(0)).allocated, 0);
}

TEST_F(LowerCopies, GoWithTheLastOfTheirOwners) {
  const Tensor p = parameter();
  EXPECT_EQ(find_lower_copy(p), nullptr);
  auto first = share_lower_copy(p), second = share_lower_copy(p);
  EXPECT_EQ(first, second);
  keep(*first, p);
  first = nullptr;
  EXPECT_EQ(find_lower_copy(p), second);
  second = nullptr;
  EXPECT_EQ(find_lower_copy(p), nullptr);
  EXPECT_EQ(memory_stats(hip(0)).allocated, 32);  // the parameter alone
}

TEST_F(LowerCopies, AreNotKeptOfACapturedFunctionOrGraph) {
  const Tensor p = parameter();
  const auto owner = share_lower_copy(p);
  DeviceGraph graph;
  graph.capture(hip(0), [&] {
    keep(*owner, p);
    EXPECT_FALSE(owner->fresh(p).defined());
  });
  EXPECT_FALSE(owner->fresh(p).defined());
  keep(*owner, p);
  graph.capture(hip(0), [&] { EXPECT_FALSE(owner->writable(p).defined()); });
  EXPECT_TRUE(owner->writable(p).defined());
  graph.replay();  // may have written the parameter
  EXPECT_FALSE(owner->writable(p).defined());
}

// Which a captured step thus records, and overwrites in each run.
TEST_F(LowerCopies, AreNamedByTheSteps) {
  const Tensor with = parameter(), without = parameter();
  const auto owner = share_lower_copy(with);
  const void* const copy = keep(*owner, with).data_ptr();
  for (const Tensor& p : {with, without}) p.set_grad(empty({8}, Float32, hip(0)));
  const auto steps = [&](const Tensors& parameters) {
    return capture(
        [&](const Tensors&) {
          optim::SGD(std::vector<Tensor>(parameters.begin(), parameters.end())).step();
          return Tensors{};
        },
        {});
  };
  const Program program = steps({with, without});
  const GraphNode& step = program.graph->nodes.back();
  EXPECT_EQ(step.op->name, "sgd_");
  EXPECT_TRUE(step.attrs.as<OptimAttrs>().copies);
  ASSERT_EQ(step.inputs.size(), 2u * 3 + 4);
  EXPECT_GE(step.inputs[2], 0);
  EXPECT_EQ(step.inputs[3], -1);
  EXPECT_EQ(step.outputs[2], step.inputs[2]);  // in place
  EXPECT_TRUE(std::any_of(program.closed_over.begin(), program.closed_over.end(),
                          [&](const Tensor& t) { return t.data_ptr() == copy; }));
  EXPECT_EQ(parse_graph(program.graph->text())->text(), program.graph->text());
  const Program plain = steps({without});
  EXPECT_FALSE(plain.graph->nodes.back().attrs.as<OptimAttrs>().copies);
  EXPECT_EQ(plain.graph->nodes.back().inputs.size(), 2u + 4);
}

}  // namespace
}  // namespace tessera
