// The launcher, and ranks that are processes: this program, told by TESSERA_TEST_RANK what to do.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dist/engine.h"
#include "dist/environment.h"
#include "dist/flight_recorder.h"
#include "dist/group.h"
#include "dist/launcher.h"
#include "dist/socket.h"
#include "dist/waiting_ranks.h"
#include "io/temporary_folder.h"
#include "tessera/dist.h"
#include "tessera/io.h"
#include "tessera/ops.h"
#include "tessera/trainer.h"

namespace tessera::dist {
namespace {

struct Ended {
  int code;
  std::vector<std::string> out, err;
  double seconds;
  bool says(const std::string& text) const {
    for (const std::string& line : err)
      if (line.find(text) != std::string::npos) return true;
    return false;
  }
};

Ended run(LaunchOptions options) {
  Ended ended;
  options.print = [&, also = options.print](const std::string& line, bool is_error) {
    (is_error ? ended.err : ended.out).push_back(line);
    if (also) also(line, is_error);
  };
  const auto begin = std::chrono::steady_clock::now();
  ended.code = launch(options);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

Ended run_shell(int procs, const std::string& script) {
  return run({.command = {"/bin/sh", "-c", script}, .procs = procs, .grace = 0.3});
}

LaunchOptions ranks_that(const char* what) {
  setenv("TESSERA_TEST_RANK", what, 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return {.command = {self, "--gtest_filter=LaunchedRank.Does", "--gtest_brief=1"}, .procs = 2};
}

// This program as each rank, which does what rank_does() says.
Ended run_ranks_as(const std::string& what, int procs, double patience = 5) {
  setenv("TESSERA_TEST_RANK", what.c_str(), 1);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const Ended ended = run({.command = {self, "--gtest_filter=LaunchedRank.Does", "--gtest_brief=1"},
                           .procs = procs,
                           .patience = patience,
                           .grace = 0.3});
  unsetenv("TESSERA_TEST_RANK");
  return ended;
}

// Seconds in which others waited for a rank; negative: for any.
double kept_waiting(const World& world, int rank) {
  int64_t out = 0;
  for (int r = 0; r < world.size(); ++r)
    for (const std::atomic<int64_t>& ns : world.state().control->place(r).kept_waiting)
      if (rank < 0 || r == rank) out += ns.load();
  return static_cast<double>(out) * 1e-9;
}

void rank_does(const std::string& what, const World& world) {
  const double sum = world.size() * (world.size() - 1) / 2.0;
  const auto add = [&](int64_t n) {
    const Tensor got = all_reduce(full({n}, static_cast<double>(world.rank()), Float32), world);
    ASSERT_EQ(got.slice(0, n - 1, n).item(), sum);
  };
  add(1);
  add(300'000);
  if (world.rank() == 1) {
    if (what == "kill") raise(SIGKILL);
    if (what == "stop") raise(SIGSTOP);
    if (what == "late exit") std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until the others wait
    if (what == "exit" || what == "late exit") std::_Exit(7);
    if (what == "loop")
      for (std::atomic<int> i{0};; ++i) {
      }
    if (what == "loop until told")
      while (!std::filesystem::exists(std::getenv("TESSERA_TEST_MARK"))) {
      }
    if (what == "differ") broadcast(ones({2}), 0, world);
  }
  if (what == "lost on trial") {  // of a microbatch
    nn::Linear model(2, 1);
    optim::SGD optimizer(model.parameters());
    const auto loss = [&](const Tensors& b) {
      if (world.rank() == 0) throw OutOfMemoryError("planted");
      if (world.rank() == 1) raise(SIGKILL);
      return mean(model(b[0]));
    };
    const train::Work work{.batches = [](int64_t) { return Tensors{ones({4, 2})}; }, .loss = loss};
    const train::Options options{.accumulate = world.size(), .microbatch = train::kAutoMicrobatch};
    train::Trainer(model, optimizer, work, options, &world).run();
  }
  if (what == "slow") {
    const InPhase data(world, Phase::Data);
    // On a busy machine others may have come late at first: until most of the waiting was for rank 1.
    for (Tensor goes_on = ones({1}); goes_on.item() > 0;) {
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const bool is_enough = kept_waiting(world, 1) > 3 && kept_waiting(world, 1) > 0.9 * kept_waiting(world, -1);
      goes_on = all_reduce(full({1}, world.rank() == 1 && !is_enough, Float32), world);
    }
  }
  if (what == "late data") {  // others wait already when it begins
    const auto waited_in = [&](Phase p) {
      return static_cast<double>(world.state().control->place(1).kept_waiting[static_cast<int>(p)].load()) * 1e-9;
    };
    const double data = waited_in(Phase::Data), other = waited_in(Phase::Other);
    for (int i = 0; i < 10; ++i) {
      while (world.rank() == 1 && world.state().control->place(0).waits_for != 2) std::this_thread::yield();
      const InPhase outer(world, Phase::Compute);
      if (world.rank() == 1) {
        const InPhase phase(world, Phase::Data);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      add(1);
    }
    if (world.rank() == 0) {
      EXPECT_GT(waited_in(Phase::Data) - data, 0.9);
      EXPECT_LT(waited_in(Phase::Other) - other, 0.5 * (waited_in(Phase::Data) - data));
    }
  }
  if (what == "twice") {
    const World again;  // the same one
    all_reduce(ones({3}), again);
    add(2);
  }
  if (what == "early" && world.rank() == 1) std::_Exit(0);
  if (what == "interrupt") std::this_thread::sleep_for(std::chrono::seconds(30));
  add(300'000);
}

TEST(LaunchedRank, Does) {
  const char* const what = std::getenv("TESSERA_TEST_RANK");
  if (!what) GTEST_SKIP() << "no launched rank";
  try {
    const World world;
    rank_does(what, world);
  } catch (const Aborted&) {
    std::_Exit(1);
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    std::_Exit(1);
  }
}

TEST(Launch, LinesCarryTheirRank) {
  Ended ended = run_shell(2, "echo out $RANK of $WORLD_SIZE $LOCAL_RANK; echo err >&2; printf unfinished");
  EXPECT_EQ(ended.code, 0);
  std::sort(ended.out.begin(), ended.out.end());
  EXPECT_EQ(ended.out,
            (std::vector<std::string>{"[0] out 0 of 2 0", "[0] unfinished", "[1] out 1 of 2 1", "[1] unfinished"}));
  EXPECT_EQ(ended.err.size(), 2);
  EXPECT_EQ(run_shell(1, "echo alone").out, std::vector<std::string>{"alone"});
}

TEST(Launch, EndsAsTheFirstRankThatFailed) {
  const Ended ended = run_shell(3, "[ $RANK = 1 ] && exit 7; exec sleep 30");
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(ended.err, std::vector<std::string>{"error: rank 1 ended with exit code 7"});
  EXPECT_LT(ended.seconds, 5);
  const Ended spoke = run_shell(2, "[ $RANK = 1 ] && { echo error: why >&2; exit 3; }; exec sleep 30");
  EXPECT_EQ(spoke.code, 3);
  EXPECT_EQ(spoke.err, std::vector<std::string>{"[1] error: why"});
  const Ended missing = run({.command = {"/nowhere/x"}, .procs = 1, .grace = 0.3});
  EXPECT_EQ(missing.code, 127);
  EXPECT_EQ(missing.err, std::vector<std::string>{"error: cannot run /nowhere/x: No such file or directory"});
}

TEST(Launch, OneOfSeveralThatFailSaysWhy) {
  const Ended all = run_shell(8, "echo error: $RANK is full >&2; exit 2");
  EXPECT_EQ(all.code, 2);
  ASSERT_EQ(all.err.size(), 1u);
  EXPECT_NE(all.err[0].find("is full"), std::string::npos) << all.err[0];
  // What a rank says that goes on hides nothing of others.
  for (const char* last : {"sleep 0.6", "sleep 3"}) {
    const Ended one = run_shell(2, std::string("[ $RANK = 0 ] && { echo error: a trifle >&2; ") + last +
                                       "; exit 0; }; sleep 0.3; echo error: why >&2; exit 3");
    EXPECT_EQ(one.code, 3);
    EXPECT_EQ(one.err, (std::vector<std::string>{"[0] error: a trifle", "[1] error: why"}));
  }
}

TEST(Launch, RanksThatDoNotEndAreKilled) {
  const Ended ended = run_shell(2, "trap '' TERM; [ $RANK = 1 ] && exit 1; while :; do sleep 0.05; done");
  EXPECT_EQ(ended.code, 1);
  EXPECT_LT(ended.seconds, 5);
}

TEST(Launch, BeginsAnew) {
  const Ended ended = [] {
    LaunchOptions options{.command = {"/bin/sh", "-c", "echo $TESSERA_RESTART; [ $TESSERA_RESTART = 2 ]"}, .procs = 2};
    options.max_restarts = 3;
    options.grace = 0.3;
    return run(options);
  }();
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(ended.says("all ranks begin anew, 2 of 3 times"));
}

TEST(Launch, GoesOnWithFewer) {
  LaunchOptions options{.command = {"/bin/sh", "-c", "[ $RANK = 0 ] || exit 3"}, .procs = 2};
  options.max_restarts = 3;
  EXPECT_EQ(run(options).code, 3);
  options.min_procs = 1;
  const Ended ended = run(options);
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(ended.says("note: all ranks begin anew as 1, 2 of 3 times"));
}

// Of four ranks the last one is lost for good, and three do not divide the work.
TEST(Launch, GoesOnWithFewerThatDivideTheWork) {
  LaunchOptions options{
      .command = {"/bin/sh", "-c",
                  "[ $WORLD_SIZE = 4 ] && [ $RANK = 3 ] && exit 5; [ $WORLD_SIZE != 4 ] || exec sleep 30; "
                  "[ $WORLD_SIZE != 3 ] || exit 2; echo $WORLD_SIZE after $TESSERA_RESTART"},
      .procs = 4,
      .max_restarts = 5,
      .min_procs = 1,
      .grace = 0.3};
  Ended ended = run(options);
  std::sort(ended.out.begin(), ended.out.end());
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(ended.says("note: 3 ranks were refused: all begin anew as 2"));
  EXPECT_EQ(ended.out, (std::vector<std::string>{"[0] 2 after 2", "[1] 2 after 2"}));
  options.min_procs = 3;
  EXPECT_EQ(run(options).code, 2);
}

TEST(Launch, WaitsAreOfThePhaseThatKeptOthersWaiting) {
  const Ended ended = run_ranks_as("late data", 2);
  EXPECT_EQ(ended.code, 0) << (ended.out.empty() ? "" : ended.out[0]);
}

TEST(Launch, ProcessesAddUp) {
  EXPECT_EQ(run_ranks_as("twice", 2).code, 0);
  for (const int procs : {2, 5}) {
    const Ended ended = run_ranks_as("add", procs);
    EXPECT_EQ(ended.code, 0) << (ended.err.empty() ? "" : ended.err[0]);
  }
}

TEST(Launch, SaysWhoFailedAndWhy) {
  const Ended killed = run_ranks_as("kill", 4);
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_EQ(killed.err, std::vector<std::string>{"error: rank 1 was ended by SIGKILL (out of memory?)"});
  EXPECT_LT(killed.seconds, 2);
  const Ended lost = run_ranks_as("lost on trial", 4);
  EXPECT_EQ(lost.code, 128 + SIGKILL);
  EXPECT_EQ(lost.err, killed.err);
  EXPECT_LT(lost.seconds, 2);
  const Ended gone = run_ranks_as("exit", 3);
  EXPECT_EQ(gone.code, 7);
  EXPECT_EQ(gone.err, std::vector<std::string>{"error: rank 1 ended with exit code 7"});
  const Ended early = run_ranks_as("early", 2);
  EXPECT_EQ(early.code, 1);
  EXPECT_EQ(early.err, std::vector<std::string>{"error: rank 1 has ended, and rank 0 waits for it"});
  const Ended differs = run_ranks_as("differ", 3);
  EXPECT_EQ(differs.code, 1);
  ASSERT_EQ(differs.err.size(), 1) << differs.err[1];
  EXPECT_EQ(differs.err[0],
            "[0] error: collective 3 differs: all_reduce sum of f32[300000] on rank 0, broadcast of f32[2] with root 0 "
            "on rank 1");
}

TEST(Launch, KeepsTheLastCallsOfAFailedRun) {
  std::vector<RankHistory> seen;
  LaunchOptions options = ranks_that("late exit");
  options.procs = 3;
  options.grace = 0.3;
  options.on_failure = [&](const std::vector<RankHistory>& all) { seen = all; };
  EXPECT_EQ(run(options).code, 7);
  ASSERT_EQ(seen.size(), 3);
  for (const RankHistory& rank : seen) {
    ASSERT_EQ(rank.calls.size(), rank.rank == 1 ? 2 : 3);
    for (size_t i = 0; i < rank.calls.size(); ++i) {
      const CallRecord& record = rank.calls[i];
      EXPECT_EQ(record.number, i + 1);
      EXPECT_EQ(record.in_group, i + 1);
      EXPECT_EQ(record.group, seen[0].calls[0].group);
      EXPECT_EQ(record.ranks, 3);
      EXPECT_EQ(to_string(record.call), i == 0 ? "all_reduce sum of f32[1]" : "all_reduce sum of f32[300000]");
      EXPECT_GE(record.began, i == 0 ? 1 : rank.calls[i - 1].ended);
      EXPECT_EQ(record.ended >= record.began, i < 2) << rank.rank << " " << i;
    }
  }
}

// More calls than are kept.
TEST(FlightRecorder, KeepsTheLastOnes) {
  const auto recorder = std::make_unique<FlightRecorder>();
  constexpr auto kKept = FlightRecorder::kCalls;
  EXPECT_TRUE(recorder->records().empty());
  for (uint64_t n = 1; n <= kKept + 7; ++n) {
    recorder->begin({.number = n, .began = 1, .group = 5, .in_group = n, .call = message(Call::Kind::Send, 3, 1)});
    if (n % 2 == 0) recorder->end(n, 2);
  }
  recorder->end(3, 9);  // of a call that is no longer there
  const std::vector<CallRecord> kept = recorder->records();
  ASSERT_EQ(kept.size(), kKept);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].number, i + 8);
    EXPECT_EQ(kept[i].ended, kept[i].number % 2 == 0 ? 2 : 0);
  }
  EXPECT_FALSE(recorder->find(5, 7));
  EXPECT_FALSE(recorder->find(6, 8));
  EXPECT_TRUE(recorder->find(5, 8));
}

TEST(Launch, NamesWhoIsWaitedFor) {
  sigset_t set;  // read by the launcher
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const auto& [what, state] : {std::pair{"stop", "is stopped"}, {"loop", "computes"}}) {
    setenv("TESSERA_TEST_RANK", what, 1);
    const bool shows_stack = what == std::string("loop");
    std::vector<std::string> notes;
    LaunchOptions options{.command = {self, "--gtest_filter=LaunchedRank.Does", "--gtest_brief=1"}, .procs = 3};
    options.patience = 2;
    options.print = [&](const std::string& line, bool) {
      if (!line.starts_with("note: ")) return;
      notes.push_back(line);
      const bool is_last = shows_stack ? line.find("__libc_start") != std::string::npos : notes.size() == 1;
      if (is_last) pthread_kill(pthread_self(), SIGINT);
    };
    EXPECT_EQ(launch(options), 128 + SIGINT);
    unsetenv("TESSERA_TEST_RANK");
    ASSERT_FALSE(notes.empty());
    EXPECT_EQ(notes[0],
              std::string("note: ranks 0, 2 wait for rank 1 in all_reduce, call 3: it ") + state + ", after 2 calls");
    if (!shows_stack) continue;
    ASSERT_GE(notes.size(), 4);
    EXPECT_EQ(notes[1], "note: rank 1 is in");
    EXPECT_NE(notes[2].find("(test_dist)"), std::string::npos) << notes[2];
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Rank 0 waits for rank 1, which waited for rank 0 when it was stopped.
TEST(Launch, AStoppedRankDoesNotWait) {
  const std::shared_ptr<Control> control = create_run(2);
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  const auto lines = [&] {
    std::vector<std::string> out;
    for (const Waited& waited : WaitingRanks(*control, 1).look()) out.push_back(waited.line);
    return out;
  };
  for (const int r : {0, 1}) {
    control->place(r).pid = r == 0 ? getpid() : child;
    control->place(r).since = now_ns() - 5'000'000'000;
    control->place(r).waits_for = 2 - r;
  }
  ASSERT_EQ(lines().size(), 1);
  EXPECT_NE(lines()[0].find("ranks wait for each other, and none will come: rank 0 for rank 1"), std::string::npos);
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  ASSERT_EQ(lines().size(), 1);
  EXPECT_NE(lines()[0].find("rank 0 waits for rank 1 in "), std::string::npos) << lines()[0];
  EXPECT_NE(lines()[0].find(": it is stopped, after "), std::string::npos) << lines()[0];
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Ranks begin a call one after the other, and a look may come between their patiences.
TEST(Launch, TheFirstToLoseItsPatienceSpeaksForOthers) {
  const std::shared_ptr<Control> control = create_run(4);
  WaitingRanks watch(*control, 10);
  const auto wait_for_rank_1 = [&](int r, double seconds) {
    control->place(r).pid = getpid();
    control->place(r).since = now_ns() - static_cast<int64_t>(seconds * 1e9);
    control->place(r).waits_for = 2;
  };
  wait_for_rank_1(0, 9), wait_for_rank_1(2, 8), wait_for_rank_1(3, 1);
  EXPECT_TRUE(watch.look().empty());
  wait_for_rank_1(0, 11);
  const std::vector<Waited> found = watch.look();
  ASSERT_EQ(found.size(), 1);
  EXPECT_TRUE(found[0].line.starts_with("ranks 0, 2 wait for rank 1 in ")) << found[0].line;
  EXPECT_TRUE(watch.look().empty());
}

TEST(Launch, SaysWhoKeptOthersWaiting) {
  const Ended ended = run_ranks_as("slow", 3);
  EXPECT_EQ(ended.code, 0);
  ASSERT_GE(ended.err.size(), 2);
  EXPECT_NE(ended.err[0].find("% of their time, mostly for rank 1"), std::string::npos) << ended.err[0];
  EXPECT_NE(ended.err[1].find("for rank 1: "), std::string::npos) << ended.err[1];
  EXPECT_NE(ended.err[1].find("while it was reading data"), std::string::npos) << ended.err[1];
}

// Launchers of two hosts, which are this one, and what each of them ended with.
std::pair<Ended, Ended> run_two_hosts(LaunchOptions first, LaunchOptions second) {
  setenv("TESSERA_SECRET", "of the test", 1);
  first.nodes = second.nodes = 2;
  second.node_rank = 1;
  first.grace = second.grace = 0.3;
  first.rendezvous = second.rendezvous = "127.0.0.1:" + std::to_string(Socket::listen(0).port());
  Ended other;
  std::thread thread([&] { other = run(second); });
  Ended ended = run(first);
  thread.join();
  return {ended, other};
}

TEST(LaunchHosts, ProcessesAddUp) {
  const auto [first, second] = run_two_hosts(ranks_that("add"), ranks_that("add"));
  unsetenv("TESSERA_TEST_RANK");
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(second.code, 0);
  EXPECT_TRUE(first.err.empty()) << first.err[0];
}

TEST(LaunchHosts, RanksKnowTheirPlaces) {
  const LaunchOptions options{.command = {"/bin/sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE"}, .procs = 2};
  auto [first, second] = run_two_hosts(options, options);
  std::sort(second.out.begin(), second.out.end());
  EXPECT_EQ(second.out, (std::vector<std::string>{"[2] 2 0 4", "[3] 3 1 4"}));
}

TEST(LaunchHosts, SayWhoWasKilledElsewhere) {
  const LaunchOptions waits{.command = {"/bin/sh", "-c", "exec sleep 30"}, .procs = 2};
  const LaunchOptions dies{.command = {"/bin/sh", "-c", "[ $RANK = 3 ] && kill -9 $$; exec sleep 30"}, .procs = 2};
  const auto [first, second] = run_two_hosts(waits, dies);
  EXPECT_EQ(first.code, 128 + SIGKILL);
  ASSERT_EQ(first.err.size(), 1);
  EXPECT_TRUE(first.says("error: rank 3 was ended by SIGKILL (out of memory?), on host 1")) << first.err[0];
  EXPECT_LT(first.seconds, 3);
}

// The launcher of the first host asks the other one, whose rank loops until its stack has been told.
TEST(LaunchHosts, ShowWhereARankElsewhereIs) {
  const TemporaryFolder folder;
  const std::string mark = folder / "told";
  setenv("TESSERA_TEST_MARK", mark.c_str(), 1);
  LaunchOptions first = ranks_that("loop until told");
  first.procs = 1;
  first.patience = 0.5;
  LaunchOptions second = first;
  bool is_named = false;
  first.print = [&](const std::string& line, bool) {
    is_named |= line.find("all_reduce, call 3") != std::string::npos;  // not a start that took its time
    if (is_named && line == "note: rank 1 is in") write_file(mark, "");
  };
  const auto [here, there] = run_two_hosts(first, second);
  unsetenv("TESSERA_TEST_RANK");
  unsetenv("TESSERA_TEST_MARK");
  EXPECT_EQ(here.code, 0);
  EXPECT_EQ(there.code, 0);
  EXPECT_TRUE(here.says("note: rank 0 waits for rank 1 in all_reduce, call 3: it computes, after 2 calls"));
  EXPECT_TRUE(here.says("note:   rank_does") || here.says("(test_dist)")) << here.err.size();
  EXPECT_TRUE(there.err.empty()) << there.err[0];
}

TEST(LaunchHosts, BeginAnew) {
  LaunchOptions options{.command = {"/bin/sh", "-c", "[ $TESSERA_RESTART = 1 ] || [ $RANK != 3 ]"}, .procs = 2};
  options.max_restarts = 2;
  const auto [first, second] = run_two_hosts(options, options);
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(second.code, 0);
  EXPECT_TRUE(first.says("all ranks begin anew as 4"));
}

TEST(LaunchHosts, RefuseWhatCannotBe) {
  LaunchOptions options{.command = {"true"}};
  options.nodes = 2;
  EXPECT_THROW(run(options), Error);  // no rendezvous
  setenv("TESSERA_SECRET", "of the test", 1);
  const Socket taken = Socket::listen(0);
  options.rendezvous = "127.0.0.1:" + std::to_string(taken.port());
  try {
    run(options);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "dist: port " + std::to_string(taken.port()) + " is in use");
  }
  unsetenv("TESSERA_SECRET");
  EXPECT_THROW(run(options), Error);  // no secret
}

struct GroupOf : Group {
  explicit GroupOf(std::shared_ptr<State> state) : Group(std::move(state)) {}
};

// Ranks of a host find each other there, wherever the hub is.
TEST(LaunchHosts, RanksOfAHostNeedNoOther) {
  const HostAddress hub{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1};  // of no host: RFC 5737
  const std::shared_ptr<Control> control = create_part({.ranks = 2, .first = 0, .procs = 2}, hub, key_of("a secret"));
  const auto rank = [&](int r) {
    const GroupOf group(make_world(control, r, {.engine = "tcp"}));
    EXPECT_EQ(all_reduce(full({3}, r + 1.0), group).slice(0, 0, 1).item(), 3);
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

// Also while the first host is not there yet.
TEST(LaunchHosts, AreInterrupted) {
  sigset_t set;  // read by the launcher
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  setenv("TESSERA_SECRET", "of the test", 1);
  LaunchOptions options = ranks_that("nothing");
  options.nodes = 2, options.node_rank = 1;
  options.rendezvous = "127.0.0.1:" + std::to_string(Socket::listen(0).port());
  const pthread_t self = pthread_self();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    pthread_kill(self, SIGTERM);
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run(options), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  later.join();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

TEST(LaunchHosts, ReadListsOfHosts) {
  const auto hosts = parse_hostfile("# ours\na slots=4\n\nb\n", 2);
  ASSERT_EQ(hosts.size(), 2);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].slots, 2);
  EXPECT_THROW(parse_hostfile("a slots=x", 1), Error);
  EXPECT_THROW(parse_hosts("a,-oProxyCommand=x", 1), Error);
  EXPECT_THROW(parse_hosts("a,b,a", 1), Error);
  EXPECT_THROW(parse_hostfile("a slots=2\na slots=2\n", 1), Error);
  EXPECT_EQ(first_of_nodes("n[03-05,9]-x,m"), "n03-x");
}

TEST(LaunchHosts, OneThatSaysNothingIsNamed) {
  const Socket silent = Socket::listen(0);
  try {
    knock(kThisHost, silent.port(), key_of("a"), {}, 0.2);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "dist: 127.0.0.1 port " + std::to_string(silent.port()) + " says nothing for 0.2 s");
  }
}

TEST(LaunchHosts, AStrangerIsRefused) {
  Door door(Socket::listen(0), key_of("a"));
  std::string why;
  std::thread stranger([&] {
    try {
      knock(kThisHost, door.port(), key_of("b"), {}, 5);
    } catch (const Error& e) {
      why = e.what();
    }
  });
  bool entered = false;
  for (int i = 0; i < 50; ++i) {
    std::vector<int> fds;
    door.add_to(fds);
    wait_readable(fds, 0.02);
    door.step([](const Hello&) {}, [&](Channel&&, const Hello&) { entered = true; });
  }
  stranger.join();
  EXPECT_FALSE(entered);
  EXPECT_NE(why.find("the secret is another one"), std::string::npos) << why;
}

TEST(Launch, PinsNeedProcessors) {
  LaunchOptions options{.command = {"true"}, .procs = 1024};
  options.pins = true;
  EXPECT_THROW(run(options), Error);
}

TEST(Launch, LeavesNothingBehind) {
  const Ended child = run_shell(2, "sleep 1234.5 & exit 0");
  EXPECT_EQ(child.code, 0);
  const auto is_there = [] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::string words;
      std::getline(file, words);
      if (words.find("1234.5") != std::string::npos && words.starts_with("sleep")) return true;
    }
    return false;
  };
  for (int i = 0; i < 100 && is_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_there());
  run_ranks_as("kill", 3);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_EQ(entry.path().string().find("tessera"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace tessera::dist
