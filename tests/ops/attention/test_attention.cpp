#include <fmt/format.h>

#include <cmath>

#include "ops/call_plan.h"
#include "ops/ops_check.h"

#include "ops/op_table.h"

namespace tessera {
namespace {

TEST(Attention, NamesTheRuleThatIsBroken) {
  Tensor q = zeros({2, 4, 5, 8}), k = zeros({2, 2, 7, 8});
  auto attend = [](auto... t) { return error_of([=] { scaled_dot_product_attention(t...); }); };
  const std::string op = "scaled_dot_product_attention: ";
  EXPECT_EQ(attend(zeros({5, 8}), k, k), op + "q must have 4 dims, not shape [5, 8]");
  EXPECT_EQ(attend(q, zeros({2, 2, 7, 9}), k),
            op + "shapes do not match: q [2, 4, 5, 8], k [2, 2, 7, 9], v [2, 2, 7, 8]");
  EXPECT_EQ(attend(q, zeros({2, 3, 7, 8}), zeros({2, 3, 7, 8})),
            op + "4 heads of queries do not share 3 heads of keys");
  EXPECT_EQ(attend(q, k, k, AttentionOptions{.mask = zeros({5, 6}, Bool)}),
            op + "shapes do not broadcast: [5, 6] and [2, 4, 5, 7]");
  EXPECT_EQ(attend(q, k, k, AttentionOptions{.mask = zeros({5, 7}, Int64)}),
            op + "mask must be bool or f32, not i64[5, 7] on cpu");
  for (double p : {-0.1, 1.0})
    EXPECT_EQ(attend(q, k, k, AttentionOptions{.dropout = p}), op + fmt::format("dropout = {} is not in [0, 1)", p));
  for (double largest : {-1.0, 65.0, double(NAN)})
    EXPECT_EQ(attend(q, k, k, AttentionOptions{.alibi = largest}),
              op + fmt::format("alibi = {} is not in [0, 64]", largest));
  EXPECT_EQ(error_of([] { alibi_slope(4, 4); }), "alibi_slope: head 4 is not one of 4");
  EXPECT_EQ(
      error_of([&] {
        dispatch(find_op("scaled_dot_product_attention"), {q, k, k, {}, zeros({2})}, AttentionAttrs{.dropout = 0.5});
      }),
      op + "dropout needs a state, i64[2], not f32[2] on cpu");
  EXPECT_EQ(error_of([] {
              attention_qkv(zeros({2, 3, 16}), 2);
            }),
            "attention_qkv: 16 columns do not hold queries, keys and values of 2 heads");
}

// The table of operators is walked with the first kernel that takes a case; here the one that takes everything.
TEST(Attention, MathMatchesTheReference) {
  for (const OpCase& c : op_cases()) {
    if (c.op.find("attention") == c.op.npos || c.benchmark) continue;
    Generator g(4);
    const Op& op = find_op(c.op);
    Tensors in = c.inputs(g), want = op.reference({in.data(), in.size()}, c.attrs);
    ForceKernel math(c.op, "math");
    NoGrad guard;
    Tensors got = dispatch(op, std::move(in), c.attrs);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << c.op << " " << c.label;
  }
}

struct Lengths {
  Shape q, k;
  bool causal;
};

TEST(Attention, KernelsAgree) {
  Generator g(1);
  for (const Lengths& use :
       {Lengths{{2, 3, 67, 33}, {2, 3, 67, 33}, true}, Lengths{{1, 4, 129, 64}, {1, 2, 129, 64}, true},
        Lengths{{2, 2, 5, 16}, {2, 2, 300, 16}, false}}) {
    Tensors in = {normal64(use.q, g).to(Float32), normal64(use.k, g).to(Float32), normal64(use.k, g).to(Float32)};
    auto attend = [&](const Tensors& t) {
      return scaled_dot_product_attention(t[0], t[1], t[2], {.causal = use.causal});
    };
    auto with = [&](const char* kernel) {
      ForceKernel forward("scaled_dot_product_attention", kernel),
          backward("scaled_dot_product_attention_backward", kernel);
      Tensors out = gradients_of(attend, in, false);
      out.push_back(attend(in));
      return out;
    };
    Tensors flash = with("flash"), math = with("math");
    for (size_t i = 0; i < flash.size(); ++i) EXPECT_LE(relative_error(flash[i], math[i]), 2e-6) << i;
  }
}

// As published: a geometric series, and for heads that are no power of two every second slope of the next one.
TEST(Attention, SlopesAreThePublishedOnes) {
  const auto expect = [](const std::vector<double>& exponents) {
    const auto heads = static_cast<int64_t>(exponents.size());
    for (int64_t h = 0; h < heads; ++h)
      EXPECT_EQ(alibi_slope(h, heads), std::exp2(-exponents[static_cast<size_t>(h)])) << h << " of " << heads;
  };
  expect({1, 2, 3, 4, 5, 6, 7, 8});
  expect({2, 4, 6, 8});
  expect({2, 4, 6, 8, 1, 3});
  expect({1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
  expect({8});
}

// Each kernel against a mask of all pairs, forward and backward, in f32 and in bf16, whose scores are f32 nonetheless.
TEST(Attention, SlopesAreAMaskThatNobodyMakes) {
  Generator g(8);
  const int64_t n = 150, heads = 6;
  const Tensor places = arange(0, double(n), 1, Float64);
  Tensors masks;
  for (int64_t h = 0; h < heads; ++h)
    masks.push_back((unsqueeze(places, 0) - unsqueeze(places, 1)) * alibi_slope(h, heads));
  const Tensor mask = stack(masks, 0);
  const Tensors exact{normal64({2, heads, n, 24}, g), normal64({2, 3, n, 24}, g), normal64({2, 3, n, 24}, g)};
  const auto attend = [](const Tensors& in) {
    return scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true, .alibi = 8});
  };
  for (DType dtype : {Float64, Float32, BFloat16}) {
    Tensors in, wide;
    for (const Tensor& t : exact) in.push_back(t.to(dtype)), wide.push_back(in.back().to(Float64));
    const auto masked = [&](const Tensors& t) {
      return scaled_dot_product_attention(t[0], t[1], t[2], {.mask = mask, .causal = true});
    };
    Tensors want = gradients_of(masked, wide, false);
    want.push_back(masked(wide));
    for (const char* kernel : {"flash", "math"}) {
      ForceKernel forward("scaled_dot_product_attention", kernel),
          backward("scaled_dot_product_attention_backward", kernel);
      Tensors got = gradients_of(attend, in, false);
      got.push_back(attend(in));
      const double most = dtype == Float64 ? 1e-12 : dtype == Float32 ? 3e-6 : 1e-2;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), most) << kernel << " " << name(dtype) << " " << i;
    }
  }
}

TEST(Attention, SlopesTakeNoMemory) {
  const Tensor q = ones({1, 4, 256, 16});
  NoGrad guard;
  const int64_t before = memory_stats().allocated;
  const auto peak = [&](double alibi) {
    reset_peak_memory();
    const Tensor y = scaled_dot_product_attention(q, q, q, {.causal = true, .alibi = alibi});
    return memory_stats().peak_allocated - before;
  };
  EXPECT_EQ(peak(8), peak(0));
}

TEST(Attention, SaysWhichKernelsThereAre) {
  ForceKernel force("scaled_dot_product_attention", "mem-efficient");
  const Tensor x = zeros({1, 1, 3, 8});
  EXPECT_EQ(error_of([=] { scaled_dot_product_attention(x, x, x); }),
            "scaled_dot_product_attention: cpu has no kernel 'mem-efficient', which is forced, but flash, math");
  const Tensor wide = zeros({1, 1, 3, 257});
  ForceKernel flash("scaled_dot_product_attention", "flash");
  EXPECT_NE(error_of([=] {
              scaled_dot_product_attention(wide, wide, wide);
            }).find("kernel 'flash', which is forced, does not take this head dim: f32[1, 1, 3, 257]"),
            std::string::npos);
}

// The words of a stream go to weights as they go to a tensor of them; gradients are those of plain operators.
TEST(Attention, DropsWhatDropoutOfItsWeightsDrops) {
  Generator g(6);
  const Shape s{2, 3, 13, 8};
  const auto attend = [](const Tensors& in) {
    Generator noise(77);
    return scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true, .dropout = 0.4, .generator = &noise});
  };
  const auto composed = [](const Tensors& in) {
    Generator noise(77);
    const Tensor scores = matmul(in[0], transpose(in[1], 2, 3)) * (1 / std::sqrt(8.0));
    const Tensor never = full({}, -INFINITY, Float64);
    const Tensor weights = softmax(where(tril(ones({13, 13}, Bool)), scores, never), -1);
    return matmul(dropout(weights, 0.4, true, noise), in[2]);
  };
  const Tensors in{normal64(s, g), normal64(s, g), normal64(s, g)};
  EXPECT_LE(relative_error(attend(in), composed(in)), 1e-14);
  for (bool twice : {false, true}) {
    const Tensors got = gradients_of(attend, in, twice), want = gradients_of(composed, in, twice);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << i;
  }
}

TEST(Attention, PackedEqualsSplit) {
  Generator g(2);
  Tensor qkv = normal64({2, 37, 3 * 3 * 8}, g);
  auto packed = [](const Tensors& in) { return attention_qkv(in[0], 3, {.causal = true}); };
  auto apart = [](const Tensors& in) {
    Tensors parts = chunk(in[0], 3, 2);
    for (Tensor& t : parts) t = transpose(reshape(t, {2, 37, 3, 8}), 1, 2);
    Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = true});
    return reshape(transpose(y, 1, 2), {2, 37, 24});
  };
  EXPECT_LE(relative_error(packed({qkv}), apart({qkv})), 1e-14);
  EXPECT_LE(relative_error(gradients_of(packed, {qkv}, false)[0], gradients_of(apart, {qkv}, true)[0]), 1e-12);
}

TEST(Attention, ReadsStridedHeadsWithoutCopies) {
  Tensor qkv = ones({2, 64, 3, 2, 32});
  Tensor heads = permute(qkv, {2, 0, 3, 1, 4});
  NoGrad guard;
  ForceKernel flash("scaled_dot_product_attention", "flash");
  reset_peak_memory();
  int64_t before = memory_stats().allocated;
  Tensor y = scaled_dot_product_attention(heads.select(0, 0), heads.select(0, 1), heads.select(0, 2));
  EXPECT_EQ(memory_stats().peak_allocated - before, 2 * 64 * 2 * 32 * 4);
}

TEST(Attention, IsCloseInHalfPrecision) {
  Generator g(3);
  Shape s{2, 2, 37, 16};
  expect_half_precision_close(
      [](const Tensors& in) { return scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true}); },
      {normal64(s, g), normal64(s, g), normal64(s, g)}, 2e-3);
}

TEST(Attention, LeavesRowsThatAttendNothingAtZero) {
  Tensor x = ones({1, 1, 3, 4}),
         mask = tensor<bool>({true, true, true, false, false, false, true, false, true}, {3, 3});
  auto y = scaled_dot_product_attention(x, x, x, {.mask = mask}).to_vector<double>();
  for (int i = 4; i < 8; ++i) EXPECT_EQ(y[i], 0);
}

}  // namespace
}  // namespace tessera
