// Profiles through the command: --profile of what runs, and what opens it again.
#include "command_line.h"

namespace tessera::cli {
namespace {

struct ProfileCommand : testing::Test {
  Folder folder;
  std::string out = folder / "profile";
  Words train(const Words& more) const {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Rough winds do shake the darling buds of May, and summer's lease hath.\n";
    write_file(folder / "text.txt", text);
    return Words{"train",           "gpt",
                 "--text",          folder / "text.txt",
                 "--out",           folder / "run",
                 "--layers",        "2",
                 "--width",         "16",
                 "--heads",         "2",
                 "--block",         "8",
                 "--batch",         "2",
                 "--steps",         "6",
                 "--eval-interval", "0",
                 "--threads",       "2",
                 "--profile",       out} +
           more;
  }
  std::string trace() const {
    for (const auto& entry : fs::directory_iterator(out))
      if (entry.path().string().ends_with(".pt.trace.json")) return entry.path();
    return "";
  }
};

TEST_F(ProfileCommand, TrainingLeavesATraceAReportAndATable) {
  const Finished f = run(train({"--profile-steps", "wait=1,warmup=1,active=2"}));
  ASSERT_EQ(f.code, 0) << f.err;
  for (const char* name : {"memory.json.gz", "report.html", "flame.svg"}) EXPECT_TRUE(fs::exists(out + "/" + name));
  const nlohmann::json trace_file = nlohmann::json::parse(read_file(trace()));
  EXPECT_EQ(trace_file["schemaVersion"], 1);
  std::set<std::string> steps, ops;
  for (const auto& e : trace_file["traceEvents"]) {
    const std::string name = e.value("name", "");
    if (name.starts_with("ProfilerStep#")) steps.insert(name);
    if (e.value("cat", "") == "cpu_op") ops.insert(name);
  }
  EXPECT_EQ(steps, (std::set<std::string>{"ProfilerStep#2", "ProfilerStep#3"}));
  for (const char* op : {"linear", "attention_qkv", "adam_"}) EXPECT_TRUE(ops.contains(op)) << op;
  EXPECT_NE(f.out.find("linear"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("wrote " + trace()), std::string::npos) << f.out;
  const bool advised = f.out.find(" of a step (") != std::string::npos;
  EXPECT_NE(f.out.find("no advice: ") != std::string::npos, advised) << f.out;

  const Finished again = run({"profile", out});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("linear"), std::string::npos) << again.out;
  ASSERT_EQ(run({"profile", out, "--json", folder / "table.json"}).code, 0);
  const nlohmann::json table = nlohmann::json::parse(read_file(folder / "table.json"));
  std::set<std::string> modules;
  for (const auto& row : table["kernels"]) {
    double sum = 0;
    for (const auto& m : row["modules"]) {
      sum += m["seconds"].get<double>();
      if (row["op"] == "linear") modules.insert(m["module"]);
    }
    EXPECT_NEAR(sum, row["seconds"].get<double>(), 1e-9) << row;
    EXPECT_EQ(row["module"], row["modules"][0]["module"]) << row;
  }
  for (const char* name : {"h.0.attention.qkv", "h.1.attention.qkv"}) EXPECT_TRUE(modules.contains(name)) << name;
  const Finished compared = run({"profile", "--compare", trace(), trace()});
  EXPECT_EQ(compared.code, 0) << compared.err;
}

/// By default the first step is the program's: the one behind the recording is timed, if there is one.
TEST_F(ProfileCommand, AStepIsTimedWithoutRecording) {
  for (const int steps : {5, 6}) {
    fs::remove_all(out);
    Words words = train({});
    *(std::find(words.begin(), words.end(), "--steps") + 1) = std::to_string(steps);
    const Finished f = run(words);
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json file = nlohmann::json::parse(read_file(trace()));
    EXPECT_EQ(file["tessera"]["plain step"] > 0, steps == 6);
  }
}

/// Two ranks that train one model, each with a trace of its own.
TEST_F(ProfileCommand, ProcessesWithRanksMergeIntoOneTrace) {
  const Finished alone = run(train({}));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const std::string trace_of_none = trace();
  out = folder / "ranks";
  const Finished launched =
      run(Words{"launch", "--procs", "2", "--", TESSERA_COMMAND} + train({"--accumulation", "2"}));
  EXPECT_EQ(launched.code, 0) << launched.err;
  Words ranks;
  for (const auto& entry : fs::directory_iterator(out))
    if (entry.path().string().ends_with(".pt.trace.json")) ranks.push_back(entry.path().string());
  ASSERT_EQ(ranks.size(), 2u);
  if (nlohmann::json::parse(read_file(ranks[0]))["distributedInfo"]["rank"] != 0) std::swap(ranks[0], ranks[1]);
  setenv("WORLD_SIZE", "2", 1);
  for (const char* rank : {"2", "-1", "first", "", "1 "}) {
    setenv("RANK", rank, 1);
    expect_error(run({"sample", "--checkpoint", folder / "run", "--tokens", "6", "--profile", folder / "none"}), 2,
                 "--profile: RANK=" + std::string(rank) + " of WORLD_SIZE=2 is no rank");
  }
  setenv("RANK", "0", 1);
  expect_error(run(train({})), 1, "start the program by `tessera launch`");
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  const Finished merged = run(Words{"profile", "--merge"} + ranks + Words{"--out", folder / "all.json"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_NE(merged.out.find("all_reduce"), std::string::npos) << merged.out;  // who waited for whom
  std::set<int> processes;
  const nlohmann::json all = nlohmann::json::parse(read_file(folder / "all.json"));
  for (const auto& e : all["traceEvents"])
    if (e.value("cat", "") == "cpu_op") processes.insert(e["pid"].get<int>());
  EXPECT_EQ(processes.size(), 2u);
  expect_error(run({"profile", "--merge", ranks[0], trace_of_none, "--out", folder / "b.json"}), 2, "rank 0");
}

TEST_F(ProfileCommand, InterruptedTrainingLeavesWhatWasSeen) {
  Words words = train({"--profile-steps", "active=0"});
  *(std::find(words.begin(), words.end(), "--steps") + 1) = "1000000";
  Running training(words);
  ASSERT_TRUE(training.wait_for("step 1/"));
  training.signal_with(SIGINT);
  const Finished f = training.finish();
  EXPECT_EQ(f.code, 128 + SIGINT) << f.err;
  EXPECT_NE(f.out.find("wrote " + trace()), std::string::npos) << f.out;
  const Finished again = run({"profile", out});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("ProfilerStep#0"), std::string::npos) << again.out;
}

TEST_F(ProfileCommand, TheRunIsTheSameWithIt) {
  const Finished f = run(train({"--json", folder / "a.json"}));
  ASSERT_EQ(f.code, 0) << f.err;
  Words plain = train({"--json", folder / "b.json"});
  plain.erase(std::find(plain.begin(), plain.end(), "--profile"), std::find(plain.begin(), plain.end(), "--json"));
  ASSERT_EQ(run(plain).code, 0);
  const auto losses = [&](const std::string& name) {
    std::vector<double> all;
    const auto result = nlohmann::json::parse(read_file(folder / name));
    for (const auto& s : result["steps"]) all.push_back(s["loss"]);
    return all;
  };
  EXPECT_EQ(losses("a.json"), losses("b.json"));
}

/// A round of a benchmark is a step, and so is a token of a sample.
TEST_F(ProfileCommand, BenchmarksAndSamplesHaveSteps) {
  const auto steps = [&] {
    std::vector<std::string> names;
    const nlohmann::json file = nlohmann::json::parse(read_file(trace()));
    for (const auto& e : file["traceEvents"])
      if (const std::string name = e.value("name", ""); name.starts_with("ProfilerStep#")) names.push_back(name);
    fs::remove_all(out);
    return names;
  };
  const Words three{"--profile", out, "--profile-steps", "wait=1,active=3"};
  const Words wanted{"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"};
  Finished f = run(Words{"bench", "op", "add", "--seconds", "0.05", "--threads", "1"} + three);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(steps(), wanted);
  ASSERT_EQ(run(train({})).code, 0);
  fs::remove_all(out);
  f = run(Words{"sample", "--checkpoint", folder / "run", "--tokens", "6", "--threads", "1"} + three);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(steps(), wanted);
}

TEST_F(ProfileCommand, AnInterruptedBenchmarkLeavesWhatWasSeen) {
  Running bench({"bench", "op", "add", "--seconds", "60", "--threads", "1", "--profile", out});
  for (int i = 0; i < 600 && !fs::exists(out); ++i) usleep(10000);
  usleep(500000);
  bench.signal_with(SIGINT);
  const Finished f = bench.finish();
  EXPECT_EQ(f.code, 128 + SIGINT) << f.err;
  const nlohmann::json trace_file = nlohmann::json::parse(read_file(trace()));
  EXPECT_FALSE(trace_file["traceEvents"].empty());
}

/// What is too large for the disk costs its file, not the tables.
TEST_F(ProfileCommand, AFullDiskLeavesTheTables) {
  const Finished f =
      Running({"bench", "op", "add", "--seconds", "0.05", "--threads", "1", "--profile", out}, 16384).finish();
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("kernel, on the host"), std::string::npos) << f.out;
  EXPECT_EQ(f.out.find("wrote "), std::string::npos) << f.out;
  for (const char* file : {".pt.trace.json", ".report.html"})
    EXPECT_NE(f.err.find(std::string(file) + "\": File too large\n"), std::string::npos) << f.err;
  EXPECT_EQ(trace(), "");
}

TEST_F(ProfileCommand, RefusesBadInput) {
  for (const char* steps : {"wait", "wait=x", "wait=", "often=1", "active=-1", "wait=1,,active=1", "wait=1,", "",
                            "wait=1,wait=2", "active=99999999999999999999"})
    expect_error(run(train({"--profile-steps", steps})), 2, "wait=N, warmup=N, active=N and repeat=N, each once");
  expect_error(run({"bench", "op", "add", "--profile-steps", "active=1"}), 2, "--profile-steps requires --profile");
  write_file(folder / "file", "");
  expect_error(run({"bench", "op", "add", "--profile", folder / "file/below"}), 2, "cannot make the folder");
  expect_error(run({"profile", folder / "nothing"}), 2, "nothing");
  write_file(folder / "other.json", "{\"steps\": []}");
  expect_error(run({"profile", folder / "other.json"}), 2, "other.json");
}

}  // namespace
}  // namespace tessera::cli
