#include "check.h"

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

TEST(Linear, IsCloseInHalfPrecision) {
  Generator g(5);
  expect_half_precision_close(
      [](const Tensors& in) { return linear_act(in[0], in[1], in[2], Activation::GeluTanh, in[3]); },
      {normal64({9, 31}, g), normal64({17, 31}, g), normal64({17}, g), normal64({9, 17}, g)}, 1e-3);
}

}  // namespace
}  // namespace tessera
