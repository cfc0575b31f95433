// Files that mean harm, or were written by a program with a fault: each is answered, or refused in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "io/temporary_folder.h"
#include "onnx/model_maker.h"
#include "onnx/small_run.h"
#include "tessera/io.h"

namespace tessera::onnx {
namespace {

namespace fs = std::filesystem;

/// "" where there is an answer, else what is said; anything but an Error of one line with the file fails the test.
std::string answer(const std::string& bytes, const std::string& what, const LoadOptions& options = {}) {
  static const char* const kept = std::getenv("TESSERA_ONNX_CASE");  // a file that holds the case that runs
  if (kept) std::ofstream(kept, std::ios::binary) << bytes;          // without waiting for the disk
  const std::clock_t begin = std::clock();                           // of the processor: other work may run beside
  std::string said;
  try {
    said = run_small(bytes, options);
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << ": " << e.what();
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LE(seconds, 20) << what << ": " << said;
  if (seconds > 2) std::printf("%.1f s: %s: %s\n", seconds, what.c_str(), said.c_str());
  EXPECT_TRUE(said.empty() || said.starts_with("m.onnx: ")) << what << ": " << said;
  EXPECT_EQ(said.find('\n'), said.npos) << what << ": " << said;
  return said;
}
std::string answer(const ModelMaker& m, const LoadOptions& options = {}) {
  return answer(m.bytes(), testing::UnitTest::GetInstance()->current_test_info()->name(), options);
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();

// ---- by hand

/// y = op(x) of one number.
ModelMaker one_node(const std::string& op, AttributeProto with = {}) {
  ModelMaker m;
  m.input("x", {1}).output("y", {1});
  NodeProto& node = m.add(op, {"x"}, {"y"});
  if (with.name.data()) node.attributes = {with};
  return m;
}

TEST(OnnxHostile, WhatAnOperatorDoesNotKnowIsRefusedByName) {
  EXPECT_EQ(answer(one_node("Relu")), "");
  EXPECT_EQ(answer(one_node("Relu", attribute("alpha", 1))),
            "m.onnx: node Relu: the operator has no attribute \"alpha\" at opset 20");
  EXPECT_EQ(answer(one_node("LeakyRelu", attribute("alpha", 1))),
            "m.onnx: node LeakyRelu: attribute \"alpha\" is of another type");
  EXPECT_EQ(answer(one_node("Cast")), "m.onnx: node Cast: attribute \"to\" is missing");
  ModelMaker twice = one_node("Elu", {.name = "alpha", .type = kFloatAttribute, .f = 1});
  twice.graph().nodes[0].attributes.push_back({.name = "alpha", .type = kFloatAttribute, .f = 2});
  EXPECT_EQ(answer(twice), "m.onnx: node Elu: attribute \"alpha\" is there twice");
  ModelMaker newer(13);  // what a later opset brought
  newer.input("x", {2}).output("y", {2}).integers("shape", {2});
  newer.add("Reshape", {"x", "shape"}, {"y"}).attributes = {attribute("allowzero", 1)};
  EXPECT_EQ(answer(newer), "m.onnx: node Reshape: the operator has no attribute \"allowzero\" at opset 13");
}

TEST(OnnxHostile, NodesTakeAndGiveWhatTheirOperatorDoes) {
  ModelMaker m = one_node("Relu");
  m.graph().nodes[0].inputs = {"x", "x"};
  EXPECT_EQ(answer(m), "m.onnx: node Relu: 2 inputs, of 1 that the operator takes");
  m.graph().nodes[0].inputs = {"x", "", ""};  // absent ones at the end
  EXPECT_EQ(answer(m), "");
  m.graph().nodes[0].inputs = {};
  EXPECT_EQ(answer(m), "m.onnx: node Relu: 0 inputs, of at least 1 that the operator takes");
  m.graph().nodes[0].inputs = {"x"};
  m.graph().nodes[0].outputs = {"y", "z"};
  EXPECT_EQ(answer(m), "m.onnx: node Relu: 2 outputs, of 1 that the operator gives");
}

TEST(OnnxHostile, OpsetsThatCannotBe) {
  const auto with = [](std::vector<OperatorSet> opsets) {
    ModelMaker m = one_node("Relu");
    m.proto().opsets = std::move(opsets);
    return answer(m);
  };
  EXPECT_EQ(with({}), "m.onnx: node Relu: the file imports no operators of \"\"");
  EXPECT_EQ(with({{"", 0}}), "m.onnx: node Relu: opset 0 is not known; 28 is the newest that is");
  EXPECT_EQ(with({{"", kLeast}}), "m.onnx: node Relu: opset -1 is not known; 28 is the newest that is");
  EXPECT_NE(with({{"", kMost}}).find("is not known; 28 is the newest that is"), std::string::npos);
  EXPECT_EQ(with({{"", 13}, {"ai.onnx", 20}}), "m.onnx: imports opsets 13 and 20 of \"ai.onnx\"");
  EXPECT_EQ(with({{"", 13}, {"ai.onnx", 13}}), "");
}

TEST(OnnxHostile, WeightsThatLie) {
  const auto with = [](TensorProto t) {
    ModelMaker m = one_node("Relu");
    t.name = "w";
    m.graph().initializers = {std::move(t)};
    return answer(m);
  };
  EXPECT_EQ(with({.dims = {2}, .data_type = kFloat, .raw_data = "1234567"}),
            "m.onnx: tensor \"w\": 7 bytes, of f32[2]");
  EXPECT_EQ(with({.dims = {2}, .data_type = kFloat}), "m.onnx: tensor \"w\": 0 elements, of shape [2]");
  EXPECT_EQ(with({.dims = {2}, .data_type = kFloat, .int64_data = {1, 2}}),
            "m.onnx: tensor \"w\": 0 elements, of shape [2]");
  EXPECT_EQ(with({.dims = {1}, .data_type = kBool, .raw_data = "\7"}), "m.onnx: tensor \"w\": a bool that is 7");
  EXPECT_EQ(with({.dims = {kMost, kMost}, .data_type = kFloat}).find("m.onnx: tensor \"w\": "), 0u);
  EXPECT_EQ(with({.dims = {0, kMost, kMost}, .data_type = kFloat}).find("m.onnx: tensor \"w\": "), 0u);
  EXPECT_EQ(with({.dims = std::vector<int64_t>(65, 1), .data_type = kFloat, .float_data = {1}}),
            "m.onnx: tensor \"w\": 65 dims are too many");
  EXPECT_EQ(with({.dims = {1}, .data_type = 99, .raw_data = "1"}),
            "m.onnx: tensor \"w\": elements of type 99 are not supported");
}

TEST(OnnxHostile, AFewNumbersDoNotFillTheMemory) {
  ModelMaker m = one_node("Relu");
  SparseTensorProto& sparse = m.graph().sparse_initializers.emplace_back();
  sparse.values.make() = {.dims = {1}, .data_type = kFloat, .float_data = {1}, .name = "w"};
  sparse.indices.make() = {.dims = {1}, .data_type = kInt64, .int64_data = {5}};
  sparse.dims = {1000};
  EXPECT_EQ(answer(m), "");
  sparse.dims = {int64_t{1} << 29};
  EXPECT_EQ(answer(m), "m.onnx: sparse tensor \"w\": a shape of [536870912]");
}

/// Bytes that tensors take at most while a model loads, beyond those that were there.
int64_t peak_of(const std::function<void()>& fn) {
  reset_peak_memory(cpu());
  const int64_t before = memory_stats(cpu()).allocated;
  fn();
  return memory_stats(cpu()).peak_allocated - before;
}

TEST(OnnxHostile, LoadingComputesNoMoreThanTheFileJustifies) {
  ModelMaker m;
  m.input("x", {1}).output("y", {1}).integers("large", {int64_t{1} << 28}).integers("axis", {0});
  m.add("ConstantOfShape", {"large"}, {"ones"});
  m.add("ReduceSum", {"ones", "axis"}, {"sum"});
  m.add("Add", {"x", "sum"}, {"y"});
  EXPECT_LE(peak_of([&] { (void)Model::from_bytes(m.bytes(), "m.onnx"); }), int64_t{1} << 20);

  ModelMaker many;  // each is small enough
  many.input("x", {1}).output("y", {1}).integers("large", {int64_t{1} << 23}).integers("axis", {0});
  std::string last = "x";
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    many.add("ConstantOfShape", {"large"}, {"c" + n});
    many.add("Exp", {"c" + n}, {"e" + n});
    many.add("Add", {last, "e" + n}, {"s" + n});
    last = "s" + n;
  }
  many.add("ReduceSum", {last, "axis"}, {"y"});
  EXPECT_LE(peak_of([&] { (void)Model::from_bytes(many.bytes(), "m.onnx"); }), int64_t{200} << 20);
}

/// Packed or laid anew, each weight takes the place of the one before.
TEST(OnnxHostile, WeightsArePackedOneAfterAnother) {
  constexpr int64_t kCount = 16, kWidth = 512;
  ModelMaker m;
  m.input("x0", {1, kWidth}).output("x16", {1, kWidth});
  const std::string raw(kWidth * kWidth * sizeof(float), 0);
  for (int i = 0; i < kCount; ++i) {
    const std::string n = std::to_string(i);
    m.graph().initializers.push_back(
        {.dims = {kWidth, kWidth}, .data_type = kFloat, .name = m.keep("w" + n), .raw_data = raw});
    m.add("MatMul", {"x" + n, "w" + n}, {"x" + std::to_string(i + 1)});
  }
  TemporaryFolder folder;
  const std::string path = folder / "m.onnx", bytes = m.bytes();
  write_file(path, bytes);
  std::optional<Model> model;
  EXPECT_LE(peak_of([&] { model.emplace(path); }), static_cast<int64_t>(bytes.size()) * 6 / 5);
  EXPECT_EQ(sum(model->run({ones({1, kWidth})})[0].tensor()).item(), 0);
}

TEST(OnnxHostile, PagesOfAFileThatWasReadGoBack) {
  TemporaryFolder folder;
  constexpr size_t kBytes = size_t{8} << 20;
  write_file(folder / "f", std::string(kBytes, 'x'));
  const auto file = map_file(folder / "f");
  const auto resident = [&] {  // bytes of the file that lie in this process
    std::istringstream lines(read_file("/proc/self/smaps"));
    int64_t sum = 0, kilobytes = 0;
    bool is_file = false;
    for (std::string line; std::getline(lines, line);) {
      if (std::sscanf(line.c_str(), "Rss: %" SCNd64, &kilobytes) == 1) sum += is_file ? kilobytes << 10 : 0;
      else if (std::isxdigit(static_cast<unsigned char>(line[0])) && line.find('-') != std::string::npos)
        is_file = line.ends_with(folder / "f");
    }
    return sum;
  };
  const auto owner = std::shared_ptr<void>(file);
  Source source("f", "", owner, file.get());
  for (const size_t offset : {0, 1}) {  // a view, and a copy
    const TensorProto proto{
        .dims = {kBytes / 4 - 1}, .data_type = kFloat, .raw_data = Bytes(file->data + offset, kBytes - 4)};
    const int64_t before = resident();
    {
      const Tensor t = source.tensor(proto);
      EXPECT_GT(sum(t).item(), 0);
      EXPECT_GT(resident() - before, offset == 0 ? static_cast<int64_t>(kBytes) / 2 : -1);
    }
    EXPECT_LE(resident() - before, static_cast<int64_t>(kBytes) / 8);
  }
}

TEST(OnnxHostile, DataBesideTheModelIsAPlainFileOfIts) {
  TemporaryFolder folder;
  const auto with = [&](const std::string& location, const std::string& offset, const std::string& length) {
    ModelMaker m = one_node("Relu");
    m.graph().initializers.push_back(
        {.dims = {2},
         .data_type = kFloat,
         .name = "w",
         .external_data = {{"location", m.keep(location)}, {"offset", m.keep(offset)}, {"length", m.keep(length)}},
         .data_location = 1});
    write_file(folder / "m.onnx", m.bytes());
    try {
      (void)Model(folder / "m.onnx");
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  write_file(folder / "w.bin", "12345678");
  fs::create_directory(folder / "sub");
  EXPECT_EQ(with("w.bin", "0", "8"), "no error");
  EXPECT_EQ(with("sub/../w.bin", "0", "8"), "no error");
  EXPECT_NE(with("w.bin", "18446744073709551615", "8").find("begins behind the end"), std::string::npos);
  EXPECT_NE(with("w.bin", "4", "18446744073709551615").find("ends behind the end"), std::string::npos);
  EXPECT_NE(with("w.bin", "0", "4").find("4 bytes, of f32[2]"), std::string::npos);
  EXPECT_NE(with("w.bin", "99999999999999999999", "8").find("is no count of bytes"), std::string::npos);
  EXPECT_NE(with("sub", "0", "8"), "no error");
  EXPECT_NE(with("nowhere", "0", "8"), "no error");
  EXPECT_NE(with(std::string("w.bin\0x", 7), "0", "8").find("which is no file"), std::string::npos);
  EXPECT_NE(with(std::string(100000, 'a'), "0", "8").find("which is no file"), std::string::npos);
  fs::create_directory_symlink("/etc", folder / "far");
  EXPECT_NE(with("far/passwd", "0", "8").find("outside of the model's folder"), std::string::npos);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(with("pipe", "0", "8"), "no error");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_NE(with("loop", "0", "8").find("which is no file"), std::string::npos);
}

/// y = If(c) with branches that give these.
ModelMaker branches(NodeProto yes, NodeProto no, ModelMaker m) {
  m.input("c", {}, kBool).input("x", {2, 2});
  NodeProto& node = m.add("If", {"c"}, {"b"});
  for (auto& [name, inner] : {std::pair(Bytes("then_branch"), yes), std::pair(Bytes("else_branch"), no)}) {
    AttributeProto a{.name = name, .type = kGraphAttribute};
    a.g.make().nodes = {inner};
    a.g.make().outputs = {m.value("out", {-1})};
    node.attributes.push_back(a);
  }
  return m;
}

TEST(OnnxHostile, BranchesOfOtherTypesAreSeenWhereTheyMeet) {
  ModelMaker names;
  NodeProto flat = names.node("Flatten", {"x"}, {"out"}), shape = names.node("Shape", {"x"}, {"out"});
  ModelMaker m = branches(flat, shape, ModelMaker());
  m.output("y", {-1, -1}).add("MatMul", {"b", "x"}, {"y"});
  const Model model = Model::from_bytes(m.bytes(), "m.onnx");
  const auto run = [&](bool c) {
    try {
      (void)model.run({full({}, c, Bool), ones({2, 2})});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(run(true), "");
  EXPECT_EQ(run(false).find("m.onnx: node MatMul: "), 0u) << run(false);
  ModelMaker later = branches(names.node("Relu", {"z"}, {"out"}), flat, ModelMaker());
  later.output("z", {2, 2}).add("Relu", {"b"}, {"z"});
  EXPECT_EQ(answer(later), "m.onnx: input \"z\" is computed by no node before it");
}

/// A loop or scan over x with a body of these inputs and outputs.
ModelMaker turns_of(const std::string& op, std::vector<std::string> inputs, std::vector<std::string> outputs,
                    size_t takes, size_t gives) {
  ModelMaker m;
  m.input("x", {3, 2}).output("y", {-1, -1}).integers("n", {3});
  m.graph().initializers.push_back({.data_type = kBool, .int32_data = {1}, .name = "true"});
  NodeProto& node = m.add(op, inputs, outputs);
  AttributeProto body{.name = "body", .type = kGraphAttribute};
  GraphProto& graph = body.g.make();
  for (size_t i = 0; i < takes; ++i) graph.inputs.push_back(m.value("i" + std::to_string(i), {}));
  graph.nodes = {m.node("Identity", {"true"}, {"still"}), m.node("Identity", {"x"}, {"out"})};
  for (size_t i = 0; i < gives; ++i) graph.outputs.push_back(m.value(i == 0 && op == "Loop" ? "still" : "out", {}));
  node.attributes = {body};
  if (op == "Scan") node.attributes.push_back(attribute("num_scan_inputs", 1));
  return m;
}

TEST(OnnxHostile, BodiesTakeAndGiveWhatTheirLoopSays) {
  EXPECT_EQ(answer(turns_of("Loop", {"n", "", "x"}, {"y"}, 3, 2)), "");
  EXPECT_EQ(answer(turns_of("Loop", {"n", "", "x"}, {"y"}, 4, 2)),
            "m.onnx: node Loop: the graph body takes 4 inputs, not 3");
  EXPECT_EQ(answer(turns_of("Loop", {"n", "", "x"}, {"y"}, 3, 1)), "m.onnx: node Loop: the body gives 1 values, not 2");
  EXPECT_EQ(answer(turns_of("Loop", {"n", "", "x"}, {"y", "z", "zz"}, 3, 2)),
            "m.onnx: node Loop: the body gives 2 values, not 4");
  EXPECT_EQ(answer(turns_of("Scan", {"x"}, {"y"}, 1, 1)), "");
  EXPECT_EQ(answer(turns_of("Scan", {"x"}, {"y"}, 2, 1)), "m.onnx: node Scan: the graph body takes 2 inputs, not 1");
  EXPECT_EQ(answer(turns_of("Scan", {"x"}, {"y", "z"}, 1, 1)), "m.onnx: node Scan: the body gives 1 values, not 2");
  for (const int64_t inputs : {int64_t{0}, int64_t{-1}, int64_t{2}, kMost, kLeast}) {
    ModelMaker m = turns_of("Scan", {"x"}, {"y"}, 1, 1);
    m.graph().nodes[0].attributes[1].i = inputs;
    EXPECT_NE(answer(m).find("inputs to scan"), std::string::npos) << answer(m);
  }
}

TEST(OnnxHostile, GraphsOfAnAttentionGiveOneValue) {
  for (const size_t gives : {0, 1, 2}) {
    ModelMaker m;
    m.proto().opsets.push_back({"ai.onnx.preview", 1});
    m.input("q", {1, 2, 3, 4}).output("y", {1, 2, 3, 4});
    NodeProto& node = m.add("FlexAttention", {"q", "q", "q"}, {"y"});
    node.domain = "ai.onnx.preview";
    AttributeProto body{.name = "prob_mod", .type = kGraphAttribute};
    GraphProto& graph = body.g.make();
    graph.inputs = {m.value("p", {1, 2, 3, 3})};
    graph.nodes = {m.node("Identity", {"p"}, {"out"})};
    graph.outputs.assign(gives, m.value("out", {1, 2, 3, 3}));
    node.attributes = {body};
    const std::string said = answer(m);
    if (gives == 1) EXPECT_EQ(said, "");
    else EXPECT_NE(said.find("graph prob_mod gives"), std::string::npos) << said;
  }
}

TEST(OnnxHostile, SequencesHoldTensorsOfOneType) {
  ModelMaker m;
  m.input("x", {1}).input("n", {1}, kInt64).output("y", {1});
  m.add("SequenceConstruct", {"x", "n"}, {"s"});
  m.add("SequenceAt", {"s", "n"}, {"y"});
  EXPECT_EQ(answer(m), "m.onnx: node SequenceConstruct: i64[1] on cpu in a sequence of f32[1] on cpu");
  m.graph().nodes[0] = m.node("SequenceEmpty", {}, {"e"});
  m.graph().nodes.insert(m.graph().nodes.begin() + 1, m.node("SequenceInsert", {"e", "e"}, {"s"}));
  EXPECT_EQ(answer(m), "m.onnx: node SequenceInsert: input 1 is no tensor");
}

TEST(OnnxHostile, NamesBelongToOneValue) {
  const auto with = [](const std::function<void(ModelMaker&)>& change) {
    ModelMaker m = one_node("Relu");
    change(m);
    return answer(m);
  };
  EXPECT_EQ(with([](ModelMaker& m) { m.input("x", {1}); }), "m.onnx: the name \"x\" is used twice");
  EXPECT_EQ(with([](ModelMaker& m) { m.weight("w", {1}, {1}).weight("w", {1}, {2}); }),
            "m.onnx: the name \"w\" is used twice");
  EXPECT_EQ(with([](ModelMaker& m) { m.weight("y", {1}, {1}); }), "m.onnx: the name \"y\" is used twice");
  EXPECT_EQ(with([](ModelMaker& m) { m.add("Relu", {"x"}, {"x"}); }), "m.onnx: the name \"x\" is used twice");
  EXPECT_EQ(with([](ModelMaker& m) { m.input("", {1}); }), "m.onnx: an input without a name");
  // What is said of values twice, or of none, is not needed.
  EXPECT_EQ(with([](ModelMaker& m) {
              m.graph().values = {m.value("y", {7}), m.value("y", {-5}, 99), m.value("nobody", {kLeast})};
            }),
            "");
}

TEST(OnnxHostile, ManyNodesTakeTheirTimeOnly) {
  constexpr int kCount = 30'000;
  ModelMaker m;
  m.input("x", {1}).output("y", {1}).weight("one", {}, {1});
  std::string last = "x";
  for (int i = 0; i < kCount; ++i) {  // a SiLU each time, and a number that all of them share
    const std::string n = std::to_string(i);
    m.add("Sigmoid", {last}, {"s" + n});
    m.add("Mul", {last, "s" + n}, {"m" + n});
    m.add("Mul", {"m" + n, "one"}, {last = "x" + n});
  }
  m.add("Relu", {last}, {"y"});
  EXPECT_EQ(answer(m), "");
}

/// A field of bytes as files have it.
std::string field(char tag, const std::string& bytes) {
  std::string out(1, tag);
  for (size_t n = bytes.size();; n >>= 7) {
    out.push_back(static_cast<char>((n & 127) | (n > 127 ? 128 : 0)));
    if (n <= 127) return out + bytes;
  }
}

TEST(OnnxHostile, MessagesInMessagesEnd) {
  std::string graph;  // a graph in an attribute of a node of a graph, and so on
  for (int i = 0; i < 3000; ++i) graph = field(0x0a, field(0x2a, field(0x32, graph)));
  EXPECT_EQ(answer(field(0x3a, graph), "nested"), "m.onnx: not ONNX: messages are nested more than 256 deep");
}

TEST(OnnxHostile, AFewBytesAreNotManyMessages) {
  std::string graph;
  for (int i = 0; i < 1'000'000; ++i) graph += field(0x0a, "");  // nodes of two bytes
  EXPECT_EQ(answer(field(0x3a, graph), "empty nodes"),
            "m.onnx: not ONNX: messages take more than 64 times their bytes");
}

TEST(OnnxHostile, ListsInManyPiecesTakeTheirTimeOnly) {
  std::string tensor;
  for (int i = 0; i < 1'000'000; ++i) tensor += field(0x3a, "\1");  // int64_data, one number at a time
  EXPECT_EQ(answer(field(0x3a, field(0x2a, tensor)), "pieces").find("m.onnx: tensor \"\": "), 0u);
}

// ---- every node of the seeds, with each attribute and input as it should not be

constexpr int64_t kOdd[] = {0, -1, 1, 2, 1000, int64_t{1} << 31, kMost, kLeast};

std::vector<AttributeProto> odd_values(const AttributeProto& a) {
  std::vector<AttributeProto> all;
  const auto other = [&]() -> AttributeProto& { return all.emplace_back(a); };
  const auto lists = [&](auto member, auto values) {
    other();
    (all.back().*member).clear();
    AttributeProto& longer = other();
    (longer.*member).insert((longer.*member).end(), (a.*member).begin(), (a.*member).end());
    for (const auto value : values) {
      for (size_t i = 0; i < std::min<size_t>((a.*member).size(), 4); ++i) (other().*member)[i] = value;
      AttributeProto& same = other();
      for (auto& one : same.*member) one = value;
    }
  };
  using Limits = std::numeric_limits<float>;
  const std::vector<float> numbers{0, -1, 1e30f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()};
  switch (a.type) {
    case kIntAttribute:
      for (const int64_t i : kOdd) other().i = i;
      break;
    case kFloatAttribute:
      for (const float f : numbers) other().f = f;
      break;
    case kStringAttribute:
      for (const Bytes s : {Bytes(""), Bytes("X"), Bytes("->,...ii\0", 9)}) other().s = s;
      break;
    case kIntsAttribute:
      lists(&AttributeProto::ints, std::vector<int64_t>(std::begin(kOdd), std::end(kOdd)));
      break;
    case kFloatsAttribute:
      lists(&AttributeProto::floats, numbers);
      break;
    case kStringsAttribute:
      lists(&AttributeProto::strings, std::vector<Bytes>{"", "X"});
      break;
    case kTensorAttribute:
      other().t = Optional<TensorProto>();
      other().t.make() = TensorProto{.dims = {0}, .data_type = kFloat};
      other().t.make() = TensorProto{.dims = {2}, .data_type = kInt64, .int64_data = {kMost, kLeast}};
      break;
    default:
      break;
  }
  for (const int64_t type : {int64_t{kFloatAttribute}, int64_t{kIntsAttribute}, int64_t{kTensorAttribute}, int64_t{99}})
    if (type != a.type) other().type = type;
  return all;
}

void each_node(std::vector<NodeProto>& nodes, const std::function<void(NodeProto&)>& visit) {
  for (NodeProto& node : nodes) {
    visit(node);
    for (AttributeProto& a : node.attributes)
      if (a.g) each_node(a.g.make().nodes, visit);
  }
}

/// Values that no node expects, as weights of the graph.
std::vector<Bytes> add_odd_weights(GraphProto& graph) {
  std::vector<Bytes> names;
  const auto add = [&](Bytes name, TensorProto t) {
    t.name = name;
    graph.initializers.push_back(std::move(t));
    names.push_back(name);
  };
  add("odd_nothing", {.dims = {0}, .data_type = kFloat});
  add("odd_number", {.data_type = kFloat, .float_data = {-3}});
  add("odd_list", {.dims = {3}, .data_type = kInt64, .int64_data = {kMost, kLeast, -1}});
  add("odd_integer", {.data_type = kInt64, .int64_data = {kMost}});
  add("odd_deep", {.dims = {1, 2, 1, 1, 2, 1, 2}, .data_type = kFloat, .float_data = std::vector<float>(8, NAN)});
  add("odd_holes", {.dims = {2, 0, 3, 4}, .data_type = kFloat});
  add("odd_bytes", {.dims = {1, 1, 4, 4}, .data_type = kUInt8, .int32_data = std::vector<int64_t>(16, 255)});
  add("odd_ranks", {.dims = std::vector<int64_t>(64, 1), .data_type = kFloat, .float_data = {1}});
  add("odd_bools", {.dims = {3}, .data_type = kBool, .int32_data = {1, 0, 1}});
  return names;
}

int64_t sweep(const fs::path& path) {
  const std::string bytes = read_file(path.string()), file = path.filename().string();
  auto model = read_proto<ModelProto>(bytes, file);
  int64_t runs = 0;
  const auto run = [&](const NodeProto& node, const std::string& change) {
    answer(write_proto(model), fmt::format("{}: {}: {}", file, node.op_type, change));
    ++runs;
  };
  const auto attributes = [&](NodeProto& node) {
    for (AttributeProto& a : node.attributes) {
      if (a.g) continue;
      const AttributeProto before = a;
      int64_t number = 0;
      for (AttributeProto& odd : odd_values(before)) {
        a = std::move(odd);
        run(node, fmt::format("{} as odd {}", before.name, number++));
      }
      a = before;
    }
    node.attributes.push_back({.name = "frobnicate", .type = kIntAttribute, .i = 1});
    run(node, "an attribute more");
    node.attributes.pop_back();
  };
  if (!model.graph) return 0;
  GraphProto& graph = model.graph.make();
  // Of a large model some nodes: each change runs all of it.
  const size_t stride = graph.nodes.size() / 16 + 1;
  const auto some_nodes = [&](const std::function<void(NodeProto&)>& visit) {
    size_t at = 0;
    each_node(graph.nodes, [&](NodeProto& node) {
      if (at++ % stride == 0) visit(node);
    });
  };
  some_nodes(attributes);
  for (FunctionProto& f : model.functions) each_node(f.nodes, attributes);

  for (size_t at = 0; at < graph.initializers.size(); at += stride) {
    TensorProto& t = graph.initializers[at];
    int64_t numbers[8];
    const bool is_raw = t.data_type == kInt64 && t.raw_data.size() <= sizeof numbers && t.raw_data.size() % 8 == 0;
    if (!is_raw) continue;
    const TensorProto before = t;
    for (const int64_t odd : kOdd)
      for (size_t i = 0; i < before.raw_data.size() / 8; ++i) {
        std::memcpy(numbers, before.raw_data.data(), before.raw_data.size());
        numbers[i] = odd;
        graph.initializers[at].raw_data = Bytes(reinterpret_cast<const char*>(numbers), before.raw_data.size());
        run(graph.nodes[0], fmt::format("{}[{}] is {}", before.name, i, odd));
      }
    graph.initializers[at] = before;
  }
  const std::vector<Bytes> odd = add_odd_weights(graph);
  some_nodes([&](NodeProto& node) {
    for (size_t i = 0; i < std::min<size_t>(node.inputs.size(), 8); ++i) {
      const Bytes before = node.inputs[i];
      for (const Bytes name : odd) {
        node.inputs[i] = name;
        run(node, fmt::format("input {} is {}", i, name));
      }
      node.inputs[i] = "";
      run(node, fmt::format("input {} is absent", i));
      node.inputs[i] = before;
    }
    for (const size_t more : {1, 9}) {
      node.inputs.insert(node.inputs.end(), more, "odd_number");
      run(node, "more inputs");
      node.inputs.resize(node.inputs.size() - more);
    }
    node.outputs.push_back("one_more");
    run(node, "more outputs");
    node.outputs.pop_back();
  });
  return runs;
}

/// TESSERA_ONNX_SEEDS names a folder of more; TESSERA_ONNX_SEED begins the names of those that count.
TEST(OnnxHostile, EveryNodeWithOddAttributesAndInputs) {
  const char* const more = std::getenv("TESSERA_ONNX_SEEDS");
  const char* const only = std::getenv("TESSERA_ONNX_SEED");
  std::vector<fs::path> paths;
  for (const auto& entry :
       fs::directory_iterator(more ? std::string(more) : TESSERA_SOURCE_DIR "/tests/fuzz/corpus/onnx"))
    if (entry.path().extension() == ".onnx" && (!only || entry.path().filename().string().starts_with(only)))
      paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  int64_t runs = 0;
  for (const fs::path& path : paths) runs += sweep(path);
  EXPECT_GE(runs, static_cast<int64_t>(paths.size()));
  std::printf("%lld runs of %zu models\n", static_cast<long long>(runs), paths.size());
}

}  // namespace
}  // namespace tessera::onnx
