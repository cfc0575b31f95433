// What AMD's tracing library tells of a device, by a stand-in for it that hears from the stand-in for HIP's runtime;
// and what becomes of a recording where it is missing, of another version, or fails. What both vendors' libraries tell
// is tested in tests/profiler/test_activities.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "core/gpu/backend.h"
#include "hip_check.h"
#include "kernels/gpu/device/runtime/driver_nodes.h"
#include "kernels/gpu/device/runtime/roctracer_abi.h"
#include "profiler/trace.h"
#include "tessera/profiler.h"
#if __has_include(<roctracer/ext/prof_protocol.h>)  // ROCm's own
#include <roctracer/ext/prof_protocol.h>
#endif

namespace tessera::profiler {
namespace {

constexpr size_t kRoomForRecords = size_t{16} << 20;
constexpr int64_t kClocksApart = 1'000'000;  // ns: a reading of both may be interrupted

struct Told : gpu::Activity {
  std::string text;  // `name`, whose memory is gone
  explicit Told(const gpu::Activity& a) : gpu::Activity(a), text(a.name) { name = {}; }
};
struct AllTold {
  std::vector<Told> all;
  int64_t dropped = 0;
  std::vector<Told> of(gpu::Activity::Kind kind) const {
    std::vector<Told> found;
    for (const Told& a : all)
      if (a.kind == kind) found.push_back(a);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    return found;
  }
};

gpu::Runtime& runtime() { return gpu::state(hip()).runtime; }
AllTold end_of_tracing() {
  AllTold told;
  told.dropped = runtime().stop_activities([&](const gpu::Activity& a) { told.all.emplace_back(a); });
  return told;
}
AllTold told_of(const std::function<void()>& fn, size_t most_bytes = kRoomForRecords) {
  EXPECT_EQ(runtime().start_activities(most_bytes), "");
  fn();
  return end_of_tracing();
}
void tell_no_times(bool none) { in_stand_in<StandInTellNoTimes>(stand_in_tell_no_times_name)(none); }
void tell_late(int milliseconds) { in_stand_in<StandInTellLate>(stand_in_tell_late_name)(milliseconds); }

class Roctracer : public HipTest {
 protected:
  void SetUp() override {
    setenv("TESSERA_ROCTRACER", TESSERA_STAND_IN_ROCTRACER, 1);
    HipTest::SetUp();
  }
  void TearDown() override {
    HipTest::TearDown();
    tell_late(0);
    tell_no_times(false);
    (void)end_of_tracing();  // of a test that failed
  }
};

TEST_F(Roctracer, WorkHasTheNamesAndCallsThatHipGivesIt) {
  Tensor x = on_card({37, 5}), pinned = empty_pinned({37, 5}, Float32, hip());
  const std::string epilogue = new_epilogue();
  const auto work = [&] {
    softmax(x, 1);
    run_program(epilogue);
    x.to(cpu());
    x.copy_(pinned);
    const std::vector<float> rows(37 * 5);
    runtime().copy_rows(x.data_ptr(), 5 * 4, rows.data(), 5 * 4, 37, gpu::stream_of(gpu::state(hip())).handle);
    runtime().fill(x.data_ptr(), 0, 37 * 5 * 4, gpu::stream_of(gpu::state(hip())).handle);
  };
  work();
  const AllTold told = told_of(work);
  EXPECT_EQ(told.dropped, 0);

  std::map<uint32_t, std::string> calls;
  for (const Told& call : told.of(gpu::Activity::Call)) calls.emplace(call.correlation, call.text);
  std::multiset<std::string> work_of_calls;
  for (const Told& a : told.all) {
    if (a.kind == gpu::Activity::Call) continue;
    EXPECT_GT(a.stream, 0);
    EXPECT_EQ(a.bytes, a.kind == gpu::Activity::Kernel ? 0 : 37 * 5 * 4) << a.text;
    const bool is_softmax = a.text.find("Softmax<") != a.text.npos && a.text.find('(') != a.text.npos;
    work_of_calls.insert((is_softmax ? "softmax" : a.text) + " by " + calls[a.correlation]);
  }
  EXPECT_EQ(work_of_calls.count("softmax by hipLaunchKernel"), 1u);  // as the source has it: with its parameters
  EXPECT_EQ(work_of_calls.count("Memcpy DtoH (Device -> Pageable) by hipMemcpyAsync"), 1u);
  EXPECT_EQ(work_of_calls.count("Memcpy (Device or Pinned) by hipMemcpyAsync"), 1u);
  EXPECT_EQ(work_of_calls.count("Memcpy HtoD (Pageable -> Device) by hipMemcpy2DAsync"), 1u);
  EXPECT_EQ(work_of_calls.count("Memset by hipMemsetAsync"), 1u);
  EXPECT_TRUE(std::any_of(work_of_calls.begin(), work_of_calls.end(),
                          [](const std::string& text) { return text.ends_with(" by hipModuleLaunchKernel"); }));
}

// HIP lets go of whoever waits for the card before it tells what the card did.
TEST_F(Roctracer, WhatIsToldLateIsWaitedForButNotForever) {
  const Tensor x = on_card({1000});
  tell_late(15);
  EXPECT_EQ(told_of([&] { x + 1; }).of(gpu::Activity::Kernel).size(), 1u);
  tell_late(300);
  EXPECT_EQ(told_of([&] { x + 1; }).of(gpu::Activity::Kernel).size(), 0u);
  tell_late(0);
  const AllTold next = told_of([&] {
    softmax(x.reshape({10, 100}), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));  // until that of the last one comes
  });
  ASSERT_EQ(next.of(gpu::Activity::Kernel).size(), 1u);
  EXPECT_NE(next.of(gpu::Activity::Kernel)[0].text.find("Softmax<"), std::string::npos);
}

TEST_F(Roctracer, ARefusalIsOneLineAndNothingBegins) {
  const Tensor x = on_card({1000});
  (void)told_of([] {});
  const auto refused = [&](const char* function, const char* text, long skip = 0) {
    fail(function, static_cast<hipError_t>(-1), skip);
    EXPECT_EQ(runtime().start_activities(kRoomForRecords), text);
    x + 1;
    EXPECT_TRUE(end_of_tracing().all.empty()) << function;
    fail(nullptr, hipSuccess);
    EXPECT_EQ(told_of([&] { x + 1; }).of(gpu::Activity::Kernel).size(), 1u) << "after " << function;
  };
  refused("roctracer_enable_domain_activity_expl", "roctracer does not tell of calls: told to fail");
  refused("roctracer_enable_op_activity_expl", "roctracer does not tell of kernels: told to fail");
  refused("roctracer_enable_op_activity_expl", "roctracer does not tell of copies: told to fail", 1);
  refused("roctracer_get_timestamp", "roctracer has no clock: it sees no device");
}

// Neither loses what was seen until then, nor the program.
TEST_F(Roctracer, AFailureInTheMiddleDisturbsNothing) {
  const Tensor x = on_card({1000});
  for (const char* function : {"roctracer_flush_activity_expl", "roctracer_get_timestamp", "roctracer_op_code",
                               "hipDeviceSynchronize", "hipGetDeviceCount"}) {
    ASSERT_EQ(runtime().start_activities(kRoomForRecords), "");
    x + 1;
    fail(function, hipErrorInvalidValue);
    const AllTold told = end_of_tracing();
    const bool flushes = std::string_view(function) != "roctracer_flush_activity_expl";
    EXPECT_EQ(told.of(gpu::Activity::Kernel).size(), flushes ? 1u : 0u) << function;
    fail(nullptr, hipSuccess);
    EXPECT_EQ(told_of([&] { x + 1; }).of(gpu::Activity::Kernel).size(), 1u) << "after " << function;
  }
}

TEST_F(Roctracer, WorkWithoutTimesIsCountedAsDropped) {
  const Tensor x = on_card({1000});
  tell_no_times(true);
  const AllTold told = told_of([&] { x + 1; });
  EXPECT_EQ(told.of(gpu::Activity::Kernel).size(), 0u);
  EXPECT_EQ(told.dropped, 1);
}

TEST_F(Roctracer, CallsThatCannotBeSwitchedOffAreLeftOut) {
  const Tensor x = on_card({1000});
  fail("roctracer_op_code", hipErrorInvalidValue);
  const long asked = calls("roctracer_op_code");
  for (const Told& call : told_of([&] { x + 1; }).of(gpu::Activity::Call)) {
    EXPECT_TRUE(call.text.starts_with("hip")) << call.text;  // no __hipPushCallConfiguration
    EXPECT_NE(call.text, "hipGetLastError");
  }
  EXPECT_GT(calls("roctracer_op_code"), asked);
}

TEST_F(Roctracer, AForkedChildIsRefused) {
  ASSERT_EQ(runtime().start_activities(kRoomForRecords), "");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string why = runtime().start_activities(kRoomForRecords);
    const bool silent = end_of_tracing().all.empty();
    std::_Exit(silent && why == "roctracer was begun by the process that this one was forked from" ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- profiles

Recording recorded(const std::function<void()>& fn) {
  std::vector<Recording> all;
  Options options;
  options.on_trace = [&](const Recording& r) { all.push_back(r); };
  {
    Profile profile(options);
    fn();
    profile.step();
  }
  EXPECT_EQ(all.size(), 1u);
  return all.at(0);
}

// Of kernels: name and the operator that they are for.
std::multiset<std::pair<std::string, std::string>> kernels_by_operator(const Trace& trace) {
  std::multiset<std::pair<std::string, std::string>> found;
  for (const Span& span : trace.spans) {
    if (span.kind != Kind::Kernel) continue;
    const Call* const call = trace.call_of(span);
    const std::string name(trace.name_of(span));
    found.emplace(name.find("Softmax") != name.npos ? "softmax"
                  : name.find("Exp") != name.npos   ? "exp"
                                                    : name,
                  call ? call->op : "none");
  }
  return found;
}

TEST_F(Roctracer, AProfileHasTheKernelsOfItsOperators) {
  const Tensor x = on_card({33, 5});
  const auto work = [&] {
    const NamedScope scope("model");
    softmax(exp(x), 1).to(cpu());
  };
  work();
  const Recording recording = recorded(work);
  const Trace& trace = recording.trace();
  EXPECT_EQ(recording.notes().find("timed by events"), std::string::npos) << recording.notes();
  EXPECT_EQ(recording.notes().find("dropped"), std::string::npos) << recording.notes();
  const auto kernels = kernels_by_operator(trace);
  EXPECT_EQ(kernels.count({"softmax", "softmax"}), 1u);
  EXPECT_EQ(kernels.count({"exp", "exp"}), 1u);
  std::map<uint32_t, std::string> calls;
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Runtime) calls[span.correlation] = trace.name_of(span);
  int copies = 0;
  for (const Span& span : trace.spans) {
    if (span.kind == Kind::Copy) ++copies;
    if (span.kind != Kind::Kernel) continue;
    EXPECT_EQ(calls[span.correlation], "hipLaunchKernel");
    EXPECT_EQ(trace.launch_of(span), nullptr) << "nobody told how it was launched";
    ASSERT_GE(span.owner, 0);
    EXPECT_LE(trace.spans[static_cast<size_t>(span.owner)].begin, span.begin + kClocksApart);
    EXPECT_EQ(trace.call_of(span)->path, "model");
  }
  EXPECT_EQ(copies, 1);
  EXPECT_NE(recording.table().find("softmax"), std::string::npos);
  TemporaryFolder folder;
  recording.write_trace(folder / "trace.json");
  std::ifstream file(folder / "trace.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("\"hipLaunchKernel\""), std::string::npos);
  EXPECT_EQ(text.find("\"registers per thread\""), std::string::npos);
  EXPECT_EQ(text.find("\"grid\""), std::string::npos);
}

TEST_F(Roctracer, KernelsOfAReplayBelongToTheOperatorsOfItsCapture) {
  const Tensor x = on_card({33, 5});
  Tensor y;
  DeviceGraph graph;
  graph.capture(hip(), [&] { y = softmax(exp(x), 1); });
  const Recording recording = recorded([&] {
    for (int i = 0; i < 3; ++i) graph.replay();
  });
  const auto kernels = kernels_by_operator(recording.trace());
  EXPECT_EQ(kernels.count({"softmax", "softmax"}), 3u);
  EXPECT_EQ(kernels.count({"exp", "exp"}), 3u);
  EXPECT_EQ(kernels.size(), 6u);
}

// ---- where it cannot be used: each in a process of its own, since what was opened stays

// Prints why it is refused, and what a profile then has of a softmax: its note, and a kernel that was timed by events.
void profile_without(const char* roctracer) {
  setenv("TESSERA_ROCTRACER", roctracer, 1);
  const Surroundings surroundings;
  const Tensor x = on_card({33, 5});
  softmax(x, 1);
  const Recording recording = recorded([&] { softmax(x, 1); });
  std::fprintf(stderr, "%s", recording.notes().c_str());
  const Trace& trace = recording.trace();
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Kernel) std::fprintf(stderr, "for %s\n", trace.call_of(span)->op.c_str());
  std::_Exit(0);
}

TEST(RoctracerDeathTest, WithoutItEventsTakeOver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends = testing::ExitedWithCode(0);
  const std::string taken_over = "note: kernels were timed by events, a call at a time: ", events = "\nfor softmax\n$";
  EXPECT_EXIT(profile_without("/nowhere"), ends,
              taken_over +
                  "libroctracer64.so.4 was not found: install roctracer, or let TESSERA_ROCTRACER name it or "
                  "its folder" +
                  events);
  EXPECT_EXIT(profile_without(TESSERA_OLD_ROCTRACER), ends,
              taken_over + "this roctracer has no roctracer_next_record" + events);
  const auto of_another_version = [] {
    ASSERT_EQ(why_unavailable(hip()), "");
    fail("roctracer_version_major", static_cast<hipError_t>(1));
    profile_without(TESSERA_STAND_IN_ROCTRACER);
  };
  EXPECT_EXIT(of_another_version(), ends,
              taken_over + "roctracer 5 is of another version than 4, which this was built for" + events);
  const auto without_a_pool = [] {
    ASSERT_EQ(why_unavailable(hip()), "");
    fail("roctracer_open_pool_expl", static_cast<hipError_t>(-6));
    profile_without((std::string(TESSERA_STAND_IN_ROCTRACER) + "/libroctracer64.so.4").c_str());
  };
  EXPECT_EXIT(without_a_pool(), ends, taken_over + "roctracer does not begin: told to fail" + events);
}

// ---- what it says in numbers

#if __has_include(<roctracer/ext/prof_protocol.h>)
TEST(RoctracerRecords, LieAsInItsHeader) {
  using Ours = gpu_kernels::roctracer::Record;
  static_assert(sizeof(Ours) == sizeof(activity_record_t));
  EXPECT_EQ(offsetof(Ours, domain), offsetof(activity_record_t, domain));
  EXPECT_EQ(offsetof(Ours, kind), offsetof(activity_record_t, kind));
  EXPECT_EQ(offsetof(Ours, operation), offsetof(activity_record_t, op));
  EXPECT_EQ(offsetof(Ours, correlation), offsetof(activity_record_t, correlation_id));
  EXPECT_EQ(offsetof(Ours, begin), offsetof(activity_record_t, begin_ns));
  EXPECT_EQ(offsetof(Ours, end), offsetof(activity_record_t, end_ns));
  EXPECT_EQ(offsetof(Ours, work.device), offsetof(activity_record_t, device_id));
  EXPECT_EQ(offsetof(Ours, work.queue), offsetof(activity_record_t, queue_id));
  EXPECT_EQ(offsetof(Ours, call.process), offsetof(activity_record_t, process_id));
  EXPECT_EQ(offsetof(Ours, call.thread), offsetof(activity_record_t, thread_id));
  EXPECT_EQ(offsetof(Ours, bytes), offsetof(activity_record_t, bytes));
  EXPECT_EQ(offsetof(Ours, kernel), offsetof(activity_record_t, kernel_name));
  EXPECT_EQ(gpu_kernels::roctracer::HipWork, int{ACTIVITY_DOMAIN_HIP_OPS});
  EXPECT_EQ(gpu_kernels::roctracer::HipCalls, int{ACTIVITY_DOMAIN_HIP_API});
}
#endif

TEST(DriverNodes, AreFoundByTheirPlaceOnTheBus) {
  using gpu_kernels::devices_by_node;
  const TemporaryFolder folder;
  const auto node = [&](int number, const std::string& text) {
    std::filesystem::create_directories(folder / std::to_string(number));
    std::ofstream(folder / (std::to_string(number) + "/properties")) << text;
  };
  const auto card = [](unsigned bus, unsigned device) {
    return fmt::format("cpu_cores_count 0\nsimd_count 416\nlocation_id {}\ndomain 1\n", bus << 8 | device << 3);
  };
  node(0, "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\n");
  node(1, "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\n");
  node(2, card(0x29, 0));
  node(3, card(0x2C, 0));  // hidden
  node(4, card(0xA9, 3));
  node(5, card(0xA9, 3));  // another part of that card
  const std::map<int, int> expected = {{2, 2}, {4, 0}, {5, 1}};
  EXPECT_EQ(devices_by_node(folder.path(), {{1, 0xA9, 3}, {1, 0xA9, 3}, {1, 0x29, 0}}), expected);
  EXPECT_TRUE(devices_by_node(folder.path(), {{0, 0, 0}}).empty()) << "that is where processors are said to be";
  EXPECT_TRUE(devices_by_node(folder / "nowhere", {{1, 0x29, 0}}).empty());
  node(2, "simd_count many\nlocation_id\n");
  EXPECT_EQ(devices_by_node(folder.path(), {{1, 0x29, 0}, {1, 0xA9, 3}}), (std::map<int, int>{{4, 1}}));
}

}  // namespace
}  // namespace tessera::profiler
