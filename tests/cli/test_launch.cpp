// Training as several processes: the losses of one process, through kills, on other numbers of ranks.
#include <random>

#include "command_line.h"

namespace tessera::cli {
namespace {

struct LaunchTrain : testing::Test {
  Folder folder;
  std::string text = folder / "text.txt", out = folder / "out";
  void SetUp() override {
    std::string many;
    for (int i = 0; i < 60; ++i)
      many += "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.\n";
    write_file(text, many);
  }
  Words train(int steps, const std::string& name) const {
    return {"train",
            "gpt",
            "--text",
            text,
            "--out",
            out,
            "--layers",
            "1",
            "--heads",
            "2",
            "--width",
            "16",
            "--block",
            "8",
            "--batch",
            "2",
            "--dropout",
            "0.1",
            "--accumulation",
            "4",
            "--steps",
            std::to_string(steps),
            "--threads",
            "1",
            "--json",
            folder / name,
            "--eval-interval",
            "0",
            "--checkpoint-interval",
            "7"};
  }
  static Words launched(int procs, const Words& command, const Words& options = {}) {
    Words all{"launch", "--procs", std::to_string(procs), "--grace", "2"};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"--", TESSERA_COMMAND});
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    const auto result = nlohmann::json::parse(read_file(folder / name));
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

// Four ranks that are killed, two that are killed, and one to the end.
TEST_F(LaunchTrain, GoesOnAfterKillsOnOtherNumbersOfRanks) {
  const int steps = 1000;
  Words whole = train(steps, "one");
  ASSERT_EQ(run(whole).code, 0);
  fs::remove_all(out);
  Words resumed = train(steps, "many");
  for (const int procs : {4, 2}) {
    Running running(launched(procs, resumed));
    while (!fs::exists(out + "/checkpoint.safetensors")) usleep(1000);
    usleep(100'000);
    running.signal_with(SIGKILL);
    EXPECT_NE(running.finish().code, 0);
    if (procs == 4) resumed.push_back("--resume");
  }
  const Finished f = run(resumed);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(losses("many"), losses("one"));
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
  const Finished f = run(launched(3, train(20, "x")));
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("3 ranks do not divide the 4 batches of a step"), std::string::npos) << f.err;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
}

TEST_F(LaunchTrain, WhatRanksDoNotShareIsRefused) {
  const Finished f = run(launched(2, {"train", "convmodel", "--out", out, "--steps", "1"}));
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("ranks do not share"), std::string::npos) << f.err;
}

TEST_F(LaunchTrain, CollectivesAreMeasured) {
  const Finished f = run(launched(2, {"bench", "comm", "--max", "4096", "--seconds", "0.01", "--json", folder / "c"}));
  ASSERT_EQ(f.code, 0) << f.err;
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

TEST_F(LaunchTrain, AFailedRunLeavesItsLastCollectives) {
  const std::string file = folder / "record.pt.trace.json";
  const char* const script = "[ $RANK = 0 ] || (sleep 1; kill -9 $$) & exec \"$0\" \"$@\"";
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
