// Profiles of real work: what is recorded, when, and what must not disturb the program.
#include "tessera/profiler.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/util/observers.h"
#include "profiler/trace.h"
#include "tessera/tessera.h"

namespace tessera::profiler {
namespace {

template <class Fn>
std::string what_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / ("profile_" + std::to_string(getpid()));
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

// One step of training, and the trace of what fn does.
struct SmallStep {
  Tensor w = (ones({4, 3}) * 0.1).detach().set_requires_grad(), x = ones({2, 3});
  optim::SGD optimizer{{w}, {.lr = 0.5}};
  void operator()() {
    const NamedScope scope("model");
    optimizer.zero_grad();
    sum(relu(linear(x, w))).backward();
    optimizer.step();
  }
};
std::vector<Recording> recorded(Options options, int steps, const std::function<void()>& fn) {
  std::vector<Recording> all;
  options.on_trace = [&](const Recording& r) { all.push_back(r); };
  Profile profile(std::move(options));
  for (int i = 0; i < steps; ++i) {
    fn();
    profile.step();
  }
  profile.stop();
  return all;
}
std::vector<const Span*> spans_named(const Trace& trace, std::string_view name) {
  std::vector<const Span*> found;
  for (const Span& s : trace.spans)
    if (trace.name_of(s) == name) found.push_back(&s);
  return found;
}

TEST(Profile, RecordsTheStepsOfItsSchedule) {
  SmallStep step;
  const auto all = recorded({.schedule = {.wait = 1, .warmup = 1, .active = 2, .repeat = 2}}, 9, std::ref(step));
  ASSERT_EQ(all.size(), 2u);
  for (const Recording& r : all) {
    std::vector<std::string> steps;
    for (const Span& s : r.trace().spans)
      if (s.kind == Kind::Step) steps.emplace_back(r.trace().name_of(s));
    const int first = &r == &all[0] ? 2 : 6;
    EXPECT_EQ(steps, (std::vector<std::string>{"ProfilerStep#" + std::to_string(first),
                                               "ProfilerStep#" + std::to_string(first + 1)}));
    EXPECT_EQ(spans_named(r.trace(), "linear").size(), 2u);
  }
  EXPECT_FALSE(observers::exist());
}

TEST(Profile, KnowsWhatStepsTakeThatAreNotRecorded) {
  int steps = 0;
  const auto sleep = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(steps++ == 0 ? 600 : 20)); };
  const auto plain_step = [&](Schedule schedule, int count) {
    steps = 0;
    return recorded({.schedule = schedule}, count, sleep).at(0).trace().plain_step;
  };
  // Before the recording; where there is only the program's first step, behind it.
  for (const Schedule& s : {Schedule{.wait = 3, .active = 2}, Schedule{.wait = 1, .warmup = 3, .active = 2},
                            Schedule{.wait = 1, .warmup = 1, .active = 3}, Schedule{.active = 2}}) {
    const int64_t time = plain_step(s, 6);
    EXPECT_GE(time, 20'000'000);
    EXPECT_LT(time, 600'000'000);
  }
  EXPECT_EQ(plain_step({.wait = 1, .warmup = 1, .active = 3}, 5), 0) << "the program ends with the recording";
}

/// It waits for the step that is timed behind it, but not longer than anybody who asks.
TEST(Profile, ARecordingIsHandedOverBehindTheStepThatIsTimed) {
  int seen = 0;
  const auto recordings_after = [&](Schedule schedule, int steps, bool ask) {
    seen = 0;
    Profile profile({.schedule = schedule, .on_trace = [&](const Recording&) { ++seen; }});
    for (int i = 0; i < steps; ++i) {
      relu(ones({3}));
      profile.step();
    }
    EXPECT_FALSE(ask && profile.summary().empty());
    return seen;
  };
  const Schedule one{.wait = 1, .active = 1};
  EXPECT_EQ(recordings_after(one, 2, false), 0);
  EXPECT_EQ(seen, 1) << "the profile ended";
  EXPECT_EQ(recordings_after(one, 2, true), 1);
  EXPECT_EQ(recordings_after(one, 3, false), 1);
  EXPECT_EQ(recordings_after({.wait = 2, .active = 1}, 3, false), 1) << "a step was timed before";
  EXPECT_EQ(recordings_after({.active = 1, .repeat = 0}, 3, false), 3) << "no step is plain";
  EXPECT_EQ(recordings_after({.wait = 1, .active = 1, .repeat = 2}, 5, false), 2);
}

/// What follows the last step, such as a validation, is recorded, but is no step.
TEST(Profile, TheEndIsNoStep) {
  SmallStep step;
  for (const int64_t active : {0, 5}) {
    std::vector<Recording> all;
    {
      Profile profile({.schedule = {.active = active}, .on_trace = [&](const Recording& r) { all.push_back(r); }});
      for (int i = 0; i < 3; ++i) {
        step();
        profile.step();
      }
      tanh(ones({3}));
    }
    const Trace& trace = all.at(0).trace();
    int64_t last = 0, steps = 0;
    for (const Span& s : trace.spans) {
      if (s.kind != Kind::Step) continue;
      last = s.end;
      ++steps;
    }
    EXPECT_EQ(steps, 3);
    EXPECT_EQ(trace.counters.size(), 3u);
    const auto behind = spans_named(trace, "tanh");
    ASSERT_EQ(behind.size(), 1u);
    EXPECT_GT(behind[0]->begin, last);
  }
}

TEST(Profile, CallsKnowWhatTheyTookAndWhereTheyWere) {
  SmallStep step;
  const auto all = recorded({}, 1, std::ref(step));
  ASSERT_EQ(all.size(), 1u);
  const Trace& trace = all[0].trace();
  const auto linears = spans_named(trace, "linear");
  ASSERT_EQ(linears.size(), 1u);
  const Call* const call = trace.call_of(*linears[0]);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->path, "model");
  EXPECT_EQ(call->flops, 2 * 2 * 3 * 4);
  EXPECT_EQ(call->bytes, 4 * (2 * 3 + 4 * 3 + 2 * 4));
  EXPECT_EQ(call->dims[1], (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(call->types[0], "f32");
  EXPECT_EQ(call->strides[1], (std::vector<int64_t>{3, 1}));
  EXPECT_FALSE(call->kernel.empty());
  // Its backward has the same number.
  ASSERT_GE(linears[0]->sequence, 0);
  const auto backward = std::find_if(trace.spans.begin(), trace.spans.end(), [&](const Span& s) {
    return s.begin > linears[0]->end && s.sequence == linears[0]->sequence;
  });
  ASSERT_NE(backward, trace.spans.end());
  EXPECT_EQ(trace.call_of(*backward)->path, "model.backward.model");
  for (const Span& s : trace.spans) EXPECT_LE(s.begin, s.end);
  EXPECT_TRUE(std::is_sorted(trace.spans.begin(), trace.spans.end(),
                             [](const Span& a, const Span& b) { return a.begin < b.begin; }));
}

/// Calls on tensors that lie otherwise are others, and say so.
TEST(Profile, CallsAreToldApartByHowInputsLie) {
  const Tensor x = ones({2, 3, 4, 5});
  const auto all = recorded({}, 1, [&] {
    relu(x);
    relu(x.to(ChannelsLast));
    relu(x);
  });
  const Trace& trace = all.at(0).trace();
  const auto relus = spans_named(trace, "relu");
  ASSERT_EQ(relus.size(), 3u);
  EXPECT_EQ(trace.call_of(*relus[0]), trace.call_of(*relus[2]));
  EXPECT_EQ(trace.call_of(*relus[0])->strides[0], (std::vector<int64_t>{60, 20, 5, 1}));
  EXPECT_EQ(trace.call_of(*relus[1])->strides[0], (std::vector<int64_t>{60, 1, 15, 3}));
}

TEST(Profile, MemoryAddsUpAndIsOfAKind) {
  SmallStep step;
  step();
  Options options;
  std::vector<Recording> all;
  options.on_trace = [&](const Recording& r) { all.push_back(r); };
  const int64_t before = memory_stats().allocated;
  int64_t after = 0;
  {
    Profile profile(options);
    profile.parameters({step.w});
    step();
    after = memory_stats().allocated;
  }
  ASSERT_EQ(all.size(), 1u);
  const std::vector<MemoryChange>& memory = all[0].trace().memory;
  int64_t held = 0, parameters = 0, at_first = 0;
  std::set<MemoryKind> kinds;
  for (const MemoryChange& m : memory) {
    held += m.bytes;
    EXPECT_EQ(held, m.allocated);
    if (m.at == 0) at_first = held;
    if (m.kind == MemoryKind::Parameter) parameters += m.bytes;
    kinds.insert(m.kind);
  }
  EXPECT_EQ(at_first, before);
  EXPECT_EQ(held, after);
  EXPECT_EQ(parameters, 4 * 3 * 4);
  EXPECT_TRUE(kinds.contains(MemoryKind::Activation));
  EXPECT_TRUE(kinds.contains(MemoryKind::Gradient));
}

TEST(Profile, RangesNestOnSeveralThreads) {
  const auto all = recorded({}, 1, [] {
    const Range outer("outer");
    std::thread([] {
      const Range other("other");
      relu(ones({3}));
    }).join();
    const Range inner("inner");
    relu(ones({3}));
  });
  const Trace& trace = all[0].trace();
  const Span &outer = *spans_named(trace, "outer").at(0), &inner = *spans_named(trace, "inner").at(0),
             &other = *spans_named(trace, "other").at(0);
  EXPECT_EQ(outer.kind, Kind::Range);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_GE(outer.end, inner.end);
  EXPECT_EQ(outer.thread, inner.thread);
  EXPECT_NE(outer.thread, other.thread);
  const auto relus = spans_named(trace, "relu");
  ASSERT_EQ(relus.size(), 2u);
  EXPECT_EQ(relus[0]->thread, other.thread);
  EXPECT_EQ(relus[1]->thread, inner.thread);
}

TEST(Profile, IsOneAtATimeAndRefusesNonsense) {
  const Profile profile;
  EXPECT_EQ(what_of([] { Profile(); }), "profile: another one lives; only one can at a time");
  EXPECT_EQ(what_of([] { Profile({.schedule = {.wait = -1}}); }), "profile: steps of a schedule cannot be negative");
  EXPECT_EQ(what_of([] { Profile({.most_bytes = 100}); }), "profile: needs at least 1 MiB for what it keeps");
  EXPECT_EQ(what_of([] { Profile({.rank = 2, .ranks = 2}); }), "profile: rank 2 of 2 is none");
}

/// More events than there is room for are counted, and the room stays.
TEST(Profile, DropsWhatDoesNotFit) {
  const auto all = recorded({.most_bytes = size_t{1} << 20}, 1, [] {
    const Tensor x = ones({3});
    for (int i = 0; i < 30000; ++i) relu(x);
  });
  const Trace& trace = all.at(0).trace();
  EXPECT_GT(trace.dropped, 10000);
  EXPECT_LE(trace.spans.size() * sizeof(Span), size_t{1} << 20);
  ASSERT_FALSE(trace.notes.empty());
  EXPECT_NE(trace.notes.back().find("were dropped"), std::string::npos);
  EXPECT_NE(all[0].notes().find("were dropped"), std::string::npos);
}

/// Kilobytes of memory that the system counts as this process's.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") {
      status >> word;
      return std::stoll(word);
    }
  return 0;
}

/// A step of very many events, each of another name: the room holds names, too, and what does not fit is counted.
TEST(Profile, TenMillionEventsOfAStepDoNotTakeAllMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int events = 500'000;
#else
  constexpr int events = 10'000'000;
#endif
  constexpr size_t room = size_t{6} << 20;
  const int64_t before = resident();
  int64_t grown = 0;
  const auto all = recorded({.most_bytes = room}, 1, [&] {
    for (int i = 0; i < events; ++i) const Range range("batch " + std::to_string(i));
    grown = (resident() - before) * 1024;
  });
  const Trace& trace = all.at(0).trace();
  EXPECT_EQ(trace.dropped + std::ssize(trace.spans), events + 2) << "the step, and the one that began behind it";
  EXPECT_GT(trace.spans.size(), 10'000u);
  EXPECT_LE(trace.spans.size() * sizeof(Span) + trace.names.size() * sizeof(std::string), room);
  EXPECT_NE(all[0].notes().find(std::to_string(trace.dropped) + " events were dropped"), std::string::npos);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(grown, int64_t{2} * room);
#endif
}

/// So are calls that all differ, and their attributes.
TEST(Profile, CallsThatAllDifferFitIntoTheRoom) {
  constexpr size_t room = size_t{2} << 20;
  const auto all = recorded({.memory = false, .most_bytes = room}, 1, [] {
    const NoGrad no_grad;
    const Tensor x = ones({3});
    for (int i = 0; i < 20000; ++i) x.reshape({3}) * (1.0 + i);
  });
  const Trace& trace = all.at(0).trace();
  EXPECT_GT(trace.dropped, 1000);
  ASSERT_GT(trace.calls.size(), 1000u);
  EXPECT_LE(trace.calls.size() * sizeof(Call) + trace.spans.size() * sizeof(Span), room);
}

TEST(Profile, GoesOnWhereACallThrows) {
  const auto all = recorded({}, 1, [] {
    EXPECT_THROW(linear(ones({2, 3}), ones({4, 5})), Error);
    relu(ones({3}));
  });
  EXPECT_EQ(spans_named(all.at(0).trace(), "relu").size(), 1u);
  EXPECT_EQ(spans_named(all.at(0).trace(), "linear").size(), 1u);
}

TEST(Profile, ADiskThatRefusesDisturbsNobody) {
  SmallStep step;
  Profile profile({.schedule = {.active = 1}, .folder = "/proc/none"});
  step();
  profile.step();
  step();
  ASSERT_EQ(profile.trouble().size(), 1u);
  EXPECT_EQ(profile.trouble()[0].find('\n'), std::string::npos);
  EXPECT_NE(profile.trouble()[0].find("/proc/none"), std::string::npos);
  EXPECT_TRUE(profile.files().empty());
}

std::string bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
/// Of a recording's file: the name without what is the trace's alone.
std::string own_name(const std::string& trace) { return trace.substr(0, trace.rfind(".pt.trace.json")); }

TEST(Profile, WritesItsFiles) {
  const Folder folder;
  SmallStep step;
  Profile profile({.schedule = {.wait = 1, .active = 1}, .folder = folder.path});
  for (int i = 0; i < 3; ++i) {
    step();
    profile.step();
  }
  EXPECT_EQ(profile.trouble(), std::vector<std::string>());
  ASSERT_EQ(profile.files().size(), 1u);
  EXPECT_TRUE(profile.files()[0].ends_with(".pt.trace.json"));
  EXPECT_GT(std::filesystem::file_size(profile.files()[0]), 100u);
  for (const std::string file : {"memory.json.gz", "report.html", "flame.svg"}) {
    EXPECT_GT(bytes_of(folder.path + "/" + file).size(), 100u) << file;
    EXPECT_EQ(bytes_of(folder.path + "/" + file), bytes_of(own_name(profile.files()[0]) + "." + file));
  }
  EXPECT_NE(profile.summary().find("linear"), std::string::npos) << profile.summary();
}

/// Plain names are the newest recording's; those before keep theirs, in this profile and in the next.
TEST(Profile, NoRecordingReplacesAnother) {
  const Folder folder;
  std::vector<std::string> traces, reports;
  for (const bool memory : {true, false}) {
    Profile profile({.schedule = {.active = 1, .repeat = 3}, .memory = memory, .folder = folder.path});
    for (int i = 0; i < 3; ++i) {
      relu(ones({3 + i}));
      profile.step();
      ASSERT_EQ(profile.trouble(), std::vector<std::string>());
      traces.push_back(profile.files().back());
      reports.push_back(bytes_of(folder.path + "/report.html"));
    }
  }
  EXPECT_EQ(std::set(traces.begin(), traces.end()).size(), 6u);
  for (size_t i = 0; i < traces.size(); ++i) {
    EXPECT_EQ(bytes_of(own_name(traces[i]) + ".report.html"), reports[i]);
    EXPECT_TRUE(std::filesystem::exists(own_name(traces[i]) + ".flame.svg"));
    EXPECT_EQ(std::filesystem::exists(own_name(traces[i]) + ".memory.json.gz"), i < 3);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/memory.json.gz")) << "the newest has none";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what was freed
/// As in an hour of training with a schedule.
TEST(Profile, ManyRecordingsTakeNoMoreMemoryThanSome) {
  const Folder folder;
  SmallStep step;
  Profile profile({.schedule = {.wait = 1, .warmup = 1, .active = 3, .repeat = 0}, .folder = folder.path});
  const auto resident_after = [&](int recordings) {
    for (int i = 0; i < 5 * recordings; ++i) {
      step();
      profile.step();
    }
    EXPECT_EQ(profile.trouble(), std::vector<std::string>());
    return resident();
  };
  const int64_t some = resident_after(30), more = resident_after(170);
  EXPECT_EQ(profile.files().size(), 200u);
  EXPECT_LT(more - some, 1024) << "kB";
}
#endif

TEST(Profile, MemoryThatRunsOutLeavesASnapshot) {
  const Folder folder;
  Profile profile({.folder = folder.path});
  const std::string error = what_of([] { empty({int64_t{1} << 50}); });
  EXPECT_NE(error.find("out of memory"), std::string::npos);
  EXPECT_TRUE(error.ends_with("; what was held is in " + folder.path + "/out_of_memory.json.gz")) << error;
  EXPECT_TRUE(std::filesystem::exists(folder.path + "/out_of_memory.json.gz"));
}

// Prints the notes of two recordings where the system refuses the processor's counters.
void profile_without_counters() {
  sock_filter refuse[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(refuse), refuse};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::_Exit(77);
  const auto all = recorded({.schedule = {.active = 1, .repeat = 2}}, 2, [] { relu(ones({3})); });
  for (const Recording& r : all) {
    const bool counted = r.steps().find("cycles") != std::string::npos;
    std::fprintf(stderr, "%srecorded%s\n", r.notes().c_str(), counted ? ", with counters" : "");
  }
  std::_Exit(0);
}
TEST(ProfileDeathTest, CountersThatAreNotPermittedAreSaidOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(profile_without_counters(), testing::ExitedWithCode(0),
              "^note: no permission for the processor's counters: see /proc/sys/kernel/perf_event_paranoid\n"
              "recorded\nrecorded\n$");
}

#if !defined(__SANITIZE_THREAD__)  // the sanitizer does not follow threads made after fork
TEST(Profile, AChildIsNotRecorded) {
  const Folder folder;
  Profile profile({.folder = folder.path});
  const pid_t child = fork();
  if (child == 0) {
    const bool silent = !observers::exist() && !is_recording();
    relu(ones({3}));
    profile.step();
    profile.stop();
    _exit(silent && profile.files().empty() ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  profile.stop();
  EXPECT_EQ(profile.files().size(), 1u);
}
#endif

TEST(Profile, StepsOfNobodyAreNothing) {
  step();
  parameters({ones({3})});
  EXPECT_FALSE(is_recording());
  const Range range("unseen");
}

}  // namespace
}  // namespace tessera::profiler
