// Training as several processes: the losses of one process, through kills, on other numbers of ranks.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <set>

#include "data/http_server.h"
#include "launched_training.h"

namespace tessera::cli {
namespace {

struct LaunchTrain : LaunchedTraining {
  void go_on_through_kills(int accumulation, const std::vector<int>& procs);
  // Unlike `text`, which compression leaves little of.
  void pack(const std::string& to, unsigned seed = 7) const {
    std::mt19937 random(seed);
    std::string letters = "abcdefghijklmnopqrstuvwxyz";
    while (letters.size() < 9000) letters += static_cast<char>('a' + random() % 26);
    write_file(to + ".txt", letters);
    const Words command{"data", "pack",     to + ".txt", "--block",      "8", "--out", to, "--compression",
                        "zstd", "--hashes", "xxh64",     "--size-limit", "2k"};
    const Finished f = run(command);
    ASSERT_EQ(f.code, 0) << f.err;
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    const nlohmann::json result = json(name);
    for (const auto& s : result["steps"]) all.push_back(s["loss"]);
    return all;
  }
};

TEST_F(LaunchTrain, LossesAreThoseOfOneProcess) {
  ASSERT_EQ(run(train(20, "one")).code, 0);
  for (const int procs : {2, 4}) {
    fs::remove_all(out);
    const Finished f = run(launched(procs, train(20, "many")));
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(losses("many"), losses("one")) << procs;
    EXPECT_NE(f.out.find(std::to_string(procs) + " ranks with 1 threads"), std::string::npos) << f.out;
    EXPECT_EQ(f.out.find("[1]"), std::string::npos) << f.out;  // rank 0 alone speaks
  }
}

// One rank alone has too little memory: all take what it can.
TEST_F(LaunchTrain, FindsAMicrobatchThatFitsOnAllRanks) {
  const Words more{"--batch", "32", "--block", "32"};
  ASSERT_EQ(run(train(6, "whole") + more).code, 0);
  const auto whole = nlohmann::json::parse(read_file(folder / "whole"));
  const auto limit = std::to_string(whole["peak_memory_bytes"].get<int64_t>() / 2);
  for (const int procs : {2, 4}) {
    fs::remove_all(out);
    Words all = launched(procs, train(6, "auto") + more + Words{"--microbatch", "auto"});
    const std::string script = "[ $RANK != 1 ] || export TESSERA_MEMORY_LIMIT=" + limit + "; exec \"$0\" \"$@\"";
    all.insert(std::find(all.begin(), all.end(), "--") + 1, {"/bin/sh", "-c", script});
    const Finished f = run(all);
    ASSERT_EQ(f.code, 0) << f.err;
    const int64_t size = nlohmann::json::parse(read_file(folder / "auto"))["microbatch"];
    ASSERT_GT(size, 0) << procs;
    ASSERT_LT(size, 32) << procs;
    EXPECT_NE(f.out.find("microbatches of " + std::to_string(size) + " sequence"), std::string::npos) << f.out;
    fs::remove_all(out);
    ASSERT_EQ(run(train(6, "fixed") + more + Words{"--microbatch", std::to_string(size)}).code, 0);
    EXPECT_EQ(losses("auto"), losses("fixed")) << procs;
  }
}

TEST_F(LaunchTrain, AMicrobatchOfOneThatIsTooLargeIsOneLine) {
  Words all = launched(4, train(6, "one") + Words{"--microbatch", "auto"});
  const std::string script = "[ $RANK != 2 ] || export TESSERA_MEMORY_LIMIT=60K; exec \"$0\" \"$@\"";
  all.insert(std::find(all.begin(), all.end(), "--") + 1, {"/bin/sh", "-c", script});
  const Finished f = run(all);
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("error: train: microbatches of one sample are too large on rank 2: out of memory on cpu: "),
            std::string::npos)
      << f.err;
  EXPECT_EQ(f.err.find("error:"), f.err.rfind("error:")) << f.err;
}

// Runs that save after every step and are killed at random moments, the launcher or one of the ranks, each time on
// another of these numbers of ranks. TESSERA_TEST_KILLS says how many.
void LaunchTrain::go_on_through_kills(int accumulation, const std::vector<int>& procs) {
  const char* const given = std::getenv("TESSERA_TEST_KILLS");
  const int kills = given ? std::atoi(given) : 3, steps = std::max(150, 40 * kills);
  ASSERT_EQ(run(train(steps, "one", accumulation, 0)).code, 0);
  fs::remove_all(out);
  const std::string checkpoint = out + "/checkpoint.safetensors";
  std::random_device seed;
  for (int i = 0; i < kills; ++i) {
    const int ranks = procs[static_cast<size_t>(i) % procs.size()];
    const std::string before = fs::exists(checkpoint) ? read_file(checkpoint) : "";
    Words command = train(steps, "many", accumulation, 1);
    if (!before.empty()) command.push_back("--resume");
    const int delay = static_cast<int>(seed() % 40'000);
    // A rank finds its own end once the others have gone on; the launcher is killed from here.
    const bool ends_itself = ranks > 1 && seed() % 2;
    const std::string mark = folder / ("kill" + std::to_string(i));
    Words all = launched(ranks, command);
    if (ends_itself) {
      const std::string script = "if [ $RANK = " + std::to_string(seed() % static_cast<unsigned>(ranks)) +
                                 " ]; then (while [ ! -e " + mark + " ]; do sleep 0.005; done; kill -9 $$) & fi; " +
                                 "exec \"$0\" \"$@\"";
      const auto at = std::find(all.begin(), all.end(), "--") + 1;
      all.insert(at, {"/bin/sh", "-c", script});
    }
    Running running(all);
    for (int waits = 0; waits < 30'000 && (!fs::exists(checkpoint) || read_file(checkpoint) == before); ++waits)
      usleep(1000);
    usleep(static_cast<useconds_t>(delay));
    if (ends_itself) write_file(mark, "");
    else running.signal_with(SIGKILL);
    EXPECT_EQ(running.finish().code, 128 + SIGKILL) << "kill " << i << " of " << ranks << " ranks, " << delay << " us";
  }
  const Finished f = run(train(steps, "many", accumulation) + Words{"--resume"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(losses("many"), losses("one"));
  std::set<std::string> left;  // no part of any rank that was killed
  for (const auto& entry : fs::directory_iterator(out)) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"checkpoint.safetensors", "checkpoint.safetensors.1", "loss.svg"}));
}

TEST_F(LaunchTrain, GoesOnAfterKillsOnOtherNumbersOfRanks) { go_on_through_kills(4, {4, 2, 1}); }
TEST_F(LaunchTrain, GoesOnAfterKillsOnThreeTimesPowersOfTwo) { go_on_through_kills(24, {3, 6, 12}); }

TEST_F(LaunchTrain, GoesOnAfterKillsOfStreamedData) {
  pack(shards);
  source = {"--data", shards};
  go_on_through_kills(4, {4, 2, 1});
}

TEST_F(LaunchTrain, GoesOnAfterKillsOfAMixtureOnThreeTimesPowersOfTwo) {
  const std::string more = folder / "more";
  pack(shards);
  pack(more, 8);
  source = {"--data", shards, more, "--proportions", "0.7,0.3"};
  go_on_through_kills(24, {3, 6, 12});
}

// A server that takes its time, and a cache that holds a part of the shards: they come, leave and come again, whoever
// is killed meanwhile.
TEST_F(LaunchTrain, GoesOnAfterKillsOfDownloadedData) {
  pack(shards);
  HttpServer server([&](const std::string& path, int before) {
    usleep(static_cast<useconds_t>(1000 * (std::hash<std::string>()(path + std::to_string(before)) % 20)));
    const std::string file = folder / path;
    return fs::exists(file) ? HttpAnswer{200, read_file(file)} : HttpAnswer{404, ""};
  });
  source = {"--data", server / "shards", "--data-cache", folder / "cache", "--data-cache-limit", "6k"};
  go_on_through_kills(4, {4, 2, 1});
  EXPECT_GT(server.asked("shards/train/shard.00001.mds.zstd"), 1);
  uintmax_t kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "cache/shards")) {
    EXPECT_NE(entry.path().extension(), ".part") << entry.path();
    if (entry.is_regular_file()) kept += entry.file_size();
  }
  EXPECT_GT(kept, 0u);
  EXPECT_LE(kept, 6u << 10);
}

// A shard that never comes: ranks that need it are named, and a signal ends them before the step that they all make.
TEST_F(LaunchTrain, StopsWhereDataDoesNotCome) {
  pack(shards);
  const std::string silent = "shards/train/shard.00003.mds.zstd";
  HttpServer server([&](const std::string& path, int) {
    const std::string file = folder / path;
    if (path == silent) return HttpAnswer{.silent = true};
    return fs::exists(file) ? HttpAnswer{200, read_file(file)} : HttpAnswer{404, ""};
  });
  source = {"--data", server / "shards", "--data-cache", folder / "cache", "--data-stall", "60"};
  const auto ends = [&](const Words& words) {
    const int before = server.asked(silent);
    Running running(words);
    while (server.asked(silent) == before) usleep(10000);
    sleep(2);  // by now nothing but that shard is waited for
    const auto begin = std::chrono::steady_clock::now();
    running.signal_with(SIGINT);
    const Finished f = running.finish();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    EXPECT_EQ(f.code, 128 + SIGINT) << f.err;
    EXPECT_EQ(f.err.find("error"), std::string::npos) << f.err;
    EXPECT_NE(f.out.find("go on with the same command and --resume"), std::string::npos) << f.out;
    EXPECT_TRUE(fs::exists(out + "/checkpoint.safetensors"));
  };
  ends(train(100000, "one", 2));
  fs::remove_all(out);
  ends(launched(2, train(100000, "two", 2)));
}

TEST_F(LaunchTrain, AFullDiskOfARankLeavesTheLastCheckpoint) {
  ASSERT_EQ(run(launched(2, train(10, "first"))).code, 0);
  const std::string before = read_file(out + "/checkpoint.safetensors");
  // Rank 1 may write no file of more than 8 KiB.
  const std::string script = "if [ $RANK = 1 ]; then trap '' XFSZ; ulimit -f 16; fi; exec \"$0\" \"$@\"";
  Words command = launched(2, train(20, "second") + Words{"--resume"});
  command.insert(std::find(command.begin(), command.end(), "--") + 1, {"/bin/sh", "-c", script});
  const Finished f = run(command);
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("[1] error: cannot write \""), std::string::npos) << f.err;
  EXPECT_EQ(f.err.find("[0] error"), std::string::npos) << f.err;
  EXPECT_EQ(read_file(out + "/checkpoint.safetensors"), before);
  ASSERT_EQ(run(train(20, "second") + Words{"--resume"}).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(run(train(20, "one")).code, 0);
  EXPECT_EQ(losses("second"), losses("one"));
}

TEST_F(LaunchTrain, GoesOnFromTheCheckpointBeforeADamagedOne) {
  ASSERT_EQ(run(train(20, "one")).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(run(launched(2, train(10, "first"))).code, 0);  // saves after steps 7 and 10
  const std::string checkpoint = out + "/checkpoint.safetensors", part = checkpoint + ".2-1.part";
  fs::resize_file(part, fs::file_size(part) / 2);
  const Finished f = run(launched(2, train(20, "many") + Words{"--resume"}));
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("[0] note: " + part + ": "), std::string::npos) << f.out;
  EXPECT_NE(f.out.find(": the run goes on from " + checkpoint + ".1, which was saved before it"), std::string::npos)
      << f.out;
  EXPECT_NE(f.out.find(", from step 7"), std::string::npos) << f.out;
  EXPECT_EQ(losses("many"), losses("one"));
}

// The first time, rank 1 ends itself once there are two checkpoints; before the second, rank 0 damages the newest.
TEST_F(LaunchTrain, BeginsAnewFromTheCheckpointBeforeADamagedOne) {
  ASSERT_EQ(run(train(300, "one")).code, 0);
  fs::remove_all(out);
  const std::string file = out + "/checkpoint.safetensors", mark = folder / "damaged";
  const std::string script = "if [ $TESSERA_RESTART = 0 ]; then if [ $RANK = 1 ]; then (while [ ! -e " + file +
                             ".1 ]; do sleep 0.01; done; kill -9 $$) & fi; elif [ $RANK = 0 ]; then echo x > " + file +
                             "; touch " + mark + "; else while [ ! -e " + mark +
                             " ]; do sleep 0.01; done; fi; exec \"$0\" \"$@\"";
  Words command = launched(2, train(300, "many"), {"--max-restarts", "1"});
  command.insert(std::find(command.begin(), command.end(), "--") + 1, {"/bin/sh", "-c", script});
  const Finished f = run(command);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("all ranks begin anew, 1 of 1"), std::string::npos) << f.err;
  EXPECT_NE(f.out.find("the run goes on from " + file + ".1, which was saved before it"), std::string::npos) << f.out;
  EXPECT_EQ(losses("many"), losses("one"));
}

TEST_F(LaunchTrain, APartThatIsMissingIsRefused) {
  ASSERT_EQ(run(launched(2, train(10, "first") + Words{"--keep-checkpoints", "1"})).code, 0);
  std::string part;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().string().ends_with("-1.part")) part = entry.path();
  ASSERT_FALSE(part.empty());
  fs::remove(part);
  const Finished f = run(train(20, "second") + Words{"--resume"});
  EXPECT_EQ(f.code, 2);
  EXPECT_EQ(f.err, "error: cannot open \"" + part + "\": No such file or directory\n");
}

TEST_F(LaunchTrain, BeginsAnewFromTheCheckpoint) {
  ASSERT_EQ(run(train(300, "one")).code, 0);
  fs::remove_all(out);
  // The first time, rank 1 ends itself once there is a checkpoint.
  const std::string script = "if [ $RANK = 1 ] && [ $TESSERA_RESTART = 0 ]; then (while [ ! -e " + out +
                             "/checkpoint.safetensors ]; do sleep 0.01; done; kill -9 $$) & fi; exec \"$0\" \"$@\"";
  Words command{"launch", "--procs", "2",       "--grace", "2",    "--max-restarts",
                "1",      "--",      "/bin/sh", "-c",      script, TESSERA_COMMAND};
  const Words arguments = train(300, "many");
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Finished f = run(command);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("error: rank 1 was ended by SIGKILL"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("all ranks begin anew, 1 of 1"), std::string::npos) << f.err;
  EXPECT_EQ(losses("many"), losses("one"));
}

TEST_F(LaunchTrain, AnInterruptSavesOnAllRanks) {
  Running running(launched(2, train(1'000'000, "x")));
  ASSERT_TRUE(running.wait_for("step "));
  running.signal_with(SIGINT);
  const Finished f = running.finish();
  EXPECT_EQ(f.code, 128 + SIGINT);
  EXPECT_NE(f.out.find("stopped at step"), std::string::npos) << f.out;
  EXPECT_EQ(f.err.find("error"), std::string::npos) << f.err;
}

TEST_F(LaunchTrain, OneLineForWhatCannotBe) {
  expect_error(run({"launch", "--procs", "2"}), 2, "give a command behind --");
  expect_error(run({"launch", "--procs", "0", "--", "true"}), 2, "--procs");
  expect_error(run({"bench", "comm"}), 2, "one rank has nobody to exchange with");
  const auto refused = [](const Words& options, const std::string& why) {
    expect_error(run(Words{"launch"} + options + Words{"--", "true"}), 2, why);
  };
  refused({"--procs", "2", "--ninstances", "2"}, "give one of the two");
  refused({"--ninstances", "1024", "--ncores-per-instance", "1"}, "1024 ranks with 1 threads each cannot be pinned");
  refused({"--procs", "2", "--min-procs", "1"}, "--min-procs goes with --max-restarts");
  refused({"--procs", "2", "--min-procs", "3", "--max-restarts", "1"}, "--min-procs 3 exceeds --procs 2");
  refused({"--hosts", "a,b,a"}, "host a is given twice");
  refused({"--nodes", "2"}, "give --rendezvous HOST:PORT");
  refused({"--nodes", "2", "--node-rank", "2", "--rendezvous", "a:1"}, "there is no host 2 among 2");
  EXPECT_EQ(run(launched(2, {"bench", "comm", "--dtype", "f99"})).code, 2);
  EXPECT_EQ(run(launched(2, {"bench", "comm", "--max", "1T"})).code, 2);
  EXPECT_EQ(run(launched(2, train(20, "x") + Words{"--local-sgd", "0"})).code, 2);
  const Finished f = run(launched(3, train(20, "x")));
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("3 ranks do not divide the 4 batches of a step"), std::string::npos) << f.err;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
}

TEST_F(LaunchTrain, StripsOfAPictureAreShared) {
  const auto picture = [&](const std::string& name) {
    return Words{"train", "convmodel", "--size",    "20", "--steps", "5", "--accumulation", "4",
                 "--amp", "bf16",      "--threads", "1",  "--out",   out, "--json",         folder / name};
  };
  ASSERT_EQ(run(picture("one")).code, 0);
  const auto one = nlohmann::json::parse(read_file(folder / "one"));
  for (const int procs : {2, 4}) {
    fs::remove_all(out);
    const Finished f = run(launched(procs, picture("many")));
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(losses("many"), losses("one"));
    EXPECT_EQ(nlohmann::json::parse(read_file(folder / "many"))["val_loss"], one["val_loss"]);
  }
  const Finished f = run(launched(2, {"train", "convmodel", "--out", out, "--steps", "1"}));
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("2 ranks do not divide the 1 batches of a step"), std::string::npos) << f.err;
}

// A program of a user's own, on other numbers of ranks and on from its checkpoint.
TEST_F(LaunchTrain, TheExampleIsTheSameOnRanks) {
  if (!fs::exists(TESSERA_TRAINER_EXAMPLE)) GTEST_SKIP() << "no examples were built";
  std::string first;
  for (const char* procs : {"1", "2", "4"}) {
    Finished f = run({"launch", "--procs", procs, "--", TESSERA_TRAINER_EXAMPLE, folder / (std::string("c") + procs)});
    ASSERT_EQ(f.code, 0) << f.err;
    for (size_t at; (at = f.out.find("[0] ")) != std::string::npos;) f.out.erase(at, 4);
    if (first.empty()) first = f.out;
    EXPECT_EQ(f.out, first);
    EXPECT_NE(f.out.find("step 640  loss "), std::string::npos) << f.out;
  }
}

TEST_F(LaunchTrain, CollectivesAreMeasured) {
  const Finished f = run(launched(2, {"bench", "comm", "--max", "4k", "--seconds", "0.01", "--json", folder / "c"}));
  ASSERT_EQ(f.code, 0) << f.err;
  const auto result = nlohmann::json::parse(read_file(folder / "c"))["results"];
  EXPECT_EQ(result[0]["name"], "all_reduce 4");  // one element; others share at least one for each rank
  EXPECT_NE(f.out.find("all_gather                8 "), std::string::npos) << f.out;
  for (const char* name : {"all_reduce", "reduce_scatter", "send_recv"})
    EXPECT_NE(f.out.find(name), std::string::npos) << f.out;
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "c"))["ranks"], 2);
}

TEST_F(LaunchTrain, EnginesAreExplained) {
  const Finished f = run(launched(2, {"explain", "all_reduce"}));
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("all_reduce of 2 ranks on cpu\n[0] -> neighbours "), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("tcp "), std::string::npos) << f.out;
  EXPECT_EQ(f.out.find("[1]"), std::string::npos) << f.out;
  EXPECT_NE(run({"explain", "all_reduce"}).out.find("one rank: nothing moves"), std::string::npos);
}

// A single rank, whose gradients go through the engine of collectives all the same.
TEST_F(LaunchTrain, OfOneRankGoesThroughTheEngine) {
  ASSERT_EQ(run(launched(1, train(20, "one"))).code, 0);
  fs::remove_all(out);
  const Finished f = run(launched(1, train(20, "through") + Words{"--data-parallel"}));
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(losses("through"), losses("one"));
  fs::remove_all(out);
  const Finished unknown =
      run(launched(1, {"-c", "TESSERA_ENGINE=none exec \"$@\"", "sh", TESSERA_COMMAND}, {}, "/bin/sh") +
          train(20, "none") + Words{"--data-parallel"});
  expect_error(unknown, 1, "dist: there is no engine none");
}

TEST_F(LaunchTrain, GradientsTravelInHalves) {
  ASSERT_EQ(run(train(20, "one")).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(run(launched(2, train(20, "halves") + Words{"--gradient-dtype", "bf16"})).code, 0);
  EXPECT_NE(losses("halves"), losses("one"));
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(losses("halves")[i], losses("one")[i], 0.01);
  expect_error(run(train(2, "x") + Words{"--gradient-dtype", "i32"}), 2, "--gradient-dtype");
  expect_error(run(train(2, "x") + Words{"--gradient-dtype", "bf16", "--local-sgd", "2"}), 2, "does not go with");
}

TEST_F(LaunchTrain, ARankThatWaitsTooLongEndsTheRun) {
  const char* const script = "[ $RANK = 0 ] || exec sleep 60; exec \"$0\" \"$@\"";
  const Finished f = run(Words{"launch", "--procs", "2", "--timeout", "1.5", "--grace", "0.5", "--", "/bin/sh", "-c",
                               script, TESSERA_COMMAND} +
                         train(20, "x"));
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("error: rank 0 has waited 1.5 s for rank 1"), std::string::npos) << f.err;
  const Finished none = run({"launch", "--procs", "2", "--", "/bin/sh", "-c", "TESSERA_TIMEOUT=x exec \"$0\" \"$@\"",
                             TESSERA_COMMAND, "bench", "comm"});
  EXPECT_NE(none.err.find("error: dist: TESSERA_TIMEOUT is no number of seconds: x"), std::string::npos) << none.err;
}

// A script in the place of ssh begins the other host's ranks on this one.
TEST_F(LaunchTrain, SshBeginsOtherHosts) {
  write_file(folder / "ssh", "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\necho \"$2 $3\" >" + (folder / "said") +
                                 "\nexec sh -c \"$3\"\n");
  fs::permissions(folder / "ssh", fs::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder.path.string() + ":" + path).c_str(), 1);
  setenv("TESSERA_OF_A_TEST", "it's here", 1);
  const Finished f =
      run({"launch", "--hosts", "127.0.0.1,elsewhere", "--procs", "1", "--timeout", "77", "--reduction", "ordered",
           "--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE, $TESSERA_OF_A_TEST $TESSERA_TIMEOUT $TESSERA_REDUCTION"});
  const Finished trained = run(Words{"launch", "--hosts", "127.0.0.1,elsewhere", "--procs", "1", "--"} +
                               Words{TESSERA_COMMAND} + train(6, "many"));
  setenv("PATH", path.c_str(), 1);
  unsetenv("TESSERA_OF_A_TEST");
  ASSERT_EQ(f.code, 0) << f.err;
  for (const char* line : {"[0] 0 of 2, it's here 77 ordered\n", "[1] 1 of 2, it's here 77 ordered\n"})
    EXPECT_NE(f.out.find(line), std::string::npos) << f.out;
  const std::string said = read_file(folder / "said");
  EXPECT_EQ(said.rfind("elsewhere read -r TESSERA_SECRET", 0), 0u) << said;
  EXPECT_EQ(said.find("TESSERA_SECRET="), std::string::npos) << said;
  ASSERT_EQ(trained.code, 0) << trained.err;
  fs::remove_all(out);
  ASSERT_EQ(run(train(6, "one")).code, 0);
  EXPECT_EQ(losses("many"), losses("one"));
}

TEST_F(LaunchTrain, WordsBehindDashesStayAsTheyAre) {
  const Finished f = run(launched(1, {"%s|", "[2, 0]", "", "--", "[a,b]", "--procs=3", "-h"}, {}, "printf"));
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out, "[2, 0]||--|[a,b]|--procs=3|-h|\n");
  expect_error(run({"launch", "--procs", "1", "--"}), 2, "give a command behind --");
}

TEST_F(LaunchTrain, AFailedRunLeavesItsLastCollectives) {
  const std::string file = folder / "record.pt.trace.json";
  const char* const script = "[ $RANK = 0 ] || (sleep 3; kill -9 $$) & exec \"$0\" \"$@\"";
  Words command{"launch", "--procs", "2", "--flight-record", file, "--", "/bin/sh", "-c", script, TESSERA_COMMAND};
  const Words arguments = train(1'000'000, "x");
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Finished f = run(command);
  EXPECT_EQ(f.code, 128 + SIGKILL);
  EXPECT_NE(f.err.find("note: the last collectives of each rank are in " + file), std::string::npos) << f.err;
  const Finished read = run({"profile", file});
  ASSERT_EQ(read.code, 0) << read.err;
  EXPECT_NE(read.out.find("all_reduce"), std::string::npos) << read.out;
}

}  // namespace
}  // namespace tessera::cli
