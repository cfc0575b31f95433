// The same host side on a real GPU, where there is one: order, graphs, memory, faults, and large tensors.
#include <cmath>

#include "core/gpu_check.h"
#include "gpu_memory.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

class GpuDevice : public GpuTest {
 protected:
  Generator generator{11};
};

TEST_F(GpuDevice, CopiesKeepEveryElement) {
  Tensor x = randn({513, 1027}, generator);
  EXPECT_EQ(x.to(card()).to(cpu()).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(x.to(card()).transpose(0, 1).to(cpu()).to_vector<float>(), x.transpose(0, 1).to_vector<float>());
  Tensor pinned = empty_pinned({513, 1027}, Float32, card());
  pinned.copy_(x);
  EXPECT_EQ(pinned.to(card()).to(cpu()).to_vector<float>(), x.to_vector<float>());
  Tensor there = zeros({513, 1027}, Float32, card());
  there.copy_(x);
  EXPECT_EQ(there.select(0, 512).select(0, 1026).item(), x.select(0, 512).select(0, 1026).item());
}

TEST_F(GpuDevice, StreamsWaitForEvents) {
  Stream side(card());
  Tensor x = full({1 << 24}, 1, Float32, card());
  for (int i = 0; i < 20; ++i) x = x + 1;
  Event ready(card());
  ready.record(current_stream(card()));
  Tensor y;
  {
    StreamGuard guard(side);
    ready.wait(side);
    y = x * 2;
    record_stream(x, side);
  }
  side.synchronize();
  EXPECT_TRUE(side.is_idle());
  StreamGuard guard(side);
  EXPECT_EQ(y.slice(0, (1 << 24) - 3, 1 << 24).to(cpu()).to_vector<float>(), (std::vector<float>{42, 42, 42}));
}

TEST_F(GpuDevice, GraphsReplayOnNewData) {
  Tensor x = full({1000}, 1, Float32, card()), y;
  DeviceGraph graph;
  graph.capture(card(), [&] { y = exp(x * 2) + 1; });
  for (double v : {0.5, -1.0, 2.0}) {
    x.fill_(v);
    graph.replay();
    EXPECT_NEAR(y.select(0, 999).item(), std::exp(2 * v) + 1, 1e-4 * std::exp(2 * v));
  }
  EXPECT_THROW(DeviceGraph().capture(card(), [&] { y.item(); }), Error);
  EXPECT_EQ((x + 1).select(0, 0).item(), 3);
}

TEST_F(GpuDevice, ACaptureMayUseOtherStreams) {
  const Stream own = current_stream(card()), side(card());
  Tensor x = full({1 << 16}, 1, Float32, card()), y;
  DeviceGraph graph;
  graph.capture(card(), [&] {
    Event forked(card()), joined(card());
    const Tensor twice = x * 2;
    forked.record(own);
    forked.wait(side);
    {
      const StreamGuard guard(side);
      y = (twice + 1) * 3;
      record_stream(twice, side);
      joined.record(side);
    }
    joined.wait(own);
    record_stream(y, own);
    y = y + 1;  // what it was is released on a captured stream
    y = y * 2;
  });
  for (double v : {0.5, -1.0, 2.0}) {
    x.fill_(v);
    graph.replay();
    EXPECT_EQ(y.select(0, 4099).item(), 2 * ((2 * v + 1) * 3 + 1));
    EXPECT_EQ((x + 1).select(0, 7).item(), v + 1);
  }
}

TEST_F(GpuDevice, ReplaysDrawWhatEagerCallsDrawBehindTemporaries) {
  const Tensor x = full({5, 7}, 1, Float32, card());
  Generator eager(3), replayed(3);
  const auto draw = [&](Generator& generator) { return dropout((x * 2 + 1) * 3, 0.5, true, generator); };
  DeviceGraph graph;
  Tensor y;
  graph.capture(card(), [&] { y = draw(replayed); });
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_EQ(y.to(cpu()).to_vector<float>(), draw(eager).to(cpu()).to_vector<float>());
  }
}

TEST_F(GpuDevice, CopiesToPinnedMemoryEndBehindTheirEvent) {
  const int64_t n = 1 << 24;
  Tensor pinned = empty_pinned({n}, Float32, card());
  pinned.fill_(-1);
  Tensor x = full({n}, 0, Float32, card());
  for (int i = 0; i < 50; ++i) x = x + 1;
  Event done(card());
  copy_async(pinned, x);
  done.record(current_stream(card()));
  done.synchronize();
  EXPECT_EQ(pinned.slice(0, 0, 2).to_vector<float>(), (std::vector<float>{50, 50}));
  EXPECT_EQ(pinned.sum().item(), 50. * n);
}

TEST_F(GpuDevice, RunsOutOfMemoryAndGoesOn) {
  const WholeCard held;
  const auto memory = static_cast<int64_t>(properties(card()).memory);
  EXPECT_THROW(empty({4 * memory}, UInt8, card()), OutOfMemoryError);
  {
    Tensor most = empty({memory / 2}, UInt8, card());
    EXPECT_THROW(empty({memory / 2}, UInt8, card()), OutOfMemoryError);
  }
  EXPECT_EQ(empty({memory / 2 + (memory >> 4)}, UInt8, card()).numel(),
            memory / 2 + (memory >> 4));  // the cache is emptied
  empty_cache(card());
  EXPECT_EQ(full({3}, 2, Float32, card()).select(0, 1).item(), 2);
}

TEST_F(GpuDevice, BadIndicesAreReportedOnceWhereTheHostWaits) {
  Tensor weight = randn({65, 8}, generator).to(card());
  Tensor out = embedding(tensor<int64_t>({3, 70, 64}, {3}).to(card()), weight);
  EXPECT_EQ(error_of([&] { out.to(cpu()); }), "embedding: index 70 is out of range for size 65");
  EXPECT_EQ(out.select(0, 0).to(cpu()).to_vector<float>(), weight.select(0, 3).to(cpu()).to_vector<float>());
}

TEST_F(GpuDevice, TakesMoreThanTwoToThe31Elements) {
  const WholeCard held;
  const int64_t n = (int64_t(1) << 31) + 4099;
  Tensor x = full({n}, 3, Float16, card());
  x.slice(0, n - 5, n).fill_(7);
  Tensor y = x * 2 + 1;
  EXPECT_EQ(y.slice(0, n - 6, n).to(cpu()).to(Float32).to_vector<float>(), (std::vector<float>{7, 15, 15, 15, 15, 15}));
  EXPECT_EQ(y.slice(0, 0, 2).to(cpu()).to(Float32).to_vector<float>(), (std::vector<float>{7, 7}));
  Tensor wide = x.slice(0, 0, int64_t(1) << 31).reshape({2, int64_t(1) << 30}).transpose(0, 1);
  EXPECT_EQ((wide + wide).select(0, (1 << 30) - 1).to(cpu()).to(Float32).to_vector<float>(),
            (std::vector<float>{6, 6}));
}

TEST_F(GpuDevice, MemoryIsCounted) {
  empty_cache(card());
  const MemoryStats before = memory_stats(card());
  Tensor x = empty({1 << 20}, Float32, card());
  EXPECT_EQ(memory_stats(card()).allocated - before.allocated, 4 << 20);
  EXPECT_GE(memory_stats(card()).reserved, memory_stats(card()).allocated);
}

// A kernel that reads where nothing is: the device is lost for the process, and nothing else.
void lose_the_device() {
  Tensor kept = full({4}, 5, Float32, cpu());
  Tensor bad = elements_of_nowhere();
  int errors = 0;
  for (int i = 0; i < 3; ++i) try {
      (bad + 1).to(cpu());
    } catch (const DeviceError&) {
      ++errors;
    }
  try {
    full({2}, 1, Float32, card());
  } catch (const DeviceError& e) {
    ++errors;
    std::fprintf(stderr, "%s\n", e.what());
  }
  const bool cpu_works = (kept + 1).sum().item() == 24;
  std::_Exit(errors == 4 && cpu_works ? 0 : 1);
}

TEST(GpuDeviceDeathTest, AFaultLosesTheDeviceAndNothingElse) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_the_device(), testing::ExitedWithCode(0), "the device was lost: ");
}

}  // namespace
}  // namespace tessera
