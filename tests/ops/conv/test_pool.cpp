#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

using reference::Index;

struct PoolUse {
  Shape x;
  Windows w;
  Shape out;
};
const std::vector<PoolUse>& pool_uses() {
  static const std::vector<PoolUse> uses = {
      {{2, 3, 11}, {.size = {3}}, {3}},
      {{2, 3, 11}, {.size = {3}, .stride = {2}, .low = {1}, .high = {2}, .dilation = {2}}, {5}},
      {{1, 2, 7, 10}, {.size = {3, 2}, .stride = {2, 3}}, {3, 3}},
      {{1, 2, 7, 10}, {.size = {3, 2}, .stride = {2, 3}, .low = {1, 1}, .high = {1, 1}}, {4, 4}},
      {{1, 2, 7, 10}, {.size = {2, 4}, .stride = {2, 3}, .low = {0, 3}, .high = {1, 2}}, {4, 4}},
      {{1, 2, 7, 10}, {.size = {2, 3}, .stride = {3, 2}, .low = {1, 0}, .high = {0, 0}, .ceil = true}, {3, 5}},
      {{1, 2, 7, 10}, {.size = {2, 3}, .stride = {3, 2}, .low = {1, 1}, .high = {1, 1}, .ceil = true}, {3, 6}},
      {{2, 2, 5, 7, 6}, {.size = {2, 3, 2}}, {2, 2, 3}},
      {{2, 1, 5, 7, 6}, {.size = {2, 3, 2}, .stride = {2, 1, 3}, .low = {1, 1, 0}, .high = {1, 1, 0}}, {3, 7, 2}},
      {{2, 1, 5, 7, 6},
       {.size = {2, 3, 2},
        .stride = {2, 1, 3},
        .low = {0, 2, 0},
        .high = {1, 0, 1},
        .dilation = {3, 1, 2},
        .ceil = true},
       {2, 7, 2}}};
  return uses;
}

// fn(elements of a window, whether each lies on x and not on padding) for each window; what lies beyond the padding is
// not among them.
template <class F>
Tensor by_windows(const PoolUse& use, const Tensor& x, F fn) {
  const auto spatial = static_cast<int64_t>(use.w.size.size());
  Shape shape{x.shape()[0], x.shape()[1]}, taps;
  for (const Dim d : use.out) shape.push_back(d);
  for (const int64_t n : use.w.size) taps.push_back(n);
  const auto number = [](const Dims& list, int64_t d, int64_t otherwise) { return list.empty() ? otherwise : list[d]; };
  return reference::generate(shape, Float64, [&](const Index& i) {
    std::vector<std::pair<double, int64_t>> elements;
    int64_t padding = 0;
    reference::each_index(taps, [&](const Index& tap) {
      Index at{i[0], i[1]};
      bool inside = true, padded = true;
      int64_t place = 0;
      for (int64_t d = 0; d < spatial; ++d) {
        const int64_t size = x.size(2 + d);
        at.push_back(i[2 + d] * number(use.w.stride, d, use.w.size[d]) - number(use.w.low, d, 0) +
                     tap[d] * number(use.w.dilation, d, 1));
        inside = inside && at.back() >= 0 && at.back() < size;
        padded = padded && at.back() < size + number(use.w.high, d, 0);
        place = place * size + at.back();
      }
      if (inside) elements.push_back({reference::get(x, at), place});
      else padding += padded;
    });
    return fn(elements, padding);
  });
}

using Elements = std::vector<std::pair<double, int64_t>>;

TEST(Pool, TakesMaxima) {
  Generator g(1);
  for (const PoolUse& use : pool_uses()) {
    const Tensor x = normal64(use.x, g);
    const Tensor want =
        by_windows(use, x, [](const Elements& e, int64_t) { return std::max_element(e.begin(), e.end())->first; });
    EXPECT_EQ(max_pool(x, use.w).to_vector<double>(), want.to_vector<double>());
    EXPECT_EQ(max_pool(x, use.w).shape(), want.shape());
    const Tensor places = by_windows(use, x, [](const Elements& e, int64_t) {
      return static_cast<double>(std::max_element(e.begin(), e.end())->second);
    });
    const auto [values, indices] = max_pool_with_indices(x, use.w);
    EXPECT_EQ(values.to_vector<double>(), want.to_vector<double>());
    EXPECT_EQ(indices.to_vector<double>(), places.to_vector<double>());
    expect_slopes([&](const Tensors& in) { return max_pool(in[0], use.w); }, {x});
    const Tensor whole = mul(x, 20).to(Int32);
    const Tensor most = by_windows(
        use, whole.to(Float64), [](const Elements& e, int64_t) { return std::max_element(e.begin(), e.end())->first; });
    EXPECT_EQ(max_pool(whole, use.w).dtype(), Int32);
    EXPECT_EQ(max_pool(whole, use.w).to_vector<double>(), most.to_vector<double>());
  }
}

TEST(Pool, TakesAverages) {
  Generator g(2);
  for (const PoolUse& use : pool_uses())
    for (const bool include : {false, true}) {
      const Tensor x = normal64(use.x, g);
      const Tensor want = by_windows(use, x, [&](const Elements& e, int64_t padding) {
        double sum = 0;
        for (const auto& [value, place] : e) sum += value;
        return sum / static_cast<double>(static_cast<int64_t>(e.size()) + (include ? padding : 0));
      });
      EXPECT_LE(relative_error(avg_pool(x, use.w, include), want), 1e-14) << to_string(use.x) << include;
      expect_slopes([&](const Tensors& in) { return avg_pool(in[0], use.w, include); }, {x});
    }
}

TEST(Pool, TakesPowers) {
  Generator g(3);
  for (const PoolUse& use : pool_uses())
    for (const double p : {1.0, 2.0, 3.0}) {
      const Tensor x = normal64(use.x, g);
      const Tensor want = by_windows(use, x, [&](const Elements& e, int64_t) {
        double sum = 0;
        for (const auto& [value, place] : e) sum += std::pow(std::abs(value), p);
        return std::pow(sum, 1 / p);
      });
      EXPECT_LE(relative_error(lp_pool(x, use.w, p), want), 1e-14) << to_string(use.x) << p;
      expect_slopes([&](const Tensors& in) { return lp_pool(in[0], use.w, p); }, {x}, 1e-5);
    }
}

TEST(Pool, AdaptsWindows) {
  Generator g(4);
  const Tensor x = normal64({2, 3, 7, 10}, g);
  for (const Dims& sizes : {Dims{3, 4}, Dims{7, 1}, Dims{9, 5}, Dims{2, 2}}) {
    const auto window = [&](const Index& i, bool max) {
      const auto bounds = [&](int64_t d) {
        const int64_t n = x.size(2 + d), m = sizes[d];
        return std::pair{i[2 + d] * n / m, ((i[2 + d] + 1) * n + m - 1) / m};
      };
      const auto [top, bottom] = bounds(0);
      const auto [left, right] = bounds(1);
      double sum = 0, most = -INFINITY;
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t c = left; c < right; ++c) {
          sum += reference::get(x, Index{i[0], i[1], r, c});
          most = std::max(most, reference::get(x, Index{i[0], i[1], r, c}));
        }
      return max ? most : sum / static_cast<double>((bottom - top) * (right - left));
    };
    const Shape shape{2, 3, sizes[0], sizes[1]};
    const auto want = [&](bool max) {
      return reference::generate(shape, Float64, [&](const Index& i) { return window(i, max); });
    };
    EXPECT_EQ(adaptive_max_pool(x, sizes).to_vector<double>(), want(true).to_vector<double>());
    EXPECT_LE(relative_error(adaptive_avg_pool(x, sizes), want(false)), 1e-14);
    expect_slopes([&](const Tensors& in) { return adaptive_avg_pool(in[0], sizes); }, {x});
  }
}

TEST(Pool, OfAWholePlane) {
  Generator g(5);
  const Tensor x = normal64({2, 3, 5, 4, 2}, g), flat = x.reshape({6, 40});
  EXPECT_EQ(global_max_pool(x).shape(), (Shape{2, 3, 1, 1, 1}));
  EXPECT_EQ(global_max_pool(x).to_vector<double>(), amax(flat, {1}).to_vector<double>());
  EXPECT_LE(relative_error(global_avg_pool(x).reshape({6}), mean(flat, {1})), 1e-15);
  EXPECT_LE(relative_error(global_lp_pool(x).reshape({6}), norm(flat, {1})), 1e-15);
  EXPECT_LE(relative_error(global_lp_pool(x, 1).reshape({6}), sum(abs(flat), {1})), 1e-15);
}

TEST(Pool, PutsMaximaBack) {
  Generator g(6);
  const Tensor x = normal64({2, 3, 6, 9}, g);
  const auto [values, indices] = max_pool_with_indices(x, {.size = {2, 3}});
  const Tensor back = max_unpool(values, indices, {6, 9});
  const Tensor is_max = ne(back, zeros({}, Float64));
  EXPECT_EQ(sum(is_max.to(Float64)).item(), static_cast<double>(values.numel()));
  EXPECT_EQ(back.to_vector<double>(), where(is_max, x, zeros({}, Float64)).to_vector<double>());
  const Tensor fixed = indices;
  expect_slopes([&](const Tensors& in) { return max_unpool(in[0], fixed, {6, 9}); }, {values});
}

TEST(Pool, OfHalves) {
  Generator g(7);
  const Tensor x = normal64({2, 3, 9, 7}, g);
  const Windows w{.size = {3, 2}, .stride = {2, 2}, .low = {1, 0}, .high = {0, 1}};
  expect_half_precision_close([&](const Tensors& in) { return max_pool(in[0], w); }, {x}, 1e-3);
  expect_half_precision_close([&](const Tensors& in) { return avg_pool(in[0], w, false); }, {x}, 2e-3);
}

TEST(Pool, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({1, 2, 5, 6});
  EXPECT_EQ(error_of([&] { max_pool(x, {}); }), "max_pool: the window has no size");
  EXPECT_EQ(error_of([&] { max_pool(x, {.size = {2}}); }), "max_pool: size has 1 numbers for 2 spatial dims");
  EXPECT_EQ(error_of([&] {
              max_pool(x, {.size = {2, 7}});
            }),
            "max_pool: a window of 7 with dilation 1 exceeds the size 6 padded by 0 and 0");
  EXPECT_EQ(error_of([&] { avg_pool(x, {.size = {2, 2}, .low = {-1, 0}}); }), "avg_pool: padding -1 and 0 is negative");
  EXPECT_EQ(error_of([&] {
              avg_pool(x.to(Int64), {.size = {2, 2}});
            }),
            "avg_pool: takes floating-point tensors, not i64[1, 2, 5, 6] on cpu");
  EXPECT_EQ(error_of([&] { lp_pool(x, {.size = {2, 2}}, 0); }), "lp_pool: p must be positive, not 0");
  EXPECT_EQ(error_of([&] { adaptive_avg_pool(x, {2}); }), "adaptive_avg_pool: 1 sizes for 2 spatial dims");
  EXPECT_EQ(error_of([&] { adaptive_max_pool(x, {2, 0}); }), "adaptive_max_pool: 0 windows on dim 3 of [1, 2, 5, 6]");
  EXPECT_EQ(error_of([&] { global_avg_pool(zeros({2, 3})); }), "global_avg_pool: [2, 3] has no spatial dims");
  EXPECT_EQ(error_of([&] {
              max_unpool(x, zeros({1, 2, 5, 5}, Int64), {10, 12});
            }),
            "max_unpool: indices have shape [1, 2, 5, 5], not [1, 2, 5, 6]");
}

}  // namespace
}  // namespace tessera
