// Normalisations and their gradients against float64 formulas and finite differences.
#include "tile/kernels/norm.h"

#include <functional>

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

Numbers layer_norm_reference(const Numbers& x, i64 n, const Numbers& w, const Numbers& b, double eps, bool centred) {
  Numbers y;
  for (size_t r = 0; r < x.size() / n; ++r) {
    double mean = 0, squares = 0;
    for (i64 i = 0; i < n && centred; ++i) mean += x[r * n + i] / n;
    for (i64 i = 0; i < n; ++i) squares += std::pow(x[r * n + i] - mean, 2) / n;
    for (i64 i = 0; i < n; ++i) y.push_back((x[r * n + i] - mean) / std::sqrt(squares + eps) * w[i] + b[i]);
  }
  return y;
}

/// Gradient of sum(f(x) dy) by central differences.
Numbers differences(const std::function<Numbers(const Numbers&)>& f, Numbers x, const Numbers& dy) {
  Numbers g;
  const double h = 1e-5;
  for (double& v : x) {
    const double kept = v;
    v = kept + h;
    const Numbers up = f(x);
    v = kept - h;
    const Numbers down = f(x);
    v = kept;
    double sum = 0;
    for (size_t i = 0; i < up.size(); ++i) sum += (up[i] - down[i]) / (2 * h) * dy[i];
    g.push_back(sum);
  }
  return g;
}

template <class T>
class NormTyped : public testing::Test {};
using Floats = testing::Types<float, double, f16, bf16>;
TYPED_TEST_SUITE(NormTyped, Floats);

TYPED_TEST(NormTyped, LayerAndRmsForward) {
  using T = TypeParam;
  using C = compute_t<T>;
  for (const i64 n : {1, 7, 64, 65, 131, 768, 5003}) {
    const i64 rows = n > 1000 ? 3 : 37;
    const auto x = converted<T>(random_values(rows * n, n)), w = converted<T>(random_values(n, 2)),
               b = converted<T>(random_values(n, 3));
    std::vector<T> y(rows * (n + 5)), z(rows * n), plain(rows * n);
    std::vector<C> mean(rows), rstd(rows);
    layer_norm<T>(executor(), rows, n, out(y, n + 5), in(x, n), w.data(), b.data(), mean.data(), rstd.data(), 1e-5);
    std::vector<T> packed_y;
    for (i64 r = 0; r < rows; ++r) packed_y.insert(packed_y.end(), &y[r * (n + 5)], &y[r * (n + 5)] + n);
    const Numbers ones(n, 1), zeros(n, 0);
    const auto reference = [&](const Numbers& weight, const Numbers& bias, bool centred) {
      return layer_norm_reference(widened(x), n, weight, bias, 1e-5, centred);
    };
    EXPECT_LT(relative_l2(widened(packed_y), reference(widened(w), widened(b), true)), tolerance<T>) << n;
    rms_norm<T>(executor(), rows, n, out(z, n), in(x, n), w.data(), rstd.data(), 1e-5);
    EXPECT_LT(relative_l2(widened(z), reference(widened(w), zeros, false)), tolerance<T>) << n;
    layer_norm<T>(executor(), rows, n, out(plain, n), in(x, n), nullptr, nullptr, mean.data(), rstd.data(), 1e-5);
    EXPECT_LT(relative_l2(widened(plain), reference(ones, zeros, true)), tolerance<T>) << n;
  }
}

// On either side of the mean from which on a second walk is needed, and far beyond. What is left is the rounding of the
// mean itself.
TEST(Norm, LayerNormOfElementsFarFromZero) {
  for (const double middle : {0.0, 1.7, 1.8, 12.0, 300.0}) {
    const i64 rows = 11, n = 771;
    const auto x = converted<float>(random_values(rows * n, 5, middle - 3, middle + 3));
    std::vector<float> y(rows * n), mean(rows), rstd(rows);
    layer_norm<float>(executor(), rows, n, out(y, n), in(x, n), nullptr, nullptr, mean.data(), rstd.data(), 1e-5);
    const Numbers want = layer_norm_reference(widened(x), n, Numbers(n, 1), Numbers(n, 0), 1e-5, true);
    EXPECT_LT(relative_l2(widened(y), want), 1e-6 + middle * 1e-7) << middle;
  }
}

template <bool Centred>
void check_backward(i64 rows, i64 n) {
  const auto x = random_values(rows * n, 4), w = random_values(n, 5), b = random_values(n, 6),
             dy = random_values(rows * n, 7);
  std::vector<double> y(rows * n), mean(rows), rstd(rows), dx(rows * n), dw(n), db(n);
  std::vector<char> workspace(norm_backward_workspace<double>(rows, n));
  if (Centred) {
    layer_norm<double>(executor(), rows, n, out(y, n), in(x, n), w.data(), b.data(), mean.data(), rstd.data(), 1e-3);
  } else {
    rms_norm<double>(executor(), rows, n, out(y, n), in(x, n), w.data(), rstd.data(), 1e-3);
  }
  norm_backward<Centred, double>(executor(), rows, n, out(dx, n), dw.data(), Centred ? db.data() : nullptr, in(dy, n),
                                 in(x, n), w.data(), mean.data(), rstd.data(), workspace.data());
  const Numbers none(n, 0);
  const auto f = [&](const Numbers& v, const Numbers& weight, const Numbers& bias) {
    return layer_norm_reference(v, n, weight, bias, 1e-3, Centred);
  };
  const Numbers& bias = Centred ? b : none;
  EXPECT_LT(relative_l2(dx, differences([&](const Numbers& v) { return f(v, w, bias); }, x, dy)), 1e-7);
  EXPECT_LT(relative_l2(dw, differences([&](const Numbers& v) { return f(x, v, bias); }, w, dy)), 1e-7);
  if (Centred) {
    EXPECT_LT(relative_l2(db, differences([&](const Numbers& v) { return f(x, w, v); }, b, dy)), 1e-7);
  }
  auto in_place = dy;  // the gradient may take the place of the incoming one
  norm_backward<Centred, double>(executor(), rows, n, out(in_place, n), dw.data(), Centred ? db.data() : nullptr,
                                 in(in_place, n), in(x, n), w.data(), mean.data(), rstd.data(), workspace.data());
  EXPECT_EQ(in_place, dx);
}

TEST(Norm, LayerAndRmsBackward) {
  for (const i64 n : {1, 5, 67}) {
    check_backward<true>(7, n);
    check_backward<false>(7, n);
  }
  check_backward<true>(101, 3);  // several slices
}

TEST(Norm, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  const i64 rows = 1001, n = 96;
  const auto x = converted<float>(random_values(rows * n, 8)), dy = converted<float>(random_values(rows * n, 9)),
             w = converted<float>(random_values(n, 10)), mean = converted<float>(random_values(rows, 11)),
             rstd = converted<float>(random_values(rows, 12, 0.5, 1));
  std::vector<char> workspace(norm_backward_workspace<float>(rows, n));
  std::vector<std::vector<float>> results;
  const int before = num_threads();
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<float> dx(rows * n), dw(n), db(n);
    norm_backward<true, float>(executor(), rows, n, out(dx, n), dw.data(), db.data(), in(dy, n), in(x, n), w.data(),
                               mean.data(), rstd.data(), workspace.data());
    dx.insert(dx.end(), dw.begin(), dw.end());
    dx.insert(dx.end(), db.begin(), db.end());
    results.push_back(dx);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

/// Normalises sets of planes: set(b, c) names the set of a plane.
Numbers plane_reference(const PlaneShape& s, const Numbers& x, const std::function<i64(i64, i64)>& set,
                        const Numbers& w, const Numbers& b, double eps) {
  Numbers y(x.size());
  std::vector<Moments<double>> moments(s.batch * s.channels + 1, {0, 0, 0});
  const auto each = [&](auto fn) {
    for (i64 i = 0; i < s.batch; ++i)
      for (i64 c = 0; c < s.channels; ++c)
        for (i64 k = 0; k < s.size; ++k) fn(moments[set(i, c)], c, (i * s.channels + c) * s.size + k);
  };
  each([&](auto& m, i64, i64 at) { m.mean += x[at], m.count += 1; });
  for (auto& m : moments) m.mean /= std::max(1.0, m.count);
  each([&](auto& m, i64, i64 at) { m.squares += std::pow(x[at] - m.mean, 2); });
  each([&](auto& m, i64 c, i64 at) { y[at] = (x[at] - m.mean) / std::sqrt(m.squares / m.count + eps) * w[c] + b[c]; });
  return y;
}

template <class T>
Planes<T> planes(T* data, const PlaneShape& s) {
  return {data, s.channels * s.size, s.size};
}

TEST(Norm, GroupNorm) {
  for (const PlaneShape s : {PlaneShape{2, 6, 11}, {1, 10, 1}, {3, 6, 70}}) {
    const i64 groups = 2, total = s.batch * s.channels * s.size;
    const auto x = random_values(total, 13), w = random_values(s.channels, 14), b = random_values(s.channels, 15),
               dy = random_values(total, 16);
    std::vector<double> y(total), mean(s.batch * groups), rstd(mean.size()), dx(total), dw(s.channels), db(s.channels);
    group_norm<double>(executor(), s, groups, planes(y.data(), s), planes(x.data(), s), w.data(), b.data(), mean.data(),
                       rstd.data(), 1e-3);
    const auto f = [&](const Numbers& v, const Numbers& weight, const Numbers& bias) {
      const auto set = [&](i64 i, i64 c) { return i * groups + c / (s.channels / groups); };
      return plane_reference(s, v, set, weight, bias, 1e-3);
    };
    EXPECT_LT(relative_l2(y, f(x, w, b)), 1e-13);
    std::vector<char> workspace(plane_norm_workspace(s));
    group_norm_backward<double>(executor(), s, groups, planes(dx.data(), s), dw.data(), db.data(), planes(dy.data(), s),
                                planes(x.data(), s), w.data(), mean.data(), rstd.data(), workspace.data());
    EXPECT_LT(relative_l2(dx, differences([&](const Numbers& v) { return f(v, w, b); }, x, dy)), 1e-7);
    EXPECT_LT(relative_l2(dw, differences([&](const Numbers& v) { return f(x, v, b); }, w, dy)), 1e-7);
    EXPECT_LT(relative_l2(db, differences([&](const Numbers& v) { return f(x, w, v); }, b, dy)), 1e-7);
  }
}

TEST(Norm, BatchNorm) {
  for (const PlaneShape s : {PlaneShape{3, 5, 11}, {7, 3, 1}, {2, 2, 131}}) {
    const i64 total = s.batch * s.channels * s.size, count = s.batch * s.size;
    const auto x = random_values(total, 17), w = random_values(s.channels, 18), b = random_values(s.channels, 19),
               dy = random_values(total, 20);
    std::vector<double> y(total), mean(s.channels), rstd(s.channels), dx(total), dw(s.channels), db(s.channels),
        running_mean(s.channels, 1), running_variance(s.channels, 2);
    batch_norm_training<double>(executor(), s, planes(y.data(), s), planes(x.data(), s), w.data(), b.data(),
                                {running_mean.data(), running_variance.data(), 0.25}, mean.data(), rstd.data(), 1e-3);
    const auto f = [&](const Numbers& v, const Numbers& weight, const Numbers& bias) {
      return plane_reference(
          s, v, [](i64, i64 c) { return c; }, weight, bias, 1e-3);
    };
    EXPECT_LT(relative_l2(y, f(x, w, b)), 1e-13);
    for (i64 c = 0; c < s.channels; ++c) {
      EXPECT_NEAR(running_mean[c], 0.75 + 0.25 * mean[c], 1e-12);
      const double variance = (1 / (rstd[c] * rstd[c]) - 1e-3) * count / (count - 1);
      EXPECT_NEAR(running_variance[c], 1.5 + 0.25 * variance, 1e-10);
    }
    batch_norm_backward<double>(executor(), s, true, planes(dx.data(), s), dw.data(), db.data(), planes(dy.data(), s),
                                planes(x.data(), s), w.data(), mean.data(), rstd.data());
    EXPECT_LT(relative_l2(dx, differences([&](const Numbers& v) { return f(v, w, b); }, x, dy)), 1e-7);
    EXPECT_LT(relative_l2(dw, differences([&](const Numbers& v) { return f(x, v, b); }, w, dy)), 1e-7);
    EXPECT_LT(relative_l2(db, differences([&](const Numbers& v) { return f(x, w, v); }, b, dy)), 1e-7);

    std::vector<double> z(total), dx_fixed(total);
    batch_norm_inference<double>(executor(), s, planes(z.data(), s), planes(x.data(), s), w.data(), b.data(),
                                 running_mean.data(), running_variance.data(), 1e-3);
    batch_norm_backward<double>(executor(), s, false, planes(dx_fixed.data(), s), nullptr, nullptr,
                                planes(dy.data(), s), planes(x.data(), s), w.data(), mean.data(), rstd.data());
    for (i64 i = 0; i < total; ++i) {
      const i64 c = i / s.size % s.channels;
      EXPECT_NEAR(z[i], (x[i] - running_mean[c]) / std::sqrt(running_variance[c] + 1e-3) * w[c] + b[c], 1e-12);
      EXPECT_NEAR(dx_fixed[i], dy[i] * w[c] * rstd[c], 1e-12);
    }
  }
}

TEST(Norm, MomentsOfFarFromZero) {
  const i64 n = 10007;
  const auto x = converted<float>(random_values(n, 21, 1000, 1001));
  std::vector<float> y(n);
  float mean = 0, rstd = 0;
  layer_norm<float>(executor(), 1, n, out(y, n), in(x, n), nullptr, nullptr, &mean, &rstd, 0);
  const Numbers ones(n, 1), zeros(n, 0);
  EXPECT_LT(relative_l2(widened(y), layer_norm_reference(widened(x), n, ones, zeros, 0, true)), 2e-4);
}

}  // namespace
}  // namespace tessera::tile
