#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cmath>
#include <fstream>

#include "io/io_check.h"
#include "io/temporary_folder.h"
#include "onnx/model_maker.h"
#include "tessera/io.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}
std::string load_error(const ModelMaker& maker) {
  return error_of([&] { Model::from_bytes(maker.bytes(), "m.onnx"); });
}
std::vector<float> floats(const Value& value) { return value.tensor().to_vector<float>(); }

ModelMaker two_layers() {
  ModelMaker m;
  m.input("x", {-1, 3}).output("y", {-1, 2}).weight("w", {3, 2}, {1, 2, 3, 4, 5, 6}).weight("b", {2}, {0.5f, -100});
  m.add("MatMul", {"x", "w"}, {"h"});
  m.add("Add", {"h", "b"}, {"z"});
  m.add("Relu", {"z"}, {"y"});
  return m;
}

TEST(OnnxModel, RunsByPositionAndByName) {
  const Model model = Model::from_bytes(two_layers().bytes(), "m.onnx");
  ASSERT_EQ(model.inputs().size(), 1u);
  EXPECT_EQ(describe(model.inputs()[0]), "float[n, 3]");
  const Tensor x = tensor(std::vector<float>{1, 0, 0, 0, 1, 1}, {2, 3});
  const Tensor w = tensor(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}),
               b = tensor(std::vector<float>{0.5f, -100}, {2});
  const std::vector<float> want = relu(matmul(x, w) + b).to_vector<float>();
  EXPECT_EQ(floats(model.run({x})[0]), want);
  EXPECT_EQ(floats(model.run_by_name(std::map<std::string, Value>{{"x", x}}).at("y")), want);
}

TEST(OnnxModel, SaysWhichInputDoesNotFit) {
  const Model model = Model::from_bytes(two_layers().bytes(), "m.onnx");
  EXPECT_EQ(error_of([&] {
              model.run({zeros({2, 4})});
            }),
            "m.onnx: input \"x\" is float[n, 3], but is given f32[2, 4] on cpu");
  EXPECT_EQ(error_of([&] {
              model.run({zeros({2, 3}, Int64)});
            }),
            "m.onnx: input \"x\" is float[n, 3], but is given i64[2, 3] on cpu");
  EXPECT_EQ(error_of([&] { model.run(Values{}); }), "m.onnx: takes 1 inputs, not 0");
  EXPECT_EQ(error_of([&] {
              model.run_by_name(std::map<std::string, Value>{{"y", zeros({2, 3})}});
            }),
            "m.onnx: input \"x\" is missing");
}

TEST(OnnxModel, ANameStandsForOneSize) {
  ModelMaker m;  // both first sizes are called n
  m.input("a", {-1, 2}).input("b", {-1, 2}).output("y", {-1, 2}).add("Add", {"a", "b"}, {"y"}).name = "sum";
  const Model model = Model::from_bytes(m.bytes(), "m.onnx");
  EXPECT_EQ(model.run({zeros({3, 2}), zeros({1, 2})})[0].tensor().shape(), (Shape{3, 2}));  // as ONNX Runtime has it
  EXPECT_EQ(error_of([&] {
              model.run({zeros({2, 2}), zeros({3, 2})});
            }),
            "m.onnx: node \"sum\" (Add): add: shapes do not broadcast: [2, 2] and [3, 2]; size \"n\" is 2 in input "
            "\"a\", and 3 in input \"b\"");
}
TEST(OnnxModel, AnIndexOutOfRangeIsToldAsItIs) {
  ModelMaker m;
  m.input("x", {100, 2}).input("i", {-1}, kInt64).output("y", {-1, 2}).add("Gather", {"x", "i"}, {"y"});
  const Model model = Model::from_bytes(m.bytes(), "m.onnx");
  const auto of = [&](int64_t index) {
    return error_of([&] { model.run({zeros({100, 2}), tensor(std::vector<int64_t>{-100, index}, {2})}); });
  };
  for (const int64_t index : {-101, 100, -201})
    EXPECT_NE(of(index).find(fmt::format("index {} is out of range for size 100", index)), std::string::npos)
        << of(index);
}
TEST(OnnxModel, WholeNumbersMayBeTheLargestThereIs) {
  ModelMaker m;
  m.input("boxes", {1, 3, 4}).input("scores", {1, 1, 3}).output("kept", {-1, 3}, kInt64).weight("overlap", {}, {0.5f});
  m.integers("most", {INT64_MAX});
  m.add("NonMaxSuppression", {"boxes", "scores", "most", "overlap"}, {"kept"});
  const Tensor boxes = tensor(std::vector<float>{0, 0, 2, 2, 0, 0, 2, 1.9f, 5, 5, 6, 6}, {1, 3, 4}),
               scores = tensor(std::vector<float>{1, 2, 3}, {1, 1, 3});
  const Tensor kept = Model::from_bytes(m.bytes(), "m.onnx").run({boxes, scores})[0].tensor();
  EXPECT_EQ(kept.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 2, 0, 0, 1}));

  ModelMaker endless;
  endless.output("y", {-1}).weight("size", {}, {INFINITY});
  endless.add("HannWindow", {"size"}, {"y"});
  EXPECT_EQ(error_of([&] { Model::from_bytes(endless.bytes(), "m.onnx").run(Values{}); }),
            "m.onnx: node HannWindow: input 0 must be an integer, not f32[] on cpu");
}

TEST(OnnxModel, ASizeThatIsATermIsOpen) {
  ModelMaker m = two_layers();
  m.graph().inputs[0].type.make().tensor.make().shape.make().dims[0].param = "2*n";
  const Model model = Model::from_bytes(m.bytes(), "m.onnx");
  EXPECT_EQ(describe(model.inputs()[0]), "float[2*n, 3]");
  EXPECT_EQ(model.run({zeros({4, 3})})[0].tensor().shape(), Shape({4, 2}));
  EXPECT_EQ(error_of([&] {
              model.run({zeros({4, 2})});
            }),
            "m.onnx: input \"x\" is float[2*n, 3], but is given f32[4, 2] on cpu");
  for (const char* open : {"2*n", "n", "?", "-1", "", "99999999999999999999"}) EXPECT_EQ(known_size(open), -1) << open;
  EXPECT_EQ(known_size("0"), 0);
  EXPECT_EQ(known_size("32"), 32);
}

TEST(OnnxModel, WhatANodeDoesWrongNamesIt) {
  ModelMaker m;
  m.input("a", {-1, -1}).input("b", {-1, -1}).output("y", {-1, -1});
  m.add("MatMul", {"a", "b"}, {"y"}).name = "product";
  const Model model = Model::from_bytes(m.bytes(), "m.onnx");
  const std::string error = error_of([&] { model.run({zeros({2, 3}), zeros({2, 3})}); });
  EXPECT_TRUE(error.starts_with("m.onnx: node \"product\" (MatMul): matmul: ")) << error;
}

TEST(OnnxModel, RefusesWhatIsNoModel) {
  const auto error = [](std::string bytes) { return error_of([&] { Model::from_bytes(std::move(bytes), "m.onnx"); }); };
  EXPECT_EQ(error(""), "m.onnx: has no graph: not ONNX");
  EXPECT_TRUE(error("no model at all").starts_with("m.onnx: not ONNX")) << error("no model at all");
  const std::string whole = two_layers().bytes();
  for (size_t size = 0; size + 1 < whole.size(); ++size) {
    const std::string what = error(whole.substr(0, size));
    EXPECT_TRUE(what.starts_with("m.onnx: ") || what == "no error") << size << ": " << what;
    EXPECT_EQ(what.find('\n'), what.npos);
  }
}

TEST(OnnxModel, RefusesGraphsThatCannotBe) {
  ModelMaker cycle;
  cycle.input("x", {1}).output("y", {1});
  cycle.add("Add", {"x", "z"}, {"y"});
  cycle.add("Relu", {"y"}, {"z"});
  EXPECT_EQ(load_error(cycle), "m.onnx: input \"z\" is computed by no node before it");

  ModelMaker twice;
  twice.input("x", {1}).output("y", {1});
  twice.add("Relu", {"x"}, {"y"});
  twice.add("Exp", {"x"}, {"y"});
  EXPECT_EQ(load_error(twice), "m.onnx: the name \"y\" is used twice");

  ModelMaker absent;
  absent.input("x", {1}).output("y", {1});
  EXPECT_EQ(load_error(absent), "m.onnx: output \"y\" is computed by no node before it");

  ModelMaker unknown;
  unknown.input("x", {1}).output("y", {1});
  unknown.add("Frobnicate", {"x"}, {"y"});
  EXPECT_EQ(load_error(unknown), "m.onnx: node Frobnicate: the operator is not supported");

  ModelMaker lies;
  lies.input("x", {1}).output("y", {1}).weight("w", {1 << 30, 1 << 30, 1 << 30}, {1});
  EXPECT_EQ(load_error(lies).find("m.onnx: tensor \"w\": "), 0u) << load_error(lies);
  ModelMaker few;
  few.weight("w", {3}, {1, 2});
  EXPECT_EQ(load_error(few), "m.onnx: tensor \"w\": 2 elements, of shape [3]");
  ModelMaker negative;
  negative.weight("w", {-3}, {1, 2});
  EXPECT_EQ(load_error(negative), "m.onnx: tensor \"w\": a size of -3");
  ModelMaker strings;
  strings.graph().initializers.push_back({.dims = {1}, .data_type = kString, .string_data = {"a"}, .name = "w"});
  EXPECT_EQ(load_error(strings), "m.onnx: tensor \"w\": elements of string are not supported");
}

TEST(OnnxModel, RecursiveFunctionsEnd) {
  ModelMaker m;
  m.proto().opsets.push_back({"mine", 1});
  m.input("x", {1}).output("y", {1});
  m.add("F", {"x"}, {"y"}).domain = "mine";
  NodeProto again = m.node("F", {"a"}, {"b"});
  again.domain = "mine";
  m.proto().functions.push_back({.name = "F",
                                 .domain = "mine",
                                 .inputs = {"a"},
                                 .outputs = {"b"},
                                 .nodes = {again},
                                 .opsets = {{"", 20}, {"mine", 1}}});
  EXPECT_EQ(load_error(m), "m.onnx: node F: functions call each other more than 64 deep");
}

TEST(OnnxModel, FunctionsThatMultiplyEnd) {
  ModelMaker m;
  m.proto().opsets.push_back({"mine", 1});
  m.input("x", {1}).output("y", {1});
  m.add("F0", {"x"}, {"y"}).domain = "mine";
  for (int i = 0; i < 40; ++i) {
    const std::string next = i < 39 ? "F" + std::to_string(i + 1) : "Relu";
    NodeProto first = m.node(next, {"a"}, {"b"}), second = m.node(next, {"b"}, {"c"});
    if (i < 39) first.domain = second.domain = "mine";
    m.proto().functions.push_back({.name = m.keep("F" + std::to_string(i)),
                                   .domain = "mine",
                                   .inputs = {"a"},
                                   .outputs = {"c"},
                                   .nodes = {first, second},
                                   .opsets = {{"", 20}, {"mine", 1}}});
  }
  EXPECT_NE(load_error(m).find("nodes become more than 2000000"), std::string::npos) << load_error(m);
  m.proto().functions.push_back(m.proto().functions[0]);
  EXPECT_EQ(load_error(m), "m.onnx: the function \"F0\" is there twice");
}

TEST(OnnxModel, FunctionsTakeAttributesOfTheirCalls) {
  ModelMaker m;
  m.proto().opsets.push_back({"mine", 1});
  m.input("x", {3}).output("y", {3});
  NodeProto& call = m.add("Leaky", {"x"}, {"y"});
  call.domain = "mine";
  call.attributes.push_back({.name = "slope", .type = kFloatAttribute, .f = 0.5f});
  NodeProto inner = m.node("LeakyRelu", {"a"}, {"b"});
  inner.attributes.push_back({.name = "alpha", .reference = "slope", .type = kFloatAttribute});
  m.proto().functions.push_back({.name = "Leaky",
                                 .domain = "mine",
                                 .inputs = {"a"},
                                 .outputs = {"b"},
                                 .attributes = {"slope"},
                                 .nodes = {inner},
                                 .opsets = {{"", 20}}});
  const Model model = Model::from_bytes(m.bytes());
  EXPECT_EQ(floats(model.run({tensor(std::vector<float>{-4, 0, 6}, {3})})[0]), (std::vector<float>{-2, 0, 6}));
}

/// A loop that adds x to its state `turns` times, or for ever.
ModelMaker loop_of(bool for_ever) {
  ModelMaker m;
  m.input("x", {1}).input("turns", {}, kInt64).output("y", {1}).output("all", {-1, 1});
  NodeProto& node = m.add("Loop", {for_ever ? "" : "turns", "", "x"}, {"y", "all"});
  AttributeProto body{.name = "body", .type = kGraphAttribute};
  GraphProto& graph = body.g.make();
  graph.inputs = {m.value("i", {}, kInt64), m.value("goes_on", {}, kBool), m.value("state", {1})};
  graph.nodes = {m.node("Add", {"state", "x"}, {"next"}), m.node("Identity", {"goes_on"}, {"still"}),
                 m.node("Identity", {"next"}, {"seen"})};
  graph.outputs = {m.value("still", {}, kBool), m.value("next", {1}), m.value("seen", {1})};
  node.attributes.push_back(body);
  return m;
}

TEST(OnnxModel, LoopsSeeTheGraphAroundThem) {
  const Model model = Model::from_bytes(loop_of(false).bytes());
  const Values out = model.run({tensor(std::vector<float>{2}, {1}), tensor(std::vector<int64_t>{3}, {})});
  EXPECT_EQ(floats(out[0]), std::vector<float>{8});
  EXPECT_EQ(floats(out[1]), (std::vector<float>{4, 6, 8}));
}

TEST(OnnxModel, LoopsWithoutEndReachALimit) {
  const Model model = Model::from_bytes(loop_of(true).bytes(), "m.onnx", {.loop_limit = 50});
  const std::string error = error_of([&] { model.run({zeros({1}), tensor(std::vector<int64_t>{3}, {})}); });
  EXPECT_EQ(error, "m.onnx: node Loop: loops take more than 50 turns");
}

TEST(OnnxModel, LoopsInLoopsShareTheLimit) {
  ModelMaker m = loop_of(false);
  const Model model = Model::from_bytes(m.bytes(), "m.onnx", {.loop_limit = 5});
  const auto turns = [&](int64_t n) { return model.run({zeros({1}), tensor(std::vector<int64_t>{n}, {})}); };
  EXPECT_EQ(turns(5).size(), 2u);
  EXPECT_EQ(turns(5).size(), 2u);  // each run counts anew
  EXPECT_NE(error_of([&] { turns(6); }), "no error");
}

TEST(OnnxModel, LoopsInFunctionsCountInTheirRun) {
  ModelMaker inner = loop_of(false), m;
  m.proto().opsets.push_back({"mine", 1});
  m.input("x", {1}).input("turns", {}, kInt64).output("q", {1});
  m.proto().functions.push_back({.name = "F",
                                 .domain = "mine",
                                 .inputs = {"x", "turns"},
                                 .outputs = {"y"},
                                 .nodes = inner.graph().nodes,
                                 .opsets = {{"", 20}}});
  m.add("F", {"x", "turns"}, {"p"}).domain = "mine";
  m.add("F", {"p", "turns"}, {"q"}).domain = "mine";
  const Model model = Model::from_bytes(m.bytes(), "m.onnx", {.loop_limit = 6});
  const auto turns = [&](int64_t n) { return floats(model.run({ones({1}), tensor(std::vector<int64_t>{n}, {})})[0]); };
  EXPECT_EQ(turns(3), std::vector<float>{16});  // each adds what it is given three times
  EXPECT_NE(error_of([&] { turns(4); }).find("loops take more than 6 turns"), std::string::npos);
}

TEST(OnnxModel, ListsWithoutEndAreRefused) {
  for (const int64_t type : {int64_t{kInt64}, int64_t{kFloat}}) {
    ModelMaker m;
    m.input("a", {}, type).input("b", {}, type).input("d", {}, type).output("y", {-1}, type);
    m.add("Range", {"a", "b", "d"}, {"y"});
    const Model model = Model::from_bytes(m.bytes(), "m.onnx");
    const auto range = [&](double b, double d) {
      const DType dtype = type == kInt64 ? Int64 : Float32;
      return model.run({full({}, 0, dtype), full({}, b, dtype), full({}, d, dtype)})[0].tensor();
    };
    EXPECT_EQ(range(7, 2).to_vector<double>(), (std::vector<double>{0, 2, 4, 6}));
    EXPECT_EQ(range(-7, -3).to_vector<double>(), (std::vector<double>{0, -3, -6}));
    EXPECT_EQ(range(-7, 3).numel(), 0);
    EXPECT_NE(error_of([&] { range(4e15, 1); }).find("node Range: "), std::string::npos);
    EXPECT_NE(error_of([&] { range(4, 0); }).find("a delta of 0"), std::string::npos);
    EXPECT_NE(error_of([&] { range(type == kFloat ? NAN : 4e18, 1); }), "no error");
  }
}

TEST(OnnxModel, SaysWhatIsNotAsDeclared) {
  ModelMaker type;
  type.input("x", {2}).output("y", {2}, kInt64);
  type.add("Relu", {"x"}, {"y"});
  const Model model = Model::from_bytes(type.bytes(), "m.onnx");
  EXPECT_EQ(error_of([&] { model.run({zeros({2})}); }),
            "m.onnx: output \"y\" is declared as int64[2], but is f32[2] on cpu");

  ModelMaker text;
  text.input("x", {2}, kString).output("y", {2}, kString);
  text.add("Identity", {"x"}, {"y"});
  EXPECT_EQ(load_error(text), "m.onnx: input \"x\": elements of string are not supported");

  ModelMaker newer;
  newer.proto().ir_version = 99;
  newer.input("x", {1});
  EXPECT_EQ(load_error(newer), "m.onnx: IR version 99 is newer than 14, the newest that is known");

  ModelMaker kernel;
  kernel.input("x", {1, 1, 4, 4}).output("y", {1, 1, 2, 2}).weight("w", {1, 1, 3, 3}, std::vector<float>(9, 1));
  AttributeProto shape{.name = "kernel_shape", .type = kIntsAttribute};
  shape.ints = {9, 9};
  kernel.add("Conv", {"x", "w"}, {"y"}).attributes.push_back(shape);
  const Model conv = Model::from_bytes(kernel.bytes(), "m.onnx");
  EXPECT_NE(error_of([&] { conv.run({zeros({1, 1, 4, 4})}); }).find("kernel_shape"), std::string::npos);
}

TEST(OnnxModel, PaddingStaysBelowTheWindow) {
  for (const std::string op : {"AveragePool", "MaxPool"}) {
    ModelMaker m;
    m.input("x", {1, 1, 4, 4}).output("y", {1, 1, -1, -1});
    AttributeProto shape{.name = "kernel_shape", .type = kIntsAttribute}, pads{.name = "pads", .type = kIntsAttribute};
    shape.ints = {2, 2};
    pads.ints = {2, 0, 1, 0};
    m.add(op, {"x"}, {"y"}).attributes = {shape, pads};
    const Model model = Model::from_bytes(m.bytes(), "m.onnx");
    EXPECT_EQ(error_of([&] {
                model.run({zeros({1, 1, 4, 4})});
              }),
              "m.onnx: node " + op + ": padding 2 is not below the window's 2");
  }
}

TEST(OnnxModel, RecurrentLayersAreWhatTheirWeightsSay) {
  ModelMaker m;
  m.input("x", {3, 2, 1}).input("n", {2}, kInt32).output("y", {3, 1, 2, 1});
  m.weight("w", {1, 4, 1}, std::vector<float>(4, 1)).weight("r", {1, 4, 1}, std::vector<float>(4, 1));
  NodeProto& node = m.add("LSTM", {"x", "w", "r", "", "n"}, {"y"});
  const auto lengths = [](int32_t a, int32_t b) { return tensor(std::vector<int32_t>{a, b}, {2}); };
  const auto error = [&](const Tensor& n) {
    const Model model = Model::from_bytes(m.bytes(), "m.onnx");
    return error_of([&] { model.run({ones({3, 2, 1}), n}); });
  };
  EXPECT_EQ(error(lengths(3, 1)), "no error");
  EXPECT_EQ(error(lengths(3, 4)), "m.onnx: node LSTM: a sequence of 4 steps in f32[3, 2, 1] on cpu");
  node.attributes.push_back(attribute("hidden_size", 5));
  EXPECT_EQ(error(lengths(3, 1)), "m.onnx: node LSTM: hidden_size is 5, but the weight is f32[1, 4, 1] on cpu");
}

TEST(OnnxModel, APipeIsNoModel) {
  TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { Model(folder / "pipe"); }).find("pipe"), std::string::npos);
}

/// Norms, biases and activations: the same with the rewriting of nodes as without, in each type of products.
TEST(OnnxModel, RewrittenNodesGiveTheSame) {
  ModelMaker m;
  std::vector<float> filters(4 * 3 * 3 * 3), weight(4 * 5);
  for (size_t i = 0; i < filters.size(); ++i) filters[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::cos(static_cast<float>(i));
  m.input("x", {2, 3, 6, 5}).output("y", {2, 5}).weight("f", {4, 3, 3, 3}, filters).weight("w", {4, 5}, weight);
  m.weight("scale", {4}, {1, 2, 0.5f, -1}).weight("shift", {4}, {0, 1, -1, 2}).weight("bias", {5}, {1, 2, 3, 4, 5});
  m.weight("mean", {4}, {0.5f, -0.5f, 0, 1}).weight("var", {4}, {1, 2, 0.25f, 4});
  m.add("Conv", {"x", "f"}, {"c"});
  m.add("BatchNormalization", {"c", "scale", "shift", "mean", "var"}, {"n"});
  m.add("GlobalAveragePool", {"n"}, {"p"});
  m.add("Flatten", {"p"}, {"q"});
  m.add("MatMul", {"q", "w"}, {"h"});
  m.add("Add", {"bias", "h"}, {"s"});
  m.add("Tanh", {"s"}, {"y"});
  Generator generator(7);
  const Tensor x = randn({2, 3, 6, 5}, generator);
  const Tensor want = Model::from_bytes(m.bytes(), "m", {.optimize = false}).run({x})[0].tensor();
  const auto error = [&](const LoadOptions& options) {
    const Tensor got = Model::from_bytes(m.bytes(), "m", options).run({x})[0].tensor();
    return norm(sub(got, want)).item() / norm(want).item();
  };
  EXPECT_LE(error({}), 1e-6);
  EXPECT_LE(error({.dtype = Float16}), 2e-3);
  EXPECT_LE(error({.dtype = BFloat16}), 2e-2);
}

TEST(OnnxModel, ConstantsAreFolded) {
  ModelMaker m;
  m.input("x", {-1, 4}).output("y", {2, -1}).integers("two", {2}).integers("rest", {-1});
  NodeProto& join = m.add("Concat", {"two", "rest"}, {"shape"});
  join.attributes.push_back(attribute("axis", 0));
  m.add("Reshape", {"x", "shape"}, {"y"});
  const Model model = Model::from_bytes(m.bytes());
  EXPECT_EQ(model.run({zeros({3, 4})})[0].tensor().shape(), (Shape{2, 6}));
}

TEST(OnnxModel, ExternalDataStaysInTheFolder) {
  TemporaryFolder folder;
  const float values[] = {3, 4};
  write_file(folder / "w.bin", std::string("12345678") + std::string(reinterpret_cast<const char*>(values), 8));
  const auto error = [&](const std::string& location, const std::string& offset) {
    ModelMaker m;
    m.input("x", {2}).output("y", {2});
    m.graph().initializers.push_back(
        {.dims = {2},
         .data_type = kFloat,
         .name = "w",
         .external_data = {{"location", m.keep(location)}, {"offset", m.keep(offset)}, {"length", "8"}},
         .data_location = 1});
    m.add("Add", {"x", "w"}, {"y"});
    write_file(folder / "m.onnx", m.bytes());
    return error_of([&] {
      EXPECT_EQ(floats(Model(folder / "m.onnx").run({zeros({2})})[0]), (std::vector<float>{3, 4}));
    });
  };
  EXPECT_EQ(error("w.bin", "8"), "no error");
  EXPECT_NE(error("w.bin", "9").find("ends behind the end"), std::string::npos);
  EXPECT_NE(error("w.bin", "-1").find("is no count of bytes"), std::string::npos);
  EXPECT_NE(error("../w.bin", "8").find("outside of the model's folder"), std::string::npos);
  EXPECT_NE(error("/etc/passwd", "0").find("outside of the model's folder"), std::string::npos);
  std::filesystem::create_symlink("/etc/passwd", folder / "link");
  EXPECT_NE(error("link", "0").find("outside of the model's folder"), std::string::npos);
}

/// Lists of numbers in files hold several types: each keeps its values, also those past 2^63.
TEST(OnnxModel, IntegersOfAllTypes) {
  const struct {
    DType dtype;
    std::vector<int64_t> narrow, wide;
    std::vector<uint64_t> want;  // shifted by one
  } cases[] = {
      {Int16, {-32768, 3, -1}, {}, {uint64_t(-16384), 1, uint64_t(-1)}},
      {UInt16, {32768, 3, 65535}, {}, {16384, 1, 32767}},
      {UInt32, {}, {int64_t{1} << 31, 3, 0xffffffff}, {1 << 30, 1, 0x7fffffff}},
      {UInt64, {}, {std::numeric_limits<int64_t>::min(), 3, -1}, {uint64_t{1} << 62, 1, ~uint64_t{0} >> 1}},
  };
  for (const auto& test : cases) {
    const int64_t type = data_type_of(test.dtype);
    ModelMaker m;
    m.input("n", {1}, type).output("y", {3}, type).output("z", {3}, kInt64);
    m.graph().initializers.push_back(
        {.dims = {3}, .data_type = type, .int32_data = test.narrow, .name = "w", .uint64_data = test.wide});
    m.add("BitShift", {"w", "n"}, {"y"}).attributes = {{.name = "direction", .type = kStringAttribute, .s = "RIGHT"}};
    m.add("Cast", {"y"}, {"z"}).attributes = {attribute("to", kInt64)};
    const Model model = Model::from_bytes(m.bytes(), "m.onnx");
    EXPECT_EQ(describe(model.inputs()[0]), type_name(type) + "[1]");
    const Values got = model.run({ones({1}, test.dtype)});
    EXPECT_EQ(got[0].tensor().dtype(), test.dtype);
    EXPECT_EQ(got[1].tensor().to(UInt64).to_vector<uint64_t>(), test.want) << name(test.dtype);
    EXPECT_EQ(error_of([&] { model.run({ones({1}, Int32)}); }),
              "m.onnx: input \"n\" is " + type_name(type) + "[1], but is given i32[1] on cpu");
    m.graph().initializers[0].dims = {4};
    EXPECT_EQ(load_error(m), "m.onnx: tensor \"w\": 3 elements, of shape [4]");
  }
  ModelMaker m;
  m.input("x", {1}, 17).output("y", {1}, 17).add("Identity", {"x"}, {"y"});
  EXPECT_EQ(load_error(m), "m.onnx: input \"x\": elements of float8e4m3fn are not supported");
}

ModelMaker n_grams(std::vector<int64_t> begins, std::vector<int64_t> columns) {
  ModelMaker m(9);
  m.input("x", {-1, 4}, kInt64).output("y", {-1, -1});
  const auto list = [](Bytes name, std::vector<int64_t> ints) {
    return AttributeProto{.name = name, .type = kIntsAttribute, .ints = std::move(ints)};
  };
  m.add("TfIdfVectorizer", {"x"}, {"y"}).attributes = {
      {.name = "mode", .type = kStringAttribute, .s = "TFIDF"},
      {.name = "weights", .type = kFloatsAttribute, .floats = {1, 2, 0.5f}},
      attribute("min_gram_length", 1),
      attribute("max_gram_length", 2),
      attribute("max_skip_count", 1),
      list("pool_int64s", {5, 6, 5, 6}),
      list("ngram_counts", std::move(begins)),
      list("ngram_indexes", std::move(columns))};
  return m;
}
TEST(OnnxModel, CountsGrams) {
  const Tensor x = tensor<int64_t>({5, 6, 6, 5, 7, 5, 7, 6}, {2, 4});
  const auto run = [&](const ModelMaker& m) { return Model::from_bytes(m.bytes(), "m.onnx").run({x})[0]; };
  // 5 and 6 weigh 1 and 2; "5 6", also with one between, a half.
  EXPECT_EQ(floats(run(n_grams({0, 2}, {3, 0, 1}))), (std::vector<float>{4, 1, 0, 2, 2, 0.5f, 0, 1}));
  const auto error = [&](const ModelMaker& m) { return error_of([&] { run(m); }); };
  EXPECT_NE(error(n_grams({0, 1}, {0, 1, 2})).find("2-grams lie from 1 to 4 of a pool of 4"), std::string::npos);
  EXPECT_NE(error(n_grams({0, 9}, {0, 1, 2})).find("1-grams lie from 0 to 9 of a pool of 4"), std::string::npos);
  EXPECT_NE(error(n_grams({0, 2}, {0, 1, -1})).find("an n-gram is counted in column -1"), std::string::npos);
  EXPECT_NE(error(n_grams({0}, {0, 1, 2})).find("4 n-grams have 3 columns"), std::string::npos);
}

/// x[0] <= 1 ? (x[1] > 5 ? leaf 0 : leaf 1) : leaf 2
ModelMaker tree(std::vector<int64_t> next_if_false, int64_t target = 1) {
  ModelMaker m;
  m.proto().opsets.push_back({"ai.onnx.ml", 5});
  m.input("x", {-1, 2}).output("y", {-1, 2});
  const auto list = [](Bytes name, std::vector<int64_t> ints) {
    return AttributeProto{.name = name, .type = kIntsAttribute, .ints = std::move(ints)};
  };
  const auto numbers = [](Bytes name, TensorProto t) {
    AttributeProto a{.name = name, .type = kTensorAttribute};
    a.t.make() = std::move(t);
    return a;
  };
  NodeProto& node = m.add("TreeEnsemble", {"x"}, {"y"});
  node.domain = "ai.onnx.ml";
  node.attributes = {attribute("n_targets", 2),
                     list("tree_roots", {0, 0}),
                     list("nodes_featureids", {0, 1}),
                     list("nodes_truenodeids", {1, 0}),
                     list("nodes_trueleafs", {0, 1}),
                     list("nodes_falsenodeids", std::move(next_if_false)),
                     list("nodes_falseleafs", {1, 1}),
                     list("leaf_targetids", {0, target, 0}),
                     numbers("nodes_modes", {.dims = {2}, .data_type = kUInt8, .int32_data = {0, 3}}),
                     numbers("nodes_splits", {.dims = {2}, .data_type = kFloat, .float_data = {1, 5}}),
                     numbers("leaf_weights", {.dims = {3}, .data_type = kFloat, .float_data = {0.5f, 2, -1}})};
  return m;
}
TEST(OnnxModel, TreesSumTheirLeaves) {
  const Tensor x = tensor<float>({1, 6, 0, 5, 2, 9, NAN, 0}, {4, 2});
  const auto run = [&](const ModelMaker& m) { return Model::from_bytes(m.bytes(), "m.onnx").run({x})[0]; };
  EXPECT_EQ(floats(run(tree({2, 1}))), (std::vector<float>{1, 0, 0, 4, -2, 0, -2, 0}));
  const auto error = [&](const ModelMaker& m) { return error_of([&] { run(m); }); };
  EXPECT_NE(error(tree({3, 1})).find("node or leaf 3 of 3"), std::string::npos);
  EXPECT_NE(error(tree({2, 1}, 2)).find("target 2 of 2"), std::string::npos);
  ModelMaker loop = tree({2, 1});
  loop.graph().nodes[0].attributes[4].ints = {0, 0};  // the second node is no leaf, and its true side the first
  EXPECT_NE(error(loop).find("tree 0 has no end"), std::string::npos);
}

TEST(OnnxModel, InspectionNamesWhatCannotRun) {
  TemporaryFolder folder;
  ModelMaker m = two_layers();
  m.add("Frobnicate", {"y"}, {"q"}).name = "last";
  write_file(folder / "m.onnx", m.bytes());
  const Inspection info = inspect(folder / "m.onnx");
  EXPECT_EQ(info.nodes, 4);
  EXPECT_EQ(info.parameters, 8);
  EXPECT_EQ(info.parameter_bytes, 32);
  EXPECT_EQ(info.operators.at("MatMul"), 1);
  EXPECT_EQ(info.opsets.at("ai.onnx"), 20);
  ASSERT_EQ(info.unsupported.size(), 1u);
  EXPECT_EQ(info.unsupported[0], (folder / "m.onnx") + ": node \"last\" (Frobnicate): the operator is not supported");
}

}  // namespace
}  // namespace tessera::onnx
