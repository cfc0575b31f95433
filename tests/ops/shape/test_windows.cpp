#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

using reference::Index;

TEST(Windows, AreViewsOfSeveralDims) {
  Generator g(1);
  const Tensor x = normal64({2, 9, 3, 11}, g);
  const Tensor y = sliding_windows(x, {1, -1}, {4, 3}, {2, 3}, {1, 2});
  EXPECT_TRUE(y.storage() == x.storage());
  const Tensor want = reference::generate({2, 3, 3, 3, 4, 3}, Float64, [&](const Index& i) {
    return reference::get(x, Index{i[0], i[1] * 2 + i[4], i[2], i[3] * 3 + i[5] * 2});
  });
  EXPECT_EQ(y.to_vector<double>(), want.to_vector<double>());
  EXPECT_EQ(sliding_windows(x, {}, {}).shape(), x.shape());
}

TEST(Windows, FoldIntoSums) {
  Generator g(2);
  for (const auto& [size, stride, dilation] :
       {std::array<int64_t, 3>{4, 1, 1}, {5, 2, 1}, {4, 4, 1}, {2, 5, 1}, {3, 2, 4}, {13, 7, 1}}) {
    const int64_t count = (13 - (size - 1) * dilation - 1) / stride + 1;
    const Tensor x = normal64({2, count, 3, size}, g);
    Tensor want = zeros({2, 13, 3}, Float64);
    reference::each_index(x.shape(), [&](const Index& i) {
      const Index to{i[0], i[1] * stride + i[3] * dilation, i[2]};
      reference::set(want, to, reference::get(want, to) + reference::get(x, i));
    });
    const auto fold_them = [&](const Tensors& in) { return fold_windows(in[0], {1}, {13}, {stride}, {dilation}); };
    EXPECT_LE(relative_error(fold_them({x}), want), 1e-15) << size << " " << stride << " " << dilation;
    expect_slopes(fold_them, {x});
  }
}

TEST(Windows, GradientsFold) {
  Generator g(3);
  expect_slopes(
      [](const Tensors& in) {
        return square(sliding_windows(in[0], {2, 1}, {3, 2}, {2, 1}, {1, 3}));
      },
      {normal64({2, 7, 9}, g)});
}

// What no window reaches, behind a single one, too.
TEST(Windows, GradientsAreThereForWhatNoWindowReaches) {
  Generator g(4);
  for (const auto& [size, stride, dilation] : {std::array<int64_t, 3>{2, 3, 1}, {1, 7, 1}, {2, 5, 2}, {2, 3, 2}})
    expect_slopes([&, size = size, stride = stride, dilation = dilation](
                      const Tensors& in) { return square(sliding_windows(in[0], {1}, {size}, {stride}, {dilation})); },
                  {normal64({3, 4}, g)});
}

// im2col by loops.
Tensor columns(const Tensor& x, const Windows& w, int64_t rows, int64_t cols) {
  const int64_t taps = w.size[0] * w.size[1];
  return reference::generate({x.size(0), x.size(1) * taps, rows * cols}, Float64, [&](const Index& i) {
    const int64_t tap = i[1] % taps;
    const int64_t row = i[2] / cols * w.stride[0] - w.low[0] + tap / w.size[1] * w.dilation[0];
    const int64_t col = i[2] % cols * w.stride[1] - w.low[1] + tap % w.size[1] * w.dilation[1];
    if (row < 0 || col < 0 || row >= x.size(2) || col >= x.size(3)) return 0.0;
    return reference::get(x, Index{i[0], i[1] / taps, row, col});
  });
}

TEST(Windows, UnfoldIntoColumnsAndFoldBack) {
  Generator g(4);
  const Tensor x = normal64({2, 3, 7, 10}, g);
  const Windows w{.size = {3, 2}, .stride = {2, 3}, .low = {1, 0}, .high = {2, 1}, .dilation = {1, 2}};
  const Tensor y = unfold(x, w);
  EXPECT_EQ(y.to_vector<double>(), columns(x, w, 4, 3).to_vector<double>());
  // <unfold(x), c> = <x, fold(c)>
  const Tensor c = normal64(y.shape(), g);
  const Tensor back = fold(c, {7, 10}, w);
  EXPECT_EQ(back.shape(), x.shape());
  EXPECT_NEAR(sum(mul(y, c)).item(), sum(mul(x, back)).item(), 1e-12);
  expect_slopes([&](const Tensors& in) { return square(fold(square(unfold(in[0], w)), {7, 10}, w)); }, {x});
  const Tensor line = normal64({1, 2, 5}, g);
  EXPECT_EQ(unfold(line, {.size = {2}}).shape(), (Shape{1, 4, 4}));
  EXPECT_EQ(unfold(normal64({1, 2, 5, 4, 3}, g), {.size = {2, 2, 3}}).shape(), (Shape{1, 24, 12}));
}

TEST(Windows, PadToTheSameSize) {
  const Windows odd = same_padding({.size = {3, 4}, .stride = {2, 1}}, {1, 1, 7, 6});
  EXPECT_EQ(std::vector<int64_t>(odd.low.begin(), odd.low.end()), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(std::vector<int64_t>(odd.high.begin(), odd.high.end()), (std::vector<int64_t>{1, 2}));
  const Windows lower = same_padding({.size = {4}}, {1, 1, 6}, false);
  EXPECT_EQ(lower.low[0], 2);
  EXPECT_EQ(lower.high[0], 1);
}

TEST(Windows, NameTheRuleThatIsBroken) {
  const Tensor x = zeros({2, 7});
  EXPECT_EQ(error_of([&] { sliding_windows(x, {1}, {8}); }),
            "sliding_window: a window of 8 with dilation 1 exceeds dim 1 of [2, 7]");
  EXPECT_EQ(error_of([&] { sliding_windows(x, {1}, {0}); }),
            "sliding_window: size 0, stride 1 and dilation 1 must be positive");
  EXPECT_EQ(error_of([&] { sliding_windows(x, {1}, {INT64_MAX}); }),
            "sliding_window: size 9223372036854775807, stride 1 and dilation 1 must not exceed 2^31");
  EXPECT_EQ(error_of([&] { sliding_windows(x, {2}, {1}); }), "sliding_windows: dim 2 is out of range for [2, 7]");
  EXPECT_EQ(error_of([&] { sliding_windows(x, {0, 1}, {1}); }), "sliding_windows: a list of 1 numbers for 2 dims");
  EXPECT_EQ(error_of([&] { fold_windows(x, {0}, {9}); }),
            "fold_windows: 2 windows of 7 do not lie on 9 elements of dim 0");
  EXPECT_EQ(error_of([&] { unfold(x, {.size = {2}}); }),
            "unfold: x must have one to three spatial dims, not shape [2, 7]");
  EXPECT_EQ(error_of([&] {
              unfold(zeros({1, 2, 3}), {.size = {5}, .low = {1}});
            }),
            "unfold: a window of 5 with dilation 1 exceeds the size 3 padded by 1 and 0");
  EXPECT_EQ(error_of([&] {
              fold(zeros({1, 6, 4}), {2, 2}, {.size = {2, 2}});
            }),
            "fold: 6 channels do not split into windows of 4 taps");
  EXPECT_EQ(error_of([&] {
              fold(zeros({1, 8, 4}), {3, 4}, {.size = {2, 2}});
            }),
            "fold: [1, 8, 4] has 4 windows, not 6");
}

}  // namespace
}  // namespace tessera
