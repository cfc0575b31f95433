#include "command_line.h"

#include <dlfcn.h>

#include <map>

namespace tessera::cli {
namespace {

TEST(Command, Introduces) {
  EXPECT_EQ(run({"--version"}).out.rfind("tessera ", 0), 0u);
  for (Words words : {Words{"--help"},
                      {"train", "gpt", "--help"},
                      {"sample", "--help"},
                      {"bench", "op", "--help"},
                      {"explain", "--help"},
                      {"explain", "model", "--help"},
                      {"devices", "--help"},
                      {"selftest", "--help"},
                      {"cache", "clear", "--help"}}) {
    Finished f = run(words);
    EXPECT_EQ(f.code, 0) << words[0];
    EXPECT_NE(f.out.find("Usage"), std::string::npos) << words[0];
  }
}

TEST(Command, RefusesBadUsage) {
  expect_error(run({}), 2, "tessera: give one of train, ");
  expect_error(run({"fly"}), 2, "'fly'");
  expect_error(run({"train"}), 2, "tessera train: give one of gpt");
  expect_error(run({"bench", "fly"}), 2, "'fly': give one of op");
  expect_error(run({"devices", "--wings"}), 2, "--wings");
  expect_error(run({"devices", "--device", "tpu"}), 2, "tpu");
  expect_error(run({"devices", "--device", "cuda:99"}), 2, "cuda:99");
  expect_error(run({"devices", "--threads", "-1"}), 2, "threads");
  expect_error(run({"devices", "--seed", "-1"}), 2, "--seed: Value -1 is out of range");
  expect_error(run({"devices", "--seed", "99999999999999999999"}), 2, "99999999999999999999 is out of range");
  expect_error(run({"bench", "op", "softmax", "--seconds", "nan"}), 2, "nan is not a number");
  expect_error(run({"bench", "op", "nothing"}), 2, "nothing");
  expect_error(run({"bench", "op", "gemm", "--dtype", "i64"}), 2, "i64");
  expect_error(run({"bench", "op", "gemm", "--config", "64,64,16"}), 2, "config");
  expect_error(run({"bench", "op", "gemm", "--config", "64,64,16,8,2"}), 2, "on GPUs only");
  expect_error(run({"bench", "op", "gemm", "--products", "64x32x16:nx"}), 2, "64x32x16:nx");
  expect_error(run({"bench", "op", "gemm", "--products", "64x32:nt"}), 2, "64x32:nt");
  expect_error(run({"bench", "op", "gemm", "--products", "64x32x16:nt"}), 2, "on a GPU");
  expect_error(run({"bench", "op", "gemm", "--in-turns"}), 2, "--products");
  expect_error(run({"bench", "op", "sdpa", "--shape", "12x64"}), 2, "12x64");
  expect_error(run({"bench", "op", "sdpa", "--attention", "mem-efficient"}), 2, "cpu has flash and math");
  expect_error(run({"bench", "op", "host"}), 2, "only of a GPU");
  expect_error(run({"bench", "op", "rows", "--training"}), 2, "with a benchmark case, not of rows");
  expect_error(run({"explain", "sdpa", "--attention", "fast"}), 2, "fast");
  expect_error(run({"explain", "sdpa", "--attention", "sm90-any-order"}), 2, "cpu has flash and math");
  expect_error(run({"explain", "nothing"}), 2, "nothing");
  expect_error(run({"explain", "linear_act"}), 2, "'linear_act'; the nearest are linear");
  expect_error(run({"explain", "matmul", "3x4", "5x6"}), 2, "[3, 4] x [5, 6]");
  expect_error(run({"explain", "matmul", "3xx4", "4x5"}), 2, "3xx4");
  expect_error(run({"explain", "matmul", "3x4"}), 2, "matmul: the number of inputs is 2, not 1");
  expect_error(run({"explain", "matmul", "3x4", "4x5", "5x6"}), 2, "matmul: the number of inputs is 2, not 3");
  expect_error(run({"explain", "conv2d", "1x3x8x8"}), 2, "conv2d: the number of inputs is 2 to 3, not 1");
  expect_error(run({"explain", "dropout", "3x4"}), 2, "dropout: the number of inputs is 2, not 1");
  expect_error(run({"explain"}), 2, "give an operator, a collective, or model and a name");
  expect_error(run({"explain", "model"}), 2, "name is required");
  expect_error(run({"explain", "model", "gpt3"}), 2, "unknown model \"gpt3\": there are shakespeare-char-cpu, ");
  expect_error(run({"explain", "model", "resnet20", "--batch", "-1"}), 2, "--batch");
  expect_error(run({"explain", "model", "resnet20", "--amp", "int8"}), 2, "int8");
  expect_error(run({"explain", "model", "resnet20", "--device", "cuda:sm70"}), 2, "sm70");
  expect_error(run({"explain", "model", "resnet20", "--json", "/nowhere/x.json"}), 2, "cannot write /nowhere/x.json");
}

TEST(Command, ListsDevices) {
  Folder folder;
  Finished f = run({"devices", "--json", folder / "devices.json"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("cpu"), std::string::npos);
  EXPECT_NE(f.out.find("cuda"), std::string::npos);
  auto json = nlohmann::json::parse(read_file(folder / "devices.json"));
  EXPECT_EQ(json["command"], "devices");
  EXPECT_GE(json["threads"], 1);
  const auto& devices = json["devices"];
  for (const std::string kind : {"cpu", "cuda", "hip"})
    EXPECT_TRUE(std::any_of(devices.begin(), devices.end(), [&](const auto& d) {
      return d["name"].template get<std::string>().starts_with(kind);
    })) << kind;
  for (const auto& d : devices) {
    EXPECT_NE(d.contains("model"), d.contains("reason")) << d;
    EXPECT_NE(f.out.find(d.value("reason", "")), std::string::npos) << d;
  }
}

// The variable with something in front, as long as this lives.
class Before {
 public:
  Before(const char* name, const std::string& what) : name_(name), kept_(getenv(name) ? getenv(name) : "") {
    setenv(name, (what + ":" + kept_).c_str(), 1);
  }
  ~Before() { setenv(name_, kept_.c_str(), 1); }

 private:
  const char* name_;
  std::string kept_;
};

TEST(Command, SaysThatADriverIsOlderThanTheBuild) {
#if defined(TESSERA_CUDA_PLUGIN)
  if (!fs::exists(TESSERA_CUDA_PLUGIN)) GTEST_SKIP() << "libtessera_cuda.so is not built yet";
  const Before driver("LD_LIBRARY_PATH", TESSERA_OLD_DRIVER);
  const std::string reason = "the driver takes programs up to version 12.2, and this was built for 1";
  const Finished f = run({"devices"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("cuda     none: " + reason), std::string::npos) << f.out;
  expect_error(run({"explain", "matmul", "--device", "cuda:0"}), 2, "device cuda:0 is not available: " + reason);
#else
  GTEST_SKIP() << "libtessera_cuda.so is not built here";
#endif
}

// Its plugin, which brings hundreds of megabytes of libraries, is not opened, so that no word of its version is said.
TEST(Command, LooksForADriverFirst) {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) GTEST_SKIP() << "there is a driver";
  setenv("TESSERA_PLUGIN_DIR", TESSERA_OTHER_PLUGIN, 1);
  const Finished f = run({"devices"});
  unsetenv("TESSERA_PLUGIN_DIR");
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("cuda     none: NVIDIA's driver was not found (libcuda.so.1"), std::string::npos) << f.out;
}

TEST(Command, RefusesThePluginOfAnotherBuild) {
  const Before driver("LD_LIBRARY_PATH", TESSERA_OLD_DRIVER);
  setenv("TESSERA_PLUGIN_DIR", TESSERA_OTHER_PLUGIN, 1);
  const Finished f = run({"devices"});
  unsetenv("TESSERA_PLUGIN_DIR");
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("libtessera_cuda.so belongs to another version of tessera, or to another build"),
            std::string::npos)
      << f.out;
}

TEST(Command, TestsEveryOperatorOnTheDevice) {
  const Finished f = run({"selftest", "--check-only"});
  EXPECT_EQ(f.code, 0) << f.out << f.err;
  EXPECT_NE(f.out.find(" operators passed, 0 failed"), std::string::npos) << f.out;
  EXPECT_EQ(f.out.find("bandwidth"), std::string::npos);
  expect_error(run({"selftest", "--device", "hip:9"}), 2, "hip:9");
}

TEST(Command, BenchesAnOperator) {
  Folder folder;
  Finished f = run({"bench", "op", "gemm", "--m", "37", "--n", "65", "--k", "33", "--epilogue", "add_add_gelu",
                    "--seconds", "0.02", "--json", folder / "gemm.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  auto json = nlohmann::json::parse(read_file(folder / "gemm.json"));
  ASSERT_FALSE(json["results"].empty());
  EXPECT_EQ(json["device"], "cpu");
  for (auto& r : json["results"]) {
    EXPECT_GT(r["value"], 0) << r;
    EXPECT_TRUE(r["better"] == "lower" || r["better"] == "higher");
  }
  expect_error(run({"bench", "op", "gemm", "--seconds", "0.02", "--json", folder / "no/such/folder.json"}), 2,
               "cannot write");
}

TEST(Command, BenchesAttention) {
  Folder folder;
  Finished f = run({"bench", "op", "sdpa", "--shape", "1x2x33x17", "--causal", "--attention", "math", "--seconds",
                    "0.02", "--json", folder / "sdpa.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  auto json = nlohmann::json::parse(read_file(folder / "sdpa.json"));
  ASSERT_EQ(json["results"].size(), 2u);
  for (auto& r : json["results"]) EXPECT_GT(r["value"], 0) << r;
}

TEST(Command, BenchesRowsBesideACopy) {
  Folder folder;
  Finished f = run({"bench", "op", "rows", "--m", "37", "--n", "53", "--seconds", "0.02", "--json", folder / "r.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  auto json = nlohmann::json::parse(read_file(folder / "r.json"));
  ASSERT_EQ(json["results"].size(), 11u);  // five operators forward and backward, and AdamW
  for (auto& r : json["results"]) EXPECT_GT(r["value"], 0) << r;
  f = run(
      {"bench", "op", "rows", "--m", "5", "--n", "67", "--dtype", "bf16", "--dense", "gradients", "--seconds", "0.01"});
  EXPECT_NE(f.out.find("5 rows of 67 in bf16, dense: gradients, on"), std::string::npos) << f.err;
  EXPECT_EQ(run({"bench", "op", "rows", "--dense", "some"}).code, 2);
}

TEST(Command, BenchesACaseInAnotherLayout) {
  const Finished f =
      run({"bench", "op", "conv2d", "--case", "8x64x56x56", "--channels-last", "--training", "--seconds", "0.01"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("8x64x56x56, 64 3x3, channels last, training"), std::string::npos) << f.out;
  EXPECT_EQ(f.out.find("32x256x14x14"), std::string::npos) << f.out;
  expect_error(run({"bench", "op", "conv2d", "--case", "9x9"}), 2, "with a case '9x9'");
}

TEST(Command, ExplainsEachKernel) {
  Finished f = run({"explain", "sdpa", "2x4x33x16", "2x4x33x16", "2x4x33x16", "--causal"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find(") causal=true\n"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("flash"), std::string::npos);
  EXPECT_NE(f.out.find("math"), std::string::npos);
  EXPECT_NE(f.out.find("-> "), std::string::npos);
  EXPECT_NE(f.out.find("scaled_dot_product_attention_backward"), std::string::npos);
  f = run({"explain", "sdpa", "--dropout", "0.1"});
  EXPECT_NE(f.out.find("dropout=0.1\n   flash            does not drop weights\n-> math"), std::string::npos) << f.out;
  f = run({"explain", "sdpa", "--attention", "math"});
  EXPECT_NE(f.out.find("another kernel is forced"), std::string::npos) << f.out;
  for (std::vector<std::string> call : {std::vector<std::string>{"layer_norm"},
                                        {"layer_norm", "3x4"},
                                        {"conv2d", "1x3x8x8", "4x3x3x3"},
                                        {"linear", "2x3", "4x3"},
                                        {"cross_entropy", "5x7", "5"},
                                        {"concat", "3x4", "3x4", "3x4", "3x4", "3x4", "3x4"}}) {
    call.insert(call.begin(), "explain");
    EXPECT_EQ(run(call).code, 0) << call[1];
  }
}

TEST(Command, ExplainsWhatACallCosts) {
  const std::string cost = "   120 FLOPs, 188 bytes of operands and results\n";
  for (const char* device : {"cpu", "cuda:sm90", "hip:gfx90a", "meta(cuda:0)"}) {
    const Finished f = run({"explain", "matmul", "3x4", "4x5", "--device", device});
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find(cost), std::string::npos) << f.out;
  }
}

TEST(Command, ExplainsAModelWithoutACard) {
  Folder folder;
  Finished f = run({"explain", "model", "gpt2-124m", "--device", "cuda:0", "--amp", "bf16", "--batch", "2", "--json",
                    folder / "model.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out.rfind("gpt2-124m: a training step of 2 x 1024 tokens, bf16, on meta(cuda:0); nothing is computed\n"
                        "parameters 124439808\n",
                        0),
            0u)
      << f.out;
  EXPECT_NE(f.out.find("cuBLASLt's products, where picked: at most 32.0 MiB in a call"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("\nh.11 "), std::string::npos);
  const auto json = nlohmann::json::parse(read_file(folder / "model.json"));
  EXPECT_EQ(json["command"], "explain model");
  EXPECT_EQ(json["device"], "meta(cuda:0)");
  std::map<std::string, double> results;
  for (const auto& r : json["results"]) results[r["name"]] = r["value"];
  EXPECT_EQ(results["parameters"], 124439808);
  EXPECT_GT(results["peak_memory"], 16 * 124439808.0);
  double flops = 0;
  for (const auto& m : json["modules"]) flops += m["flops"].get<double>();
  EXPECT_NEAR(flops / results["step_flops"], 1, 1e-9);
  EXPECT_EQ(json["vendor_workspace"][0]["at_most"], 32 << 20);
  f = run({"explain", "model", "resnet20"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("128 images of [3, 32, 32], f32, on meta(cpu)"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("workspace of kernels: at most "), std::string::npos) << f.out;
}

// Nothing can be learned, measured or read there: one line says so.
TEST(Command, DoesNotTrainWithoutMemory) {
  Folder folder;
  write_file(folder / "text", std::string(3000, 'a') + std::string(3000, 'b'));
  expect_error(run({"train", "gpt", "--device", "cuda:sm90", "--text", folder / "text", "--out", folder / "out"}), 2,
               "device cuda:sm90 has no memory");
  expect_error(run({"bench", "op", "softmax", "--device", "meta(cpu)"}), 2, "device meta(cpu) has no memory");
  expect_error(run({"selftest", "--device", "hip:gfx90a"}), 2, "device hip:gfx90a has no memory");
}

TEST(Command, MeasuresPicksAndPinsThem) {
  Folder folder;
  setenv("TESSERA_CACHE_DIR", (folder / "cache").c_str(), 1);
  const Words call{"explain", "conv2d", "3x16x14x14", "16x16x3x3"};
  const Finished first = run(call + Words{"--tune"}), second = run(call + Words{"--tune"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("chosen by measurement, "), std::string::npos) << first.out;
  EXPECT_EQ(first.out, second.out);  // read from the record, not measured again
  fs::path record;
  for (const auto& entry : fs::directory_iterator(folder / "cache/picks"))
    if (entry.path().extension() == ".jsonl") record = entry.path();
  const std::string text = read_file(record);
  EXPECT_EQ(run(call + Words{"--picks", record.string()}).out, first.out);
  EXPECT_EQ(run({"explain", "conv2d", "--picks", record.string()}).out.find("measurement"), std::string::npos);
  EXPECT_EQ(read_file(record), text);
  write_file(folder / "bad", text.substr(0, text.size() - 9));
  expect_error(run(call + Words{"--picks", folder / "bad"}), 2, "line 2: not a JSON object");
  expect_error(run(call + Words{"--picks", folder / "missing"}), 2, "missing");
  write_file(folder / "cuda", R"({"tessera_picks":1,"device":"cuda","card":"a","libraries":"b"})");
  expect_error(run(call + Words{"--picks", folder / "cuda"}), 2, "was measured on cuda: nothing in it is for cpu");
  expect_error(run(call + Words{"--tune", "--picks", record.string()}), 2, "--picks");
  EXPECT_EQ(run({"cache", "clear"}).code, 0);
  EXPECT_FALSE(fs::exists(record));
  unsetenv("TESSERA_CACHE_DIR");
}

TEST(Command, ClearsOnlyItsOwnCache) {
  Folder folder;
  setenv("TESSERA_CACHE_DIR", (folder / "cache").c_str(), 1);
  EXPECT_EQ(run({"cache", "clear"}).code, 0);
  fs::create_directory(folder / "cache");
  write_file(folder / "cache/precious", "data");
  expect_error(run({"cache", "clear"}), 2, "not made by tessera");
  EXPECT_TRUE(fs::exists(folder / "cache/precious"));
  write_file(folder / "cache/tessera-cache", "");
  EXPECT_EQ(run({"cache", "clear"}).code, 0);
  EXPECT_FALSE(fs::exists(folder / "cache"));
  unsetenv("TESSERA_CACHE_DIR");
}

}  // namespace
}  // namespace tessera::cli
