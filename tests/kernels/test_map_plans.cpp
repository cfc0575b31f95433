// What elementwise operators ask of a card's kernel, on a made-up one that notes it.
#include <gtest/gtest.h>

#include "core/fake_runtime.h"
#include "core/gpu/backend.h"
#include "kernels/args/gpu/tables.h"
#include "tessera/ops.h"

namespace tessera::gpu_kernels {
namespace {

MapArgs last_map{};

constexpr ElementwiseTable kNoting = {
    .supports = [](MapOp, Scalar) { return true; },
    .map = [](const MapArgs& args, Executor&) { last_map = args; },
    .copy = [](const CopyArgs&, Executor&) {},
    .triangle = nullptr,
};

/// Dims that no gap parts from the next one, in any of the tensors, are one.
int joined_dims(const MapArgs& args) {
  int count = 0;
  long long next[4] = {};  // the stride that the dim before would have
  for (int d = args.rank - 1; d >= 0; --d) {
    if (args.lengths[d] == 1) continue;
    bool joins = count > 0;
    for (int i = 0; i <= args.inputs; ++i) joins = joins && args.tensor[i].strides[d] == next[i];
    count += !joins;
    for (int i = 0; i <= args.inputs; ++i) next[i] = args.tensor[i].strides[d] * args.lengths[d];
  }
  return count;
}

class MapPlans : public testing::Test {
 protected:
  MapPlans() {
    static const Tables tables = {.elementwise = &kNoting};
    static const gpu::Plugin plugin{0, new FakeRuntime, &tables};  // what a test allocates may outlive it
    gpu::install(DeviceType::HIP, &plugin);
  }
  ~MapPlans() override { gpu::install(DeviceType::HIP, nullptr); }
  static Tensor image(MemoryFormat format) { return empty({2, 3, 4, 5}, Float32, hip(0)).to(format); }
};

TEST_F(MapPlans, ImagesThatLieAlikeAreOneRow) {
  for (const MemoryFormat format : {Contiguous, ChannelsLast}) {
    const Tensor x = image(format), y = image(format);
    last_map = {};
    EXPECT_EQ((x + y).strides(), x.strides());
    EXPECT_EQ(last_map.inputs, 2);
    EXPECT_EQ(joined_dims(last_map), 1);
    relu(x);
    EXPECT_EQ(joined_dims(last_map), 1);
  }
}

/// The channels of the bias are the innermost dim of the result; the rest is another.
TEST_F(MapPlans, ABiasOfChannelsLastHasTwoDims) {
  const Tensor bias = empty({3, 1, 1}, Float32, hip(0));
  (void)(image(ChannelsLast) + bias);
  EXPECT_EQ(joined_dims(last_map), 2);
  EXPECT_EQ(last_map.lengths[last_map.rank - 1], 3);
  EXPECT_EQ(last_map.tensor[2].strides[last_map.rank - 1], 1);
}

TEST_F(MapPlans, WhatLiesOtherwiseIsNotJoined) {
  (void)(image(ChannelsLast) + image(Contiguous));
  EXPECT_GT(joined_dims(last_map), 1);
}

}  // namespace
}  // namespace tessera::gpu_kernels
