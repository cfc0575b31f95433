#include "ops/ops_check.h"
#include "tessera/autocast.h"

namespace tessera {
namespace {

TEST(Matmul, NamesTheRuleThatIsBroken) {
  auto f32 = [](Shape s) { return zeros(s); };
  EXPECT_EQ(error_of([&] { matmul(f32({4, 3}), f32({5, 2})); }), "matmul: inner dimensions differ: [4, 3] x [5, 2]");
  EXPECT_EQ(error_of([&] { matmul(f32({3}), f32({5, 2})); }), "matmul: inner dimensions differ: [3] x [5, 2]");
  EXPECT_EQ(error_of([&] { matmul(f32({}), f32({2})); }), "matmul: inner dimensions differ: [] x [2]");
  EXPECT_EQ(error_of([&] { matmul(f32({2, 4, 3}), f32({3, 3, 2})); }), "matmul: shapes do not broadcast: [2] and [3]");
  EXPECT_EQ(error_of([&] {
              matmul(f32({2, 2}), zeros({2, 2}, Float64));
            }),
            "matmul: dtypes differ: f32[2, 2] on cpu and f64[2, 2] on cpu");
  EXPECT_EQ(error_of([&] {
              matmul(zeros({2, 2}, Int64), zeros({2, 2}, Int64));
            }),
            "matmul: takes floating-point tensors, not i64[2, 2] on cpu");
  EXPECT_EQ(error_of([&] { matmul({}, f32({2, 2})); }), "the tensor is undefined");
}

TEST(Matmul, TakesVectorsAsNumPyDoes) {
  Generator g(1);
  Tensor a = normal64({7, 5}, g), v = normal64({5}, g), u = normal64({7}, g), batch = normal64({3, 5, 2}, g);
  EXPECT_LE(relative_error(matmul(a, v), matmul(a, unsqueeze(v, 1)).squeeze(1)), 0);
  EXPECT_LE(relative_error(matmul(u, a), matmul(unsqueeze(u, 0), a).squeeze(0)), 0);
  EXPECT_LE(relative_error(matmul(v, v), sum(v * v)), 1e-14);
  EXPECT_EQ(to_string(matmul(v, batch).shape()), "[3, 2]");
  EXPECT_EQ(to_string(matmul(normal64({3, 7, 5}, g), v).shape()), "[3, 7]");
}

TEST(Matmul, DoesNotCopyTransposedOrBroadcastOperands) {
  Tensor a = ones({64, 64}), b = ones({8, 64, 64});
  NoGrad guard;
  reset_peak_memory();
  int64_t before = memory_stats().allocated;
  Tensor c = matmul(transpose(a, 0, 1), transpose(b, 1, 2));
  EXPECT_EQ(memory_stats().peak_allocated - before, 8 * 64 * 64 * 4);
}

TEST(Matmul, WalksMoreBatchDimsThanTheKernelTakes) {
  Generator g(2);
  Tensor a = permute(normal64({2, 3, 2, 2, 3, 3, 4}, g), {4, 2, 0, 3, 1, 5, 6}), b = normal64({3, 1, 2, 1, 3, 4, 2}, g);
  Tensor got = matmul(a, b);
  EXPECT_EQ(to_string(got.shape()), "[3, 2, 2, 2, 3, 3, 2]");
  Tensor products = unsqueeze(a, -1) * unsqueeze(b, -3);
  EXPECT_LE(relative_error(got, sum(products, {-2})), 1e-14);
}

TEST(Linear, NamesTheRuleThatIsBroken) {
  Tensor x = zeros({2, 3}), w = zeros({5, 3});
  EXPECT_EQ(error_of([&] {
              linear(zeros({2, 4}), w);
            }),
            "linear: the last dim of x is not the weight's: [2, 4] and [5, 3]");
  EXPECT_EQ(error_of([&] { linear(x, zeros({3})); }), "linear: weight must have 2 dims, not shape [3]");
  EXPECT_EQ(error_of([&] { linear(x, w, zeros({3})); }), "linear: bias has shape [3], not [5]");
  EXPECT_EQ(error_of([&] { linear_act(x, w, {}, Activation::Relu, zeros({5})); }),
            "linear: residual has shape [5], not [2, 5]");
}

TEST(Linear, EqualsItsComposition) {
  Generator g(3);
  Tensor x = normal64({5, 7, 13}, g), w = normal64({11, 13}, g), b = normal64({11}, g), r = normal64({5, 7, 11}, g);
  auto fused = [](const Tensors& in) { return linear_act(in[0], in[1], in[2], Activation::GeluTanh, in[3]); };
  auto composed = [](const Tensors& in) { return gelu_tanh(matmul(in[0], transpose(in[1], 0, 1)) + in[2]) + in[3]; };
  EXPECT_LE(relative_error(fused({x, w, b, r}), composed({x, w, b, r})), 1e-13);
  Tensors got = gradients_of(fused, {x, w, b, r}, false), want = gradients_of(composed, {x, w, b, r}, true);
  for (size_t i = 0; i < 4; ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << i;
}

TEST(Linear, ReadsRowsThatCannotBeMerged) {
  Generator g(4);
  Tensor x = transpose(normal64({3, 5, 7}, g), 0, 1), w = normal64({4, 7}, g);
  EXPECT_LE(relative_error(linear(x, w), linear(contiguous(x), w)), 1e-15);
}

// Those of attention that turns [n, tokens, c] to [tokens, n, c]: the gradients, too.
TEST(Linear, ReadsRowsThatAreScattered) {
  Generator g(3);
  const Tensor base = normal64({5, 37, 12}, g), w = normal64({9, 12}, g), b = normal64({9}, g);
  const Tensor dy = normal64({37, 5, 9}, g);
  const auto results = [&](bool is_dense) {
    const Tensor leaf = base.detach().set_requires_grad(), weight = w.detach().set_requires_grad();
    const Tensor x = permute(leaf, {1, 0, 2}), y = linear(is_dense ? contiguous(x) : x, weight, b);
    Tensors out = grad({y}, {leaf, weight}, {dy});
    out.push_back(y);
    return out;
  };
  const Tensors got = results(false), want = results(true);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-14) << i;
  const Tensor repeated = expand(unsqueeze(base.slice(0, 0, 1), 1), {1, 4, 37, 12});  // whose rows are long
  EXPECT_LE(relative_error(linear(repeated, w, b), linear(contiguous(repeated), w, b)), 1e-14);
}

TEST(Linear, IsCloseInHalfPrecision) {
  Generator g(5);
  expect_half_precision_close(
      [](const Tensors& in) { return linear_act(in[0], in[1], in[2], Activation::GeluTanh, in[3]); },
      {normal64({9, 31}, g), normal64({17, 31}, g), normal64({17}, g), normal64({9, 17}, g)}, 1e-3);
}

TEST(MatmulMulSum, NamesTheRuleThatIsBroken) {
  const Tensor a = zeros({2, 3}), b = zeros({3, 5});
  EXPECT_EQ(error_of([&] { matmul_mul_sum(a, b, zeros({5}), true, true); }),
            "matmul_mul_sum: factor has shape [5], not [2, 5]");
  EXPECT_EQ(error_of([&] { matmul_mul_sum(b, a, {}, true, true); }),
            "matmul_mul_sum: inner dimensions differ: [3, 5] x [2, 3]");
  EXPECT_EQ(error_of([&] {
              matmul_mul_sum(a, b, zeros({2, 5}, Float64), true, true);
            }),
            "matmul_mul_sum: dtypes differ: f32[2, 3] on cpu and f64[2, 5] on cpu");
}

TEST(MatmulMulSum, SumsOfHalvesAreKeptInFloat) {
  // 4096 ones: a sum in bf16 would stay at 256, one in f16 at 2048.
  for (DType dtype : {Float16, BFloat16}) {
    const Tensor a = ones({4096, 1}, dtype), b = ones({1, 3}, dtype);
    const Tensors out = matmul_mul_sum(a, b, {}, true, true);
    EXPECT_EQ(relative_error(out[1].to(Float64), full({4096}, 3, Float64)), 0);
    EXPECT_EQ(relative_error(out[2].to(Float64), full({3}, 4096, Float64)), 0);
  }
}

TEST(MatmulMulSum, IsTheSameEachTime) {
  Generator g(3);
  const Tensor a = normal64({301, 257}, g).to(Float32), b = normal64({257, 403}, g).to(Float32),
               factor = normal64({301, 403}, g).to(Float32);
  const Tensors first = matmul_mul_sum(a, b, factor, true, true);
  for (int trial = 0; trial < 5; ++trial) {
    const Tensors again = matmul_mul_sum(a, b, factor, true, true);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(relative_error(again[i], first[i]), 0);
  }
}

TEST(Mlp, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({2, 3}), up = zeros({7, 3}), down = zeros({5, 7});
  const auto run = [&](const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                       const Tensor& down_bias = {}, const Tensor& residual = {}) {
    return error_of([&] { mlp(x, up, up_bias, Activation::Relu, down, down_bias, residual); });
  };
  EXPECT_EQ(run(zeros({2, 4}), up, {}, down), "mlp: the last dim of x is not that of up: [2, 4] and [7, 3]");
  EXPECT_EQ(run(x, up, {}, zeros({5, 6})), "mlp: up gives what down does not take: [7, 3] and [5, 6]");
  EXPECT_EQ(run(x, up, zeros({3}), down), "mlp: the bias of up has shape [3], not [7]");
  EXPECT_EQ(run(x, up, {}, down, zeros({3})), "mlp: the bias of down has shape [3], not [5]");
  EXPECT_EQ(run(x, up, {}, down, {}, x), "mlp: residual has shape [2, 3], not [2, 5]");
  EXPECT_EQ(run(x, up, {}, zeros({5})), "mlp: down must have 2 dims, not shape [5]");
}

TEST(Mlp, IsTwoLinearLayers) {
  Generator g(4);
  const Tensors in = {normal64({3, 11, 13}, g), normal64({29, 13}, g), normal64({29}, g),
                      normal64({7, 29}, g),     normal64({7}, g),      normal64({3, 11, 7}, g)};
  const auto fused = [](const Tensors& t) { return mlp(t[0], t[1], t[2], Activation::Silu, t[3], t[4], t[5]); };
  const auto apart = [](const Tensors& t) {
    return linear_act(linear_act(t[0], t[1], t[2], Activation::Silu), t[3], t[4], Activation::None, t[5]);
  };
  EXPECT_EQ(relative_error(fused(in), apart(in)), 0);
  Tensors leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  const Tensor weights = normal64({3, 11, 7}, g);
  const Tensors got = grad({fused(leaves)}, leaves, {weights}), want = grad({apart(leaves)}, leaves, {weights});
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-14) << i;
  const Tensors some = grad({fused(leaves)}, {leaves[0]}, {weights});
  EXPECT_LE(relative_error(some[0], want[0]), 1e-14);
}

TEST(Mlp, KeepsAWideResidual) {
  Generator g(5);
  const auto f32 = [&](const Shape& shape) { return normal64(shape, g).to(Float32); };
  const Tensor x = f32({5, 8}), up = f32({16, 8}), down = f32({8, 16});
  amp::Autocast guard(BFloat16);
  EXPECT_EQ(mlp(x, up, {}, Activation::Relu, down, {}, x).dtype(), Float32);
  EXPECT_EQ(mlp(x, up, {}, Activation::Relu, down).dtype(), BFloat16);
}

}  // namespace
}  // namespace tessera
