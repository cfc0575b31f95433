// run, info, bench model and onnx-test on a model that others made, and bench model on the zoo.
#include <gtest/gtest.h>

#include <filesystem>

#include "command_line.h"
#include "tessera/io.h"
#include "tessera/models.h"

namespace tessera::cli {
namespace {

const std::string mnist = TESSERA_SOURCE_DIR "/tests/data/mnist/mnist.onnx";

TEST(ModelFiles, AreRunAndTheirOutputsSaved) {
  const Folder folder;
  const std::string out = folder / "out";
  const Finished drawn = run({"run", mnist, "--output", out});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(drawn.out.rfind("Plus214_Output_0  f32[1, 10]  ", 0), 0u) << drawn.out;
  const Tensor first = load_npy(out + "/Plus214_Output_0.npy");
  EXPECT_EQ(first.shape(), (Shape{1, 10}));

  save_npy(folder / "x.npy", zeros({1, 1, 28, 28}));
  EXPECT_EQ(run({"run", mnist, "--input", "Input3=" + (folder / "x.npy"), "--output", out}).code, 0);
  EXPECT_NE(load_npy(out + "/Plus214_Output_0.npy").to_vector<float>(), first.to_vector<float>());
  EXPECT_EQ(run({"run", mnist, "--dtype", "f16", "--json", folder / "results.json"}).code, 0);
  const auto outputs = nlohmann::json::parse(read_file(folder / "results.json"))["outputs"];
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0]["name"], "Plus214_Output_0");
  EXPECT_EQ(outputs[0]["shape"], (std::vector<int64_t>{1, 10}));
  EXPECT_LE(outputs[0]["min"].get<double>(), outputs[0]["mean"].get<double>());
  save_npy(folder / "y.npy", zeros({1, 1, 28, 27}));
  expect_error(run({"run", mnist, "--input", "Input3=" + (folder / "y.npy")}), 1,
               "float[1, 1, 28, 28], but is given f32[1, 1, 28, 27]");
}

TEST(ModelFiles, RefuseBadUsage) {
  expect_error(run({"run", mnist + ".not"}), 2, "mnist.onnx.not");
  expect_error(run({"run", TESSERA_SOURCE_DIR "/README.md"}), 2, "not ONNX");
  expect_error(run({"run", mnist, "--input", "Input3"}), 2, "NAME=FILE");
  expect_error(run({"run", mnist, "--input", "x=y.npy"}), 2, "there are: Input3");
  expect_error(run({"run", mnist, "--input", "Input3=a.npy", "--input", "Input3=b.npy"}), 2, "Input3 is given twice");
  expect_error(run({"run", mnist, "--dim", "n=two"}), 2, "NAME=SIZE");
  expect_error(run({"run", mnist, "--dim", "n=2", "--dim", "n=3"}), 2, "size n is given twice");
  for (const char* command : {"run", "info"})
    expect_error(run({command, mnist, "--dim", "btach=2"}), 2, "no input has a size called btach");
  expect_error(run({"run", mnist, "--dtype", "fp8"}), 2, "fp8");
  expect_error(run({"info", TESSERA_SOURCE_DIR}), 2, "error: ");
  expect_error(run({"bench", "model", mnist, "--batch", "2"}), 2, "a batch of 2 does not fit");
  expect_error(run({"bench", "model", mnist, "--batch", "1,,2"}), 2, "no list of batch sizes");
  expect_error(run({"bench", "model", "no file", "--batch", "0"}), 2, "no list of batch sizes");
  expect_error(run({"bench", "model", mnist, "--threads", "1,0"}), 2, "'1,0' is no list of threads");
  expect_error(run({"bench", "model", mnist, "--python", "/nope"}), 2, "/nope is no Python that starts");
  expect_error(run({"onnx-test", mnist}), 2, "no folder");
}

TEST(ModelFiles, AreLookedInto) {
  const Finished info = run({"info", mnist});
  EXPECT_EQ(info.code, 0) << info.err;
  for (const char* text :
       {"Input3  float[1, 1, 28, 28]", "5998 numbers in parameters and constants", "Conv", "conv2d", "peak memory"})
    EXPECT_NE(info.out.find(text), std::string::npos) << text << "\n" << info.out;
}

TEST(ModelFiles, AreDrawn) {
  const Folder folder;
  const Finished info = run({"info", mnist, "--graph", folder / "graph.dot"});
  EXPECT_EQ(info.code, 0) << info.err;
  const std::string dot = read_file(folder / "graph.dot");
  for (const char* text :
       {"digraph {", "\"Conv\\n[8, 1, 5, 5]\"", "\"in_Input3\" -> \"node_", "-> \"out_Plus214_Output_0\""})
    EXPECT_NE(dot.find(text), std::string::npos) << text << "\n" << dot;
  expect_error(run({"info", mnist, "--graph", folder / "graph.jpeg"}), 2, ".svg, .png, .pdf or .dot");
  const Finished nowhere = run({"info", mnist, "--graph", "/nowhere/graph.svg"});
  expect_error(nowhere, 2, "cannot write /nowhere/graph.svg");
  EXPECT_EQ(nowhere.out, "");  // before the work
  const Finished picture = run({"info", mnist, "--graph", folder / "graph.svg"});
  if (picture.code == 0) EXPECT_NE(read_file(folder / "graph.svg").find("<svg"), std::string::npos);
  else expect_error(picture, 2, "needs the program dot, of the package graphviz");
}

TEST(ModelFiles, AreTimed) {
  const Folder folder;
  const Finished timed =
      run({"bench", "model", mnist, "--threads", "1,2", "--seconds", "0.05", "--json", folder / "results.json"});
  EXPECT_EQ(timed.code, 0) << timed.err;
  EXPECT_NE(timed.out.find("Tessera"), std::string::npos) << timed.out;
  const std::string results = read_file(folder / "results.json");
  for (const char* threads : {"1", "2"})
    for (const char* what : {"p50", "p90", "p99", "throughput", "share of the peak", "peak memory"})
      EXPECT_NE(results.find(std::string("Tessera batch 1 threads ") + threads + " " + what), std::string::npos)
          << what;
}

TEST(ModelFiles, AreTimedUnderAProfile) {
  const Folder folder;
  const Finished timed =
      run({"bench", "model", mnist, "--threads", "1", "--seconds", "0.05", "--profile", folder / "profile"});
  EXPECT_EQ(timed.code, 0) << timed.err;
  EXPECT_NE(timed.out.find("ProfilerStep#3"), std::string::npos) << timed.out;  // the first behind the warm-up
  EXPECT_NE(timed.out.find("max_pool2d"), std::string::npos) << timed.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "profile/report.html"));
}

TEST(Zoo, IsTimedByName) {
  const Folder folder;
  const models::ZooModel& kind = models::zoo_model("keyword-lstm");
  Generator g(1);
  StateDict weights = kind.make(g)->state_dict();
  save_safetensors(folder / "weights", weights);
  const Finished timed = run({"bench", "model", "keyword-lstm", "--weights", folder / "weights", "--batch", "1,2",
                              "--seconds", "0.05", "--json", folder / "results.json"});
  EXPECT_EQ(timed.code, 0) << timed.err;
  EXPECT_NE(read_file(folder / "results.json").find("Tessera batch 2 threads"), std::string::npos) << timed.out;

  weights.erase("fc.bias");
  save_safetensors(folder / "weights", weights);
  expect_error(run({"bench", "model", "keyword-lstm", "--weights", folder / "weights"}), 2,
               "weights: load_state_dict: missing: fc.bias");
}

TEST(Zoo, RefusesBadUsage) {
  expect_error(run({"bench", "model", "resnet19"}), 2, "nor a model of that name: there are resnet18, ");
  expect_error(run({"bench", "model", "resnet18", "--dim", "n=2"}), 2, "--dim is for");
  expect_error(run({"bench", "model", mnist, "--weights", "x"}), 2, "--weights is for");
  expect_error(run({"bench", "model", "resnet18", "--weights", mnist + ".not"}), 2, "mnist.onnx.not");
}

}  // namespace
}  // namespace tessera::cli
