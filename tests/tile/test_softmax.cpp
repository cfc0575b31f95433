// Softmax, log-softmax and cross-entropy against float64 formulas and finite differences.
#include "tile/kernels/softmax.h"

#include "rows_check.h"

namespace tessera::tile {
namespace {

using Numbers = std::vector<double>;

template <class T>
Rows<const T> in(const std::vector<T>& v, i64 pitch) {
  return {v.data(), pitch};
}
template <class T>
Rows<T> out(std::vector<T>& v, i64 pitch) {
  return {v.data(), pitch};
}

Numbers log_softmax_reference(const Numbers& x, i64 n) {
  Numbers y;
  for (size_t r = 0; r < x.size() / n; ++r) {
    double largest = -INFINITY, sum = 0;
    for (i64 i = 0; i < n; ++i) largest = std::max(largest, x[r * n + i]);
    for (i64 i = 0; i < n; ++i) sum += std::exp(x[r * n + i] - largest);
    for (i64 i = 0; i < n; ++i) y.push_back(x[r * n + i] - largest - std::log(sum));
  }
  return y;
}

template <class T>
class SoftmaxTyped : public testing::Test {};
using Floats = testing::Types<float, double, f16, bf16>;
TYPED_TEST_SUITE(SoftmaxTyped, Floats);

TYPED_TEST(SoftmaxTyped, ForwardOfEveryLength) {
  using T = TypeParam;
  for (const i64 n : {1, 7, 63, 64, 65, 768, 5003}) {
    const i64 rows = n > 1000 ? 3 : 41;
    const auto x = converted<T>(random_values(rows * n, n, -9, 9));
    std::vector<T> p(rows * n), l(rows * n);
    softmax<T>(executor(), rows, n, out(p, n), in(x, n));
    log_softmax<T>(executor(), rows, n, out(l, n), in(x, n));
    Numbers want = log_softmax_reference(widened(x), n);
    EXPECT_LT(relative_l2(widened(l), want), tolerance<T>) << n;
    for (double& v : want) v = std::exp(v);
    EXPECT_LT(relative_l2(widened(p), want), tolerance<T>) << n;
    auto y = x;  // in place
    softmax<T>(executor(), rows, n, out(y, n), in(y, n));
    EXPECT_EQ(widened(y), widened(p));
  }
}

TEST(Softmax, LargeAndInfiniteElements) {
  std::vector<float> x{1e30f, -INFINITY, 1e30f, -INFINITY, 0, -INFINITY}, y(6);
  softmax<float>(executor(), 2, 3, out(y, 3), in(x, 3));
  EXPECT_EQ(y, (std::vector<float>{0.5f, 0, 0.5f, 0, 1, 0}));
  log_softmax<float>(executor(), 2, 3, out(y, 3), in(x, 3));
  EXPECT_EQ(y[4], 0);
  EXPECT_EQ(y[3], -INFINITY);
  x = {-INFINITY, -INFINITY, -INFINITY, 1, NAN, 2};
  softmax<float>(executor(), 2, 3, out(y, 3), in(x, 3));
  for (float v : y) EXPECT_TRUE(std::isnan(v));
}

TEST(Softmax, RowsFarFromZeroAndOfAnyWidth) {  // some take the exponentials of ordinary rows, some the others
  const i64 n = 301;
  for (const double shift : {0., -250., 3e4, -6.5e4, 7e4, 1e6}) {
    for (const double width : {0.5, 40., 85., 87., 300.}) {
      const auto x = converted<float>(random_values(2 * n, n, shift - width, shift));
      std::vector<float> y(2 * n);
      softmax<float>(executor(), 2, n, out(y, n), in(x, n));
      Numbers want = log_softmax_reference(widened(x), n);
      for (double& v : want) v = std::exp(v);
      EXPECT_LT(relative_l2(widened(y), want), tolerance<float>) << shift << " " << width;
    }
  }
  std::vector<float> x(n, 1), y(n);
  x[7] = -INFINITY;  // a masked element
  softmax<float>(executor(), 1, n, out(y, n), in(x, n));
  EXPECT_EQ(y[7], 0);
  EXPECT_FLOAT_EQ(y[n - 1], 1.0f / 300);
  for (const i64 at : {i64{0}, i64{150}, n - 1}) {
    x[at] = NAN;
    softmax<float>(executor(), 1, n, out(y, n), in(x, n));
    for (float v : y) EXPECT_TRUE(std::isnan(v)) << at;
    x[at] = 1;
  }
}

TEST(Softmax, Backward) {
  const i64 rows = 5, n = 67;
  const auto x = random_values(rows * n, 2), dy = random_values(rows * n, 3);
  std::vector<double> p(rows * n), l(rows * n), dp(rows * n), dl(rows * n);
  softmax<double>(executor(), rows, n, out(p, n), in(x, n));
  log_softmax<double>(executor(), rows, n, out(l, n), in(x, n));
  softmax_backward<double>(executor(), rows, n, out(dp, n), in(dy, n), in(p, n));
  log_softmax_backward<double>(executor(), rows, n, out(dl, n), in(dy, n), in(l, n));
  Numbers want_p, want_l;
  for (i64 i = 0; i < rows * n; ++i) {
    double by_p = 0, by_l = 0;
    for (i64 j = i / n * n; j < i / n * n + n; ++j) {
      by_p += dy[j] * p[j] * ((i == j) - p[i]);
      by_l += dy[j] * ((i == j) - p[i]);
    }
    want_p.push_back(by_p);
    want_l.push_back(by_l);
  }
  EXPECT_LT(relative_l2(dp, want_p), 1e-13);
  EXPECT_LT(relative_l2(dl, want_l), 1e-13);
}

TYPED_TEST(SoftmaxTyped, CrossEntropy) {
  using T = TypeParam;
  using C = compute_t<T>;
  for (const double smoothing : {0.0, 0.1}) {
    for (const i64 n : {2, 65, 257}) {
      const CrossEntropyProblem problem{23, n, -100, smoothing};
      const auto x = converted<T>(random_values(problem.rows * n, n));
      std::vector<i64> targets;
      for (i64 r = 0; r < problem.rows; ++r) targets.push_back(r % 7 == 3 ? -100 : r * 31 % n);
      EXPECT_EQ(invalid_target(problem, targets.data()), -1);
      const auto scale = converted<C>(random_values(problem.rows, 4));
      std::vector<C> losses(problem.rows), lse(problem.rows);
      cross_entropy<T>(executor(), problem, in(x, n), targets.data(), losses.data(), lse.data());
      auto dx = x;  // in place
      cross_entropy_backward<T>(executor(), problem, out(dx, n), in(dx, n), targets.data(), lse.data(), scale.data(),
                                1);
      const Numbers l = log_softmax_reference(widened(x), n);
      Numbers want, want_dx;
      for (i64 r = 0; r < problem.rows; ++r) {
        double loss = 0;
        for (i64 i = 0; i < n; ++i) {
          const bool ignored = targets[r] == -100;
          const double q = (targets[r] == i) * (1 - smoothing) + smoothing / n;
          loss -= ignored ? 0 : q * l[r * n + i];
          want_dx.push_back(ignored ? 0 : (std::exp(l[r * n + i]) - q) * scale[r]);
        }
        want.push_back(loss);
      }
      EXPECT_LT(relative_l2(widened(losses), want), sizeof(C) == 8 ? 1e-14 : 1e-6);
      EXPECT_LT(relative_l2(widened(dx), want_dx), tolerance<T>);
    }
  }
}

TEST(Softmax, CrossEntropyFindsInvalidTargets) {
  const CrossEntropyProblem problem{4, 10, -1, 0};
  const i64 beyond[] = {0, -1, 10, 3}, negative[] = {9, 9, 9, -2};
  EXPECT_EQ(invalid_target(problem, beyond), 2);
  EXPECT_EQ(invalid_target(problem, negative), 3);
}

}  // namespace
}  // namespace tessera::tile
