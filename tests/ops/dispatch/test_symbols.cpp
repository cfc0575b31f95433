// Sizes that are symbols: tensors without memory, and graphs that run with any sizes.
#include <fstream>

#include "gtest/gtest.h"
#include "ops/capture.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

Tensor without_memory(const Shape& shape, DType dtype = Float32) { return empty(shape, dtype, meta(cpu())); }
std::string shape_text(const Tensor& t) { return to_string(t.shape()); }
std::string strides_text(const TensorMeta& meta) {
  const DimStrides strides = strides_of(meta);
  return to_string(Shape(strides.begin(), strides.end()));
}

// ---- metas

TEST(SymbolicMeta, StridesAndBytesAreDims) {
  const Dim n = Dim::symbol("n", 0, 12), m = Dim::symbol("m");
  const TensorMeta meta{{n, m, Dim(3)}, Float16, cpu()};
  EXPECT_EQ(strides_text(meta), "[3*m, 3, 1]");
  EXPECT_EQ(bytes_of(meta).to_string(), "6*n*m");
  EXPECT_EQ(bytes_of(meta).high(), Dim::kUnbounded);
  EXPECT_EQ(bytes_of({{n, 3}, Float32, cpu()}).high(), 144);
  EXPECT_EQ(bytes_of({{4, 3}, Float32, {}, {8, 1}}), Dim((3 * 8 + 2 + 1) * 4));
  EXPECT_EQ(bytes_of({{0, 3}, Float32, {}, {8, 1}}), Dim(0));
  const Tensor pitched = empty_pitched({200, 70}, 96);
  TensorMeta wanted{{200, 70}, Float32, cpu()};
  wanted.pitch = 96;
  EXPECT_EQ(bytes_of(wanted), Dim(static_cast<int64_t>(pitched.storage()->bytes)));
}

TEST(SymbolicMeta, TensorsFlowThroughFunctions) {
  const Dim n = Dim::symbol("n", 1, 12);
  const Tensor x = without_memory({n, 4});
  EXPECT_EQ(describe(x), "f32[n, 4] on meta(cpu)");
  EXPECT_EQ(x.storage()->bytes, 12u * 4 * 4);
  EXPECT_EQ(shape_text(softmax(matmul(x, without_memory({4, 7})) + 1.0, 1)), "[n, 7]");
  EXPECT_EQ(shape_text(sum(x, {0})), "[4]");
  EXPECT_EQ(shape_text(concat({x, relu(x), without_memory({5, 4})}, 0)), "[5 + 2*n, 4]");
  EXPECT_EQ(shape_text(matmul(x.transpose(0, 1), x)), "[4, 4]");
  EXPECT_EQ(shape_text(x.reshape({-1})), "[4*n]");
  EXPECT_EQ(shape_text(x.unsqueeze(1).expand({n, 3, 4}).contiguous()), "[n, 3, 4]");
  EXPECT_EQ(shape_text(x.select(1, 0)), "[n]");
  EXPECT_EQ(shape_text(slice(x, 0, 1, n)), "[-1 + n, 4]");
  EXPECT_EQ(shape_text(slice(x, 0, 1, INT64_MAX)), "[-1 + n, 4]");
  const Tensor turned = x.transpose(0, 1);
  EXPECT_FALSE(turned.is_contiguous());
  EXPECT_TRUE(turned.contiguous().is_contiguous());
  EXPECT_TRUE(turned.transpose(0, 1).is_contiguous());
  EXPECT_TRUE(turned.storage() == x.storage());
  EXPECT_EQ(strides_text(slice(turned, 1, 0, 2).meta()), "[1, 4]");
  Tensor written = without_memory({n, 4});
  written.add_(x);
  written.select(1, 2).copy_(x.select(1, 0));
}

TEST(SymbolicMeta, GradientsFlow) {
  const Dim n = Dim::symbol("n", 1, 12);
  const Tensor x = without_memory({n, 4}), w = without_memory({3, 4}).set_requires_grad(),
               b = without_memory({3}).set_requires_grad();
  sum(square(relu(linear(x, w, b)))).backward();
  EXPECT_EQ(shape_text(w.grad()), "[3, 4]");
  EXPECT_EQ(shape_text(b.grad()), "[3]");
}

TEST(SymbolicMeta, NumbersThatAreNotThereSayWhy) {
  const Dim n = Dim::symbol("n", 1, 12);
  const Tensor x = without_memory({n, 4});
  EXPECT_EQ(error_of([&] { x.numel(); }), "dim 4*n is symbolic: it has no value yet");
  EXPECT_EQ(error_of([&] { x.size(0); }), "dim n is symbolic: it has no value yet");
  EXPECT_EQ(x.transpose(0, 1).stride(1), 4);
  EXPECT_EQ(error_of([&] { x.transpose(0, 1).strides(); }), "strides: f32[4, n] on meta(cpu) lies by symbols");
  EXPECT_EQ(error_of([&] { without_memory({4, n}).strides(); }), "dim n is symbolic: it has no value yet");
  EXPECT_EQ(error_of([&] { empty({n}); }), "dim n is symbolic: it has no value yet");
  EXPECT_EQ(error_of([&] {
              x + without_memory({Dim::symbol("n"), 4});
            }),
            "add: shapes do not broadcast: [n, 4] and [n, 4]");
  EXPECT_EQ(error_of([&] {
              concat({x, without_memory({Dim::symbol("n"), 4})}, 0);
            }),
            "two dims are named n: one in [0, inf], one in [1, 12]");
  EXPECT_EQ(error_of([&] { split(x, 2, 0); }), "dim n is symbolic: it has no value yet");
}

// ---- captured functions of symbolic sizes

TEST(SymbolicCapture, RunsWithAnySizeWithinItsBounds) {
  const Dim n = Dim::symbol("n", 1, 12);
  const auto fn = [](const Tensors& in) {
    const Tensor x = in[0];
    return Tensors{(x * 2.0).reshape({-1}), x.transpose(0, 1), sum(x, {0})};
  };
  const Program program = capture(fn, {without_memory({n, 3})});
  const std::string text = program.graph->text();
  EXPECT_EQ(text,
            "graph(%0: f32[n, 3] on cpu) where n in [1, 12] {\n"
            "  %1: f32[n, 3] = mul_scalar(%0) value=2\n"
            "  %2: f32[3*n] = reshape(%1) shape=[-1]\n"
            "  %3: f32[3, n]{1, 3} = permute(%0) dims=[1, 0]\n"
            "  %4: f32[3] = sum(%0) dims=[0]\n"
            "  return %2, %3, %4\n"
            "}\n");
  const Ref<Graph> again = parse_graph(text);
  EXPECT_TRUE(again->equals(*program.graph));
  EXPECT_EQ(again->text(), text);
  for (const int64_t rows : {1, 5, 12}) {
    const Tensor x = arange(0, static_cast<double>(rows * 3), 1, Float32).reshape({rows, 3});
    const Tensors got = program({x}), want = fn({x});
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].to_vector<float>(), want[i].to_vector<float>());
  }
  EXPECT_EQ(error_of([&] { program({ones({13, 3})}); }), "run: input 0: n in [1, 12] is 13");
  EXPECT_EQ(error_of([&] { program({ones({5, 4})}); }), "run: input 0 is f32[5, 4] on cpu, not f32[5, 3] on cpu");
  EXPECT_EQ(error_of([&] { program({ones({5})}); }), "run: input 0 is f32[5] on cpu, not f32[5, 3] on cpu");
}

TEST(SymbolicCapture, InputsAgreeOnSymbols) {
  const Dim n = Dim::symbol("n", 1, 12);
  const auto fn = [](const Tensors& in) { return Tensors{concat({in[0], in[1]}, 0)}; };
  const Program program = capture(fn, {without_memory({n}), without_memory({n * 2})});
  EXPECT_EQ(shape_text(program({ones({3}), ones({6})})[0]), "[9]");
  EXPECT_EQ(error_of([&] { program({ones({3}), ones({5})}); }), "run: input 1 is f32[5] on cpu, not f32[6] on cpu");
  EXPECT_EQ(error_of([&] {
              capture(fn, {without_memory({n}), without_memory({Dim::symbol("n", 1, 13)})});
            }),
            "two dims are named n: one in [1, 12], one in [1, 13]");
  // Other symbols may stand for these, too.
  const Dim k = Dim::symbol("k", 2, 4);
  EXPECT_EQ(shape_text(run(*program.graph, {without_memory({k}), without_memory({k * 2})})[0]), "[3*k]");
}

TEST(SymbolicCapture, TheSeedOfTheFuzzerIsAGraph) {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/fuzz/corpus/graph/bounds");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const Ref<Graph> graph = parse_graph(text);
  EXPECT_EQ(graph->text(), text);
  EXPECT_EQ(graph->values[0].meta.shape[0].high(), 12);
}

TEST(SymbolicCapture, BadBoundsAreOneLine) {
  const auto error = [](const std::string& where) {
    return error_of([&] { parse_graph("graph(%0: f32[n] on cpu)" + where + " {\n  return %0\n}\n"); });
  };
  EXPECT_EQ(error(" where n in [0, 12]"), "no error");
  EXPECT_EQ(error(" where n in [0, 12], n in [0, 13]"),
            "graph, line 1: two dims are named n: one in [0, 12], one in [0, 13]");
  EXPECT_EQ(error(" where n in [0, 12], n in [0, 12]"), "graph, line 1: 'n in [0, 12]' stands twice");
  EXPECT_EQ(error(" where"), "graph, line 1: 'where' follows the inputs");
  EXPECT_EQ(error(" when n in [0, 12]"), "graph, line 1: 'when n in [0, 12]' follows the inputs");
  EXPECT_EQ(error(" where n < 12"), "graph, line 1: 'n < 12' bounds no dim: name in [low, high] does");
  EXPECT_EQ(error(" where n in [12, 0]"), "graph, line 1: dim n: no number is in [12, 0]");
}

}  // namespace
}  // namespace tessera
