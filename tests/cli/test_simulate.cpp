// Stragglers as a user simulates them, and runs that average now and then.
#include <cmath>

#include "launched_training.h"

namespace tessera::cli {
namespace {

struct Stragglers : testing::Test {
  Folder folder;
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read_file(folder / name)); }
  static double value(const nlohmann::json& all, const std::string& name) {
    for (const auto& one : all["results"])
      if (one["name"] == name) return one["value"];
    return NAN;
  }
  /// A run of ranks whose times are those of fn(rank, step).
  template <class Fn>
  std::string run_of(int ranks, int steps, const Fn& ms) const {
    nlohmann::json out;
    for (int r = 0; r < ranks; ++r)
      for (int s = 0; s < steps; ++s) out["own_ms"][static_cast<size_t>(r)].push_back(ms(r, s));
    write_file(folder / "run.json", out.dump());
    return folder / "run.json";
  }
};

TEST_F(Stragglers, PrintsThePublishedTable) {
  const Finished f = run({"simulate", "stragglers", "--json", folder / "a.json", "--picture", folder / "a.svg"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("published 2.08 to 2.45"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("is fitted to the published figures"), std::string::npos) << f.out;
  const nlohmann::json all = json("a.json");
  EXPECT_NEAR(value(all, "64 2:8,4:32,8:64, one step ahead"), 2.08, 0.09 * 2.08);
  EXPECT_NEAR(value(all, "128 4:32,8:128, one step ahead"), 2.68, 0.09 * 2.68);
  EXPECT_NEAR(value(all, "256 4:16,8:256, one step ahead"), 3.25, 0.09 * 3.25);
  EXPECT_LT(value(all, "256 4:16,8:256, strict, hosts"), value(all, "256 4:16,8:256, strict"));
  EXPECT_GT(value(all, "128 gossip in a ring, strict"), 1);
  EXPECT_NE(read_file(folder / "a.svg").find("<polyline"), std::string::npos);
  EXPECT_EQ(run({"simulate", "stragglers"}).out, f.out);
  EXPECT_NE(run({"simulate", "stragglers", "--seed", "7"}).out, f.out);
}

TEST_F(Stragglers, ReplaysARun) {
  const std::string seldom = run_of(4, 64, [](int r, int s) { return (r + s) % 16 == 5 ? 500 : 10; });
  Finished f =
      run({"simulate", "stragglers", "--from", seldom, "--json", folder / "a.json", "--picture", folder / "a.svg"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("times as fast\n"), std::string::npos) << f.out;
  EXPECT_EQ(json("a.json")["pays"], true);
  EXPECT_GT(value(json("a.json"), "4 4:2,8:4, strict"), 1.25);
  EXPECT_NE(read_file(folder / "a.svg").find("<polyline"), std::string::npos);
  f = run({"simulate", "stragglers", "--from", seldom, "--hierarchy", "16:4"});
  EXPECT_NE(f.out.find("\n16:4 would make it "), std::string::npos) << f.out;

  const auto verdict = [&](const std::string& file) {
    const Finished finished = run({"simulate", "stragglers", "--from", file, "--json", folder / "a.json"});
    EXPECT_EQ(json("a.json")["pays"], false);
    const size_t at = finished.out.find("no hierarchy would pay");
    return at == std::string::npos ? finished.out + finished.err : finished.out.substr(at);
  };
  EXPECT_EQ(
      verdict(run_of(4, 50, [](int r, int) { return r == 2 ? 500 : 10; })),
      "no hierarchy would pay: the waiting is mostly (100 %) for rank 2, which every average would wait for, too\n");
  EXPECT_EQ(verdict(run_of(10, 50, [](int r, int s) { return (r + s) % 3 == 0 ? 500 : 10; })),
            "no hierarchy would pay: 33 % of ranks are slow in a step, so that most blocks have one\n");
  EXPECT_EQ(verdict(run_of(4, 50, [](int r, int s) { return (r + s) % 4 == 0 ? 11 : 10; })),
            "no hierarchy would pay: ranks waited for each other in 6.8 % of their time, less than 10 %\n");
}

TEST_F(Stragglers, SaysWhatCannotBe) {
  const Words simulate{"simulate", "stragglers"};
  expect_error(run(simulate + Words{"--workers", "64", "--hierarchy", "2:3,4:64"}), 2,
               "blocks of 64 ranks are not made of several of 3");
  expect_error(run(simulate + Words{"--workers", "64", "--hierarchy", "2:8"}), 2,
               "the last level has 8 ranks, not all 64");
  expect_error(run(simulate + Words{"--workers", "64", "--hierarchy", "-2:64"}), 2, "no list of periods and ranks");
  expect_error(run(simulate + Words{"--workers", "64", "--ranks-of-host", "5"}), 2, "they do not divide 64");
  expect_error(run(simulate + Words{"--ranks-of-host", "5"}), 2, "go with --workers or --from");
  expect_error(run(simulate + Words{"--probability", "0.5"}), 2, "--workers");
  expect_error(run(simulate + Words{"--hierarchy", "2:64"}), 2,
               "--hierarchy and --ranks-of-host go with --workers or --from");
  expect_error(run(simulate + Words{"--workers", "64", "--from", "x"}), 2, "excludes");
  expect_error(run(simulate + Words{"--workers", "64", "--probability", "1.5"}), 2, "--probability");
  for (const Words& published : {Words{}, Words{"--workers", "64"}})
    expect_error(run(simulate + published + Words{"--steps", "0"}), 2, "--steps: Value 0 not in range");
  expect_error(run(simulate + Words{"--from", folder / "none"}), 2, "none");
  for (const auto& [text, what] : {std::pair{"[]", "no JSON object"},
                                   {"{", "no JSON object"},
                                   {"{}", "no own_ms"},
                                   {"{\"own_ms\": [[1]]}", "no steps of several ranks"},
                                   {"{\"own_ms\": [[], []]}", "no steps of several ranks"},
                                   {"{\"own_ms\": [[1, 2], [1]]}", "other numbers of steps"},
                                   {"{\"own_ms\": [[1], [\"a\"]]}", "no number"},
                                   {"{\"own_ms\": [[1], [1e300]]}", "out of range"}}) {
    write_file(folder / "bad.json", text);
    expect_error(run(simulate + Words{"--from", folder / "bad.json"}), 2, what);
  }
}

struct TrainApart : LaunchedTraining {
  Words words(int procs, const Words& options) const { return launched(procs, train(0, "run.json", 4, 6) + options); }
  Finished train_apart(int procs, const Words& options) const { return run(words(procs, options)); }
};

TEST_F(TrainApart, GoesOnAsIfItHadNotStopped) {
  const Words local{"--hierarchy",      "2:2,4:4", "--averaging-warmup", "2",
                    "--outer-momentum", "0.5",     "--gradients-within", "2"};
  Finished f = train_apart(4, local + Words{"--steps", "12", "--json", folder / "whole.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  const nlohmann::json whole = json("whole.json");
  ASSERT_EQ(whole["own_ms"].size(), 4u);
  EXPECT_EQ(whole["own_ms"][3].size(), 12u);
  EXPECT_EQ(run({"simulate", "stragglers", "--from", folder / "whole.json"}).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(train_apart(4, local + Words{"--steps", "6"}).code, 0);
  f = train_apart(4, local + Words{"--steps", "12", "--resume", "--json", folder / "parts.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(json("parts.json")["own_ms"][0].size(), 6u);
  // The rate of learning depends on the length of a run; what happened before the stop does not.
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(json("parts.json")["steps"][i]["loss"], whole["steps"][i]["loss"]);
  EXPECT_EQ(run({"sample", "--checkpoint", out, "--tokens", "5"}).code, 0);
}

TEST_F(TrainApart, AnInterruptSavesOnAllRanks) {
  Running running(words(2, {"--steps", "1000000", "--local-sgd", "8"}));
  ASSERT_TRUE(running.wait_for("step "));
  running.signal_with(SIGINT);
  const Finished f = running.finish();
  EXPECT_EQ(f.code, 128 + SIGINT);
  EXPECT_NE(f.out.find("stopped at step"), std::string::npos) << f.out << f.err;
  EXPECT_EQ(f.err.find("error"), std::string::npos) << f.err;
}

// Its loss and the smoothed one differ by rounding alone.
TEST_F(TrainApart, OneStepIsDrawn) {
  const Finished f = train_apart(2, {"--steps", "1000000", "--local-sgd", "8", "--stop-after", "1"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("stopped at step"), std::string::npos) << f.out;
  EXPECT_NE(read_file(out + "/loss.svg").find("<polyline"), std::string::npos);
}

TEST_F(TrainApart, StripsOfAPicture) {
  const Words command = launched(2, {"train", "convmodel", "--size", "16", "--out", out, "--accumulation", "2",
                                     "--steps", "40", "--threads", "1", "--json", folder / "a.json"});
  const Finished f = run(command + Words{"--local-sgd", "4", "--averaging-warmup", "10"});
  ASSERT_EQ(f.code, 0) << f.err;
  const nlohmann::json all = json("a.json");
  EXPECT_EQ(all["own_ms"][1].size(), 40u);
  EXPECT_LT(all["steps"].back()["loss"].get<double>(), 0.7 * all["steps"][0]["loss"].get<double>());
  EXPECT_NEAR(all["val_loss"].get<double>(), all["steps"].back()["loss"].get<double>(), 0.5);
}

TEST_F(TrainApart, SaysWhatCannotBe) {
  const auto refused = [&](const Words& options, const std::string& what) {
    const Finished f = train_apart(4, options + Words{"--steps", "2"});
    EXPECT_EQ(f.code, 2) << f.out;
    EXPECT_NE(f.err.find("error: " + what), std::string::npos) << f.err;
  };
  refused({"--hierarchy", "2:3,4:4"}, "LocalSGD: blocks of 4 ranks are not made of several of 3");
  refused({"--hierarchy", "4:4,2:2"}, "LocalSGD: periods grow from level to level: 2 comes after 4");
  refused({"--hierarchy", "2:2,4:8"}, "LocalSGD: the last level has 8 ranks, not all 4");
  refused({"--local-sgd", "-4"}, "--local-sgd: Value -4 not in range 1 to");
  refused({"--local-sgd", "4", "--averaging-warmup", "-1"}, "LocalSGD: a number of steps is negative");
  refused({"--local-sgd", "4", "--gradients-within", "3"}, "LocalSGD: gradients within blocks of 3 ranks");
  refused({"--local-sgd", "4", "--outer-momentum", "1"}, "LocalSGD: outer momentum 1 is not from 0");
  refused({"--outer-momentum", "0.9"}, "--averaging-warmup, --gradients-within and --outer-momentum go with");
}

}  // namespace
}  // namespace tessera::cli
