// Training through the command: what it writes, how it stops, and what it refuses.
#include "command_line.h"

namespace tessera::cli {
namespace {

const std::string kVerse = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.\n";

struct Train : testing::Test {
  Folder folder;
  std::string text = folder / "text.txt", out = folder / "out";
  void SetUp() override {
    std::string many;
    for (int i = 0; i < 60; ++i) many += kVerse;
    write_file(text, many);
  }
  Words tiny(int steps) const {
    return {"train",           "gpt",
            "--preset",        "shakespeare-char-cpu",
            "--text",          text,
            "--out",           out,
            "--layers",        "1",
            "--heads",         "2",
            "--width",         "16",
            "--block",         "8",
            "--batch",         "2",
            "--eval-interval", "0",
            "--steps",         std::to_string(steps),
            "--threads",       "2"};
  }
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read_file(folder / name)); }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> out;
    auto result = json(name);
    for (auto& s : result["steps"]) out.push_back(s["loss"]);
    return out;
  }
  fs::path newest_checkpoint() const {
    fs::path found;
    for (auto& entry : fs::recursive_directory_iterator(out))
      if (entry.is_regular_file() && entry.path().extension() == ".safetensors") found = entry.path();
    return found;
  }
};

TEST_F(Train, WritesCheckpointPictureAndResults) {
  Finished f = run(tiny(300) + Words{"--json", folder / "a.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  auto result = json("a.json");
  EXPECT_EQ(result["steps"].size(), 300u);
  EXPECT_GT(result["val_loss"], 0);
  EXPECT_GT(result["peak_memory_bytes"], 0);
  EXPECT_LT(result["steps"][299]["loss"], 0.9 * result["steps"][0]["loss"].get<double>());
  EXPECT_NE(read_file(out + "/loss.svg").find("<svg"), std::string::npos);
  Finished s = run(
      {"sample", "--checkpoint", out, "--tokens", "40", "--prompt", "Shall", "--top-k", "5", "--temperature", "0.8"});
  ASSERT_EQ(s.code, 0) << s.err;
  EXPECT_EQ(s.out.rfind("Shall", 0), 0u);
  EXPECT_GE(s.out.size(), 45u);
  EXPECT_EQ(run({"sample", "--checkpoint", out, "--tokens", "40", "--seed", "7"}).out,
            run({"sample", "--checkpoint", out, "--tokens", "40", "--seed", "7"}).out);
}

TEST_F(Train, IsReproducible) {
  ASSERT_EQ(run(tiny(12) + Words{"--json", folder / "a.json", "--dropout", "0.1"}).code, 0);
  fs::remove_all(out);
  ASSERT_EQ(run(tiny(12) + Words{"--json", folder / "b.json", "--dropout", "0.1"}).code, 0);
  ASSERT_EQ(losses("a.json").size(), 12u);
  EXPECT_EQ(losses("a.json"), losses("b.json"));
}

TEST_F(Train, MeasuresThePeakBesideEachStepOfItsOwn) {
  ASSERT_EQ(run(tiny(9) + Words{"--stop-after", "3"}).code, 0);
  ASSERT_EQ(run(tiny(9) + Words{"--resume", "--stop-after", "5", "--fma-peak", "--json", folder / "a.json"}).code, 0);
  const auto steps = json("a.json")["steps"];
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_FALSE(steps[2].contains("fma_gflops"));
  for (size_t i : {3, 4}) {
    EXPECT_GT(steps[i]["fma_gflops"], 0);
    EXPECT_GT(steps[i]["clock_ghz"], 0);
  }
}

TEST_F(Train, BenchesAProductBesideThePeakOfItsOwn) {
  const Words product{"bench", "op", "gemm", "--m", "64", "--n", "64", "--k", "64", "--threads", "1"};
  ASSERT_EQ(run(product + Words{"--seconds", "0.01", "--json", folder / "a.json"}).code, 0);
  std::map<std::string, double> found;
  const auto report = json("a.json");
  for (const auto& r : report["results"]) found[r["name"]] = r["value"];
  EXPECT_GT(found.at("fma_peak"), 0);
  EXPECT_GT(found.at("tessera, share of the peak"), 0);
  EXPECT_LT(found.at("tessera, share of the peak"), 1);  // 0.1 to 0.7 of what the same thread can do
}

TEST_F(Train, ResumesBitForBit) {
  ASSERT_EQ(run(tiny(24) + Words{"--json", folder / "whole.json", "--dropout", "0.1"}).code, 0);
  fs::remove_all(out);
  Running first(tiny(24) + Words{"--dropout", "0.1", "--stop-after", "11"});
  ASSERT_EQ(first.finish().code, 0);
  Finished f = run(tiny(24) + Words{"--resume", "--json", folder / "resumed.json", "--dropout", "0.1"});
  ASSERT_EQ(f.code, 0) << f.err;
  auto whole = losses("whole.json"), resumed = losses("resumed.json");
  ASSERT_EQ(whole.size(), 24u);
  EXPECT_EQ(whole, resumed);
}

TEST_F(Train, SaysThatThereIsNothingToDo) {
  ASSERT_EQ(run(tiny(6)).code, 0);
  const fs::path checkpoint = out + "/checkpoint.safetensors";
  const auto before = fs::last_write_time(checkpoint);
  for (const int steps : {6, 3}) {
    const Finished f = run(tiny(steps) + Words{"--resume"});
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("note: there is nothing to do: the checkpoint has made 6 steps\n"), std::string::npos)
        << f.out;
    EXPECT_EQ(f.out.find("checkpoint.safetensors"), std::string::npos) << f.out;
    EXPECT_EQ(fs::last_write_time(checkpoint), before);
  }
  EXPECT_FALSE(fs::exists(checkpoint.string() + ".1"));
}

TEST_F(Train, TrainsInMixedPrecision) {
  for (const Words& mode :
       {Words{"--amp", "bf16"}, Words{"--amp", "bf16", "--residual", "bf16"}, Words{"--amp", "fp16"}}) {
    fs::remove_all(out);
    Finished f = run(tiny(6) + mode + Words{"--stop-after", "3", "--json", folder / "a.json"});
    ASSERT_EQ(f.code, 0) << f.err;
    const std::string log = f.out + f.err;
    EXPECT_NE(log.find("products in " + mode[1]), std::string::npos) << log;
    EXPECT_NE(log.find("norms in " + (mode.size() > 2 ? mode[3] : "f32")), std::string::npos) << log;
    EXPECT_EQ(json("a.json")["amp"], mode[1]);
    expect_error(run(tiny(6) + Words{"--resume"}), 2, "amp is");
    EXPECT_EQ(run(tiny(6) + mode + Words{"--resume"}).code, 0);
  }
  expect_error(run(tiny(6) + Words{"--residual", "bf16"}), 2, "--residual bf16 needs --amp bf16");
  expect_error(run(tiny(6) + Words{"--amp", "bf16", "--residual", "fp16"}), 2, "needs --amp fp16");
  expect_error(run(tiny(6) + Words{"--amp", "i32"}), 2, "amp");
}

TEST_F(Train, TakesTheNamedKernelOfAttention) {
  for (const char* kernel : {"flash", "math"}) {
    fs::remove_all(out);
    Finished f = run(tiny(4) + Words{"--attention", kernel, "--json", folder / "a.json"});
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(json("a.json")["attention"], kernel);
  }
  expect_error(run(tiny(4) + Words{"--attention", "mem-efficient"}), 2,
               "--attention mem-efficient: cpu has flash and math");
  expect_error(run(tiny(4) + Words{"--attention", "slow"}), 2, "slow");
}

TEST_F(Train, SaysWhichStepsItSkipped) {
  Finished f = run(tiny(30) + Words{"--amp", "fp16", "--init-std", "12", "--clip", "0"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE((f.out + f.err).find("steps skipped"), std::string::npos) << f.out << f.err;
  EXPECT_NE(f.out.find("skipped "), std::string::npos) << f.out;
}

TEST_F(Train, StopsOnSignalsWithAllSaved) {
  for (int number : {SIGINT, SIGTERM}) {
    fs::remove_all(out);
    Running training(tiny(1000000));
    ASSERT_TRUE(training.wait_for("step "));
    training.signal_with(number);
    Finished f = training.finish();
    EXPECT_EQ(f.code, 128 + number) << f.err;
    EXPECT_NE(f.out.find("--resume"), std::string::npos) << f.out;
    EXPECT_EQ(run({"sample", "--checkpoint", out, "--tokens", "5"}).code, 0);
  }
}

TEST_F(Train, SurvivesBeingKilled) {
  for (int round = 0; round < 4; ++round) {
    Words words = tiny(1000000) + Words{"--checkpoint-interval", "3"};
    if (round) words.push_back("--resume");
    Running training(words);
    ASSERT_TRUE(training.wait_for("step ")) << training.finish().err;
    usleep(100000 + 70000 * round);
    training.signal_with(SIGKILL);
    EXPECT_EQ(training.finish().code, 128 + SIGKILL);
    Finished s = run({"sample", "--checkpoint", out, "--tokens", "5"});
    EXPECT_EQ(s.code, 0) << s.err;
  }
}

TEST_F(Train, KeepsTheLastCheckpointOnAFullDisk) {
  ASSERT_EQ(run(tiny(5)).code, 0);
  std::string before = read_file(newest_checkpoint());
  ASSERT_FALSE(before.empty());
  Finished f = Running(tiny(9) + Words{"--resume"}, before.size() / 2).finish();
  expect_error(f, 1, "checkpoint");
  EXPECT_EQ(read_file(newest_checkpoint()), before);
  EXPECT_EQ(run(tiny(9) + Words{"--resume"}).code, 0);
}

TEST_F(Train, RefusesDamagedCheckpoints) {
  ASSERT_EQ(run(tiny(3)).code, 0);
  fs::path file = newest_checkpoint();
  const std::string good = read_file(file);
  Words resume = tiny(6) + Words{"--resume"};
  write_file(file, good.substr(0, good.size() / 2));
  expect_error(run(resume), 2, file.filename().string());
  std::string flipped = good;
  flipped[good.size() - 100] ^= 1;
  write_file(file, flipped);
  expect_error(run(resume), 2, file.filename().string());
  write_file(file, "");
  expect_error(run({"sample", "--checkpoint", out}), 2, file.filename().string());
  write_file(file, good);
  expect_error(run(resume + Words{"--width", "32"}), 2, "width");
  EXPECT_EQ(read_file(file), good);
  EXPECT_EQ(run(resume).code, 0);
}

TEST_F(Train, RefusesBadInput) {
  auto with = [&](const std::string& flag, const std::string& value) {
    Words words = tiny(3);
    words.push_back(flag);
    words.push_back(value);
    return run(words);
  };
  expect_error(with("--text", folder / "nowhere.txt"), 2, "nowhere.txt");
  write_file(folder / "empty.txt", "");
  expect_error(with("--text", folder / "empty.txt"), 2, "empty");
  write_file(folder / "binary.txt", std::string("a\0b\xff\xfe", 5) + std::string(5000, '\0'));
  expect_error(with("--text", folder / "binary.txt"), 2, "binary");
  write_file(folder / "short.txt", "abc");
  expect_error(with("--text", folder / "short.txt"), 2, "block");
  expect_error(with("--preset", "gpt9"), 2, "gpt9");
  expect_error(with("--heads", "3"), 2, "heads");
  expect_error(with("--width", "0"), 2, "width");
  expect_error(with("--lr", "-1"), 2, "lr");
  expect_error(with("--vocab", "3"), 2, "vocabulary 3");
  expect_error(with("--steps", "99999999999999999999"), 2, "out of range");
  expect_error(with("--stop-after", "0"), 2, "0 not in range 1 to 2147483647");
  expect_error(with("--device", "cuda:99"), 2, "cuda:99");
  expect_error(with("--alibi", "-1"), 2, "alibi = -1 is out of range");
  for (const char* size : {"0", "-1", "four", "4x"})
    expect_error(with("--microbatch", size), 2,
                 "--microbatch: " + std::string(size) + " is neither auto nor a number of samples");
  expect_error(with("--init", folder / "nowhere.safetensors"), 2, "nowhere.safetensors");
  expect_error(run(tiny(3) + Words{"--resume"}), 2, "resume");
  expect_error(run({"sample", "--checkpoint", folder / "nowhere"}), 2, "nowhere");
  expect_error(run(tiny(3) + Words{"--width", "1048576", "--layers", "96"}), 1, "out of memory");
}

TEST_F(Train, MptModelsLearnStreamedTokens) {
  const std::string data = folder / "data";
  ASSERT_EQ(run({"data", "pack", text, "--block", "16", "--out", data}).code, 0);
  const Words recipe{"train",   "gpt", "--preset",  "mpt-125m", "--data",          data, "--out",          out,
                     "--heads", "3",   "--width",   "24",       "--layers",        "1",  "--block",        "16",
                     "--steps", "60",  "--batch",   "2",        "--warmup",        "5",  "--lr",           "1e-2",
                     "--vocab", "64",  "--threads", "1",        "--eval-interval", "0",  "--accumulation", "4"};
  ASSERT_EQ(run(recipe + Words{"--json", folder / "a.json"}).code, 0);
  EXPECT_EQ(json("a.json")["amp"], "bf16");  // as the preset says
  const std::vector<double> whole = losses("a.json");
  EXPECT_LT(whole.back(), 0.7 * whole.front());
  const Finished s = run({"sample", "--checkpoint", out, "--tokens", "30", "--prompt", "Shall"});
  ASSERT_EQ(s.code, 0) << s.err;
  EXPECT_GE(s.out.size(), 35u);
  // Interrupted on two ranks, it goes on as four, then as one.
  fs::remove_all(out);
  const auto ranks = [&](const char* count, const Words& more) {
    return run(Words{"launch", "--procs", count, "--", TESSERA_COMMAND} + recipe + more);
  };
  ASSERT_EQ(ranks("2", {"--stop-after", "20"}).code, 0);
  ASSERT_EQ(ranks("4", {"--resume", "--stop-after", "40"}).code, 0);
  ASSERT_EQ(run(recipe + Words{"--resume", "--json", folder / "b.json"}).code, 0);
  EXPECT_EQ(losses("b.json"), whole);
  // Without validation and vocabulary, as tokens of others come.
  fs::remove_all(out);
  fs::remove_all(data + "/validation");
  fs::remove(data + "/vocabulary.txt");
  ASSERT_EQ(run(recipe + Words{"--json", folder / "c.json"}).code, 0);
  EXPECT_EQ(losses("c.json"), whole);
  EXPECT_TRUE(json("c.json")["val_loss"].is_null());
  expect_error(run({"sample", "--checkpoint", out}), 2, "tokens without a vocabulary");
}

TEST_F(Train, FindsAMicrobatchThatFits) {
  const Words wide = tiny(4) + Words{"--batch", "32", "--block", "32", "--dropout", "0.1"};
  ASSERT_EQ(run(wide + Words{"--json", folder / "whole.json"}).code, 0);
  const auto limit = std::to_string(json("whole.json")["peak_memory_bytes"].get<int64_t>() / 2);
  struct Limited {
    explicit Limited(const std::string& bytes) { setenv("TESSERA_MEMORY_LIMIT", bytes.c_str(), 1); }
    ~Limited() { unsetenv("TESSERA_MEMORY_LIMIT"); }
  };
  const auto again = [&](const Words& more) {
    fs::remove_all(out);
    return run(wide + more);
  };
  int64_t size = 0;
  {
    const Limited memory(limit);
    expect_error(again({}), 1, "out of memory on cpu: ");
    const Finished f = again({"--microbatch", "auto", "--json", folder / "auto.json"});
    ASSERT_EQ(f.code, 0) << f.err;
    size = json("auto.json")["microbatch"];
    ASSERT_GT(size, 0);
    ASSERT_LT(size, 32);
    const std::string found = "microbatches of " + std::to_string(size) + " sequence";
    EXPECT_NE(f.out.find(found), std::string::npos) << f.out;
    EXPECT_NE(f.out.find(", " + std::to_string(2 * size) + " do not"), std::string::npos) << f.out;
  }
  ASSERT_EQ(again({"--microbatch", std::to_string(size), "--json", folder / "fixed.json"}).code, 0);
  EXPECT_EQ(losses("auto.json"), losses("fixed.json"));
  {
    const Limited memory("150K");
    expect_error(again({"--microbatch", "auto"}), 1, "out of memory on cpu: ");
  }
  for (const char* text : {"x", "0", "-4", "4T", "4MB", "99999999999G"}) {
    const Limited memory(text);
    expect_error(again({}), 1, "TESSERA_MEMORY_LIMIT=" + std::string(text) + " is no number of bytes, such as 800M");
  }
}

TEST_F(Train, StopsOrSkipsWhenTheLossIsNotANumber) {
  Finished f = run(tiny(60) + Words{"--lr", "1e30", "--warmup", "0", "--clip", "0"});
  expect_error(f, 1, "loss");
  fs::remove_all(out);
  Finished skipped = run(tiny(60) + Words{"--lr", "1e30", "--warmup", "0", "--clip", "0", "--on-nan", "skip"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_NE(skipped.out.find("skipped"), std::string::npos) << skipped.out;
}

}  // namespace
}  // namespace tessera::cli
