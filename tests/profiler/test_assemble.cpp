// What devices' libraries tell, joined with the calls that it was for.
#include "profiler/assemble.h"

#include <gtest/gtest.h>

namespace tessera::profiler {
namespace {

constexpr int64_t kBase = 1'700'000'000'000'000'000;

Recorded two_calls() {
  Recorded seen;
  Trace& t = seen.trace;
  t.base = kBase;
  t.names = {"linear", "relu", "graph"};
  t.calls.resize(4);
  t.calls[0].op = "linear";
  t.calls[1].op = "relu";
  const auto op = [&](int32_t name, int32_t detail, int64_t begin, int64_t end) {
    Span s;
    s.name = name;
    s.detail = detail;
    s.begin = begin;
    s.end = end;
    s.thread = 7;
    t.spans.push_back(s);
  };
  op(0, 0, 100, 900);
  op(1, 1, 300, 500);     // within it
  op(2, -1, 1000, 1000);  // a replay
  return seen;
}
gpu::Activity activity(gpu::Activity::Kind kind, const char* name, int64_t begin, int64_t end, uint32_t correlation) {
  gpu::Activity a;
  a.kind = kind;
  a.name = name;
  a.begin = kBase + begin;
  a.end = kBase + end;
  a.thread = 7;
  a.stream = 3;
  a.correlation = correlation;
  return a;
}
const Span& named(const Trace& t, std::string_view name) {
  for (const Span& s : t.spans)
    if (t.name_of(s) == name) return s;
  throw Error("no span " + std::string(name));
}

TEST(Assembly, KernelsAreOfTheInnermostCallThatStartedThem) {
  Assembly all(two_calls());
  all.add(activity(gpu::Activity::Kernel, "gemm", 2000, 3000, 12));  // in any order
  gpu::Activity launch = activity(gpu::Activity::Call, "cudaLaunchKernel", 350, 360, 11);
  launch.function = 211;
  all.add(launch);
  all.add(activity(gpu::Activity::Call, "cudaLaunchKernel", 600, 610, 12));
  all.add(activity(gpu::Activity::Kernel, "map", 700, 800, 11));
  all.add(activity(gpu::Activity::Copy, "Memcpy HtoD", 750, 760, 99));
  all.add(activity(gpu::Activity::Call, "cudaMemcpyAsync", -50, -40, 99));  // before the recording
  all.add(activity(gpu::Activity::Kernel, "unknown", 770, 780, 98));        // of a call that nobody told of
  const Trace t = all.take({});
  EXPECT_EQ(t.call_of(named(t, "gemm"))->op, "linear");
  EXPECT_EQ(t.call_of(named(t, "map"))->op, "relu");
  EXPECT_EQ(t.name_of(t.spans[static_cast<size_t>(named(t, "map").owner)]), "relu");
  for (const Span& s : t.spans) EXPECT_NE(t.name_of(s), "Memcpy HtoD");
  EXPECT_EQ(t.call_of(named(t, "unknown")), nullptr);
  EXPECT_EQ(named(t, "cudaLaunchKernel").detail, 211);
  EXPECT_EQ(named(t, "gemm").thread, 3);
  EXPECT_EQ(named(t, "gemm").device, 0);
}

TEST(Assembly, StepsOfAReplayAreOfTheCallsThatWereCaptured) {
  Recorded seen = two_calls();
  seen.graphs = {{0, 0, 1}};
  seen.replays.push_back({2, 0});
  Assembly all(std::move(seen));
  all.add(activity(gpu::Activity::Call, "cudaGraphLaunch", 1010, 1100, 20));
  const auto step = [&](const char* name, int64_t begin, uint64_t node) {
    gpu::Activity a = activity(gpu::Activity::Kernel, name, begin, begin + 100, 20);
    a.graph_node = node;
    all.add(a);
  };
  step("third", 1500, 33);
  step("first", 1300, 31);
  step("second", 1400, 32);
  const Trace t = all.take({});
  EXPECT_EQ(t.call_of(named(t, "first"))->op, "linear");
  EXPECT_EQ(t.call_of(named(t, "second"))->op, "linear");
  EXPECT_EQ(t.call_of(named(t, "third"))->op, "relu");
  EXPECT_EQ(named(t, "graph").end, 1100);
  for (const char* name : {"first", "second", "third"})
    EXPECT_EQ(t.name_of(t.spans[static_cast<size_t>(named(t, name).owner)]), "graph");
}

/// Where a library does not number them, as AMD's.
TEST(Assembly, StepsWithoutNumbersAreInTheOrderOfTheirTimesOnOneStream) {
  for (const bool on_one : {true, false}) {
    Recorded seen = two_calls();
    seen.graphs = {{0, 0, 1}};
    seen.replays.push_back({2, 0});
    Assembly all(std::move(seen));
    all.add(activity(gpu::Activity::Call, "hipGraphLaunch", 1010, 1100, 20));
    all.add(activity(gpu::Activity::Kernel, "third", 1500, 1600, 20));
    all.add(activity(gpu::Activity::Kernel, "first", 1300, 1400, 20));
    gpu::Activity second = activity(gpu::Activity::Fill, "second", 1400, 1500, 20);
    if (!on_one) second.stream = 4;
    all.add(second);
    const Trace t = all.take({});
    for (const auto& [name, op] : {std::pair("first", "linear"), {"second", "linear"}, {"third", "relu"}}) {
      const Call* const call = t.call_of(named(t, name));
      EXPECT_EQ(call ? call->op : "none", on_one ? op : "none") << name;
    }
  }
}

/// Where a library does not say how a kernel was launched, nor does the trace.
TEST(Assembly, AKernelHasALaunchWhereThatWasTold) {
  Assembly all(two_calls());
  all.add(activity(gpu::Activity::Kernel, "unknown", 300, 400, 0));
  gpu::Activity known = activity(gpu::Activity::Kernel, "known", 500, 600, 0);
  known.grid[0] = 3, known.grid[1] = known.grid[2] = 1;
  known.block[0] = 64, known.block[1] = known.block[2] = 1;
  all.add(known);
  const Trace t = all.take({});
  EXPECT_EQ(t.launch_of(named(t, "unknown")), nullptr);
  ASSERT_NE(t.launch_of(named(t, "known")), nullptr);
  EXPECT_EQ(t.launch_of(named(t, "known"))->grid[0], 3u);
}

/// Another number of steps than were captured says nothing of which is which.
TEST(Assembly, AReplayOfOtherStepsIsOfNoCall) {
  Recorded seen = two_calls();
  seen.graphs = {{0, 0, 1}};
  seen.replays.push_back({2, 0});
  Assembly all(std::move(seen));
  all.add(activity(gpu::Activity::Call, "cudaGraphLaunch", 1010, 1100, 20));
  all.add(activity(gpu::Activity::Kernel, "only", 1300, 1400, 20));
  const Trace t = all.take({});
  EXPECT_EQ(t.call_of(named(t, "only")), nullptr);
}

TEST(Assembly, PiecesTimedByEventsAreKernels) {
  Recorded seen = two_calls();
  seen.trace.calls[1].kernel = "map";
  seen.pieces.push_back({1, 0, 5, kBase + 400, kBase + 450});
  const Trace t = Assembly(std::move(seen)).take({});
  const Span& s = named(t, "map");
  EXPECT_EQ(s.kind, Kind::Kernel);
  EXPECT_EQ(s.end - s.begin, 50);
  EXPECT_EQ(t.call_of(s)->op, "relu");
}

/// The tightest limit decides, and each card has its own.
TEST(Occupancy, IsByWhatTheDeviceHas) {
  DeviceInfo large, small, unknown;
  large.threads_per_multiprocessor = 2048;
  large.blocks_per_multiprocessor = 32;
  large.registers_per_multiprocessor = small.registers_per_multiprocessor = 65536;
  large.shared_per_multiprocessor = 228 << 10;
  large.shared_reserved = small.shared_reserved = 1 << 10;
  small.threads_per_multiprocessor = 1536;
  small.blocks_per_multiprocessor = 16;
  small.shared_per_multiprocessor = 100 << 10;
  const auto launch = [](unsigned threads, int registers, int64_t shared) {
    return Launch{{1, 1, 1}, {threads, 1, 1}, registers, shared};
  };
  EXPECT_EQ(occupancy_of(launch(256, 32, 0), large), 1);
  EXPECT_EQ(occupancy_of(launch(1024, 32, 0), small), 1024.0 / 1536);     // one block
  EXPECT_EQ(occupancy_of(launch(32, 16, 0), small), 16 * 32 / 1536.0);    // of its blocks
  EXPECT_EQ(occupancy_of(launch(256, 128, 0), large), 2 * 256 / 2048.0);  // of its registers
  EXPECT_EQ(occupancy_of(launch(256, 32, 48 << 10), large), 0.5);         // of its shared memory
  EXPECT_EQ(occupancy_of(launch(256, 32, 48 << 10), small), 2 * 256 / 1536.0);
  EXPECT_EQ(occupancy_of(launch(256, 32, 0), unknown), 0);
  EXPECT_EQ(occupancy_of(launch(0, 0, 0), large), 0);
}

}  // namespace
}  // namespace tessera::profiler
