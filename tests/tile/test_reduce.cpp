// Reductions against float64 loops: inner, outer and mixed dimensions, strides, odd sizes, every reducer.
#include "tile/kernels/reduce.h"

#include <algorithm>
#include <array>
#include <functional>

#include "rows_check.h"

namespace tessera::tile {
namespace {

using Numbers = std::vector<double>;

struct Shape {
  i64 n[3];
  bool reduced[3];
};
const Shape shapes[] = {
    {{1, 1, 1}, {false, true, false}},    {{1, 7, 1}, {true, true, true}},       {{3, 5, 7}, {false, false, true}},
    {{3, 5, 7}, {true, false, false}},    {{3, 5, 7}, {false, true, false}},     {{2, 67, 130}, {true, true, false}},
    {{2, 67, 130}, {true, false, true}},  {{37, 3, 1031}, {false, false, true}}, {{2100, 2, 65}, {true, false, false}},
    {{5, 300, 16}, {false, true, false}}, {{70, 40, 90}, {true, true, true}},    {{1, 100003, 2}, {false, true, false}},
    {{4, 1, 64}, {true, false, false}},   {{300, 7, 200}, {true, false, false}}, {{3, 3000, 17}, {true, true, false}},
};

/// The elements of every result, in the order of the dimensions.
std::vector<Numbers> groups(const Shape& s, const std::function<double(i64, i64, i64)>& at) {
  i64 out[3], count = 1;
  for (int d = 0; d < 3; ++d) count *= out[d] = s.reduced[d] ? 1 : s.n[d];
  std::vector<Numbers> g(count);
  for (i64 i = 0; i < s.n[0]; ++i)
    for (i64 j = 0; j < s.n[1]; ++j)
      for (i64 k = 0; k < s.n[2]; ++k) {
        const i64 c[3] = {out[0] > 1 ? i : 0, out[1] > 1 ? j : 0, out[2] > 1 ? k : 0};
        g[(c[0] * out[1] + c[1]) * out[2] + c[2]].push_back(at(i, j, k));
      }
  return g;
}

template <class T, class Result>
void check(const Reducer& reducer, const std::function<double(const Numbers&)>& want, double allowed,
           double parameter = 0, bool ordered = false) {
  for (const Shape& s : shapes) {
    const i64 total = s.n[0] * s.n[1] * s.n[2];
    auto x = converted<T>(random_values(total * 2, total));
    if (std::is_integral_v<T>) {
      for (auto& v : x) v = convert_element<T>(std::floor(convert_element<double>(v)));
    }
    i64 out[3];
    for (int d = 0; d < 3; ++d) out[d] = s.reduced[d] ? 1 : s.n[d];
    const std::array views{strided(x.data(), {s.n[0], s.n[1], s.n[2]}, {s.n[1] * s.n[2], s.n[2], 1}),  // packed
                           strided(x.data(), {s.n[0], s.n[1], s.n[2]}, {1, s.n[0], s.n[0] * s.n[1]}),  // reversed
                           strided(x.data(), {s.n[0], s.n[1], s.n[2]}, {2 * s.n[2], 2 * s.n[0] * s.n[2], 2})};
    for (const auto& in : views) {
      std::vector<Result> y(out[0] * out[1] * out[2] + 1, Result(77));
      reduce_view<Result>(executor(), reducer, packed(y.data(), {out[0], out[1], out[2]}), in, parameter, ordered);
      Numbers got, wanted;
      for (const Numbers& g : groups(s, [&](i64 i, i64 j, i64 k) { return convert_element<double>(in.at(i, j, k)); })) {
        wanted.push_back(want(g));
      }
      EXPECT_EQ(y.back(), Result(77));
      for (size_t i = 0; i < wanted.size(); ++i) got.push_back(convert_element<double>(y[i]));
      EXPECT_LE(relative_l2(got, wanted), allowed)
          << s.n[0] << ' ' << s.n[1] << ' ' << s.n[2] << " reduced " << s.reduced[0] << s.reduced[1] << s.reduced[2]
          << " stride " << in.stride(2);
    }
  }
}

double sum(const Numbers& g) {
  double s = 0;
  for (double v : g) s += v;
  return s;
}
double variance(const Numbers& g) {
  const double mean = sum(g) / g.size();
  double s = 0;
  for (double v : g) s += (v - mean) * (v - mean);
  return s;
}

template <class T>
class ReduceTyped : public testing::Test {};
using Types = testing::Types<float, double, bf16, i64>;
TYPED_TEST_SUITE(ReduceTyped, Types);

TYPED_TEST(ReduceTyped, SumProductExtremes) {
  using T = TypeParam;
  using C = compute_t<T>;
  const double exact = sizeof(C) == 8 ? 1e-13 : 2e-6;
  check<T, C>(reducer<SumFold, C>(), sum, exact);
  check<T, C>(
      reducer<MaxFold, C>(), [](const Numbers& g) { return *std::max_element(g.begin(), g.end()); }, 0);
  check<T, C>(
      reducer<MinFold, C>(), [](const Numbers& g) { return *std::min_element(g.begin(), g.end()); }, 0);
  check<T, C>(
      reducer<AnyFold, C>(),
      [](const Numbers& g) { return std::any_of(g.begin(), g.end(), [](double v) { return v != 0; }); }, 0);
  check<T, C>(
      reducer<AllFold, C>(),
      [](const Numbers& g) { return std::all_of(g.begin(), g.end(), [](double v) { return v != 0; }); }, 0);
  check<T, i64>(
      arg_reducer<C, true>(), [](const Numbers& g) { return std::max_element(g.begin(), g.end()) - g.begin(); }, 0, 0,
      true);
  check<T, i64>(
      arg_reducer<C, false>(), [](const Numbers& g) { return std::min_element(g.begin(), g.end()) - g.begin(); }, 0, 0,
      true);
}

template <class T>
void check_floating() {
  const double allowed = sizeof(T) == 8 ? 1e-12 : 2e-6;
  check<T, T>(
      reducer<MeanFold, T>(), [](const Numbers& g) { return sum(g) / g.size(); }, allowed);
  check<T, T>(
      reducer<NormFold, T>(),
      [](const Numbers& g) {
        double s = 0;
        for (double v : g) s += v * v;
        return std::sqrt(s);
      },
      allowed);
  check<T, T>(
      reducer<AbsSumFold, T>(),
      [](const Numbers& g) {
        double s = 0;
        for (double v : g) s += std::abs(v);
        return s;
      },
      allowed);
  check<T, T>(
      logsumexp_reducer<T>(),
      [](const Numbers& g) {
        double s = 0;
        for (double v : g) s += std::exp(v);
        return std::log(s);
      },
      allowed);
}

TEST(Reduce, FloatingPoint) {
  check_floating<float>();
  check_floating<double>();
}

TEST(Reduce, VarianceOfFarFromZero) {
  for (const double centre : {0.0, 1000.0}) {
    const i64 rows = 501, columns = 77;
    auto values = random_values(rows * columns, 3);
    for (double& v : values) v += centre;
    const auto x = converted<float>(values);
    std::vector<float> down(columns), across(rows);
    const auto in = packed(x.data(), {rows, columns});
    reduce_view<float>(executor(), variance_reducer<float>(), packed(down.data(), {1, columns}), in, 1);
    reduce_view<float>(executor(), variance_reducer<float>(), packed(across.data(), {rows, 1}), in, 0);
    Numbers want_down, want_across;
    for (i64 j = 0; j < columns; ++j) {
      Numbers g;
      for (i64 i = 0; i < rows; ++i) g.push_back(x[i * columns + j]);
      want_down.push_back(variance(g) / (rows - 1));
    }
    for (i64 i = 0; i < rows; ++i) {
      want_across.push_back(variance(Numbers(x.begin() + i * columns, x.begin() + (i + 1) * columns)) / columns);
    }
    EXPECT_LT(relative_l2(widened(down), want_down), centre > 0 ? 1e-5 : 1e-6);
    EXPECT_LT(relative_l2(widened(across), want_across), 1e-6);
  }
}

TEST(Reduce, FloatSumsStayAccurateOverMillions) {
  const i64 n = 3000001;
  const auto x = converted<float>(random_values(n, 5, 0, 1));
  float y = 0;
  reduce_view<float>(executor(), reducer<SumFold, float>(), packed(&y, {1}), packed(x.data(), {n}));
  EXPECT_NEAR(y / sum(widened(x)), 1, 1e-7);
}

TEST(Reduce, SameBitsForAnyNumberOfThreads) {
  const i64 rows = 3001, columns = 130;
  const auto x = converted<float>(random_values(rows * columns, 6));
  std::vector<std::vector<float>> results;
  const int before = num_threads();
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<float> y(columns + rows + 1);
    const auto in = packed(x.data(), {rows, columns});
    reduce_view<float>(executor(), reducer<SumFold, float>(), packed(y.data(), {1, columns}), in);
    reduce_view<float>(executor(), logsumexp_reducer<float>(), packed(y.data() + columns, {rows, 1}), in);
    reduce_view<float>(executor(), reducer<SquaresFold, float>(), packed(y.data() + columns + rows, {1, 1}), in);
    results.push_back(y);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Reduce, NotANumber) {
  std::vector<float> x(1500, 1.0f);
  x[1203] = NAN;
  x[1300] = NAN;
  float y = 0;
  i64 at = 0;
  const auto in = packed(static_cast<const float*>(x.data()), {1500});
  for (const Reducer& r :
       {reducer<MaxFold, float>(), reducer<MinFold, float>(), reducer<SumFold, float>(), logsumexp_reducer<float>()}) {
    reduce_view<float>(executor(), r, packed(&y, {1}), in);
    EXPECT_TRUE(std::isnan(y));
  }
  reduce_view<i64>(executor(), arg_reducer<float, true>(), packed(&at, {1}), in, 0, true);
  EXPECT_EQ(at, 1203);
}

TEST(Reduce, NothingToReduce) {
  double y = 3;
  reduce_view<double>(executor(), reducer<SumFold, double>(), packed(&y, {1}),
                      packed(static_cast<const double*>(&y), {0}));
  EXPECT_EQ(y, 0);
}

TEST(Reduce, InfinitiesInLogSumExp) {
  for (const auto& [x, want] : {std::pair{std::vector<float>(5, -INFINITY), -INFINITY},
                                {std::vector<float>{1, INFINITY, 2}, INFINITY},
                                {std::vector<float>{-INFINITY, 0.5f, -INFINITY}, 0.5f}}) {
    float y = 0;
    const i64 n = x.size();
    reduce_view<float>(executor(), logsumexp_reducer<float>(), packed(&y, {1}), packed(x.data(), {n}));
    EXPECT_FLOAT_EQ(y, want);
  }
}

}  // namespace
}  // namespace tessera::tile
