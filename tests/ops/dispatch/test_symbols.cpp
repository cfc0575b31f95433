// Sizes that are symbols: tensors without memory, counts that depend on values, sizes that are computed as elements.
#include <fstream>

#include "gtest/gtest.h"
#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/custom_op.h"

namespace tessera {
namespace {

Tensor without_memory(const Shape& shape, DType dtype = Float32) { return empty(shape, dtype, meta(cpu())); }
std::string shape_text(const Tensor& t) { return to_string(t.shape()); }
std::vector<int64_t> ints(const Tensor& t) { return t.to_vector<int64_t>(); }
Tensor i64(std::vector<int64_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return tensor(values, {n});
}
std::string elements_text(const Tensor& t) {
  const Elements elements = t.meta().elements;
  return elements ? to_string(Shape(elements->begin(), elements->end())) : "unknown";
}

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

TEST(SymbolicMeta, SlicesAreClampedAsFarAsBoundsTell) {
  const Dim n = Dim::symbol("n", 1, 64);
  const Tensor x = without_memory({n, 8});
  EXPECT_EQ(shape_text(slice(x, 0, 1, 1000)), "[-1 + n, 8]");
  EXPECT_EQ(shape_text(slice(x, 0, 100, 1000)), "[0, 8]");
  EXPECT_EQ(shape_text(slice(x, 0, n, Dim(0))), "[0, 8]");
  EXPECT_EQ(shape_text(slice(x, 0, -100, 1)), "[1, 8]");
  EXPECT_EQ(shape_text(slice(x, 0, 0, 2)), "[2, 8]");  // n may be 1: the graph checks it
  const Program program = capture([](const Tensors& in) { return Tensors{slice(in[0], 0, 0, 2)}; }, {x});
  EXPECT_EQ(to_string(program({ones({5, 8})})[0].shape()), "[2, 8]");
  EXPECT_NE(error_of([&] { program({ones({1, 8})}); }).find("slice gives [1, 8], not [2, 8]"), std::string::npos);
}

TEST(SymbolicMeta, AttentionAndDrawsTakeSymbols) {
  const Dim n = Dim::symbol("n", 1, 64);
  const Tensor q = without_memory({2, 3, n, 8});
  EXPECT_EQ(shape_text(scaled_dot_product_attention(q, q, q, {.causal = true})), "[2, 3, n, 8]");
  EXPECT_EQ(shape_text(scaled_dot_product_attention(q, q, q, {.dropout = 0.5})), "[2, 3, n, 8]");
  EXPECT_EQ(shape_text(attention_qkv(without_memory({n, 5, 24}), 2)), "[n, 5, 8]");
  EXPECT_EQ(shape_text(dropout(q, 0.5, true)), "[2, 3, n, 8]");
  const auto fn = [](const Tensors& in) {
    Generator g(3);
    return Tensors{in[0] * rand(in[0].shape(), default_generator())};
  };
  const Program program = capture(fn, {without_memory({n, 3})});
  EXPECT_NE(program.graph->text().find("elements=3*n"), std::string::npos) << program.graph->text();
  manual_seed(5);
  const Tensor drawn = program({ones({4, 3})})[0];
  manual_seed(5);
  EXPECT_EQ(drawn.to_vector<float>(), rand({4, 3}, default_generator()).to_vector<float>());
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

/// A new symbol gets the place of one that was forgotten.
TEST(SymbolicCapture, ARefusedTextLeavesNothingBehind) {
  const auto forgotten = [] {
    const TemporaryDims dims;
    return Dim::symbol("forgotten");
  }();
  EXPECT_THROW(parse_graph("graph(%0: f32[unheard_of, 3*unheard_of] on cpu) {\n  %1: f32"), Error);
  EXPECT_TRUE(Dim::symbol("after the text") == forgotten);
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

// ---- counts

TEST(Counts, NonzeroMaskedSelectAndUnique) {
  const Tensor x = tensor<float>({0, 3, 0, 1, 2, 0}, {2, 3});
  EXPECT_EQ(ints(nonzero(x)), (std::vector<int64_t>{0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(ints(nonzero(x.transpose(0, 1))), (std::vector<int64_t>{0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(shape_text(nonzero(zeros({2, 3}))), "[0, 2]");
  EXPECT_EQ(shape_text(nonzero(ones({}))), "[1, 0]");
  EXPECT_EQ(masked_select(x, gt(x, full({}, 1))).to_vector<float>(), (std::vector<float>{3, 2}));
  EXPECT_EQ(masked_select(x, tensor<bool>({true, false, false}, {3})).to_vector<float>(), (std::vector<float>{0, 1}));
  EXPECT_EQ(shape_text(masked_select(x, zeros({2, 3}, Bool))), "[0]");
  const Unique u = unique(tensor<int64_t>({5, -1, 5, 7, -1, 5}, {2, 3}));
  EXPECT_EQ(ints(u.values), (std::vector<int64_t>{-1, 5, 7}));
  EXPECT_EQ(ints(u.inverse), (std::vector<int64_t>{1, 0, 1, 2, 0, 1}));
  EXPECT_EQ(ints(u.counts), (std::vector<int64_t>{2, 3, 1}));
  EXPECT_EQ(unique(tensor<float>({4}, {})).values.to_vector<float>(), std::vector<float>{4});
  EXPECT_EQ(shape_text(unique(zeros({0, 3})).counts), "[0]");
  EXPECT_EQ(error_of([&] { masked_select(x, x); }), "masked_select: the mask is f32, not bool");
  EXPECT_EQ(error_of([&] { masked_select(x, zeros({2}, Bool)); }),
            "masked_select: shapes do not broadcast: [2, 3] and [2]");
  EXPECT_EQ(error_of([&] { nonzero(Tensor()); }), "nonzero: input 0 is undefined");
}

// Integers that lie close together are counted, others are sorted.
TEST(Symbols, WhatIsThereOnceIsCountedOrSorted) {
  Generator g(6);
  const Tensor small = randint(-5, 6, {7, 41}, g);
  const Unique want = unique(small * 1000);
  for (const DType dtype : {Int8, Int16, Int32, Int64}) {
    const Unique u = unique(small.to(dtype));
    EXPECT_EQ(u.values.dtype(), dtype);
    EXPECT_EQ(ints(u.values.to(Int64) * 1000), ints(want.values)) << name(dtype);
    EXPECT_EQ(ints(u.inverse), ints(want.inverse)) << name(dtype);
    EXPECT_EQ(ints(u.counts), ints(want.counts)) << name(dtype);
    const Unique alone = unique(small.to(dtype), false);
    EXPECT_EQ(ints(alone.values), ints(u.values)) << name(dtype);
    EXPECT_FALSE(alone.inverse.defined()) << name(dtype);
  }
  EXPECT_EQ(ints(unique(small.transpose(0, 1)).counts), ints(want.counts));
  EXPECT_EQ(ints(unique(tensor<uint8_t>({255, 254, 255}, {3}))  // unsigned
                     .counts),
            (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(ints(unique(tensor<int64_t>({INT64_MAX, INT64_MIN, INT64_MAX}, {3})).values),
            (std::vector<int64_t>{INT64_MIN, INT64_MAX}));
}

TEST(Counts, MaskedSelectHasAGradient) {
  const Tensor x = tensor<float>({0, 3, 0, 1, 2, 0}, {2, 3}).set_requires_grad();
  sum(square(masked_select(x, gt(x.detach(), full({}, 1))))).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 6, 0, 0, 4, 0}));
}

TEST(Counts, PlansAreThoseOfTheCount) {
  for (const int64_t count : {3, 0, 5, 3, 1}) {
    const Tensor x = zeros({64});
    x.slice(0, 0, count).fill_(1);
    EXPECT_EQ(ints(nonzero(x)), ints(arange(0, static_cast<double>(count)))) << count;
  }
}

TEST(Counts, AreSymbolsWithoutMemory) {
  const Tensor places = nonzero(without_memory({4, 3}));
  const Dim count = places.shape()[0];
  EXPECT_TRUE(count.is_symbol());
  EXPECT_EQ(count.high(), 12);
  EXPECT_EQ(count.counted_by(), "nonzero");
  EXPECT_EQ(places.shape()[1], Dim(2));
  EXPECT_FALSE(nonzero(without_memory({4, 3})).shape()[0] == count);
  const std::string why =
      "nonzero: the count " + count.to_string() + " depends on values, and here is no memory to read it from";
  EXPECT_EQ(error_of([&] { places.size(0); }), why);
  EXPECT_EQ(error_of([&] { split(places, 2, 0); }), why);
  // What follows knows the sizes by their symbol.
  const Tensor rows = index_select(without_memory({4, 8}), 0, places.select(1, 0));
  EXPECT_TRUE(softmax(matmul(rows, without_memory({8, 5})), 1).shape()[0] == count);
  EXPECT_EQ(shape_text(sum(concat({rows, rows}, 0), {0})), "[8]");
  EXPECT_EQ(bytes_of(rows.meta()).high(), 12 * 8 * 4);
}

Tensors chosen_rows(const Tensors& in) {
  const Tensor places = flatten(nonzero(gt(sum(in[0], {1}), full({}, 0, Float32, in[0].device()))));
  const Tensor rows = index_select(in[0], 0, places);
  return {relu(rows), masked_select(in[0], gt(in[0], full({}, 1, Float32, in[0].device())))};
}

TEST(Counts, AreCapturedPrintedAndReadBack) {
  const Program program = capture(chosen_rows, {ones({4, 3})});
  const std::string text = program.graph->text();
  EXPECT_NE(
      text.find("graph(%0: f32[4, 3] on cpu) where nonzero_1 in [0, 4] of nonzero, nonzero_2 in [0, 12] of nonzero {"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find(": i64[nonzero_1, 1] = nonzero("), std::string::npos) << text;
  EXPECT_NE(text.find(": f32[nonzero_1, 3] = index_select(%0, "), std::string::npos) << text;
  const Ref<Graph> again = parse_graph(text);
  EXPECT_TRUE(again->equals(*program.graph));
  for (const double shift : {-9.0, 0.0, 9.0}) {
    const Tensor x = add(tensor<float>({0, 3, 0, 1, 2, 0, -5, 1, 1, 4, 0, 0}, {4, 3}), shift);
    const Tensors got = run(*again, {x}), want = chosen_rows({x});
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(shape_text(got[i]), shape_text(want[i]));
      EXPECT_EQ(got[i].to_vector<float>(), want[i].to_vector<float>());
    }
  }
}

TEST(Counts, GradientsAreCaptured) {
  const Tensor x = tensor<float>({0, 3, 0, 1, 2, 0}, {2, 3}).set_requires_grad();
  const Program program = capture(
      [&](const Tensors&) {
        const Tensor loss = sum(square(masked_select(x, gt(x.detach(), full({}, 1)))));
        loss.backward();
        return Tensors{loss};
      },
      {});
  EXPECT_TRUE(parse_graph(program.graph->text())->equals(*program.graph));
  EXPECT_EQ(program({})[0].item(), 13);
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 6, 0, 0, 4, 0}));
}

TEST(Counts, UniqueIsCapturedAndRuns) {
  const auto fn = [](const Tensors& in) {
    const Unique u = unique(in[0]);
    return Tensors{u.values, u.inverse, u.counts};
  };
  const Program program = capture(fn, {zeros({6}, Int64)});
  const Tensors got = program({i64({5, -1, 5, 7, -1, 5})});
  EXPECT_EQ(ints(got[0]), (std::vector<int64_t>{-1, 5, 7}));
  EXPECT_EQ(ints(got[2]), (std::vector<int64_t>{2, 3, 1}));
}

TEST(Counts, WhatNeedsTheNumberNamesTheOperator) {
  const auto error = [](const std::function<Tensors(const Tensor&)>& fn) {
    return error_of([&] { capture([&](const Tensors& in) { return fn(nonzero(in[0])); }, {ones({4, 3})}); });
  };
  const std::string why = "nonzero: the count nonzero_1 depends on values, and here is no memory to read it from";
  EXPECT_EQ(error([](const Tensor& t) { return split(t, 2, 0); }), why);
  EXPECT_EQ(error([](const Tensor& t) { return Tensors{full({}, static_cast<double>(t.numel()))}; }),
            "nonzero: the count 2*nonzero_1 depends on values, and here is no memory to read it from");
  EXPECT_EQ(error([](const Tensor& t) { return Tensors{topk(t.select(1, 0), t.size(0), 0).first}; }), why);
  EXPECT_EQ(error([](const Tensor& t) {
              return Tensors{t + ones({5, 2}, Int64)};
            }),
            "add: shapes do not broadcast: [nonzero_1, 2] and [5, 2]");
  EXPECT_EQ(error([](const Tensor& t) {
              return custom_function("closure", {t}, [](const Tensors& in) { return Tensors{nonzero(in[0])}; }, {});
            }).find("custom_function 'closure': the shape of output 0, [nonzero_2, 2], depends on values"),
            0u);
}

TEST(Counts, GraphsCheckWhatSizesWereSaidToBe) {
  const auto read = [](const std::string& header, const std::string& count) {
    return error_of([&] {
      parse_graph("graph(%0: f32[4, 3] on cpu)" + header + " {\n  %1: i64[" + count +
                  ", 2] = nonzero(%0)\n  return %1\n}\n");
    });
  };
  EXPECT_EQ(read(" where k in [0, 12] of nonzero", "k"), "no error");
  const auto refusal = [](const std::string& what) {
    return "graph, line 2: nonzero: its count must be a new symbol, one 'count in [0, 12] of nonzero', and " + what +
           " is not";
  };
  EXPECT_EQ(read("", "k"), refusal("k"));
  EXPECT_EQ(read(" where k in [0, 12]", "k"), refusal("k"));
  EXPECT_EQ(read(" where k in [0, 11] of nonzero", "k"), refusal("k"));
  EXPECT_EQ(read(" where k in [0, 12] of unique", "k"), refusal("k"));
  EXPECT_EQ(read(" where k in [0, 12] of nonzero", "5"), refusal("5"));
  EXPECT_EQ(read(" where k in [0, 12] of nonzero", "2*k"), refusal("2*k"));
  // A second count is another one.
  EXPECT_EQ(error_of([&] {
              parse_graph(
                  "graph(%0: f32[4, 3] on cpu) where k in [0, 12] of nonzero {\n  %1: i64[k, 2] = nonzero(%0)\n"
                  "  %2: i64[k, 2] = nonzero(%0)\n  return %1\n}\n");
            }),
            "graph, line 3: nonzero: its count must be a new symbol, one 'count in [0, 12] of nonzero', and k is not");
  // Of fewer than two there is no slice of two.
  const Program program = capture(
      [](const Tensors& in) {
        return Tensors{concat({slice(flatten(nonzero(in[0])), 0, 0, 2), flatten(nonzero(in[0]))}, 0)};
      },
      {ones({4})});
  EXPECT_EQ(shape_text(program({ones({4})})[0]), "[6]");
  EXPECT_EQ(error_of([&] { program({tensor<float>({0, 0, 1, 0}, {4})}); }), "run: slice gives [1], not [2]");
}

// ---- sizes as elements

TEST(Elements, SizesAreComputedWithSymbols) {
  const Dim b = Dim::symbol("b", 1, 64);
  const Tensor sizes = shape_of(without_memory({b, 6, 4}));
  EXPECT_EQ(elements_text(sizes), "[b, 6, 4]");
  EXPECT_EQ(elements_text(sizes.slice(0, 1, 3)), "[6, 4]");
  EXPECT_EQ(elements_text(sizes.slice(0, 0, 3, 2)), "[b, 4]");
  EXPECT_EQ(elements_text(sizes.select(0, -1).unsqueeze(0)), "[4]");
  EXPECT_EQ(elements_text(flip(sizes, {0})), "[4, 6, b]");
  EXPECT_EQ(elements_text(sizes * 2.0 + 1.0), "[1 + 2*b, 13, 9]");
  EXPECT_EQ(elements_text(sizes + sizes), "[2*b, 12, 8]");
  EXPECT_EQ(elements_text(sizes - sizes.select(0, 0)), "[0, 6 + -1*b, 4 + -1*b]");
  EXPECT_EQ(elements_text(floor_div(sizes * 4.0, sizes.slice(0, 2, 3))), "[b, 6, 4]");
  EXPECT_EQ(elements_text(sizes.to(Int32)), "[b, 6, 4]");
  EXPECT_EQ(elements_text(sizes.to(Float32).to(Int64)), "unknown");
  EXPECT_EQ(elements_text(shape_of(without_memory({Dim::symbol("free")})).to(Int32)), "unknown");  // may be too large
  EXPECT_EQ(elements_text(sizes.reshape({3, 1}).expand({3, 2})), "[b, b, 6, 6, 4, 4]");
  EXPECT_EQ(elements_text(concat({sizes, sizes.slice(0, 0, 1)}, 0)), "[b, 6, 4, b]");
  const Device device = meta(cpu());
  const Tensor seventy = full({1}, 70, Int64, device), one = full({1}, 1, Int64, device),
               ten = full({1}, 10, Int64, device);
  EXPECT_EQ(elements_text(minimum(sizes, seventy)), "[b, 6, 4]");
  EXPECT_EQ(elements_text(maximum(sizes, one)), "[b, 6, 4]");
  EXPECT_EQ(elements_text(maximum(sizes, ten)), "unknown");  // b may be less
  EXPECT_EQ(elements_text(floor_div(sizes, one * 0.0)), "unknown");
  EXPECT_EQ(elements_text(arange(2, 9, 3, Int64, device)), "[2, 5, 8]");
  EXPECT_EQ(elements_text(without_memory({3}, Int64)), "unknown");
  EXPECT_EQ(elements_text(full({65}, 1, Int64, device)), "unknown");
}

TEST(Elements, WritesEndThem) {
  const Tensor sizes = shape_of(without_memory({Dim::symbol("b"), 6}));
  Tensor own = sizes.clone();
  const Tensor part = own.slice(0, 1, 2);
  EXPECT_EQ(elements_text(part), "[6]");
  own.add_(sizes);
  EXPECT_EQ(elements_text(own), "unknown");
  EXPECT_EQ(elements_text(part), "unknown");
  EXPECT_EQ(elements_text(sizes), "[b, 6]");
}

// What ONNX has for x.reshape(batch, -1): Shape, Gather, Unsqueeze, Concat, Reshape.
Tensors flattened_as_onnx_does(const Tensors& in) {
  const Tensor batch = gather(shape_of(in[0]), 0, constant(i64({0})));
  const Tensor sizes = concat({batch, constant(i64({-1}))}, 0);
  const Tensor rows = reshape(in[0], shape_from(sizes));
  const Tensor wide =
      concat({batch, floor_div(index_select(shape_of(in[0]), 0, constant(i64({2}))), constant(i64({2}))),
              constant(i64({2, 1}))},
             0);
  return {rows, expand(reshape(slice(in[0], 1, 0, 1), shape_from(wide)),
                       shape_from(concat({slice(wide, 0, 0, 3), constant(i64({3}))}, 0)))};
}

TEST(Elements, ShapesAreComputedAsOnnxDoes) {
  const Dim batch = Dim::symbol("batch", 1, 64);
  const Program program = capture(flattened_as_onnx_does, {without_memory({batch, 3, 4})});
  const std::string text = program.graph->text();
  EXPECT_NE(text.find("f32[batch, 12] = reshape(%0) shape=[batch, -1]"), std::string::npos) << text;
  EXPECT_NE(text.find("= expand("), std::string::npos) << text;
  EXPECT_NE(text.find("shape=[batch, 2, 2, 3]"), std::string::npos) << text;
  EXPECT_TRUE(parse_graph(text)->equals(*program.graph));
  for (const int64_t size : {1, 5, 64}) {
    const Tensor x = arange(0, static_cast<double>(size * 12), 1, Float32).reshape({size, 3, 4});
    const Tensors got = run(*parse_graph(text), {x}), want = flattened_as_onnx_does({x});  // eager reads the elements
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(shape_text(got[i]), shape_text(want[i]));
      EXPECT_EQ(got[i].to_vector<float>(), want[i].to_vector<float>());
    }
  }
}

TEST(Elements, CountsAreElements) {
  const auto fn = [](const Tensors& in) {
    const Tensor places = nonzero(in[0]);
    return Tensors{reshape(places, shape_from(concat({constant(i64({1})), shape_of(places)}, 0)))};
  };
  const Program program = capture(fn, {ones({4, 3})});
  EXPECT_NE(program.graph->text().find("shape=[1, nonzero_1, 2]"), std::string::npos) << program.graph->text();
  EXPECT_EQ(shape_text(program({tensor<float>({0, 3, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1}, {4, 3})})[0]), "[1, 4, 2]");
}

TEST(Elements, WhatDependsOnValuesSaysSo) {
  const std::string why =
      "shape_from: the elements of i64[2] on meta(cpu) depend on values, and here is no memory to read them from";
  EXPECT_EQ(error_of([&] {
              capture([](const Tensors& in) { return Tensors{reshape(ones({6}), shape_from(in[0]))}; }, {i64({2, 3})});
            }),
            why);
  EXPECT_EQ(error_of([&] { shape_from(ones({2})); }), "shape_from: sizes are i64 or i32 [rank], not f32[2] on cpu");
  EXPECT_EQ(error_of([&] {
              shape_from(ones({2, 2}, Int64));
            }),
            "shape_from: sizes are i64 or i32 [rank], not i64[2, 2] on cpu");
  EXPECT_EQ(to_string(shape_from(tensor<int32_t>({2, -1}, {2}))), "[2, -1]");
  EXPECT_EQ(error_of([&] { parse_graph("graph() {\n  %0: i64[1] = constant()\n  return %0\n}\n"); }),
            "graph, line 2: constant: there is no value");
  // A place that is none is an error of the run.
  const Tensor sizes = shape_of(without_memory({Dim::symbol("b"), 6}));
  EXPECT_EQ(elements_text(index_select(sizes, 0, full({1}, 2, Int64, meta(cpu())))), "unknown");
}

TEST(Elements, ConstantsAreTheGraphsOwn) {
  Tensor value = i64({1, 2});
  const Program program = capture([&](const Tensors&) { return Tensors{constant(value)}; }, {});
  EXPECT_TRUE(program.closed_over.empty());
  value.fill_(7);
  Tensor first = program({})[0];
  EXPECT_EQ(ints(first), (std::vector<int64_t>{1, 2}));
  first.fill_(9);
  EXPECT_EQ(ints(program({})[0]), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(program.graph->text(), "graph() {\n  %0: i64[2] = constant() value=tensor(i64[2], 1, 2)\n  return %0\n}\n");
}

}  // namespace
}  // namespace tessera
