// Epilogue expressions, element by element and as vectors with a mask.
#include "tile/expr.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rows_check.h"

namespace tessera::tile {
namespace {

constexpr i64 m = 5, n = 37;

struct Matrices : testing::Test {
  std::vector<float> x = converted<float>(random_values(m * n, 1)), bias = converted<float>(random_values(n, 2)),
                     y = std::vector<float>(m * n, -7.f), pre = y;
  StridedView<const float, 2> load_x = strided(static_cast<const float*>(x.data()), {m, n}, {n, 1});
  StridedView<const float, 2> row = strided(static_cast<const float*>(bias.data()), {m, n}, {0, 1});
  StridedView<const float, 2> column = strided(static_cast<const float*>(bias.data()), {m, n}, {1, 0});
  StridedView<float, 2> store_y = strided(y.data(), {m, n}, {n, 1}), store_pre = strided(pre.data(), {m, n}, {n, 1});
};

TEST_F(Matrices, leaves_operators_and_numbers) {
  const auto e = (acc * 2 + load(load_x) - load(row)) / (3.f + load(column) * load(column));
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      const double expected = (2 * 1.5 + x[i * n + j] - bias[j]) / (3 + static_cast<double>(bias[i]) * bias[i]);
      EXPECT_NEAR(evaluate(e, 1.5f, i, j), expected, 1e-6);
    }
  }
}

TEST_F(Matrices, functions) {
  const double a = 0.7;
  EXPECT_NEAR(evaluate(relu(acc - 1), 0.7f, 0, 0), 0, 0);
  EXPECT_NEAR(evaluate(silu(acc), 0.7f, 0, 0), a / (1 + std::exp(-a)), 1e-6);
  EXPECT_NEAR(evaluate(tanh(exp(acc)), 0.7f, 0, 0), std::tanh(std::exp(a)), 1e-6);
  EXPECT_NEAR(evaluate(max(acc, 1) + min(acc, 0.5f), 0.7f, 0, 0), 1.5, 1e-6);
  EXPECT_NEAR(evaluate(gelu_erf(acc), 0.7f, 0, 0), a / 2 * std::erfc(-a / std::sqrt(2.0)), 1e-6);
  EXPECT_NEAR(evaluate(apply([](auto v) { return v * v; }, acc), 0.7f, 0, 0), a * a, 1e-6);
}

TEST_F(Matrices, several_outputs) {
  const auto e = also(store(store_y, relu(store(store_pre, acc + load(load_x)))), accumulate(store_y, acc));
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < n; ++j) evaluate(e, 0.25f, i, j);
  for (i64 i = 0; i < m * n; ++i) {
    EXPECT_EQ(pre[i], 0.25f + x[i]);
    EXPECT_EQ(y[i], std::max(0.f, pre[i]) + 0.25f);
  }
}

/// A row written by vectors, the last one masked, equals the row written element by element, and nothing else changes.
template <bool Unit, class E>
void check_vectors(const E& e, std::vector<float>& out) {
  using V = NativeVec<float>;
  const std::vector<float> untouched = out;
  for (i64 j = 0; j < n; ++j) evaluate(e, static_cast<float>(j), 2, j);
  const std::vector<float> expected = out;
  out = untouched;
  const auto at = e.template row<Unit>(2);
  for (i64 j = 0; j < n; j += V::lanes) {
    const V a = iota<V>() + V(static_cast<float>(j));
    if (j + V::lanes <= n) {
      at(a, j, AllLanes{});
    } else {
      at(a, j, static_cast<int>(n - j));
    }
  }
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5f) << i;
}
TEST_F(Matrices, vectors_with_a_mask) {
  check_vectors<false>(store(store_y, acc + load(load_x) * load(row) + load(column)), y);
  check_vectors<true>(store(store_y, gelu_tanh(acc) + load(load_x)), y);
  const auto transposed = strided(y.data(), {n, m}, {m, 1});
  check_vectors<false>(store(transform(transposed, pass<1>(), pass<0>()), acc), y);
  const auto pairs = transform(strided(y.data(), {m, n / 2, 2}, {n, 1, n / 2}), pass(), merge<1, 2>());
  const auto inside = transform(pairs, pass(), pad(0, 1));  // the last column does not exist and is not written
  check_vectors<false>(store(inside, acc + load(inside)), y);
}

TEST_F(Matrices, halves_are_converted) {
  std::vector<bf16> half(m * n);
  const auto to = strided(half.data(), {m, n}, {n, 1});
  evaluate(store(to, acc + load(load_x)), 1.f, 3, 4);
  EXPECT_EQ(half[3 * n + 4].bits, bf16(1.f + x[3 * n + 4]).bits);
  EXPECT_EQ(evaluate(load(to) + 0, 0.f, 3, 4), static_cast<float>(half[3 * n + 4]));
}

}  // namespace
}  // namespace tessera::tile
