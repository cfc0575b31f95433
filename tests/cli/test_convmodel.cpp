// The experiment on mixed precision through the command.
#include "command_line.h"

namespace tessera::cli {
namespace {

struct ConvModel : testing::Test {
  Folder folder;
  std::string out = folder / "out";
  Words small(int steps) const {
    return {"train", "convmodel", "--out", out, "--size", "16", "--steps", std::to_string(steps), "--threads", "2"};
  }
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read_file(folder / name)); }
  static std::vector<double> losses(const nlohmann::json& run) {
    std::vector<double> out;
    for (auto& s : run["steps"]) out.push_back(s["loss"]);
    return out;
  }
};

TEST_F(ConvModel, ComparesPrecisions) {
  for (const std::string amp : {"off", "bf16", "fp16"}) {
    fs::remove_all(out);
    Finished f = run(small(30) + Words{"--amp", amp, "--json", folder / "a.json"});
    ASSERT_EQ(f.code, 0) << f.err;
    const auto result = json("a.json");
    EXPECT_EQ(result["command"], "train convmodel");
    EXPECT_EQ(result["runs"].size(), amp == "off" ? 1u : 2u);
    for (auto& [name, one] : result["runs"].items()) {
      const auto values = losses(one);
      ASSERT_EQ(values.size(), 30u) << name;
      EXPECT_LT(values.back(), 0.7 * values.front()) << name;
      EXPECT_TRUE(fs::exists(out + "/" + name + ".safetensors"));
    }
    EXPECT_EQ(result["results"].size(), amp == "off" ? 6u : 12u);
    for (auto& r : result["results"]) EXPECT_GT(r["value"], 0) << r["name"];
    EXPECT_GT(result["peak_memory_bytes"], 0);
    EXPECT_NE(f.out.find("final training loss"), std::string::npos) << f.out;
    EXPECT_EQ(f.out.find("AMP") != std::string::npos, amp != "off") << f.out;
    const std::string pictures = read_file(out + "/pictures.svg");
    size_t images = 0;
    for (size_t at = pictures.find("<image"); at != std::string::npos; at = pictures.find("<image", at + 1)) ++images;
    EXPECT_EQ(images, amp == "off" ? 2u : 3u);
    EXPECT_NE(read_file(out + "/loss.svg").find("<polyline"), std::string::npos);
  }
}

TEST_F(ConvModel, ResumesBitForBit) {
  const Words amp{"--amp", "fp16"};
  ASSERT_EQ(run(small(8) + amp + Words{"--json", folder / "whole.json"}).code, 0);
  fs::remove_all(out);
  Finished first = run(small(8) + amp + Words{"--stop-after", "3"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("--resume"), std::string::npos) << first.out;
  Finished second = run(small(8) + amp + Words{"--stop-after", "5", "--resume"});
  ASSERT_EQ(second.code, 0) << second.err;
  Finished third = run(small(8) + amp + Words{"--resume", "--json", folder / "resumed.json"});
  ASSERT_EQ(third.code, 0) << third.err;
  for (const char* name : {"standard", "fp16"})
    EXPECT_EQ(losses(json("whole.json")["runs"][name]), losses(json("resumed.json")["runs"][name])) << name;
}

TEST_F(ConvModel, StopsOnSignalsWithAllSaved) {
  Running training(small(1000000) + Words{"--amp", "bf16"});
  ASSERT_TRUE(training.wait_for("step "));
  training.signal_with(SIGINT);
  Finished f = training.finish();
  EXPECT_EQ(f.code, 128 + SIGINT) << f.err;
  EXPECT_NE(f.out.find("--resume"), std::string::npos) << f.out;
  EXPECT_TRUE(fs::exists(out + "/standard.safetensors"));
}

TEST_F(ConvModel, GoesOnAfterAKill) {
  const Words amp{"--amp", "bf16"}, often{"--checkpoint-interval", "2"};
  ASSERT_EQ(run(small(400) + amp + Words{"--json", folder / "whole.json"}).code, 0);
  fs::remove_all(out);
  // Killed in the run of f32, then in that of bf16.
  for (const char* name : {"standard", "bf16"}) {
    const std::string file = out + "/" + name + ".safetensors";
    Running training(small(400) + amp + often + (fs::exists(out) ? Words{"--resume"} : Words{}));
    for (int waits = 0; waits < 60'000 && !fs::exists(file + ".1"); ++waits) usleep(1000);
    training.signal_with(SIGKILL);
    ASSERT_EQ(training.finish().code, 128 + SIGKILL);
  }
  const Finished f = run(small(400) + amp + often + Words{"--resume", "--json", folder / "resumed.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find(", from step "), std::string::npos) << f.out;
  for (const char* name : {"standard", "bf16"})
    EXPECT_EQ(losses(json("whole.json")["runs"][name]), losses(json("resumed.json")["runs"][name])) << name;
}

TEST_F(ConvModel, RefusesBadInput) {
  expect_error(run(small(4) + Words{"--amp", "f8"}), 2, "amp");
  expect_error(run(small(4) + Words{"--size", "1"}), 2, "size");
  expect_error(run(small(0)), 2, "steps");
  expect_error(run(small(4) + Words{"--lr", "-1"}), 2, "lr");
  expect_error(run(small(4) + Words{"--checkpoint-interval", "-1"}), 2, "checkpoint_interval");
  expect_error(run(small(4) + Words{"--keep-checkpoints", "0"}), 2, "keep-checkpoints");
  expect_error(run(small(4) + Words{"--device", "tpu"}), 2, "tpu");
  expect_error(run(small(4) + Words{"--resume"}), 2, "nothing to resume");
  expect_error(run({"train", "convmodel"}), 2, "--out");
  expect_error(run(small(4) + Words{"--lr", "1e30"}), 1, "loss");
  ASSERT_EQ(run(small(2)).code, 0);
  expect_error(run(small(4) + Words{"--resume", "--seed", "7"}), 2, "seed is 1337 there and 7 here");
  const std::string file = out + "/standard.safetensors", good = read_file(file);
  write_file(file, good.substr(0, good.size() / 2));
  expect_error(run(small(4) + Words{"--resume"}), 2, "standard.safetensors");
  write_file(file, good);
  EXPECT_EQ(run(small(4) + Words{"--resume"}).code, 0);
}

}  // namespace
}  // namespace tessera::cli
