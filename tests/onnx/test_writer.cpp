// Models that are written agree with the modules when they are read back.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "onnx/model_maker.h"
#include "onnx/proto.h"
#include "onnx/written.h"
#include "tessera/io.h"
#include "tessera/models.h"
#include "tessera/ops_math.h"
#include "tessera/ops_recurrent.h"

namespace tessera::onnx {
namespace {

using models::GPT;
using Makes = std::function<Tensor(const Shape&)>;

Tensor images(const Shape& shape) {
  static Generator g(7);
  return randn(shape, g);
}
Tensor tokens(const Shape& shape) {
  static Generator g(8);
  return randint(0, 11, shape, g);
}
// Statistics as after training, so that norms do something.
void stir(nn::Module& module) {
  Generator g(9);
  for (auto& [name, t] : module.named_buffers())
    name.ends_with("var") ? nn::init::uniform_(t, 0.5, 2, g) : nn::init::normal_(t, 0, 0.3, g);
  for (auto& [name, t] : module.named_parameters())
    if (t.dim() == 1) nn::init::uniform_(t, -0.5, 1, g);
}

// Written with an input of one batch, right for others.
void expect_written(nn::Module& module, const Shape& one, const Makes& make, const SaveOptions& options = {}) {
  TemporaryFolder folder;
  stir(module);
  save(module, {make(one)}, folder / "m.onnx", options);
  for (const int64_t batch : {1, 3}) {
    Shape shape = one;
    shape[0] = batch;
    EXPECT_LE(error_of_file(folder / "m.onnx", module, {make(shape)}), 1e-5)
        << "opset " << options.opset << ", batch " << batch;
  }
}

TEST(OnnxWriter, WritesModelsOfImages) {
  models::ResNet20 resnet20;
  expect_written(resnet20, {2, 3, 32, 32}, images);
  models::ResNet50 resnet50(10);
  expect_written(resnet50, {2, 3, 64, 64}, images);
  models::MobileNetV2 mobilenet(10);
  expect_written(mobilenet, {2, 3, 64, 64}, images);
  models::UNet unet(2, 8, 2);
  expect_written(unet, {2, 3, 16, 16}, images);
  models::ConvModel convmodel(2, 16);
  expect_written(convmodel, {2, 2, 9, 9}, images);
}

TEST(OnnxWriter, WritesGptAtEveryOpset) {
  for (const bool tied : {true, false}) {
    GPT gpt({.layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 11, .bias = tied, .tied_head = tied});
    for (int64_t opset = 18; opset <= 28; ++opset) expect_written(gpt, {2, 7}, tokens, {.opset = opset});
  }
}

TEST(OnnxWriter, LeavesSizesOpenThatInputsLeaveOpen) {
  GPT gpt({.layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 11});
  TemporaryFolder folder;
  const Shape open{Dim::symbol("batch", 1), Dim::symbol("tokens", 1, 8)};
  save(gpt, {empty(open, Int64, meta(cpu()))}, folder / "gpt.onnx", {.inputs = {"ids"}, .outputs = {"logits"}});
  const Model model(folder / "gpt.onnx");
  EXPECT_EQ(model.inputs()[0].name + describe(model.inputs()[0]), "idsint64[batch, tokens]");
  EXPECT_EQ(model.outputs()[0].name + describe(model.outputs()[0]), "logitsfloat[batch, tokens, 11]");
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{2, 8}})
    EXPECT_LE(error_of_file(folder / "gpt.onnx", gpt, {tokens(shape)}), 1e-5) << to_string(shape);
}

TEST(OnnxWriter, WritesTransformersWithMasks) {
  for (const Activation activation : {Activation::Relu, Activation::GeluErf, Activation::Silu, Activation::Tanh})
    for (const int64_t opset : {18, 20, 23}) {
      nn::TransformerBlock block({.width = 12, .heads = 3, .dropout = 0.5, .activation = activation});
      stir(block);
      TemporaryFolder folder;
      Tensor mask = tensor(std::vector<bool>{true, true, true, false, true, true, false, false, false}, {3, 3});
      for (const Tensor& m : {mask, (cast(mask, Float32) - 1.0) * 9.0}) {
        save(block, {images({2, 3, 12}), m}, folder / "block.onnx", {.opset = opset});
        EXPECT_LE(error_of_file(folder / "block.onnx", block, {images({4, 3, 12}), m}), 1e-5) << opset;
      }
    }
}

TEST(OnnxWriter, WritesAttentionWithSharedHeads) {
  const FunctionOf attention([](const Tensors& in) {
    return Tensors{scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true, .scale = 0.3})};
  });
  TemporaryFolder folder;
  for (const int64_t opset : {20, 23}) {
    const auto inputs = [](int64_t batch) {
      return Tensors{images({batch, 4, 5, 6}), images({batch, 2, 7, 6}), images({batch, 2, 7, 6})};
    };
    save(attention, inputs(2), folder / "a.onnx", {.opset = opset});
    EXPECT_LE(error_of_file(folder / "a.onnx", attention, inputs(3)), 1e-5) << opset;
  }
}

TEST(OnnxWriter, WritesRecurrentLayers) {
  struct Layers : nn::Module {
    Tensor in = add_parameter("in", images({2, 12, 5})), hidden = add_parameter("hidden", images({2, 12, 3}));
    Tensor bias = add_parameter("bias", images({2, 12}));
    Tensors forward(const Tensors& x) const override {
      const RecurrentOptions both{.direction = Direction::Both};
      const auto gates = [](const Tensor& t, int64_t rows) { return t.slice(1, 0, rows); };
      const RecurrentResult l = lstm(x[0], {{in, hidden, bias, bias}}, {}, {}, {}, both);
      const RecurrentResult g = gru(x[0], {{gates(in, 9), gates(hidden, 9), gates(bias, 9)}}, {}, {}, both);
      const RecurrentResult r = rnn(x[0], {{gates(in, 3), gates(hidden, 3), gates(bias, 3)}}, {}, {}, both);
      return {l.output, l.hidden, l.cell, g.output, r.output};
    }
  };
  const Layers layers;
  TemporaryFolder folder;
  save(layers, {empty({Dim(4), Dim::symbol("batch", 1), Dim(5)}, Float32, meta(cpu()))}, folder / "layers.onnx");
  for (const int64_t batch : {1, 3})
    EXPECT_LE(error_of_file(folder / "layers.onnx", layers, {images({4, batch, 5})}), 1e-5);
}

TEST(OnnxWriter, WritesVisionTransformersAndEncoders) {
  struct Vision : nn::Module {
    nn::Child<nn::Conv2d> patches = add("patches", nn::Conv2d(3, 12, 4, {.stride = {4, 4}}));
    Tensor first = add_parameter("class_token", images({1, 1, 12})),
           places = add_parameter("places", images({1, 5, 12}));
    nn::Child<nn::TransformerBlock> block = add("block", nn::TransformerBlock({.width = 12, .heads = 3}));
    nn::Child<nn::LayerNorm> norm = add("norm", nn::LayerNorm(12));
    Tensors forward(const Tensors& in) const override {
      const Dim batch = in[0].shape()[0];
      const Tensor x = transpose(flatten(patches(in[0]), 2), 1, 2);
      const Tensor all = concat({expand(first, {batch, Dim(1), Dim(12)}), x}, 1) + places;
      return {select(norm(block(all)), 1, 0)};
    }
  };
  Vision vision;
  expect_written(vision, {2, 3, 8, 8}, images);

  struct Encoder : nn::Module {
    nn::Child<nn::Embedding> words = add("words", nn::Embedding(11, 12)), places = add("places", nn::Embedding(9, 12));
    nn::Child<nn::LayerNorm> norm = add("norm", nn::LayerNorm(12));
    nn::Child<nn::MultiheadAttention> attention = add("attention", nn::MultiheadAttention({.width = 12, .heads = 3}));
    Tensors forward(const Tensors& in) const override {
      const Dim n = in[0].shape()[1];
      const Tensor x = norm(words(in[0]) + slice(places->weight, 0, Dim(0), n));
      const Tensor mask = unsqueeze(unsqueeze(ne(in[1], zeros({}, Int64)), 1), 1);
      const Tensor kept = unsqueeze(cast(in[1], Float32), 2), y = attention(x, mask);
      return {y, attention->cross(y, x, mask), sum(y * kept, {1}) / clamp(sum(kept, {1}), 1e-9, INFINITY)};
    }
  };
  const Encoder encoder;
  TemporaryFolder folder;
  const Tensor open = empty({Dim::symbol("batch", 1), Dim::symbol("tokens", 1, 9)}, Int64, meta(cpu()));
  save(encoder, {open, open}, folder / "m.onnx", {.inputs = {"ids", "mask"}, .outputs = {"states", "crossed", "mean"}});
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}}) {
    Tensor mask = cast(gt(tokens(shape), full(shape, 3, Int64)), Int64);
    EXPECT_LE(error_of_file(folder / "m.onnx", encoder, {tokens(shape), mask}), 1e-5) << to_string(shape);
  }
}

// Packed weights and folded norms included.
TEST(OnnxWriter, WritesWhatWasRead) {
  TemporaryFolder folder;
  models::ResNet20 resnet;
  stir(resnet);
  save(resnet, {images({2, 3, 32, 32})}, folder / "resnet.onnx");
  const auto again = [&](const std::string& file, const Shape& shape) {
    const FunctionOf read = module_of(file);
    save(read, {images(shape)}, folder / "again.onnx", {.batch = ""});
    EXPECT_LE(error_of_file(folder / "again.onnx", read, {images(shape)}), 1e-5) << file;
  };
  again(folder / "resnet.onnx", {2, 3, 32, 32});
  again(TESSERA_SOURCE_DIR "/tests/data/mnist/mnist.onnx", {1, 1, 28, 28});

  // A node that makes a tensor each time it runs.
  ModelMaker filled;
  filled.input("x", {-1, 3}).output("y", {-1, 3});
  filled.add("Shape", {"x"}, {"sizes"});
  AttributeProto two{.name = "value", .type = kTensorAttribute};
  two.t.make() = {.dims = {1}, .data_type = kFloat, .float_data = {2}};
  filled.add("ConstantOfShape", {"sizes"}, {"twos"}).attributes.push_back(two);
  filled.add("Add", {"x", "twos"}, {"y"});
  write_file(folder / "filled.onnx", filled.bytes());
  again(folder / "filled.onnx", {2, 3});

  // Numbers that a node reads, here scales, and a divisor, by which whole numbers are divided.
  ModelMaker resized;
  resized.input("x", {-1, 1, 4}).output("y", {-1, -1, -1}).weight("scales", {3}, {1, 2, 0.5f}).integers("two", {2});
  resized.add("Resize", {"x", "", "scales"}, {"large"});
  resized.add("Cast", {"large"}, {"whole"}).attributes.push_back(attribute("to", kInt64));
  resized.add("Div", {"whole", "two"}, {"half"});
  resized.add("Cast", {"half"}, {"y"}).attributes.push_back(attribute("to", kFloat));
  write_file(folder / "resized.onnx", resized.bytes());
  again(folder / "resized.onnx", {2, 1, 4});

  // What depends on values is no graph of operators.
  ModelMaker branches;
  branches.input("x", {-1}).output("y", {-1});
  branches.add("NonZero", {"x"}, {"places"});
  branches.add("Shape", {"places"}, {"sizes"});
  branches.add("ConstantOfShape", {"sizes"}, {"y"});
  write_file(folder / "branches.onnx", branches.bytes());
  EXPECT_THROW(save(module_of(folder / "branches.onnx"), {ones({4})}, folder / "none.onnx", {.batch = ""}), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "none.onnx"));
}

TEST(OnnxWriter, HeightAndWidthMayBeOpen) {
  models::ResNet50 resnet(10);
  models::ConvModel convmodel(2, 16);
  TemporaryFolder folder;
  const auto check = [&](nn::Module& module, int64_t channels) {
    stir(module);
    const Shape open{Dim::symbol("n", 1), Dim(channels), Dim::symbol("height", 32), Dim::symbol("width", 32)};
    save(module, {empty(open, Float32, meta(cpu()))}, folder / "m.onnx");
    for (const auto& [height, width] : {std::pair(32, 32), std::pair(47, 64)})
      EXPECT_LE(error_of_file(folder / "m.onnx", module, {images({2, channels, height, width})}), 1e-5);
  };
  check(resnet, 3);
  check(convmodel, 2);
}

TEST(OnnxWriter, WritesHalves) {
  models::ResNet20 resnet;
  GPT gpt({.layers = 1, .heads = 2, .width = 16, .block = 8, .vocab = 11});
  TemporaryFolder folder;
  for (const DType dtype : {Float16, BFloat16}) {
    resnet.to(dtype);
    gpt.to(dtype);
    save(resnet, {images({2, 3, 32, 32}).to(dtype)}, folder / "r.onnx");
    EXPECT_LE(error_of_file(folder / "r.onnx", resnet, {images({3, 3, 32, 32}).to(dtype)}), 2e-2) << name(dtype);
    save(gpt, {tokens({2, 7})}, folder / "g.onnx");
    EXPECT_LE(error_of_file(folder / "g.onnx", gpt, {tokens({3, 7})}), 2e-2) << name(dtype);
  }
}

// What a file holds.
struct File {
  std::string bytes;
  ModelProto model;
  explicit File(const std::string& path) : bytes(read_file(path)), model(read_proto<ModelProto>(bytes, path)) {}
  std::vector<std::string> weights() const {
    std::vector<std::string> names;
    for (const TensorProto& t : model.graph->initializers) names.emplace_back(t.name);
    return names;
  }
};

TEST(OnnxWriter, WeightsKeepTheirNamesAndAreThereOnce) {
  GPT gpt({.layers = 1, .heads = 1, .width = 4, .block = 8, .vocab = 11});
  TemporaryFolder folder;
  save(gpt, {tokens({2, 8})}, folder / "gpt.onnx");
  const std::vector<std::string> weights = File(folder / "gpt.onnx").weights();
  const StateDict dict = gpt.state_dict();
  for (const auto& [name, t] : dict) EXPECT_EQ(std::count(weights.begin(), weights.end(), name), 1) << name;
  for (const std::string& name : weights) EXPECT_TRUE(dict.contains(name) || name.starts_with("constant")) << name;
}

TEST(OnnxWriter, ConstantsAndNodesHaveNoNameOfAWeight) {
  struct Layer : nn::Module {
    Tensor other = tensor(std::vector<float>{1, 2, 3}, {3}), mine = add_parameter("constant", images({3}));
    Tensor add_ = add_parameter("Add", images({3}));
    Tensors forward(const Tensors& in) const override { return {(in[0] + other) * mine + add_ * 2.0}; }
  };
  const Layer layer;
  TemporaryFolder folder;
  save(layer, {images({2, 3})}, folder / "m.onnx");
  EXPECT_LE(error_of_file(folder / "m.onnx", layer, {images({4, 3})}), 1e-5);
}

TEST(OnnxWriter, LargeWeightsGoToAFileBesideIt) {
  models::ResNet20 resnet;
  stir(resnet);
  TemporaryFolder folder;
  save(resnet, {images({2, 3, 32, 32})}, folder / "m.onnx");
  EXPECT_FALSE(std::filesystem::exists(folder / "m.onnx.data"));
  save(resnet, {images({2, 3, 32, 32})}, folder / "m.onnx", {.most_bytes = 1000});
  EXPECT_GT(std::filesystem::file_size(folder / "m.onnx.data"), 20 * std::filesystem::file_size(folder / "m.onnx"));
  EXPECT_LE(error_of_file(folder / "m.onnx", resnet, {images({2, 3, 32, 32})}), 1e-5);
}

TEST(OnnxWriter, ScalarsHaveAShape) {
  const FunctionOf total([](const Tensors& in) { return Tensors{sum(in[0]), in[0]}; });
  TemporaryFolder folder;
  save(total, {images({2, 3})}, folder / "m.onnx");
  const File file(folder / "m.onnx");
  ASSERT_EQ(file.model.graph->outputs.size(), 2u);
  EXPECT_TRUE(file.model.graph->outputs[0].type->tensor->shape);
  EXPECT_LE(error_of_file(folder / "m.onnx", total, {images({4, 3})}), 1e-5);
}

TEST(OnnxWriter, SizesAreComputedFromThoseOfInputs) {
  const FunctionOf flat([](const Tensors& in) {
    const Dim n = in[0].shape()[0];
    const Tensor places = cast(sum(ones({n * 3}), {}), Float32);
    return Tensors{reshape(in[0], {n * 3, Dim(2)}), in[0] * places, var(in[0])};
  });
  TemporaryFolder folder;
  save(flat, {images({2, 3, 2})}, folder / "m.onnx");
  EXPECT_LE(error_of_file(folder / "m.onnx", flat, {images({5, 3, 2})}), 1e-5);
}

TEST(OnnxWriter, RefusesWhatOnnxLacks) {
  struct Noise : nn::Module {
    Tensors forward(const Tensors& in) const override { return {in[0] + rand({3})}; }
  };
  struct Outer : nn::Module {
    nn::Child<Noise> noise = add("noise", Noise());
    Tensors forward(const Tensors& in) const override { return noise(in); }
  };
  TemporaryFolder folder;
  EXPECT_EQ(tessera::error_of<Unsupported>([&] {
              save(Outer(), {images({2, 3})}, folder / "m.onnx");
            }),
            (folder / "m.onnx") + ": operator 'draw' of module \"noise\" has no counterpart in ONNX");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const FunctionOf bits([](const Tensors& in) { return Tensors{bitcast(in[0], Int32)}; });
  EXPECT_EQ(tessera::error_of<Unsupported>([&] {
              save(bits, {images({2, 3})}, folder / "m.onnx");
            }),
            (folder / "m.onnx") + ": operator 'bitcast' has no counterpart in ONNX before opset 26");
}

TEST(OnnxWriter, SaysWhichSizeMustBeFixed) {
  const FunctionOf counts([](const Tensors& in) { return Tensors{in[0] * static_cast<double>(in[0].size(0))}; });
  TemporaryFolder folder;
  const std::string error = tessera::error_of([&] { save(counts, {images({2, 3})}, folder / "m.onnx"); });
  EXPECT_TRUE(error.starts_with((folder / "m.onnx") + ": ")) << error;
  EXPECT_NE(error.find("dim batch is symbolic"), error.npos) << error;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  save(counts, {images({2, 3})}, folder / "m.onnx", {.batch = ""});
  EXPECT_LE(error_of_file(folder / "m.onnx", counts, {images({2, 3})}), 1e-5);
}

TEST(OnnxWriter, OutputsThatNobodyNamesAreNumbered) {
  TemporaryFolder folder;
  const FunctionOf two([](const Tensors& in) { return Tensors{relu(in[0]), tanh(in[0])}; });
  save(two, {ones({2})}, folder / "m.onnx", {.outputs = {"states"}});
  const Model model(folder / "m.onnx");
  EXPECT_EQ(model.outputs()[0].name, "states");
  EXPECT_EQ(model.outputs()[1].name, "output_2");
}

TEST(OnnxWriter, RefusesBadOptionsAndPaths) {
  const nn::Linear linear(3, 2);
  const Tensors x{images({2, 3})};
  TemporaryFolder folder;
  const std::string path = folder / "m.onnx";
  const auto error = [&](const SaveOptions& options) {
    return tessera::error_of([&] { save(linear, x, path, options); });
  };
  EXPECT_EQ(error({.opset = 17}), path + ": opset 17 is none of 18 to 28");
  EXPECT_EQ(error({.opset = 29}), path + ": opset 29 is none of 18 to 28");
  EXPECT_EQ(error({.inputs = {"a", "b"}}), path + ": 2 names for 1 inputs");
  EXPECT_EQ(error({.inputs = {"a"}, .outputs = {"a"}}),
            path + ": inputs and outputs need names of their own, not \"a\" again");
  EXPECT_EQ(error({.inputs = {"weight"}}), path + ": a parameter is called \"weight\", too");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const std::string nowhere = tessera::error_of([&] { save(linear, x, folder / "none/m.onnx"); });
  EXPECT_NE(nowhere.find("none/m.onnx"), nowhere.npos) << nowhere;
}

TEST(OnnxWriter, LeavesTheOldFileWhereTheNewOneFails) {
  TemporaryFolder folder;
  const nn::Linear linear(3, 2);
  save(linear, {images({2, 3})}, folder / "m.onnx");
  const FunctionOf random([](const Tensors& in) { return Tensors{in[0] + rand({3})}; });
  EXPECT_THROW(save(random, {images({2, 3})}, folder / "m.onnx"), Unsupported);
  EXPECT_LE(error_of_file(folder / "m.onnx", linear, {images({2, 3})}), 1e-5);
}

TEST(OnnxWriter, ModulesStayAsTheyAre) {
  nn::Sequential model(nn::Linear(3, 4), nn::Dropout(0.5), nn::Linear(4, 2));
  TemporaryFolder folder;
  save(model, {images({2, 3})}, folder / "m.onnx");
  EXPECT_TRUE(model.training());
  model.eval();
  model.pack();
  save(model, {images({2, 3})}, folder / "n.onnx");
  EXPECT_TRUE(model.packs());
  EXPECT_EQ(read_file(folder / "m.onnx"), read_file(folder / "n.onnx"));
}

// Of a file of quantised products is written what ONNX Runtime has: no convolution of f64, and integers of 8 bits.
TEST(OnnxModelFile, ProductsOfIntegersAreWrittenAsSuch) {
  TemporaryFolder folder;
  ModelMaker m;
  const auto bytes = [&](const std::string& name, std::vector<int64_t> dims, DType type, int64_t first) {
    TensorProto& t = m.graph().initializers.emplace_back();
    t.data_type = data_type_of(type), t.name = m.keep(name);
    int64_t count = 1;
    for (const int64_t d : dims) count *= d;
    t.dims = std::move(dims);
    for (int64_t i = 0; i < count; ++i) t.int32_data.push_back(static_cast<int32_t>((i * 37) % 90 + first));
  };
  for (const auto& [name, value] : {std::pair("xs", 0.02f), {"ws", 0.01f}, {"ys", 0.3f}}) m.weight(name, {}, {value});
  bytes("z", {}, UInt8, 5), bytes("zi", {}, Int8, -4), bytes("same", {4}, Int8, 0);
  m.graph().initializers.back().int32_data.assign(4, 2);
  bytes("w", {4, 3, 3, 3}, Int8, -40), bytes("v", {6, 5}, Int8, -50), bytes("vu", {6, 5}, UInt8, 9);
  m.input("x", {2, 3, 7, 6}, data_type_of(UInt8)).input("i", {2, 3, 7, 6}, data_type_of(Int8));
  const auto pads = [&](NodeProto& node, std::vector<int64_t> values) {
    node.attributes.push_back({.name = "pads", .type = kIntsAttribute, .ints = std::move(values)});
  };
  pads(m.add("QLinearConv", {"x", "xs", "z", "w", "ws", "same", "ys", "z"}, {"y"}), {1, 1, 1, 1});
  pads(m.add("ConvInteger", {"i", "w", "zi", "zi"}, {"c"}), {0, 1, 2, 0});
  m.add("MatMulInteger", {"x", "v", "z", "zi"}, {"p"});
  m.add("QLinearMatMul", {"x", "xs", "z", "vu", "ws", "z", "ys", "z"}, {"q"});
  m.output("y", {2, 4, 7, 6}, data_type_of(UInt8)).output("c", {2, 4, 7, 5}, data_type_of(Int32));
  m.output("p", {2, 3, 7, 5}, data_type_of(Int32)).output("q", {2, 3, 7, 5}, data_type_of(UInt8));
  write_file(folder / "a.onnx", m.bytes());
  Generator g(4);
  const Tensors in{randint(0, 256, {2, 3, 7, 6}, g).to(UInt8), randint(-128, 128, {2, 3, 7, 6}, g).to(Int8)};
  const FunctionOf model = module_of(folder / "a.onnx");
  save(model, in, folder / "b.onnx", {.batch = ""});
  EXPECT_EQ(error_of_file(folder / "b.onnx", model, in), 0);
  const auto operators = inspect(folder / "b.onnx").operators;
  EXPECT_EQ(operators.at("ConvInteger"), 2);
  EXPECT_EQ(operators.at("MatMulInteger"), 2);
  EXPECT_EQ(operators.count("Conv") + operators.count("MatMul"), 0);
  EXPECT_LT(std::filesystem::file_size(folder / "b.onnx"), 8000);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep shadows of what is there
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}
TEST(OnnxModelFile, IsInMemoryOnce) {
  TemporaryFolder folder;
  const std::string file = folder / "wide.onnx";
  {
    const nn::Linear wide(2048, 4096);
    save(wide, {zeros({1, 2048})}, file);
  }
  empty_cache(cpu());
  const int64_t before = resident_bytes();
  const Model model(file);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
  EXPECT_LT(resident_bytes() - before, size * 6 / 5);
  EXPECT_EQ(model.run({ones({1, 2048})})[0].tensor().shape(), (Shape{1, 4096}));
}
#endif

}  // namespace
}  // namespace tessera::onnx
