// Tile operators alone: transfer, map, reduction and spreading, over several layouts, with ragged edges.
#include "tile/tile.h"

#include "rows_check.h"

namespace tessera::tile {
namespace {

struct Line {
  static constexpr auto layout() { return named("n", repeat(3) * vec(8)); }
};
struct Rows {
  static constexpr auto layout() { return named("mn", repeat(3, 2) * vec(1, 8)); }
};
struct Columns {  // vectors run down the first dimension
  static constexpr auto layout() { return named("mn", repeat(2, 3) * vec(8, 1)); }
};
struct Scalars {
  static constexpr auto layout() { return named("mn", repeat(2, 5)); }
};
struct Interleaved {
  static constexpr auto layout() { return named("mn", repeat(1, 2) * repeat(3, 1) * vec(1, 4)); }
};

constexpr auto add = [](auto a, auto b) { return a + b; };

template <class L>
class TileOf : public testing::Test {};
using Layouts = testing::Types<Rows, Columns, Scalars, Interleaved>;
TYPED_TEST_SUITE(TileOf, Layouts);

TYPED_TEST(TileOf, TransferCopiesRaggedViews) {
  for (i64 m : {1, 5, 24, 37}) {
    for (i64 n : {1, 3, 16, 53}) {
      const auto x = converted<float>(random_values(m * (n + 3), m * 100 + n));
      std::vector<double> y(m * n * 2, -1);
      const auto from = strided(x.data(), {m, n}, {n + 3, 1});
      const auto to = strided(y.data(), {m, n}, {2, 2 * m});  // another order, with holes, another type
      transfer<TypeParam>(from, to);
      for (i64 i = 0; i < m; ++i)
        for (i64 j = 0; j < n; ++j) {
          ASSERT_EQ(to.at(i, j), from.at(i, j));
          ASSERT_EQ(y[to.offset(i, j) + 1], -1) << "wrote between the elements";
        }
    }
  }
}

TYPED_TEST(TileOf, LoadFillsWhatLiesOutside) {
  using T = Tile<float, TypeParam>;
  constexpr auto layout = TypeParam::layout();
  const i64 m = layout.length(0) - 1, n = layout.length(1) - 2;
  const auto x = converted<float>(random_values(m * n, 3));
  const auto tile = load_tile<TypeParam>(packed(x.data(), {m, n}), {0, 0}, 0, 42.0f);
  for (int r = 0; r < T::registers; ++r) {
    const auto c = layout.coords(0, r);
    const float value = get(tile.part[r / T::lanes], r % T::lanes);
    EXPECT_EQ(value, c[0] < m && c[1] < n ? x[c[0] * n + c[1]] : 42.0f);
  }
}

template <int Dim, class Layout>
void check_reduction() {
  constexpr auto layout = Layout::layout();
  const i64 m = layout.length(0), n = layout.length(1);
  const auto x = random_values(m * n, 5);
  const auto view = packed(x.data(), {m, n});
  const auto tile = load_tile<Layout>(view, {0, 0});
  const auto sum = reduce_tile<Dim>(tile, add);
  const auto moments = moments_tile<Dim>(tile);
  const auto best = argmax_tile<Dim>(tile);
  const i64 kept = Dim == 0 ? n : m, reduced = Dim == 0 ? m : n;
  std::vector<double> got(kept), mean(kept), squares(kept), largest(kept);
  std::vector<i32> index(kept);
  const auto result = [&](auto& v) {  // length 1 along the reduced dimension
    return Dim == 0 ? strided(v.data(), {1, n}, {0, 1}) : strided(v.data(), {m, 1}, {1, 0});
  };
  store_tile(result(got), {0, 0}, sum);
  store_tile(result(mean), {0, 0}, moments.mean);
  store_tile(result(squares), {0, 0}, moments.squares);
  store_tile(result(largest), {0, 0}, best.value);
  store_tile(result(index), {0, 0}, best.index);
  for (i64 i = 0; i < kept; ++i) {
    const auto element = [&](i64 k) { return Dim == 0 ? view.at(k, i) : view.at(i, k); };
    double want = 0, deviation = 0;
    i64 at = 0;
    for (i64 k = 0; k < reduced; ++k) want += element(k), at = element(k) > element(at) ? k : at;
    for (i64 k = 0; k < reduced; ++k) deviation += std::pow(element(k) - want / reduced, 2);
    EXPECT_NEAR(got[i], want, 1e-12);
    EXPECT_NEAR(mean[i], want / reduced, 1e-12);
    EXPECT_NEAR(squares[i], deviation, 1e-12);
    EXPECT_EQ(largest[i], element(at));
    EXPECT_EQ(index[i], at);
  }
  // what is spread back meets the elements it came from
  std::vector<double> centred(m * n);
  store_tile(packed(centred.data(), {m, n}), {0, 0}, map_tile([](auto v, auto s) { return v - s; }, tile, spread(sum)));
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < n; ++j) EXPECT_NEAR(centred[i * n + j], view.at(i, j) - got[Dim == 0 ? j : i], 1e-12);
}

TYPED_TEST(TileOf, ReductionsAndTheirSpreading) {
  check_reduction<0, TypeParam>();
  check_reduction<1, TypeParam>();
}

TEST(Tile, ReadsPaddingAsZero) {
  const auto x = converted<float>(random_values(7 * 9, 8));
  const auto padded = transform(packed(x.data(), {7, 9}), pad(2, 3), pad(1, 4));
  std::vector<float> y(12 * 14, -1);
  transfer<Rows>(padded, packed(y.data(), {12, 14}));
  for (i64 i = 0; i < 12; ++i)
    for (i64 j = 0; j < 14; ++j) {
      const bool inside = i >= 2 && i < 9 && j >= 1 && j < 10;
      EXPECT_EQ(y[i * 14 + j], inside ? x[(i - 2) * 9 + j - 1] : 0.0f);
    }
}

TEST(Tile, RowsOfSixteenBitElements) {
  const i64 n = 101;
  const auto x = converted<bf16>(random_values(n, 9));
  std::vector<f16> y(n);
  transfer<Line>(strided(x.data(), {n}, {1}), strided(y.data(), {n}, {1}));
  for (i64 i = 0; i < n; ++i) EXPECT_NEAR(static_cast<float>(y[i]), static_cast<float>(x[i]), 2e-3);
}

TEST(Tile, MomentsMergeWithoutCancellation) {
  const auto x = random_values(1000, 10, 1e6, 1e6 + 1);
  Moments<double> all{0, 0, 0};
  for (double v : x) all = merge(all, Moments<double>{v, 0, 1});
  double mean = 0, squares = 0;
  for (double v : x) mean += v / 1000;
  for (double v : x) squares += (v - mean) * (v - mean);
  EXPECT_NEAR(all.mean, mean, 1e-9);
  EXPECT_NEAR(all.squares / squares, 1, 1e-9);
}

TEST(Tile, ArgmaxTakesNanAndTheFirstOfEquals) {
  std::vector<float> x(24, 1.0f);
  const auto view = strided(x.data(), {24}, {1});
  EXPECT_EQ(get(argmax_tile<0>(load_tile<Line>(view, {0})).index.part[0], 0), 0);
  x[17] = NAN;
  EXPECT_EQ(get(argmax_tile<0>(load_tile<Line>(view, {0})).index.part[0], 0), 17);
}

}  // namespace
}  // namespace tessera::tile
