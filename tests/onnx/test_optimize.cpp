// What nodes become one call, what does not, and that both give the same.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "onnx/model_maker.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"
#include "tessera/random.h"

namespace tessera::onnx {
namespace {

constexpr float kNoWeight = -std::numeric_limits<float>::infinity();

Model loaded(const ModelMaker& m, bool optimize = true) {
  return Model::from_bytes(m.bytes(), "m.onnx", {.optimize = optimize});
}
int64_t calls_of(const Model& model, const std::string& op) {
  const auto calls = model.calls();
  const auto at = calls.find(op);
  return at == calls.end() ? 0 : at->second;
}
/// The first outputs of both differ by so much, relative to their length.
double difference(const ModelMaker& m, const Values& inputs) {
  const Tensor got = loaded(m).run(inputs)[0].tensor(), want = loaded(m, false).run(inputs)[0].tensor();
  EXPECT_EQ(got.shape(), want.shape());
  return norm(sub(got, want)).item() / norm(want).item();
}
Tensor random(const Shape& shape, uint64_t seed = 3) {
  Generator generator(seed);
  return randn(shape, generator);
}
void set(NodeProto& node, std::string_view name, std::vector<int64_t> values) {
  AttributeProto a{.name = name, .type = kIntsAttribute};
  a.ints = std::move(values);
  node.attributes.push_back(a);
}

// ---- products of integers

/// f(y) of a [n, k] of u8 or i8 and a known b [k, 3], in steps of which each is there or not.
struct IntegerProduct {
  DType dtype = UInt8;
  int64_t k = 700;
  int64_t least = -128;  // of b, which reaches 127
  bool a_zero = true, b_zero = true, by_column = false, scaled = true, bias = true, seen = false;

  ModelMaker made() const {
    ModelMaker m;
    const auto bytes = [&](const std::string& name, std::vector<int64_t> dims, const Tensor& values, DType type) {
      TensorProto& t = m.graph().initializers.emplace_back();
      t.dims = std::move(dims), t.data_type = data_type_of(type), t.name = m.keep(name);
      for (const int64_t v : values.to_vector<int64_t>()) t.int32_data.push_back(static_cast<int32_t>(v));
    };
    Generator g(7);
    m.input("a", {-1, k}, data_type_of(dtype)).output("y", {-1, 3}, data_type_of(scaled ? Float32 : Int32));
    bytes("b", {k, 3}, randint(least, 128, {k, 3}, g), Int8);
    if (a_zero) bytes("az", {}, full({}, 77, Int64), dtype);
    if (b_zero && by_column) bytes("bz", {3}, randint(-9, 9, {3}, g), Int8);
    if (b_zero && !by_column) bytes("bz", {}, full({}, -3, Int64), Int8);
    m.add("MatMulInteger", {"a", "b", a_zero ? "az" : "", b_zero ? "bz" : ""}, {scaled ? "s" : "y"});
    if (seen) m.output("s", {-1, 3}, data_type_of(Int32));
    if (!scaled) return m;
    m.add("Cast", {"s"}, {"f"}).attributes.push_back(attribute("to", kFloat));
    m.weight("scale", {1}, {0.37f}).weight("bias", {3}, {1e3f, -2, 0.5f});
    m.add("Mul", {"scale", "f"}, {bias ? "m" : "y"});
    if (bias) m.add("Add", {"m", "bias"}, {"y"});
    return m;
  }
};
TEST(OnnxOptimize, ProductsOfIntegersAreOneCall) {
  for (const IntegerProduct& p :
       {IntegerProduct{}, IntegerProduct{.dtype = Int8}, IntegerProduct{.k = 3001, .least = 100},
        IntegerProduct{.by_column = true}, IntegerProduct{.a_zero = false, .b_zero = false, .bias = false},
        IntegerProduct{.k = 1, .scaled = false}, IntegerProduct{.k = 999, .least = 120, .scaled = false}}) {
    const ModelMaker m = p.made();
    EXPECT_EQ(loaded(m).calls(), (std::map<std::string, int64_t>{{"IntegerLinear", 1}}));
    for (const int64_t rows : {0, 1, 5}) {
      Generator g(1);
      const Tensor a =
          (p.dtype == Int8 ? randint(-128, 128, {rows, p.k}, g) : randint(180, 256, {rows, p.k}, g)).to(p.dtype);
      const Tensor got = loaded(m).run({a})[0].tensor(), want = loaded(m, false).run({a})[0].tensor();
      EXPECT_EQ(got.dtype(), want.dtype());
      EXPECT_EQ(got.shape(), want.shape());
      EXPECT_EQ(got.to_vector<double>(), want.to_vector<double>()) << p.k;  // every bit
    }
  }
  EXPECT_EQ(loaded(IntegerProduct{.seen = true}.made()).calls(),
            (std::map<std::string, int64_t>{{"IntegerLinear", 1}, {"Cast", 1}, {"Mul", 1}, {"Add", 1}}));
  const Tensor narrow = zeros({2, 699}, UInt8);
  EXPECT_THROW(loaded(IntegerProduct{}.made()).run({narrow}), Error);
}

// ---- activations

/// A model of one input x and its output y, with numbers named by what they are.
ModelMaker spelled(const std::vector<std::vector<std::string>>& nodes, const std::map<std::string, float>& numbers,
                   const std::vector<std::string>& more_outputs = {}) {
  ModelMaker m;
  m.input("x", {-1, 5}).output("y", {-1, 5});
  for (const std::string& name : more_outputs) m.output(name, {-1, 5});
  for (const auto& [name, value] : numbers) m.weight(name, {}, {value});
  for (const auto& n : nodes) m.add(n[0], {n.begin() + 1, n.end() - 1}, {n.back()});
  return m;
}
void expect_calls(const ModelMaker& m, const std::map<std::string, int64_t>& calls) {
  EXPECT_EQ(loaded(m).calls(), calls);
  EXPECT_LE(difference(m, {random({7, 5})}), 1e-6);
}

TEST(OnnxOptimize, SiluIsOneCall) {
  expect_calls(spelled({{"Sigmoid", "x", "s"}, {"Mul", "x", "s", "y"}}, {}), {{"Swish", 1}});
  expect_calls(spelled({{"Sigmoid", "x", "s"}, {"Mul", "s", "x", "y"}}, {}), {{"Swish", 1}});
}
TEST(OnnxOptimize, WhatIsNotQuiteSiluStays) {
  // A sigmoid of something else, one that is seen by others, and a factor too many.
  expect_calls(spelled({{"Neg", "x", "n"}, {"Sigmoid", "n", "s"}, {"Mul", "x", "s", "y"}}, {}),
               {{"Neg", 1}, {"Sigmoid", 1}, {"Mul", 1}});
  expect_calls(spelled({{"Sigmoid", "x", "s"}, {"Mul", "x", "s", "y"}}, {}, {"s"}), {{"Sigmoid", 1}, {"Mul", 1}});
  expect_calls(spelled({{"Mul", "x", "two", "d"}, {"Sigmoid", "x", "s"}, {"Mul", "d", "s", "y"}}, {{"two", 2}}),
               {{"Sigmoid", 1}, {"Mul", 2}});
}
TEST(OnnxOptimize, HardSwishIsOneCall) {
  const auto made = [](float alpha) {
    ModelMaker m;
    m.input("x", {-1, 5}).output("y", {-1, 5});
    m.add("HardSigmoid", {"x"}, {"s"}).attributes.push_back({.name = "alpha", .type = kFloatAttribute, .f = alpha});
    m.add("Mul", {"x", "s"}, {"y"});
    return m;
  };
  expect_calls(made(1.f / 6), {{"HardSwish", 1}});
  expect_calls(made(0.2f), {{"HardSigmoid", 1}, {"Mul", 1}});
}

ModelMaker gelu_by_erf(float inverse, const std::vector<std::string>& outputs = {}) {
  return spelled({{"Div", "x", "root", "d"},
                  {"Erf", "d", "e"},
                  {"Add", "e", "one", "a"},
                  {"Mul", "x", "a", "m"},
                  {"Mul", "m", "half", "y"}},
                 {{"root", inverse}, {"one", 1}, {"half", 0.5f}}, outputs);
}
TEST(OnnxOptimize, GeluByErfIsOneCall) {
  expect_calls(gelu_by_erf(std::sqrt(2.f)), {{"Gelu", 1}});
  expect_calls(spelled({{"Mul", "x", "half", "h"},
                        {"Mul", "x", "inverse", "d"},
                        {"Erf", "d", "e"},
                        {"Add", "one", "e", "a"},
                        {"Mul", "h", "a", "y"}},
                       {{"inverse", std::sqrt(0.5f)}, {"one", 1}, {"half", 0.5f}}),
               {{"Gelu", 1}});
}
TEST(OnnxOptimize, WhatIsNotQuiteGeluStays) {
  EXPECT_EQ(calls_of(loaded(gelu_by_erf(1.5f)), "Erf"), 1);
  EXPECT_EQ(calls_of(loaded(gelu_by_erf(std::sqrt(2.f), {"a"})), "Erf"), 1);
  EXPECT_LE(difference(gelu_by_erf(1.5f), {random({7, 5})}), 1e-6);
}
TEST(OnnxOptimize, GeluByTanhIsOneCall) {
  const std::map<std::string, float> numbers = {
      {"three", 3}, {"cubed", 0.044715f}, {"scale", std::sqrt(2 / 3.14159265f)}, {"one", 1}, {"half", 0.5f}};
  const auto made = [&](const std::string& cube, std::map<std::string, float> with) {
    return spelled({{"Pow", "x", "three", "p"},
                    {"Mul", "p", "cubed", "c"},
                    {"Add", "x", "c", "i"},
                    {"Mul", "i", "scale", "v"},
                    {cube, "v", "t"},
                    {"Add", "t", "one", "a"},
                    {"Mul", "x", "half", "h"},
                    {"Mul", "h", "a", "y"}},
                   with);
  };
  expect_calls(made("Tanh", numbers), {{"Gelu", 1}});
  EXPECT_EQ(calls_of(loaded(made("Atan", numbers)), "Gelu"), 0);
  std::map<std::string, float> others = numbers;
  others["cubed"] = 0.05f;
  EXPECT_EQ(calls_of(loaded(made("Tanh", others)), "Gelu"), 0);
  // x taken out of the brackets.
  expect_calls(spelled({{"Mul", "x", "x", "q"},
                        {"Mul", "q", "cubed", "c"},
                        {"Add", "c", "one", "i"},
                        {"Mul", "x", "scale", "s"},
                        {"Mul", "s", "i", "v"},
                        {"Tanh", "v", "t"},
                        {"Add", "t", "one", "a"},
                        {"Mul", "x", "a", "m"},
                        {"Mul", "m", "half", "y"}},
                       numbers),
               {{"Gelu", 1}});
}

// ---- norms

ModelMaker layer_norm_by_nodes(int64_t axis, const std::vector<std::string>& outputs = {}) {
  ModelMaker m(13);
  m.input("x", {-1, 5}).output("y", {-1, 5}).weight("two", {}, {2}).weight("eps", {}, {1e-5f});
  for (const std::string& name : outputs) m.output(name, {-1, 5});
  m.weight("w", {5}, {1, 2, 0.5f, -1, 3}).weight("b", {5}, {0, 1, 2, -3, 4});
  set(m.add("ReduceMean", {"x"}, {"mean"}), "axes", {axis});
  m.add("Sub", {"x", "mean"}, {"d"});
  m.add("Pow", {"d", "two"}, {"q"});
  set(m.add("ReduceMean", {"q"}, {"var"}), "axes", {axis});
  m.add("Add", {"var", "eps"}, {"e"});
  m.add("Sqrt", {"e"}, {"r"});
  m.add("Div", {"d", "r"}, {"n"});
  m.add("Mul", {"n", "w"}, {"s"});
  m.add("Add", {"s", "b"}, {"y"});
  return m;
}
TEST(OnnxOptimize, LayerNormIsOneCall) {
  expect_calls(layer_norm_by_nodes(-1), {{"LayerNormalization", 1}});
  EXPECT_EQ(calls_of(loaded(layer_norm_by_nodes(0)), "LayerNormalization"), 0);
  EXPECT_EQ(calls_of(loaded(layer_norm_by_nodes(-1, {"d"})), "LayerNormalization"), 0);
  EXPECT_LE(difference(layer_norm_by_nodes(0), {random({7, 5})}), 1e-6);
}

/// x / sqrt(mean(x²) + eps) * w, by a way to say it.
ModelMaker rms_norm_by_nodes(const std::string& way, int64_t axis = -1) {
  ModelMaker m;
  m.input("x", {-1, 5}).output("y", {-1, 5}).weight("two", {}, {2}).weight("one", {}, {1}).weight("eps", {}, {1e-3f});
  m.weight("w", {5}, {1, 2, 0.5f, -1, 3}).integers("axes", {axis});
  if (way == "mul") m.add("Mul", {"x", "x"}, {"q"});
  else m.add("Pow", {"x", "two"}, {"q"});
  m.add("ReduceMean", {"q", "axes"}, {"mean"});
  m.add("Add", way == "mul" ? std::vector<std::string>{"eps", "mean"} : std::vector<std::string>{"mean", "eps"}, {"e"});
  m.add("Sqrt", {"e"}, {"r"});
  if (way == "div") {
    m.add("Div", {"x", "r"}, {"n"});
  } else {
    if (way == "mul") m.add("Div", {"one", "r"}, {"i"});
    else m.add("Reciprocal", {"r"}, {"i"});
    m.add("Mul", way == "mul" ? std::vector<std::string>{"i", "x"} : std::vector<std::string>{"x", "i"}, {"n"});
  }
  m.add("Mul", {"w", "n"}, {"y"});
  return m;
}
TEST(OnnxOptimize, RmsNormIsOneCall) {
  for (const char* way : {"mul", "div", "reciprocal"}) expect_calls(rms_norm_by_nodes(way), {{"RMSNormalization", 1}});
  EXPECT_EQ(calls_of(loaded(rms_norm_by_nodes("mul", 0)), "RMSNormalization"), 0);
  EXPECT_LE(difference(rms_norm_by_nodes("mul", 0), {random({7, 5})}), 1e-6);
}

TEST(OnnxOptimize, BatchNormAndReluAreOneCall) {
  ModelMaker m;
  m.input("x", {-1, 3, -1, -1})
      .output("y", {-1, 3, -1, -1})
      .weight("w", {3}, {1, -2, 0.5f})
      .weight("b", {3}, {0, 1, 2});
  m.weight("mean", {3}, {0.1f, 0.2f, -0.3f}).weight("var", {3}, {1, 2, 3});
  m.add("BatchNormalization", {"x", "w", "b", "mean", "var"}, {"n"});
  m.add("Relu", {"n"}, {"y"});
  EXPECT_EQ(loaded(m).calls(), (std::map<std::string, int64_t>{{"BatchNormRelu", 1}}));
  EXPECT_LE(difference(m, {random({2, 3, 4, 5})}), 1e-6);
  m.output("n", {-1, 3, -1, -1});
  EXPECT_EQ(calls_of(loaded(m), "BatchNormRelu"), 0);
}

/// Six channels of 3x4 in groups; `dims`: of what weights them.
ModelMaker group_norm_by_nodes(int64_t groups, const std::vector<int64_t>& dims, float scale = 1) {
  ModelMaker m;
  m.input("x", {-1, 6, 3, 4}).output("y", {-1, 6, 3, 4}).integers("apart", {0, groups, -1});
  m.weight("ones", {groups}, std::vector<float>(static_cast<size_t>(groups), scale));
  m.weight("zeros", {groups}, std::vector<float>(static_cast<size_t>(groups), 0));
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  std::vector<float> w, b;
  for (int64_t i = 0; i < count; ++i) w.push_back(0.5f + static_cast<float>(i)), b.push_back(static_cast<float>(-i));
  m.weight("w", dims, w).weight("b", dims, b);
  m.add("Reshape", {"x", "apart"}, {"g"});
  m.add("InstanceNormalization", {"g", "ones", "zeros"}, {"n"});
  m.add("Shape", {"x"}, {"sizes"});
  m.add("Reshape", {"n", "sizes"}, {"t"});
  m.add("Mul", {"t", "w"}, {"s"});
  m.add("Add", {"s", "b"}, {"y"});
  return m;
}
TEST(OnnxOptimize, GroupNormIsOneCall) {
  const Tensor x = random({2, 6, 3, 4});
  for (const auto& dims : {std::vector<int64_t>{6, 1, 1}, std::vector<int64_t>{1, 6, 1, 1}, std::vector<int64_t>{4},
                           std::vector<int64_t>{6, 3, 4}}) {
    const ModelMaker m = group_norm_by_nodes(2, dims);
    EXPECT_EQ(loaded(m).calls(), (std::map<std::string, int64_t>{{"GroupNorm", 1}}));
    EXPECT_LE(difference(m, {x}), 1e-6);
  }
  EXPECT_LE(difference(group_norm_by_nodes(4, {6, 1, 1}), {x}), 1e-6);  // groups that cut through channels
  const ModelMaker weighted = group_norm_by_nodes(2, {6, 1, 1}, 3);
  EXPECT_EQ(calls_of(loaded(weighted), "GroupNorm"), 0);
  EXPECT_LE(difference(weighted, {x}), 1e-6);
}

// ---- attention

struct Spelling {
  bool scaled_before = false, masked = false, guarded = false, by_reshapes = false;
  std::string softmax = "Softmax", also_seen = "";
  float scale = 0.25f;
};
/// Two heads of three queries on four keys of width 5.
ModelMaker attention_by_nodes(const Spelling& s) {
  ModelMaker m;
  m.input("q", {-1, 2, 3, 5}).input("k", {-1, 2, 4, 5}).input("v", {-1, 2, 4, 5}).output("y", {-1, 2, 3, 5});
  if (s.masked) m.input("mask", {-1, 1, 3, 4});
  if (!s.also_seen.empty()) m.output(s.also_seen, {-1, 2, 3, 4});
  m.weight("scale", {1}, {s.scale}).weight("root", {1}, {std::sqrt(s.scale)}).weight("zero", {}, {0});
  if (s.by_reshapes) {
    m.integers("apart", {-1, 4, 5}).integers("back", {-1, 2, 5, 4});
    m.add("Reshape", {"k", "apart"}, {"k3"});
    set(m.add("Transpose", {"k3"}, {"t3"}), "perm", {0, 2, 1});
    m.add("Reshape", {"t3", "back"}, {"t"});
  } else {
    set(m.add("Transpose", {"k"}, {"t"}), "perm", {0, 1, 3, 2});
  }
  std::string scores = "scores";
  if (s.scaled_before) {
    m.add("Mul", {"q", "root"}, {"q2"});
    m.add("Mul", {"t", "root"}, {"t2"});
    m.add("MatMul", {"q2", "t2"}, {scores});
  } else {
    m.add("MatMul", {"q", "t"}, {"plain"});
    m.add("Mul", {"plain", "scale"}, {scores});
  }
  if (s.masked) m.add("Add", {scores, "mask"}, {"masked"}), scores = "masked";
  m.add(s.softmax, {scores}, {"weights"}).attributes.push_back(attribute("axis", -1));
  if (s.guarded) {
    m.add("IsNaN", {"weights"}, {"nan"});
    m.add("Where", {"nan", "zero", "weights"}, {"safe"});
  }
  m.add("MatMul", {s.guarded ? "safe" : "weights", "v"}, {"y"});
  return m;
}
Values heads(bool masked) {
  Values in = {random({2, 2, 3, 5}, 1), random({2, 2, 4, 5}, 2), random({2, 2, 4, 5}, 3)};
  if (masked) in.emplace_back(random({2, 1, 3, 4}, 4));
  return in;
}

TEST(OnnxOptimize, AttentionIsOneCall) {
  for (const bool before : {false, true})
    for (const bool masked : {false, true})
      for (const bool guarded : {false, true})
        for (const bool by_reshapes : {false, true}) {
          const ModelMaker m = attention_by_nodes(
              {.scaled_before = before, .masked = masked, .guarded = guarded, .by_reshapes = by_reshapes});
          const std::string turn = by_reshapes ? "TurnedMatrices" : "Transpose";
          EXPECT_EQ(loaded(m).calls(), (std::map<std::string, int64_t>{{"ScaledDotProductAttention", 1}, {turn, 1}}));
          EXPECT_LE(difference(m, heads(masked)), 2e-6);
        }
}
TEST(OnnxOptimize, QueriesThatSeeNoKeyStayAsTheyAre) {
  Values in = heads(true);
  Tensor mask = in[3].tensor().clone();
  for (int key = 0; key < 4; ++key) mask.data<float>()[4 + key] = kNoWeight;  // query 1 of the first sample
  in[3] = mask;
  const auto run = [&](bool guarded, bool optimize) {
    return loaded(attention_by_nodes({.masked = true, .guarded = guarded}), optimize)
        .run(in)[0]
        .tensor()
        .to_vector<float>();
  };
  for (const bool guarded : {false, true}) {
    const std::vector<float> got = run(guarded, true), want = run(guarded, false);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
      if (!std::isnan(want[i])) {
        EXPECT_NEAR(got[i], want[i], 1e-5) << i;
      }
    }
    EXPECT_EQ(std::isnan(want[5]), !guarded);
  }
}
TEST(OnnxOptimize, WhatIsNotQuiteAttentionStays) {
  for (const Spelling& s : {Spelling{.softmax = "LogSoftmax"}, Spelling{.also_seen = "scores"},
                            Spelling{.also_seen = "weights"}, Spelling{.scale = -1}}) {
    const ModelMaker m = attention_by_nodes(s);
    EXPECT_EQ(calls_of(loaded(m), "ScaledDotProductAttention"), 0);
    EXPECT_EQ(calls_of(loaded(m), "MatMul"), 2);
    if (s.scale > 0) {
      EXPECT_LE(difference(m, heads(false)), 1e-6);
    }
  }
}
TEST(OnnxOptimize, HeadsThatDoNotFitOneKernelGiveTheSame) {
  const ModelMaker m = attention_by_nodes({.masked = true});
  ModelMaker open = m;
  GraphProto& graph = open.graph();
  for (ValueInfoProto& info : graph.inputs) info = open.value(std::string(info.name), {-1, -1, -1, -1});
  for (ValueInfoProto& info : graph.outputs) info = open.value(std::string(info.name), {-1, -1, -1, -1});
  // Values wider than keys, a mask that widens the batch, and heads that broadcast.
  const Tensor q = random({2, 2, 3, 5}, 1), k = random({2, 2, 4, 5}, 2), v = random({2, 2, 4, 5}, 3),
               mask = random({2, 1, 3, 4}, 4);
  EXPECT_LE(difference(open, {q, k, random({2, 2, 4, 6}, 5), mask}), 2e-6);
  EXPECT_LE(difference(open, {slice(q, 0, 0, 1), slice(k, 0, 0, 1), slice(v, 0, 0, 1), mask}), 2e-6);
  EXPECT_LE(difference(open, {q, slice(k, 1, 0, 1), slice(v, 1, 0, 1), mask}), 2e-6);
}
TEST(OnnxOptimize, TurnedMatricesReadTheirSizes) {
  ModelMaker m;
  m.input("x", {-1, 2, 4, 5}).output("y", {-1, 2, 5, 4}).integers("apart", {-1, 5, 4}).integers("back", {-1, 2, 5, 4});
  m.add("Reshape", {"x", "apart"}, {"a"});  // rows of another length: no transposition of x
  set(m.add("Transpose", {"a"}, {"t"}), "perm", {0, 2, 1});
  m.add("Reshape", {"t", "back"}, {"y"});
  EXPECT_EQ(difference(m, {random({3, 2, 4, 5})}), 0);
}

// ---- products

TEST(OnnxOptimize, ProductsTakeActivationAndResidual) {
  ModelMaker m;
  m.input("x", {-1, -1, 4}).input("r", {-1, -1, -1}).output("y", {-1, -1, 4}).weight("b", {4}, {1, 2, 3, 4});
  m.weight("w", {4, 4}, {1, 0, 2, 0, 0, 1, 0, 3, 1, 1, 1, 1, 0, 0, 0, -1});
  m.add("MatMul", {"x", "w"}, {"h"});
  m.add("Add", {"h", "b"}, {"a"});
  m.add("Sigmoid", {"a"}, {"s"});
  m.add("Mul", {"a", "s"}, {"g"});
  m.add("Add", {"r", "g"}, {"y"});
  EXPECT_EQ(loaded(m).calls(), (std::map<std::string, int64_t>{{"Linear", 1}}));
  const Tensor x = random({2, 3, 4});
  EXPECT_LE(difference(m, {x, random({2, 3, 4}, 5)}), 1e-6);
  EXPECT_LE(difference(m, {x, random({1, 3, 1}, 5)}), 1e-6);  // residuals that broadcast
  EXPECT_LE(difference(m, {slice(x, 0, 0, 1), random({2, 3, 4}, 5)}), 1e-6);
}

// ---- convolutions

struct Behind {
  std::string activation;
  bool residual = false;
  float low = 0, high = 6;
  std::vector<int64_t> pads = {1, 1, 1, 1}, strides = {1, 1};
};
/// A 3x3 convolution of 3 channels to 5 with what is behind it.
ModelMaker convolution_by_nodes(const Behind& b) {
  ModelMaker m;
  m.input("x", {-1, 3, 7, 6}).output("y", {-1, 5, -1, -1}).weight("low", {}, {b.low}).weight("high", {}, {b.high});
  if (b.residual) m.input("r", {-1, -1, -1, -1});
  std::vector<float> filters(5 * 3 * 9);
  for (size_t i = 0; i < filters.size(); ++i) filters[i] = std::sin(static_cast<float>(i));
  m.weight("w", {5, 3, 3, 3}, filters).weight("b", {5}, {1, -1, 2, 0, 3});
  NodeProto& node = m.add("Conv", {"x", "w", "b"}, {"c"});
  set(node, "pads", b.pads);
  set(node, "strides", b.strides);
  std::string value = "c";
  if (b.residual) m.add("Add", {"r", "c"}, {"s"}), value = "s";
  if (b.activation == "Clip") {
    m.add("Clip", {value, "low", "high"}, {"y"});
  } else if (b.activation == "Silu") {
    m.add("Sigmoid", {value}, {"g"});
    m.add("Mul", {value, "g"}, {"y"});
  } else {
    m.add(b.activation, {value}, {"y"});
  }
  return m;
}
TEST(OnnxOptimize, ConvolutionsTakeActivationAndResidual) {
  const Tensor x = random({2, 3, 7, 6});
  for (const std::string activation : {"Relu", "Clip", "Silu", "Tanh"}) {
    const ModelMaker plain = convolution_by_nodes({.activation = activation}),
                     added = convolution_by_nodes({.activation = activation, .residual = true});
    EXPECT_EQ(loaded(plain).calls(), (std::map<std::string, int64_t>{{"ConvAct", 1}})) << activation;
    EXPECT_EQ(loaded(added).calls(), (std::map<std::string, int64_t>{{"ConvAct", 1}})) << activation;
    EXPECT_LE(difference(plain, {x}), 1e-6) << activation;
    EXPECT_LE(difference(added, {x, random({2, 5, 7, 6}, 5)}), 1e-6) << activation;
    EXPECT_LE(difference(added, {x, random({1, 5, 1, 6}, 5)}), 1e-6) << activation;  // residuals that broadcast
    EXPECT_LE(difference(added, {slice(x, 0, 0, 1), random({2, 5, 7, 6}, 5)}), 1e-6) << activation;
  }
  const Behind uneven{.activation = "Relu", .residual = true, .pads = {0, 1, 1, 1}};
  EXPECT_LE(difference(convolution_by_nodes(uneven), {x, random({2, 5, 6, 6}, 5)}), 1e-6);
}
TEST(OnnxOptimize, NumbersForChannelsAreABias) {
  const auto model = [](const std::vector<int64_t>& dims, bool biased = false) {
    ModelMaker m;
    m.input("x", {-1, 2, -1, -1}).output("y", {-1, 3, -1, -1}).weight("w", {3, 2, 1, 1}, {1, 2, 3, 4, 5, 6});
    int64_t count = 1;
    for (const int64_t d : dims) count *= d;
    std::vector<float> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(0.5f - static_cast<float>(i));
    m.weight("b", dims, numbers).weight("other", {3}, {1, 2, 3});
    m.add("Conv", biased ? std::vector<std::string>{"x", "w", "other"} : std::vector<std::string>{"x", "w"}, {"c"});
    m.add("Add", biased ? std::vector<std::string>{"b", "c"} : std::vector<std::string>{"c", "b"}, {"y"});
    return m;
  };
  const Tensor x = random({2, 2, 3, 3});
  for (const auto& dims : {std::vector<int64_t>{3, 1, 1}, std::vector<int64_t>{1, 3, 1, 1}}) {
    EXPECT_EQ(calls_of(loaded(model(dims)), "Add"), 0);
    EXPECT_LE(difference(model(dims), {x}), 1e-6);
    EXPECT_EQ(calls_of(loaded(model(dims, true)), "Add"), 1);
  }
  for (const auto& dims : {std::vector<int64_t>{3}, std::vector<int64_t>{1}, std::vector<int64_t>{1, 1, 3},
                           std::vector<int64_t>{3, 3, 3}}) {
    EXPECT_EQ(calls_of(loaded(model(dims)), "Add"), 1);
    EXPECT_LE(difference(model(dims), {x}), 1e-6);
  }
}

TEST(OnnxOptimize, WindowsThatAreNoneAreErrors) {
  const auto error_of = [](const Behind& b) -> std::string {
    try {
      loaded(convolution_by_nodes(b)).run({random({2, 3, 7, 6}), random({2, 5, 7, 6}, 5)});
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const int64_t huge = int64_t{1} << 62;
  EXPECT_NE(error_of({.activation = "Relu", .residual = true, .strides = {0, 1}}).find("stride 0"), std::string::npos);
  EXPECT_NE(error_of({.activation = "Relu", .residual = true, .pads = {huge, 1, huge, 1}}).find("must not exceed"),
            std::string::npos);
}
TEST(OnnxOptimize, FiltersOfOneElementArePacked) {
  for (const auto& pads :
       {std::vector<int64_t>{0, 0, 0, 0}, std::vector<int64_t>{1, 1, 1, 1}, std::vector<int64_t>{0, 1, 1, 1}})
    for (const int64_t stride : {1, 2}) {
      ModelMaker m;
      m.input("x", {-1, 7, 9, 10}).output("y", {-1, 69, -1, -1});
      std::vector<float> filters(69 * 7);
      for (size_t i = 0; i < filters.size(); ++i) filters[i] = std::sin(static_cast<float>(i));
      m.weight("w", {69, 7, 1, 1}, filters);
      NodeProto& node = m.add("Conv", {"x", "w"}, {"y"});
      set(node, "pads", pads);
      set(node, "strides", {stride, stride});
      const Tensor x = random({2, 7, 9, 10});
      EXPECT_LE(difference(m, {x}), 1e-6);
      EXPECT_EQ(loaded(m).run({slice(x, 0, 0, 0)})[0].tensor().shape()[0], Dim(0));
    }
}
TEST(OnnxOptimize, WhatConvolutionsDoNotTakeStays) {
  const Tensor x = random({2, 3, 7, 6});
  for (const Behind& b : {Behind{.activation = "Clip", .low = -1}, Behind{.activation = "Clip", .high = 0},
                          Behind{.activation = "Abs"}, Behind{.activation = "Sin"}}) {
    EXPECT_EQ(calls_of(loaded(convolution_by_nodes(b)), "Conv"), 1) << b.activation;
    EXPECT_EQ(calls_of(loaded(convolution_by_nodes(b)), b.activation), 1);
    if (b.high > 0) {
      EXPECT_LE(difference(convolution_by_nodes(b), {x}), 1e-6) << b.activation;
    }
  }
}

}  // namespace
}  // namespace tessera::onnx
