// What the vendor's tracing library tells of a device. On the stand-in for HIP's runtime, too (tests/amd).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/gpu/backend.h"
#include "core/gpu_check.h"

namespace tessera::profiler {
namespace {

constexpr size_t kRoomForActivities = size_t{64} << 20;

struct SeenActivity : gpu::Activity {
  std::string text;  // `name`, whose memory is gone
  explicit SeenActivity(const gpu::Activity& a) : gpu::Activity(a), text(a.name) { name = {}; }
};
struct SeenActivities {
  std::vector<SeenActivity> all;
  int64_t dropped = 0;
  std::vector<SeenActivity> of(gpu::Activity::Kind kind) const {
    std::vector<SeenActivity> found;
    for (const SeenActivity& a : all)
      if (a.kind == kind) found.push_back(a);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    return found;
  }
};

SeenActivities stop_watching(gpu::Runtime& runtime) {
  SeenActivities seen;
  seen.dropped = runtime.stop_activities([&](const gpu::Activity& a) { seen.all.emplace_back(a); });
  return seen;
}

int64_t nanoseconds_since_1970() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

// The device's clock is fitted to the host's.
constexpr int64_t kClocksDiffer = 20'000;  // ns

class GpuActivities : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::string why = runtime().start_activities(kRoomForActivities);
    if (!why.empty()) GTEST_SKIP() << why;
    (void)stop_watching(runtime());
  }
  void TearDown() override {
    if (card().is_gpu()) (void)stop_watching(runtime());  // of a test that failed
  }
  static gpu::Runtime& runtime() { return gpu::state(card()).runtime; }
  /// CUPTI tells how kernels are launched, and numbers the steps of a graph.
  static bool is_by_cupti() { return card().type == DeviceType::CUDA; }
  static std::string of_vendor(const std::string& function) { return (is_by_cupti() ? "cuda" : "hip") + function; }
  SeenActivities seen_of(const std::function<void()>& fn, size_t most_bytes = kRoomForActivities) {
    EXPECT_EQ(runtime().start_activities(most_bytes), "");
    fn();
    return stop_watching(runtime());
  }
};

/// Of NVIDIA's plugin, where there is no card; or why not.
gpu::Runtime* runtime_without_a_card(std::string& why) {
  const std::string no_card = why = why_unavailable(cuda());
  if (no_card.empty()) why = "there is a card that tells";
  if (no_card.empty() || no_card.find("libtessera_cuda.so") != no_card.npos) return nullptr;  // not this build's
  const char* folder = std::getenv("TESSERA_PLUGIN_DIR");
  const std::filesystem::path file =
      (folder && *folder ? std::filesystem::path(folder) : std::filesystem::canonical("/proc/self/exe").parent_path()) /
      "libtessera_cuda.so";
  why = file.string() + " is not there";
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  const auto entry = reinterpret_cast<const gpu::Plugin* (*)()>(dlsym(library, "tessera_plugin"));
  return entry ? entry()->runtime : nullptr;
}

TEST(Activities, ARefusalIsOneLineAndNothingBegins) {
  std::string no_card;
  gpu::Runtime* const found = runtime_without_a_card(no_card);
  if (!found) GTEST_SKIP() << no_card;
  gpu::Runtime& runtime = *found;
  for (int i = 0; i < 3; ++i) {
    const std::string why = runtime.start_activities(kRoomForActivities);
    const SeenActivities seen = stop_watching(runtime);
    if (why.empty()) GTEST_SKIP() << "there is a card that tells, though " << no_card;
    EXPECT_EQ(why.find('\n'), why.npos) << why;
    EXPECT_TRUE(seen.all.empty());
    EXPECT_EQ(seen.dropped, 0);
  }
}

#if defined(TESSERA_OTHER_CUPTI)
// Prints why a CUPTI is refused, in a process of its own: what was opened stays.
void begin_with(const char* cupti) {
  setenv("TESSERA_CUPTI", cupti, 1);
  std::string why;
  gpu::Runtime* const runtime = runtime_without_a_card(why);
  if (runtime) why = runtime->start_activities(kRoomForActivities);
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(runtime ? 0 : 1);
}
TEST(ActivitiesDeathTest, ACuptiThatCannotBeUsedIsSaidInALine) {
  std::string why;
  if (!runtime_without_a_card(why)) GTEST_SKIP() << why;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends = testing::ExitedWithCode(0);
  EXPECT_EXIT(begin_with("/nowhere"), ends,
              "^libcupti.so.[0-9]+ was not found: install CUPTI, or let TESSERA_CUPTI name it or its folder\n$");
  EXPECT_EXIT(begin_with(TESSERA_OTHER_CUPTI), ends,
              "^CUPTI 12.4 is of another version than [0-9]+.[0-9]+, which this was built for\n$");
  EXPECT_EXIT(begin_with("libz.so.1"), ends, "^this CUPTI has no cuptiGetVersion\n$");
}
#endif

TEST_F(GpuActivities, KernelsAndCopiesBelongToCalls) {
  const Tensor a = full({256, 256}, 0.5, Float32, card()), b = full({256, 256}, 2, Float32, card());
  (matmul(a, b) + a).to(cpu());
  const int64_t before = nanoseconds_since_1970();
  const SeenActivities seen = seen_of([&] { (matmul(a, b) + a).to(cpu()); });
  const int64_t after = nanoseconds_since_1970();
  EXPECT_EQ(seen.dropped, 0);

  std::map<uint32_t, SeenActivity> calls;
  for (const SeenActivity& call : seen.of(gpu::Activity::Call)) {
    EXPECT_FALSE(call.text.empty());
    EXPECT_EQ(call.text.find("_v"), std::string::npos) << call.text;
    EXPECT_NE(call.text, of_vendor("GetLastError"));
    EXPECT_NE(call.text, of_vendor("DeviceSynchronize")) << "of the end";
    EXPECT_FALSE(call.text.starts_with('_')) << call.text;
    EXPECT_EQ(call.thread, gettid()) << call.text;
    EXPECT_GT(call.function, 0) << call.text;
    EXPECT_GE(call.begin, before) << call.text;
    EXPECT_LE(call.end, after) << call.text;
    EXPECT_GE(call.end, call.begin) << call.text;
    EXPECT_TRUE(calls.emplace(call.correlation, call).second) << call.text << " is told of twice";
  }
  int64_t copied = 0;
  for (const SeenActivity& a : seen.all) {
    if (a.kind == gpu::Activity::Call) continue;
    EXPECT_FALSE(a.text.empty());
    EXPECT_GT(a.end, a.begin) << a.text;
    EXPECT_EQ(a.device, card().index);
    EXPECT_EQ(a.graph_node, 0u) << a.text;
    EXPECT_GE(a.begin, before - kClocksDiffer) << a.text;
    EXPECT_LE(a.end, after + kClocksDiffer) << a.text;
    const auto call = calls.find(a.correlation);
    ASSERT_NE(call, calls.end()) << a.text << " was started by nobody";
    EXPECT_GE(a.begin, call->second.begin - kClocksDiffer) << a.text << " of " << call->second.text;
    if (a.kind == gpu::Activity::Copy && a.text.starts_with("Memcpy DtoH (Device -> ")) copied += a.bytes;
  }
  EXPECT_GE(copied, 256 * 256 * 4);
  const auto kernels = seen.of(gpu::Activity::Kernel);
  EXPECT_GE(kernels.size(), 2u);
  for (const SeenActivity& kernel : kernels) {
    EXPECT_FALSE(kernel.text.starts_with("_Z")) << kernel.text;
    EXPECT_EQ(kernel.grid[0] >= 1, is_by_cupti()) << kernel.text;
    EXPECT_EQ(kernel.block[0] * kernel.block[1] * kernel.block[2] >= 32, is_by_cupti()) << kernel.text;
    EXPECT_EQ(kernel.registers > 0, is_by_cupti()) << kernel.text;
  }
}

TEST_F(GpuActivities, WorkFillsAndCallsOfOtherThreadsAreSeen) {
  gpu::Runtime& on = runtime();
  const Tensor x = full({1 << 16}, 1, Float32, card());
  pid_t other = 0;
  const SeenActivities seen = seen_of([&] {
    std::thread worker([&] {
      other = gettid();
      gpu::enter(gpu::state(card()));
      on.fill(x.data_ptr(), 0, 1 << 18, gpu::stream_of(gpu::state(card())).handle);
      (x + 1).to(cpu());
    });
    worker.join();
  });
  const auto fills = seen.of(gpu::Activity::Fill);
  const auto fill = std::find_if(fills.begin(), fills.end(), [](const auto& a) { return a.bytes == 1 << 18; });
  ASSERT_NE(fill, fills.end());
  EXPECT_EQ(fill->text, is_by_cupti() ? "Memset (Device)" : "Memset");
  const auto calls = seen.of(gpu::Activity::Call);
  EXPECT_TRUE(std::any_of(calls.begin(), calls.end(), [&](const auto& call) {
    return call.correlation == fill->correlation && call.thread == other;
  }));
}

TEST_F(GpuActivities, KernelsOfAReplayAreInTheOrderOfTheirCapture) {
  Tensor x = full({1 << 12}, 0.5, Float32, card()), w = full({64, 64}, 0.01, Float32, card()), y;
  const auto work = [&] { y = sum(matmul(exp(x * 2).reshape({64, 64}), w) + 1); };
  work();
  std::vector<std::string> captured;
  for (const gpu::GraphNode& node : gpu::steps_of(card(), work))
    if (node.block[0] > 0) captured.push_back(node.name);
  ASSERT_GE(captured.size(), 3u);
  DeviceGraph early, late;
  early.capture(card(), work);
  for (const bool while_watched : {false, true}) {
    DeviceGraph& graph = while_watched ? late : early;
    const SeenActivities seen = seen_of([&] {
      if (while_watched) graph.capture(card(), work);
      for (int i = 0; i < 3; ++i) graph.replay();
    });
    std::map<uint32_t, std::vector<SeenActivity>> replays;
    for (const SeenActivity& kernel : seen.of(gpu::Activity::Kernel)) replays[kernel.correlation].push_back(kernel);
    ASSERT_EQ(replays.size(), 3u);
    for (auto& [correlation, kernels] : replays) {
      std::vector<std::string> names;
      for (const SeenActivity& kernel : kernels) {
        EXPECT_EQ(kernel.graph_node != 0, is_by_cupti());
        names.push_back(kernel.text);
      }
      EXPECT_EQ(names, captured);
      EXPECT_TRUE(std::is_sorted(kernels.begin(), kernels.end(),
                                 [](const auto& a, const auto& b) { return a.graph_node < b.graph_node; }));
      for (size_t i = 0; i < kernels.size(); ++i)
        EXPECT_EQ(kernels[i].graph_node, replays.begin()->second[i].graph_node) << "of another replay";
    }
    const auto calls = seen.of(gpu::Activity::Call);
    for (const auto& [correlation, kernels] : replays)
      EXPECT_TRUE(std::any_of(calls.begin(), calls.end(), [id = correlation](const auto& call) {
        return call.correlation == id && call.text == of_vendor("GraphLaunch");
      }));
  }
}

TEST_F(GpuActivities, MayBeginAgainAndAgainButNotTwiceAtOnce) {
  const Tensor x = full({1000}, 1, Float32, card());
  ASSERT_EQ(runtime().start_activities(kRoomForActivities), "");
  const std::string why = runtime().start_activities(kRoomForActivities);
  EXPECT_NE(why.find("is already on"), std::string::npos) << why;
  (x + 1).to(cpu());
  EXPECT_EQ(stop_watching(runtime()).of(gpu::Activity::Kernel).size(), 1u);
  for (int i = 0; i < 5; ++i) {
    (x * 2).to(cpu());  // which nobody sees
    const SeenActivities seen = seen_of([&] { (x + 1).to(cpu()); });
    EXPECT_EQ(seen.of(gpu::Activity::Kernel).size(), 1u);
    EXPECT_EQ(seen.dropped, 0);
  }
  EXPECT_TRUE(stop_watching(runtime()).all.empty());
}

TEST_F(GpuActivities, WhatThereIsNoRoomForIsCounted) {
  const Tensor x = full({1000}, 1, Float32, card());
  constexpr size_t launches = 20'000;
  const SeenActivities seen = seen_of(
      [&] {
        for (size_t i = 0; i < launches; ++i) x + 1;
      },
      256 << 10);
  EXPECT_LT(seen.of(gpu::Activity::Kernel).size(), launches);
  EXPECT_GT(seen.dropped, 0);
  EXPECT_GE(seen.all.size() + static_cast<size_t>(seen.dropped), launches);
  const SeenActivities later = seen_of([&] { (x + 1).to(cpu()); });
  EXPECT_EQ(later.of(gpu::Activity::Kernel).size(), 1u);
  EXPECT_EQ(later.dropped, 0);
}

}  // namespace
}  // namespace tessera::profiler
