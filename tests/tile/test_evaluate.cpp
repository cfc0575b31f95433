// Expressions over whole matrices against float64 loops: strided, transposed, padded and merged views, odd sizes.
#include "tile/kernels/evaluate.h"

#include <functional>

#include "rows_check.h"

namespace tessera::tile {
namespace {

const i64 sizes[][2] = {{1, 1}, {1, 7}, {7, 1}, {3, 16}, {5, 17}, {13, 67}, {2, 1024}, {3, 2503}, {67, 131}};

std::vector<double> matrix(i64 rows, i64 columns, const std::function<double(i64, i64)>& at) {
  std::vector<double> v(rows * columns);
  for (i64 i = 0; i < rows * columns; ++i) v[i] = at(i / columns, i % columns);
  return v;
}

template <class T>
class Evaluate : public testing::Test {};
using Types = testing::Types<float, double, f16, bf16>;
TYPED_TEST_SUITE(Evaluate, Types);

TYPED_TEST(Evaluate, MapsStridedViews) {
  for (const auto& [m, n] : sizes) {
    const auto x = converted<TypeParam>(random_values(m * n, 1)), bias = converted<TypeParam>(random_values(n, 2)),
               scale = converted<TypeParam>(random_values(m, 3));
    std::vector<TypeParam> y(m * n);
    const auto e = load(packed(x.data(), {m, n})) * load(strided(scale.data(), {m, n}, {1, 0})) +
                   load(strided(bias.data(), {m, n}, {0, 1}));
    const auto want = matrix(m, n, [&, n = n](i64 i, i64 j) {
      return convert_element<double>(x[i * n + j]) * convert_element<double>(scale[i]) +
             convert_element<double>(bias[j]);
    });
    map(executor(), store(packed(y.data(), {m, n}), e));
    EXPECT_LT(relative_l2(widened(y), want), tolerance<TypeParam>) << m << " x " << n;

    std::vector<TypeParam> columns(m * n);  // stored by columns
    map(executor(), store(strided(columns.data(), {m, n}, {1, m}), e));
    for (i64 i = 0; i < m * n; ++i) y[i] = columns[i % n * m + i / n];
    EXPECT_LT(relative_l2(widened(y), want), tolerance<TypeParam>) << m << " x " << n;
  }
}

TYPED_TEST(Evaluate, FoldsRows) {
  for (const auto& [m, n] : sizes) {
    const auto x = converted<TypeParam>(random_values(m * n, 4, -5, -1));  // a zero in a tail would be the largest
    std::vector<TypeParam> sum(m), largest(m), shifted(m * n);
    const auto view = packed(x.data(), {m, n});
    fold_rows<SumFold>(executor(), load(view), store(strided(sum.data(), {m, n}, {1, 0}), acc));
    fold_rows<MaxFold>(executor(), store(packed(shifted.data(), {m, n}), load(view) + 0.5),
                       store(strided(largest.data(), {m, n}, {1, 0}), acc * 2));
    std::vector<double> total(m), most(m, -100);
    for (i64 i = 0; i < m * n; ++i) {
      total[i / n] += convert_element<double>(x[i]);
      most[i / n] = std::max(most[i / n], 2 * (convert_element<double>(x[i]) + 0.5));
    }
    EXPECT_LT(relative_l2(widened(sum), total), tolerance<TypeParam>) << m << " x " << n;
    EXPECT_LT(relative_l2(widened(largest), most), tolerance<TypeParam>) << m << " x " << n;
    const auto want = matrix(m, n, [&, n = n](i64 i, i64 j) { return convert_element<double>(x[i * n + j]) + 0.5; });
    EXPECT_LT(relative_l2(widened(shifted), want), tolerance<TypeParam>);
  }
}

TEST(EvaluateViews, WindowsArePaddedAndMerged) {
  for (const i64 h : {1, 2, 5, 19}) {
    for (const i64 w : {1, 3, 8, 37}) {  // 3 x 3 windows of an h x w image, one row per window
      const auto x = converted<float>(random_values(h * w, 5));
      const auto padded = transform(packed(x.data(), {h, w}), pad(1, 1), pad(1, 1));
      const auto taps = transform(padded, embed({3, h}, {1, 1}), embed({3, w}, {1, 1}));
      const auto by_window = transform(taps, merge<1, 3>(), merge<0, 2>());
      const auto by_tap = transform(taps, merge<0, 2>(), merge<1, 3>());
      std::vector<float> copy(9 * h * w), squares(h * w);
      map(executor(), store(packed(copy.data(), {9, h * w}), load(by_tap)));
      fold_rows<SumFold>(executor(), square(load(by_window)), store(strided(squares.data(), {h * w, 9}, {1, 0}), acc));
      std::vector<double> want_copy(9 * h * w), want_squares(h * w);
      for (i64 i = 0; i < 9 * h * w; ++i) {
        const i64 tap = i / (h * w), pixel = i % (h * w), r = pixel / w + tap / 3 - 1, c = pixel % w + tap % 3 - 1;
        if (r < 0 || r >= h || c < 0 || c >= w) continue;
        want_copy[i] = x[r * w + c];
        want_squares[pixel] += want_copy[i] * want_copy[i];
      }
      EXPECT_LT(relative_l2(widened(copy), want_copy), 1e-6) << h << " x " << w;
      EXPECT_LT(relative_l2(widened(squares), want_squares), 1e-6) << h << " x " << w;
    }
  }
}

TEST(EvaluateViews, StoresThroughMergedViewsLeavePaddingAlone) {
  for (const i64 block : {1, 2, 3, 5}) {
    const i64 h = 7, w = 3, c = 5, n = block * block * c;
    const auto x = converted<float>(random_values(h * w * n, 6));
    std::vector<float> image(h * block * w * block * c + 2, 42);
    const auto patches = transform(packed(image.data() + 1, {h * block, w * block, c}), unmerge({h, block}),
                                   unmerge({w, block}), pass());
    const auto depth_to_space = transform(patches, merge<0, 2>(), merge<1, 3, 4>());
    map(executor(), store(transform(depth_to_space, pad(1, 2), pad(2, 1)),
                          load(transform(packed(x.data(), {h * w, n}), pad(1, 2), pad(2, 1)))));
    EXPECT_EQ(image.front(), 42);
    EXPECT_EQ(image.back(), 42);
    for (i64 i = 0; i < h * w * n; ++i) {
      const i64 pixel = i / n, depth = i % n;
      const i64 row = pixel / w * block + depth / c / block, column = pixel % w * block + depth / c % block;
      ASSERT_EQ(image[1 + (row * w * block + column) * c + depth % c], x[i]) << block << ": " << i;
    }
  }
}

TEST(EvaluateViews, ColumnsAtAStrideOrReversed) {
  const i64 m = 11, n = 45;
  const auto x = converted<float>(random_values(m * n * 3, 7));
  std::vector<float> y(m * n);
  const auto reversed = transform(packed(x.data(), {m, n * 3}), pass(), slice(n * 3 - 1, n, -3));
  const auto unstrided = transform(reversed, pad(0, 0), pass());  // the same, no longer known to be strided
  std::vector<double> want(m * n);
  for (i64 i = 0; i < m * n; ++i) want[i] = x[i / n * n * 3 + n * 3 - 1 - i % n * 3];
  map(executor(), store(packed(y.data(), {m, n}), load(reversed)));
  EXPECT_LT(relative_l2(widened(y), want), 1e-7);
  std::fill(y.begin(), y.end(), 0.f);
  map(executor(), store(packed(y.data(), {m, n}), load(unstrided)));
  EXPECT_LT(relative_l2(widened(y), want), 1e-7);
}

TEST(EvaluateViews, AThreadOfAnExecutorIsAnExecutor) {
  const i64 m = 37, n = 1031;
  const auto x = converted<float>(random_values(m * n, 8));
  std::vector<float> together(m), apart(m);
  fold_rows<MeanFold>(executor(), load(packed(x.data(), {m, n})), store(strided(together.data(), {m, n}, {1, 0}), acc));
  executor().parallel(m, [&](i64 row, int thread) {
    OneThread here(executor(), thread);
    ASSERT_EQ(here.threads(), 1);
    void* memory = here.scratch(0, 4096);
    ASSERT_EQ(memory, executor().scratch(thread, 4096));
    fold_rows<MeanFold>(here, load(packed(x.data() + row * n, {1, n})), store(packed(&apart[row], {1, 1}), acc));
  });
  EXPECT_EQ(together, apart);
}

}  // namespace
}  // namespace tessera::tile
