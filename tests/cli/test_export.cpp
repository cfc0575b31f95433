// export: models by name and checkpoints as files that run.
#include "command_line.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/models.h"
#include "tessera/onnx.h"
#include "tessera/random.h"

namespace tessera::cli {
namespace {

TEST(Export, WritesModelsByName) {
  const Folder folder;
  const std::string file = folder / "m.onnx";
  const Finished written = run({"export", "resnet20", "-o", file, "--opset", "21"});
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(written.out.rfind("wrote " + file +
                                  ": opset 21, image[batch, 3, 32, 32] -> logits\n269722 parameters of the "
                                  "model; the file holds ",
                              0),
            0u)
      << written.out;
  const Finished ran = run({"run", file, "--dim", "batch=2"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out.rfind("logits  f32[2, 10]  ", 0), 0u) << ran.out;
  const Finished info = run({"info", file});
  EXPECT_NE(info.out.find("IR 10, ai.onnx 21, by tessera"), std::string::npos) << info.out;
  const size_t at = written.out.rfind("holds ") + 6;  // the same count of the same file
  EXPECT_NE(info.out.find("\n" + written.out.substr(at, written.out.find(' ', at) - at) + " numbers in "),
            std::string::npos)
      << info.out << written.out;
  const Finished again = run({"export", file, "-o", folder / "again.onnx"});  // which has no --input
  EXPECT_EQ(again.code, 2);
  EXPECT_TRUE(again.err.ends_with(": say --dim batch=SIZE\n")) << again.err;
}

TEST(Export, SizesAreNamedAndFixed) {
  const Folder folder;
  const std::string file = folder / "m.onnx";
  EXPECT_NE(run({"export", "convmodel", "-o", file, "--dim", "n"}).out.find("image[n, 2, 512, 512]"),
            std::string::npos);
  EXPECT_NE(run({"export", "convmodel", "-o", file, "--dim", "batch=3"}).out.find("image[3, 2, 512, 512]"),
            std::string::npos);
  EXPECT_EQ(onnx::Model(file).inputs()[0].dims, (std::vector<std::string>{"3", "2", "512", "512"}));
}

TEST(Export, TakesWeightsFromAFile) {
  const Folder folder;
  Generator g(3);
  models::ResNet20 model(g);
  save_safetensors(folder / "w.safetensors", model.state_dict());
  const Finished written = run({"export", "resnet20", "--weights", folder / "w.safetensors", "-o", folder / "m.onnx"});
  ASSERT_EQ(written.code, 0) << written.err;
  const NoGrad no_grad;
  model.eval();
  const Tensor x = randn({2, 3, 32, 32}, g);
  const std::vector<double> want = model(x).to_vector<double>(),
                            got = onnx::Model(folder / "m.onnx").run({x})[0].tensor().to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * std::abs(want[i]) + 1e-5);
  expect_error(run({"export", "resnet50", "--weights", folder / "w.safetensors", "-o", folder / "n.onnx"}), 2,
               "w.safetensors: ");
  EXPECT_FALSE(fs::exists(folder / "n.onnx"));
}

TEST(Export, WritesCheckpoints) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Shall I compare thee to a summer's day?\n";
  write_file(folder / "text.txt", text);
  ASSERT_EQ(run({"train",    "gpt",
                 "--preset", "shakespeare-char-cpu",
                 "--text",   folder / "text.txt",
                 "--out",    folder / "gpt",
                 "--width",  "16",
                 "--layers", "1",
                 "--heads",  "2",
                 "--block",  "8",
                 "--batch",  "2",
                 "--steps",  "2"})
                .code,
            0);
  const std::string file = folder / "gpt.onnx";
  const Finished written = run({"export", folder / "gpt", "-o", file});
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_NE(written.out.find("tokens[batch, tokens] -> logits"), std::string::npos) << written.out;
  const Finished ran = run({"run", file, "--dim", "batch=2", "--dim", "tokens=5"});
  EXPECT_EQ(ran.out.rfind("logits  f32[2, 5, ", 0), 0u) << ran.out << ran.err;

  ASSERT_EQ(run({"train", "convmodel", "--steps", "1", "--size", "16", "--out", folder / "conv"}).code, 0);
  const Finished conv = run({"export", folder / "conv", "-o", folder / "conv.onnx", "--dim", "batch=1"});
  EXPECT_EQ(conv.code, 0) << conv.err;
  EXPECT_EQ(run({"run", folder / "conv.onnx"}).out.rfind("picture  f32[1, 1, 512, 512]", 0), 0u);
}

TEST(Export, WritesAModelFileAgain) {
  const Folder folder;
  const std::string file = folder / "m.onnx", again = folder / "again.onnx";
  ASSERT_EQ(run({"export", "resnet20", "-o", file}).code, 0);
  const Finished written = run({"export", file, "--dim", "batch=3", "--opset", "18", "-o", again});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(written.out, "wrote " + again + ": opset 18, image[3, 3, 32, 32] -> logits\n");
  Generator g(3);
  const Tensor x = randn({3, 3, 32, 32}, g);
  const std::vector<double> want = onnx::Model(file).run({x})[0].tensor().to_vector<double>(),
                            got = onnx::Model(again).run({x})[0].tensor().to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * std::abs(want[i]) + 1e-5);

  expect_error(run({"export", file, "-o", again}), 2, "say --dim batch=SIZE");
  expect_error(run({"export", file, "--dim", "height=3", "-o", again}), 2, "no input has a size called height");
  expect_error(run({"export", file, "--weights", file, "-o", again}), 2, "a file has its own");
  expect_error(run({"export", folder / "none.onnx", "-o", again}), 2, "none.onnx");
}

TEST(Export, RefusesBadUsage) {
  const Folder folder;
  const std::string file = folder / "m.onnx";
  expect_error(run({"export", "resnet21", "-o", file}), 2,
               "'resnet21' is neither a checkpoint nor one of gpt2, resnet20, ");
  expect_error(run({"export", "resnet20"}), 2, "--output is required");
  expect_error(run({"export", "resnet20", "-o", file, "--opset", "17"}), 2, "--opset");
  expect_error(run({"export", "resnet20", "-o", file, "--opset", "29"}), 2, "--opset");
  expect_error(run({"export", "resnet20", "-o", file, "--dim", "height=3"}), 2,
               "no size 'height' of [batch, 3, 32, 32]");
  expect_error(run({"export", "resnet20", "-o", file, "--dim", "batch=0"}), 2, "'0' is no size for batch in [1, inf]");
  expect_error(run({"export", "resnet20", "-o", file, "--dim", ""}), 2, "'' is no name");
  expect_error(run({"export", TESSERA_SOURCE_DIR "/README.md", "-o", file}), 2, "README.md");
  expect_error(run({"export", "resnet20", "-o", folder / "none/m.onnx"}), 2, "cannot write ");
  expect_error(run({"export", "resnet20", "-o", file, "--weights", folder / "none"}), 2, "none");
  EXPECT_TRUE(fs::is_empty(folder.path));
}

}  // namespace
}  // namespace tessera::cli
