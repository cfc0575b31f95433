// ONNX Runtime's operators: files of its optimizers, which runtime_files.py has made of tests/data/torch, and each
// operator beside its formula in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "io/io_check.h"
#include "models/fixture.h"
#include "onnx/model_maker.h"
#include "onnx/written.h"
#include "tessera/ops_quantize.h"
#include "tessera/ops_shape.h"
#include "tessera/random.h"

namespace tessera::onnx {
namespace {

using Attributes = std::vector<AttributeProto>;
AttributeProto real(Bytes name, float value) { return {.name = name, .type = kFloatAttribute, .f = value}; }
AttributeProto text(Bytes name, Bytes value) { return {.name = name, .type = kStringAttribute, .s = value}; }
AttributeProto list(Bytes name, std::vector<int64_t> values) {
  return {.name = name, .type = kIntsAttribute, .ints = std::move(values)};
}

/// A model of one node; undefined inputs are absent.
ModelMaker node_model(const std::string& op, const Tensors& inputs, const Attributes& attributes, size_t outputs) {
  ModelMaker m;
  m.proto().opsets.push_back({"com.microsoft", 1});
  std::vector<std::string> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(inputs[i].defined() ? "i" + std::to_string(i) : "");
    if (!inputs[i].defined()) continue;
    std::vector<int64_t> dims;
    for (int64_t d = 0; d < inputs[i].dim(); ++d) dims.push_back(inputs[i].size(d));
    m.input(in.back(), dims, data_type_of(inputs[i].dtype()));
  }
  for (size_t i = 0; i < outputs; ++i) {
    out.push_back("o" + std::to_string(i));
    m.graph().outputs.push_back({.name = m.keep(out.back())});
  }
  NodeProto& node = m.add(op, in, out);
  node.domain = op == "SimplifiedLayerNormalization" ? "" : "com.microsoft";
  node.attributes = attributes;
  return m;
}
Tensors run_node(const std::string& op, const Tensors& inputs, const Attributes& attributes = {}, size_t outputs = 1) {
  Values present;
  for (const Tensor& t : inputs)
    if (t.defined()) present.emplace_back(t);
  Tensors out;
  const ModelMaker m = node_model(op, inputs, attributes, outputs);
  for (const Value& v : Model::from_bytes(m.bytes(), "m.onnx").run(present)) out.push_back(v.tensor());
  return out;
}
std::string error_of(const std::string& op, const Tensors& inputs, const Attributes& attributes = {},
                     size_t outputs = 1) {
  try {
    (void)run_node(op, inputs, attributes, outputs);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
Tensor drawn(const Shape& shape) {
  static Generator generator(11);
  return randn(shape, generator);
}
Tensor wide(const Tensor& t) { return cast(t, Float64); }
Tensor int32s(const std::vector<int64_t>& values, const Shape& shape) { return cast(tensor(values, shape), Int32); }
void expect_near(const Tensor& got, const Tensor& want, double tolerance = kToleranceF32) {
  ASSERT_EQ(got.shape(), want.shape());
  EXPECT_LT(relative_error(got.to_vector<double>(), want.to_vector<double>()), tolerance);
}

TEST(RuntimeFiles, AgreeWithPyTorch) {
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/tests/data/onnxruntime")) {
    const std::string file = entry.path().string(), name = entry.path().stem().string();
    SCOPED_TRACE(name);
    EXPECT_TRUE(inspect(file).opsets.contains("com.microsoft"));
    const Fixture fixture = small_fixture(name);
    for (const bool optimize : {false, true}) {
      const Values got = Model(file, {.optimize = optimize}).run(values_of(fixture.inputs));
      ASSERT_EQ(got.size(), fixture.outputs.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LT(distance(got[i].tensor(), fixture.outputs[i]), kToleranceF32) << "output " << i;
    }
    ++seen;
  }
  EXPECT_EQ(seen, 5u);
}

TEST(Microsoft, ActivationsWithABias) {
  const Tensor x = drawn({3, 5, 7}), bias = drawn({7}), z = add(wide(x), wide(bias));
  const auto by_erf = [](const Tensor& t) { return mul(t, erf(t * std::sqrt(0.5)) + 1) * 0.5; };
  const auto by_tanh = [](const Tensor& t) {
    return mul(t, tanh((t + pow(t, 3) * 0.044715) * std::sqrt(2 / M_PI)) + 1) * 0.5;
  };
  expect_near(run_node("Gelu", {x})[0], by_erf(wide(x)));
  expect_near(run_node("BiasGelu", {x, bias})[0], by_erf(z));
  expect_near(run_node("FastGelu", {x})[0], by_tanh(wide(x)));
  expect_near(run_node("FastGelu", {x, bias})[0], by_tanh(z));
  expect_near(run_node("QuickGelu", {x}, {real("alpha", 0.5f)})[0], mul(wide(x), sigmoid(wide(x) * 0.5)));
  const Tensor halves = drawn({2, 3, 8}), none = zeros({8});
  expect_near(run_node("BiasSplitGelu", {halves, none})[0],
              mul(slice(wide(halves), -1, 0, 4), by_erf(slice(wide(halves), -1, 4, 8))));
  expect_near(run_node("BiasAdd", {x, bias, x})[0], add(z, wide(x)));
  expect_near(run_node("BiasSoftmax", {x, drawn({3, 1, 7}) * 0.0},
                       {attribute("axis", 2), attribute("is_inner_broadcast", 1)})[0],
              softmax(wide(x), -1));
}

TEST(Microsoft, NormsOfSums) {
  const Tensor x = drawn({2, 3, 8}), skip = drawn({3, 8}), weight = drawn({8}), shift = drawn({8}), bias = drawn({8});
  const Tensor sum = add(add(wide(x), wide(skip)), wide(bias)), centred = sub(sum, mean(sum, {-1}, true));
  const Tensor normal = mul(centred, rsqrt(mean(square(centred), {-1}, true) + 1e-5));
  const Attributes eps{real("epsilon", 1e-5f)};
  const Tensors full_skip{x, expand(skip, {2, 3, 8}).contiguous(), weight, shift, bias};
  for (const Tensors& in : {Tensors{x, skip, weight, shift, bias}, full_skip}) {
    const Tensors out = run_node("SkipLayerNormalization", in, eps);
    expect_near(out[0], add(mul(normal, wide(weight)), wide(shift)));
  }
  const Tensor rms = mul(mul(sum, rsqrt(mean(square(sum), {-1}, true) + 1e-5)), wide(weight));
  expect_near(run_node("SkipSimplifiedLayerNormalization", {x, skip, weight, bias}, eps)[0], rms);
  const Tensors simple = run_node("SimplifiedLayerNormalization", {x, weight}, eps, 2);
  const Tensor inverse = rsqrt(mean(square(wide(x)), {-1}, true) + 1e-5);
  expect_near(simple[0], mul(mul(wide(x), inverse), wide(weight)));
  expect_near(simple[1], inverse);
  EXPECT_NE(error_of("SkipLayerNormalization", {x, skip, weight}, {}, 2).find("not supported"), std::string::npos);
}

TEST(Microsoft, GroupNormsLieChannelsLast) {
  const Tensor x = drawn({2, 3, 5, 8}), weight = drawn({8}), shift = drawn({8}), skip = drawn({2, 8});
  const Attributes attributes{attribute("groups", 4), attribute("activation", 1)};
  const auto normed = [&](const Tensor& t) {
    const Tensor groups = reshape(movedim(wide(t), -1, 1), {2, 4, 2 * 3 * 5});
    const Tensor centred = sub(groups, mean(groups, {-1}, true));
    const Tensor y = mul(centred, rsqrt(mean(square(centred), {-1}, true) + 1e-5));
    return silu(add(mul(movedim(reshape(y, {2, 8, 3, 5}), 1, -1), wide(weight)), wide(shift)));
  };
  expect_near(run_node("GroupNorm", {x, weight, shift}, attributes)[0], normed(x));
  const Tensor sum = add(x, reshape(skip, {2, 1, 1, 8}));
  const Tensors out = run_node("SkipGroupNorm", {x, weight, shift, skip}, attributes, 2);
  expect_near(out[0], normed(sum));
  expect_near(out[1], wide(sum));
  const Tensor filters = drawn({6, 8, 3, 3});
  const Tensor image = run_node("NhwcConv", {x, filters}, {list("pads", {1, 1, 1, 1})})[0];
  expect_near(image, movedim(conv2d(movedim(wide(x), -1, 1), wide(filters), {}, {.padding = {1, 1}}), 1, -1));
}

TEST(Microsoft, ProductsTurnAndActivate) {
  const Tensor a = drawn({5, 2, 3, 4}), b = drawn({2, 3, 6, 5});  // a: dim 0 lies before its rows, then turned
  const Tensor y =
      run_node("FusedMatMul", {a, b},
               {attribute("transBatchA", 1), attribute("transA", 1), attribute("transB", 1), real("alpha", 0.5f)})[0];
  expect_near(y, matmul(permute(wide(a), {1, 2, 3, 0}), transpose(wide(b), -2, -1)) * 0.5);
  const Tensor m = drawn({3, 5}), w = drawn({4, 5}), bias = drawn({4});
  const Tensor z = add(matmul(wide(m), transpose(wide(w), 0, 1)), wide(bias));
  expect_near(run_node("FusedGemm", {m, w, bias}, {attribute("transB", 1), text("activation", "Tanh")})[0], tanh(z));
  const Tensor x = drawn({1, 2, 5, 4}), filters = drawn({3, 2, 3, 3}), add_to = drawn({1, 3, 3, 2});
  AttributeProto slope{.name = "activation_params", .type = kFloatsAttribute, .floats = {0.25f}};
  const Tensor sum = add(conv2d(wide(x), wide(filters)), wide(add_to));
  expect_near(run_node("FusedConv", {x, filters, Tensor(), add_to}, {text("activation", "LeakyRelu"), slope})[0],
              where(gt(sum, sum * 0.0), sum, sum * 0.25));
  EXPECT_NE(error_of("FusedGemm", {m, w}, {attribute("transB", 1), text("activation", "Cube")}).find("'Cube'"),
            std::string::npos);
}

// ---- attention

Tensor by_heads(const Tensor& x, int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}
/// softmax(q kᵀ / sqrt(d) + mask) v, in f64, tokens with their heads in a row.
Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const int64_t times = q.size(1) / k.size(1);
  const auto repeated = [&](const Tensor& t) {
    Tensors parts;
    for (int64_t h = 0; h < q.size(1); ++h) parts.push_back(slice(wide(t), 1, h / times, h / times + 1));
    return concat(parts, 1);
  };
  Tensor s = matmul(wide(q), transpose(repeated(k), -2, -1)) / std::sqrt(static_cast<double>(q.size(3)));
  if (mask.defined()) s = add(s, wide(mask));
  const Tensor y = transpose(matmul(softmax(s, -1), repeated(v)), 1, 2);
  return reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
}
/// 0 up to the place of a query behind `past` keys, -inf beyond.
Tensor causal_mask(int64_t queries, int64_t past) {
  return triu(full({queries, past + queries}, -INFINITY, Float64), past + 1);
}

TEST(Microsoft, AttentionOfProjections) {
  const int64_t b = 2, s = 4, heads = 2, d = 3, h = heads * d;
  const Tensor x = drawn({b, s, 5}), w = drawn({5, 3 * h}), bias = drawn({3 * h});
  const Tensor all = add(matmul(wide(x), wide(w)), wide(bias));
  const auto part = [&](int64_t i) { return by_heads(slice(all, -1, i * h, (i + 1) * h), heads); };
  const Attributes attributes{attribute("num_heads", heads)};
  const auto masked = [&](std::vector<float> kept) {  // of [b, keys]
    return reshape((tensor(kept, {b, 1, 1, s}) - 1.0) * 10000.0, {b, 1, 1, s});
  };
  const auto expect = [&](const Tensor& mask, const Tensor& added) {
    expect_near(run_node("Attention", {x, w, bias, mask}, attributes)[0], attended(part(0), part(1), part(2), added));
  };
  expect({}, {});
  expect(int32s({4, 2}, {2}), masked({1, 1, 1, 1, 1, 1, 0, 0}));
  expect(int32s({4, 3, 1, 0}, {4}), masked({0, 1, 1, 1, 1, 1, 1, 0}));
  expect(int32s({1, 0, 1, 1, 0, 1, 1, 0}, {2, 4}), masked({1, 0, 1, 1, 0, 1, 1, 0}));
  const Tensor past = drawn({2, b, heads, 3, d});
  const Tensors out = run_node("Attention", {x, w, bias, {}, past}, {attributes[0], attribute("unidirectional", 1)}, 2);
  const auto joined = [&](int64_t i) { return concat({wide(select(past, 0, i)), part(i + 1)}, 2); };
  expect_near(out[0], attended(part(0), joined(0), joined(1), causal_mask(s, 3)));
  expect_near(out[1], stack({joined(0), joined(1)}, 0));
  EXPECT_NE(error_of("Attention", {x, w, bias, int32s({1, 1, 1}, {3})}, attributes).find("a mask"), std::string::npos);
  EXPECT_NE(error_of("Attention", {x, w, bias}, {attribute("num_heads", 4)}).find("4 heads"), std::string::npos);
}

TEST(Microsoft, MultiHeadAttentionInItsForms) {
  const int64_t b = 2, s = 3, t = 5, heads = 2, d = 4, h = heads * d;
  const Tensor q = drawn({b, s, h}), k = drawn({b, t, h}), v = drawn({b, t, h}), bias = drawn({3 * h});
  const auto with = [&](const Tensor& x, int64_t i) {
    return by_heads(add(wide(x), wide(slice(bias, 0, i * h, (i + 1) * h))), heads);
  };
  const Attributes attributes{attribute("num_heads", heads)};
  const Tensor scores = drawn({1, heads, s, t});
  expect_near(run_node("MultiHeadAttention", {q, k, v, bias, {}, scores}, attributes)[0],
              attended(with(q, 0), with(k, 1), with(v, 2), scores));
  const Tensor kh = drawn({b, heads, t, d}), vh = drawn({b, heads, t, d});
  expect_near(run_node("MultiHeadAttention", {q, kh, vh}, attributes)[0], attended(by_heads(q, heads), kh, vh, {}));
  const Tensors out =
      run_node("MultiHeadAttention", {q, q, q, {}, {}, {}, kh, vh}, {attributes[0], attribute("unidirectional", 1)}, 3);
  const Tensor own = by_heads(q, heads), keys = concat({kh, own}, 2), values = concat({vh, own}, 2);
  expect_near(out[0], attended(own, keys, values, causal_mask(s, t)));
  expect_near(out[1], wide(keys));
  expect_near(out[2], wide(values));
  const Tensor packed = drawn({b, s, heads, 3, d});
  const auto one = [&](int64_t i) { return transpose(select(packed, 3, i), 1, 2); };
  expect_near(run_node("MultiHeadAttention", {packed}, attributes)[0], attended(one(0), one(1), one(2), {}));
  const Tensor pair = drawn({b, t, heads, 2, d});
  expect_near(run_node("MultiHeadAttention", {q, pair}, attributes)[0],
              attended(own, transpose(select(pair, 3, 0), 1, 2), transpose(select(pair, 3, 1), 1, 2), {}));
}

TEST(Microsoft, GroupedQueriesFillTheirCaches) {
  const int64_t b = 2, heads = 4, kv = 2, d = 4, room = 9;
  const Tensor q = drawn({b, 1, heads * d}), k = drawn({b, 1, kv * d}), v = drawn({b, 1, kv * d}),
               sink = drawn({heads});
  const Tensor keys = drawn({b, kv, room, d}), values = drawn({b, kv, room, d});
  const std::vector<int64_t> lengths{7, 4};
  const Attributes attributes{attribute("num_heads", heads), attribute("kv_num_heads", kv)};
  const Tensors in{q, k, v, keys, values, int32s({6, 3}, {2}), int32s({7}, {})};
  const Tensors out = run_node("GroupQueryAttention", in, attributes, 3);
  Tensors with_sinks = in;
  for (int i = 0; i < 4; ++i) with_sinks.emplace_back();
  with_sinks.push_back(sink);
  const Tensor sunk = run_node("GroupQueryAttention", with_sinks, attributes, 3)[0];
  ASSERT_EQ(out[1].shape(), keys.shape());
  for (int64_t i = 0; i < b; ++i) {
    const int64_t n = lengths[static_cast<size_t>(i)];
    const auto of = [&](const Tensor& t) { return slice(t, 0, i, i + 1); };
    const auto filled = [&](const Tensor& cache, const Tensor& fresh) {
      return concat({slice(of(cache), 2, 0, n - 1), by_heads(of(fresh), kv)}, 2);
    };
    const Tensor all_keys = filled(keys, k), all_values = filled(values, v), own = by_heads(of(q), heads);
    expect_near(of(out[0]), attended(own, all_keys, all_values, {}));
    expect_near(slice(of(out[1]), 2, 0, n), wide(all_keys));
    expect_near(slice(of(out[2]), 2, 0, n), wide(all_values));
    // A sink is a key whose value is 0.
    const Tensor none = zeros({1, kv, 1, d}),
                 mask = concat({zeros({1, heads, 1, n}), reshape(sink, {1, heads, 1, 1})}, 3);
    expect_near(of(sunk), attended(own, concat({all_keys, none}, 2), concat({all_values, none}, 2), mask));
  }
  EXPECT_NE(
      error_of("GroupQueryAttention", {q, k, v, keys, values, int32s({9, 3}, {2}), int32s({7}, {})}, attributes, 3)
          .find("a length of 10"),
      std::string::npos);
}

TEST(Microsoft, RotaryPositionsFromAnOffset) {
  const int64_t d = 6, tokens = 3;
  const Tensor x = drawn({1, tokens, 2 * d}), cosine = drawn({8, d / 2}), sine = drawn({8, d / 2});
  const Tensor y = run_node("RotaryEmbedding", {x, tensor(std::vector<int64_t>{4}, {1}), cosine, sine})[0];
  const Tensor c = wide(slice(cosine, 0, 4, 7)), s = wide(slice(sine, 0, 4, 7));
  Tensors parts;
  for (int64_t head = 0; head < 2; ++head) {
    const Tensor low = wide(slice(x, -1, head * d, head * d + d / 2)),
                 high = wide(slice(x, -1, head * d + d / 2, (head + 1) * d));
    parts.push_back(sub(mul(low, c), mul(high, s)));
    parts.push_back(add(mul(low, s), mul(high, c)));
  }
  expect_near(y, concat(parts, -1));
}

// ---- quantised

Tensor bytes(const std::vector<int64_t>& values, const Shape& shape) { return cast(tensor(values, shape), UInt8); }
Tensor scale(float value) { return tensor(std::vector<float>{value}, {}); }

/// The numbers that x is once it has been quantised by its range.
Tensor rounded(const Tensor& x) {
  const Quantized q = dynamic_quantize(cast(x, Float32));
  return mul(sub(wide(q.values), wide(q.zero_point)), wide(q.scale));
}
TEST(Microsoft, LstmOfQuantisedProducts) {
  Generator g(3);
  const int64_t steps = 5, batch = 3, k = 7, width = 6;
  for (const int64_t directions : {1, 2}) {
    const auto weight = [&](int64_t rows) { return randint(0, 256, {directions, rows, 4 * width}, g).to(UInt8); };
    const Tensor x = drawn({steps, batch, k}), w = weight(k), r = weight(width), bias = drawn({directions, 8 * width});
    const Tensor h0 = drawn({directions, batch, width}), c0 = drawn({directions, batch, width});
    const Tensor w_scale = full({directions, 4 * width}, 0.004), r_scale = full({directions}, 0.003);
    const Tensor w_zero = full({directions, 4 * width}, 120, UInt8), r_zero = full({directions}, 131, UInt8);
    const Attributes attributes{text("direction", directions == 2 ? "bidirectional" : "reverse")};
    const Tensors out = run_node("DynamicQuantizeLSTM",
                                 {x, w, r, bias, {}, h0, c0, {}, w_scale, w_zero, r_scale, r_zero}, attributes, 3);
    for (int64_t d = 0; d < directions; ++d) {
      const auto of = [&](const Tensor& t) { return wide(select(t, 0, d)); };
      const Tensor of_x = mul(sub(of(w), of(w_zero)), of(w_scale)), of_h = mul(sub(of(r), of(r_zero)), of(r_scale));
      const Tensor added = add(slice(of(bias), 0, 0, 4 * width), slice(of(bias), 0, 4 * width, 8 * width));
      Tensor h = of(h0), cell = of(c0);
      const Tensor all = add(matmul(rounded(x), of_x), added);
      const bool backwards = directions == 1 || d == 1;
      for (int64_t i = 0; i < steps; ++i) {
        const int64_t t = backwards ? steps - 1 - i : i;
        const Tensor gates = add(select(all, 0, t), matmul(rounded(h), of_h));
        const auto gate = [&](int64_t n) { return slice(gates, 1, n * width, (n + 1) * width); };
        cell = add(mul(sigmoid(gate(2)), cell), mul(sigmoid(gate(0)), tanh(gate(3))));
        h = mul(sigmoid(gate(1)), tanh(cell));
        expect_near(select(select(out[0], 0, t), 0, d), h, 1e-3);  // a step of 1/255 may round the other way
      }
      expect_near(select(out[1], 0, d), h, 1e-3);
      expect_near(select(out[2], 0, d), cell, 1e-3);
    }
  }
  const Tensor x = drawn({2, 1, 3}), w = zeros({1, 3, 8}, UInt8), r = zeros({1, 2, 8}, UInt8), s = full({1}, 1),
               z = zeros({1}, UInt8);
  const Tensors in{x, w, r, {}, {}, {}, {}, {}, s, z, s, z};
  EXPECT_EQ(run_node("DynamicQuantizeLSTM", in, {}, 3)[0].shape(), (Shape{2, 1, 1, 2}));
  EXPECT_NE(error_of("DynamicQuantizeLSTM", in, {text("direction", "bidirectional")}, 3).find("weights for 1"),
            std::string::npos);
  EXPECT_NE(error_of("DynamicQuantizeLSTM", in, {real("clip", 1)}, 3).find("not supported"), std::string::npos);
  Tensors other = in;
  other[4] = int32s({1}, {1});
  EXPECT_NE(error_of("DynamicQuantizeLSTM", other, {}, 3).find("different lengths"), std::string::npos);
}

TEST(Microsoft, QuantisedSumsAndProducts) {
  const Tensor a = bytes({0, 10, 200, 255}, {4}), b = bytes({100, 30, 7, 255}, {4});
  const Tensor za = bytes({10}, {}), zb = bytes({20}, {}), zy = bytes({3}, {});
  const std::vector<int64_t> x = a.to_vector<int64_t>(), y = b.to_vector<int64_t>();
  std::vector<int64_t> sums, products;
  for (size_t i = 0; i < x.size(); ++i) {
    const double p = 0.5 * static_cast<double>(x[i] - 10), q = 0.25 * static_cast<double>(y[i] - 20);
    sums.push_back(std::clamp<int64_t>(std::llrint((p + q) / 1.0) + 3, 0, 255));
    products.push_back(std::clamp<int64_t>(std::llrint(p * q / 16.0) + 3, 0, 255));
  }
  EXPECT_EQ(run_node("QLinearAdd", {a, scale(0.5f), za, b, scale(0.25f), zb, scale(1), zy})[0].to_vector<int64_t>(),
            sums);
  EXPECT_EQ(run_node("QLinearMul", {a, scale(0.5f), za, b, scale(0.25f), zb, scale(16), zy})[0].to_vector<int64_t>(),
            products);
  EXPECT_EQ(
      run_node("QLinearConcat", {scale(0.5f), zy, a, scale(0.5f), za, b, scale(0.5f), zb}, {attribute("axis", 0)})[0]
          .to_vector<int64_t>(),
      (std::vector<int64_t>{0, 3, 193, 248, 83, 13, 0, 238}));
}

TEST(Microsoft, WeightsOfFewBits) {
  const int64_t n = 3, k = 20, blocks = 2, block = 16;
  for (const int64_t bits : {2, 4, 8}) {
    const int64_t each = 8 / bits, blob = block / each, mask = (1 << bits) - 1;
    std::vector<int64_t> packed, points;
    std::vector<float> scales;
    for (int64_t i = 0; i < n * blocks * blob; ++i) packed.push_back((i * 37 + 11) % 256);
    const int64_t width = (blocks * bits + 7) / 8;
    for (int64_t i = 0; i < n * width; ++i) points.push_back((i * 91 + 5) % 256);
    for (int64_t i = 0; i < n * blocks; ++i) scales.push_back(0.1f * static_cast<float>(i + 1));
    std::vector<double> weight;
    for (int64_t row = 0; row < n; ++row)
      for (int64_t at = 0; at < k; ++at) {
        const int64_t which = at / block, in_block = at % block;
        const int64_t byte = packed[static_cast<size_t>((row * blocks + which) * blob + in_block / each)];
        const int64_t zero = points[static_cast<size_t>(row * width + which / each)] >> (which % each * bits) & mask;
        const int64_t value = (byte >> (in_block % each * bits)) & mask;
        weight.push_back(static_cast<double>(value - zero) *
                         static_cast<double>(scales[static_cast<size_t>(row * blocks + which)]));
      }
    const Tensor x = drawn({2, k}), bias = drawn({n});
    const Attributes attributes{attribute("K", k), attribute("N", n), attribute("bits", bits),
                                attribute("block_size", block)};
    const Tensor y = run_node(
        "MatMulNBits",
        {x, bytes(packed, {n, blocks, blob}), tensor(scales, {n, blocks}), bytes(points, {n, width}), Tensor(), bias},
        attributes)[0];
    expect_near(y, add(matmul(wide(x), transpose(tensor(weight, {n, k}), 0, 1)), wide(bias)));
    EXPECT_NE(
        error_of("MatMulNBits",
                 {x, bytes(packed, {n, blocks, blob}), tensor(scales, {blocks, n}).contiguous(), bytes({1, 2}, {2})},
                 attributes)
            .find("zero points"),
        std::string::npos);
  }
}

TEST(Microsoft, KnownWeightsArePackedOnce) {
  const int64_t n = 8, k = 32;
  ModelMaker m;
  m.proto().opsets.push_back({"com.microsoft", 1});
  m.input("x", {2, 3, k}).input("mask", {2, 3}, kInt32);
  m.graph().outputs.push_back({.name = "y"});
  const auto numbers = [&](int64_t count) { return drawn({count}).to_vector<float>(); };
  std::vector<int64_t> packed;
  for (int i = 0; i < n * k / 2; ++i) packed.push_back(i * 37 % 256);
  m.graph().initializers.push_back(
      {.dims = {n, 2, 8}, .data_type = data_type_of(UInt8), .int32_data = packed, .name = "blocks"});
  m.weight("scales", {n, 2}, numbers(n * 2)).weight("bias", {n}, numbers(n));
  m.weight("w", {n, 24}, numbers(n * 24)).weight("b", {24}, numbers(24));
  m.weight("up", {8, 5}, numbers(40)).weight("up_bias", {5}, numbers(5));
  NodeProto& product = m.add("MatMulNBits", {"x", "blocks", "scales"}, {"h"});
  product.attributes = {attribute("K", k), attribute("N", n), attribute("block_size", 16)};
  m.add("BiasGelu", {"h", "bias"}, {"g"});
  m.add("Attention", {"g", "w", "b", "mask"}, {"a"}).attributes = {attribute("num_heads", 2)};
  m.add("MatMul", {"a", "up"}, {"u"});
  m.add("FastGelu", {"u", "up_bias"}, {"y"});
  for (NodeProto& node : m.graph().nodes)
    if (node.op_type != "MatMul") node.domain = "com.microsoft";
  const Model optimized = Model::from_bytes(m.bytes(), "m.onnx"),
              plain = Model::from_bytes(m.bytes(), "m.onnx", {.optimize = false});
  EXPECT_EQ(optimized.calls(), (std::map<std::string, int64_t>{{"Attention", 1}, {"Linear", 2}}));
  const Values in{drawn({2, 3, k}), int32s({1, 1, 0, 1, 1, 1}, {2, 3})};
  expect_near(optimized.run(in)[0].tensor(), wide(plain.run(in)[0].tensor()));
}

TEST(Microsoft, BadNodesAreOneLine) {
  const Tensor x = drawn({2, 3});
  const std::vector<std::pair<std::string, std::string>> errors{
      {error_of("BiasGelu", {x}), "1 inputs, of at least 2"},
      {error_of("QuickGelu", {x}, {real("beta", 1)}), "no attribute \"beta\""},
      {error_of("MultiHeadAttention", {x}, {}), "attribute \"num_heads\" is missing"},
      {error_of("ExpandDims", {x, int32s({4}, {})}), "not from -3 to 2"},
      {error_of("CDist", {x, x}, {text("metric", "cosine")}), "the metric 'cosine'"},
      {error_of("Irfft", {x}, {attribute("signal_ndim", 2)}), "more than one dim"},
      {error_of("PackedAttention", {x}), "the operator of \"com.microsoft\" is not supported"}};
  for (const auto& [said, part] : errors) {
    EXPECT_NE(said.find(part), said.npos) << said;
    EXPECT_EQ(said.find('\n'), said.npos) << said;
  }
}

}  // namespace
}  // namespace tessera::onnx
