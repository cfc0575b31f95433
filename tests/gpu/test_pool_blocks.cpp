// The kernels that pool dense images, run thread by thread on the host and compared with float64: both layouts, vectors
// and single elements, windows of every form, odd sizes. Nothing beside the results is written.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tile/arch/gpu/pool.h"

using namespace tessera::tile;

namespace {

struct BlockWindows {
  const char* name;
  int height, width, rows, columns, stride, padding, dilation = 1;
  bool count_padding = true;
};

/// Elements n c h w in one of two orders, aligned to 16 bytes among others that are no numbers.
template <class T>
struct Images {
  int count, channels, height, width;
  bool last;
  T outside;
  std::vector<T> memory;
  T* start;

  Images(int count, int channels, int height, int width, bool last, T outside)
      : count(count), channels(channels), height(height), width(width), last(last), outside(outside) {
    memory.assign(size() + 64, outside);
    start = memory.data() + 16;
    while (reinterpret_cast<std::uintptr_t>(start) % 16) ++start;
  }
  size_t size() const { return static_cast<size_t>(count) * channels * height * width; }
  T& at(int n, int c, int h, int w) {
    return start[last ? ((static_cast<i64>(n) * height + h) * width + w) * channels + c
                      : ((static_cast<i64>(n) * channels + c) * height + h) * width + w];
  }
  template <class F>
  void each(const F& fn) {
    for (int n = 0; n < count; ++n)
      for (int c = 0; c < channels; ++c)
        for (int h = 0; h < height; ++h)
          for (int w = 0; w < width; ++w) fn(n, c, h, w);
  }
  bool is_whole_outside() const {
    const auto same = [&](const T& x) { return std::memcmp(&x, &outside, sizeof x) == 0; };
    for (const T& x : memory)
      if ((&x < start || &x >= start + size()) && !same(x)) return false;
    return true;
  }
};

template <class T>
double value(T x) {
  return convert_element<double>(convert_element<compute_t<T>>(x));
}

constexpr int images = 2;

/// What one call takes and gives, and what it should give.
template <class T>
struct Pooling {
  BlockWindows w;
  DenseWindows p;
  Images<T> x, y, dy, dx;
  Images<u8> taps;
  std::vector<double> want_y, want_dx;
  std::vector<int> want_taps;

  Pooling(const BlockWindows& w, int channels, bool last, int width, bool max)
      : w(w),
        p(ImageWindow::of(w.height, w.rows, w.stride, w.dilation, w.padding),
          ImageWindow::of(w.width, w.columns, w.stride, w.dilation, w.padding), last ? images : images * channels,
          last ? channels / width : 1, w.count_padding),
        x(images, channels, w.height, w.width, last, T(NAN)),
        y(images, channels, p.h.output, p.w.output, last, T(NAN)),
        dy(y),
        dx(x),
        taps(images, channels, p.h.output, p.w.output, last, 77) {
    for (Images<T>* t : {&y, &dy, &dx}) *t = Images<T>(t->count, channels, t->height, t->width, last, T(NAN));
    std::mt19937 generator(7);
    std::uniform_int_distribution<int> whole(-3, 3);  // so that there are ties
    std::normal_distribution<float> normal;
    x.each([&](int n, int c, int h, int v) {
      const int kind = static_cast<int>(generator() % 64);
      x.at(n, c, h, v) = T(!max ? normal(generator) : kind == 0 ? NAN : kind < 8 ? -INFINITY : whole(generator));
    });
    dy.each([&](int n, int c, int h, int v) { dy.at(n, c, h, v) = T(normal(generator)); });
    expect(max);
  }

  void expect(bool max) {
    want_dx.assign(dx.size(), 0);
    y.each([&](int n, int c, int i, int j) {
      double best = -INFINITY, sum = 0;
      int which = w.rows * w.columns, place = -1;
      std::vector<int> places;
      for (int r = 0; r < w.rows; ++r)
        for (int s = 0; s < w.columns; ++s) {
          const int h = i * w.stride - w.padding + r * w.dilation, v = j * w.stride - w.padding + s * w.dilation;
          if (h < 0 || v < 0 || h >= w.height || v >= w.width) continue;
          const double e = value(x.at(n, c, h, v));
          places.push_back(static_cast<int>(&x.at(n, c, h, v) - x.start));
          sum += e;
          if (place >= 0 && !(e > best) && e == e) continue;
          best = e, which = r * w.columns + s, place = places.back();
        }
      const auto counted = [&](int first, int filter, int length) {
        return std::min(first + filter, length + w.padding) - first;
      };
      const double divisor = w.count_padding ? counted(i * w.stride - w.padding, w.rows, w.height) *
                                                   counted(j * w.stride - w.padding, w.columns, w.width)
                                             : static_cast<double>(places.size());
      want_y.push_back(max ? best : sum / divisor);
      want_taps.push_back(which);
      const double g = value(dy.at(n, c, i, j));
      if (max && place >= 0) want_dx[place] += g;
      if (!max)
        for (int at : places) want_dx[at] += g / divisor;
    });
  }

  void check_y(bool max) {
    size_t k = 0;
    double error = 0, norm = 0;
    y.each([&](int n, int c, int i, int j) {
      const double got = value(y.at(n, c, i, j)), want = want_y[k];
      if (max) {
        EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << got << " for " << want;
        EXPECT_EQ(taps.at(n, c, i, j), want_taps[k]);
      }
      error += (got - want) * (got - want), norm += want * want;
      ++k;
    });
    if (!max) {
      EXPECT_LE(std::sqrt(error / norm), limit());
    }
    EXPECT_TRUE(y.is_whole_outside() && taps.is_whole_outside());
  }
  void check_dx() {
    double error = 0, norm = 0;
    for (size_t k = 0; k < want_dx.size(); ++k) {
      const double difference = value(dx.start[k]) - want_dx[k];
      error += std::isfinite(difference) ? difference * difference : INFINITY, norm += want_dx[k] * want_dx[k];
    }
    EXPECT_LE(std::sqrt(error), limit() * std::sqrt(norm));
    EXPECT_TRUE(dx.is_whole_outside());
  }
  static double limit() { return sizeof(T) == 4 ? 1e-6 : is_same_v<T, f16> ? 1e-3 : 8e-3; }
};

template <class F>
void every_thread(const DenseWindows& p, const F& fn) {
  for (int thread = 0; thread < p.threads; ++thread) fn(thread);
}

const BlockWindows windows[] = {{"2x2", 6, 8, 2, 2, 2, 0},
                                {"2x2, odd sizes", 7, 5, 2, 2, 2, 0},
                                {"3x3", 11, 13, 3, 3, 2, 1},
                                {"3x3, even sizes", 8, 6, 3, 3, 2, 1},
                                {"3x3 of stride 1", 5, 7, 3, 3, 1, 1},
                                {"2x3", 7, 5, 2, 3, 1, 1},
                                {"stride leaves a rest", 8, 10, 3, 3, 3, 0},
                                {"global", 7, 7, 7, 7, 7, 0},
                                {"one element", 1, 1, 1, 1, 1, 0},
                                {"5x5", 9, 12, 5, 5, 3, 2},
                                {"a long stride", 5, 4, 3, 3, 1 << 20, 1}};
const BlockWindows dilated[] = {{"dilated", 11, 9, 3, 2, 2, 1, 2},
                                {"3x3, dilated", 13, 12, 3, 3, 2, 1, 3},
                                {"on padding only", 4, 4, 2, 2, 1, 1, 5}};

/// In vectors of V channels, or of single elements.
template <class T, int V>
void check_maxima(const BlockWindows& w, int channels, bool last) {
  SCOPED_TRACE(w.name);
  Pooling<T> of(w, channels, last, V, true);
  const DenseWindows results = of.p.over_results(), places = of.p.over_images();
  const auto forward = [&](auto size) {
    SCOPED_TRACE(size);
    of.y = Images<T>(images, channels, of.p.h.output, of.p.w.output, last, T(NAN));
    every_thread(results, [&](int thread) {
      pool_window<Largest, decltype(size)::value, V>(results, thread, of.y.start, of.taps.start, of.x.start);
    });
    of.check_y(true);
  };
  forward(Int<0>{});
  if (w.rows == 2 && w.columns == 2) forward(Int<2>{});
  if (w.rows == 3 && w.columns == 3) forward(Int<3>{});
  every_thread(places,
               [&](int thread) { unpool_place<true, V>(places, thread, of.dx.start, of.dy.start, of.taps.start); });
  of.check_dx();
  const auto by_blocks = [&](auto form) {
    using Form = decltype(form);
    if (!Form::is(of.p)) return;
    of.dx = Images<T>(images, channels, w.height, w.width, last, T(NAN));
    const DenseWindows blocks = of.p.over_blocks(Form::Stride, Form::Stride);
    every_thread(blocks,
                 [&](int thread) { unpool_block<Form, V>(blocks, thread, of.dx.start, of.dy.start, of.taps.start); });
    of.check_dx();
  };
  by_blocks(PoolForm<2, 2, 0>{});
  by_blocks(PoolForm<3, 2, 1>{});
}

template <class T>
class PoolBlocks : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(PoolBlocks, Types);

TYPED_TEST(PoolBlocks, MaximaOfVectorsOfChannels) {
  constexpr int V = 16 / sizeof(TypeParam);
  for (const BlockWindows& w : windows) check_maxima<TypeParam, V>(w, 2 * V, true);
  for (const BlockWindows& w : dilated) check_maxima<TypeParam, V>(w, V, true);
}

TYPED_TEST(PoolBlocks, MaximaOfSingleElements) {
  for (bool last : {false, true}) {
    for (const BlockWindows& w : windows) check_maxima<TypeParam, 1>(w, 3, last);
    for (const BlockWindows& w : dilated) check_maxima<TypeParam, 1>(w, 5, last);
  }
}

TYPED_TEST(PoolBlocks, MaximaOfWholeRows) {
  constexpr int K = 8 / sizeof(TypeParam);
  const auto check = [](auto form, const BlockWindows& w) {
    using Form = decltype(form);
    SCOPED_TRACE(w.name);
    Pooling<TypeParam> of(w, 3, false, 1, true);
    ASSERT_TRUE(has_rows_for<Form>(of.p, K));
    const DenseWindows results = of.p.over_result_rows(K), blocks = of.p.over_blocks(Form::Stride, Form::Stride * K);
    every_thread(results,
                 [&](int thread) { pool_row<Form, K>(results, thread, of.y.start, of.taps.start, of.x.start); });
    of.check_y(true);
    every_thread(blocks,
                 [&](int thread) { unpool_rows<Form, K>(blocks, thread, of.dx.start, of.dy.start, of.taps.start); });
    of.check_dx();
  };
  for (int height : {2, 3, 7, 10})
    for (int columns : {1, 3}) {
      if (height > 2) check(PoolForm<2, 2, 0>{}, {"2x2", height, columns * 2 * K, 2, 2, 2, 0});
      check(PoolForm<3, 2, 1>{}, {"3x3", height, columns * 2 * K, 3, 3, 2, 1});
    }
}

TYPED_TEST(PoolBlocks, RowsAreRefusedWhereTheyLeaveARest) {
  constexpr int K = 8 / sizeof(TypeParam);
  const auto takes = [](const BlockWindows& w) {
    return has_rows_for<PoolForm<3, 2, 1>>(Pooling<TypeParam>(w, 1, false, 1, true).p, K);
  };
  EXPECT_TRUE(takes({"", 5, 4 * K, 3, 3, 2, 1}));
  EXPECT_FALSE(takes({"", 5, 4 * K + 1, 3, 3, 2, 1}));
  EXPECT_FALSE(takes({"", 5, 4 * K, 3, 3, 2, 0}));
  EXPECT_FALSE(takes({"", 5, 4 * K, 2, 3, 2, 1}));
  EXPECT_FALSE(takes({"", 5, 4 * K, 3, 3, 2, 1, 2}));
}

template <class T, int V>
void check_averages(const BlockWindows& w, int channels, bool last) {
  SCOPED_TRACE(w.name);
  Pooling<T> of(w, channels, last, V, false);
  const DenseWindows results = of.p.over_results(), places = of.p.over_images();
  every_thread(results, [&](int thread) {
    pool_window<Average, 0, V>(results, thread, of.y.start, static_cast<u8*>(nullptr), of.x.start);
  });
  of.check_y(false);
  every_thread(places, [&](int thread) {
    unpool_place<false, V>(places, thread, of.dx.start, of.dy.start, static_cast<const u8*>(nullptr));
  });
  of.check_dx();
}

TYPED_TEST(PoolBlocks, Averages) {
  constexpr int V = 16 / sizeof(TypeParam);
  for (BlockWindows w : windows)
    for (bool count : {true, false}) {
      w.count_padding = count;
      check_averages<TypeParam, V>(w, 2 * V, true);
      check_averages<TypeParam, 1>(w, 3, true);
      check_averages<TypeParam, 1>(w, 3, false);
    }
}

}  // namespace
