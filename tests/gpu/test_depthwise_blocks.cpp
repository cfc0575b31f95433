// The kernels of depthwise convolutions, run thread by thread and block by block on the host and compared with float64:
// both layouts, vectors, whole rows and single elements, odd sizes. Nothing beside the results is written.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tile/arch/gpu/depthwise.h"

using namespace tessera::tile;

namespace {

std::mt19937 generator(11);

/// Elements aligned to 16 bytes among others that are no numbers; random ones, or none yet.
template <class T>
struct Elements {
  i64 count;
  std::vector<T> memory;
  T* start;

  Elements(i64 count, bool random) : count(count), memory(count + 64, T(NAN)) {
    start = memory.data() + 16;
    while (reinterpret_cast<std::uintptr_t>(start) % 16) ++start;
    std::normal_distribution<float> normal;
    for (i64 i = 0; random && i < count; ++i) start[i] = T(normal(generator));
  }
  double operator[](i64 i) const { return convert_element<float>(start[i]); }
  void expect_close(const std::vector<double>& want, const char* what) const {
    double error = 0, norm = 0;
    for (i64 i = 0; i < count; ++i) {
      const double difference = (*this)[i] - want[i];
      error += std::isfinite(difference) ? difference * difference : INFINITY, norm += want[i] * want[i];
    }
    const double limit = sizeof(T) == 4 ? 1e-6 : is_same_v<T, f16> ? 1e-3 : 8e-3;
    EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm)) << what;
    for (const T& x : memory) {
      if (&x < start || &x >= start + count) {
        ASSERT_TRUE(std::isnan(convert_element<float>(x))) << what << " was written beside";
      }
    }
  }
};

struct Form {
  int images, channels, height, width, rows, columns;
  int stride[2], padding[2], dilation[2];
  int multiplier = 1;
  int filters() const { return channels * multiplier; }
  int out(int d) const {
    const int length = d ? width : height, filter = d ? columns : rows;
    return (length + 2 * padding[d] - dilation[d] * (filter - 1) - 1) / stride[d] + 1;
  }
};
Form three(int images, int channels, int height, int width, int stride) {
  return {images, channels, height, width, 3, 3, {stride, stride}, {1, 1}, {1, 1}};
}

/// A convolution's tensors, results and gradients; what these should be.
template <class T>
struct Convolution {
  Form f;
  bool last;
  Elements<T> x, w, bias, dy, y, dx, dw;
  std::vector<double> want_y, want_dx, want_dw;

  Convolution(const Form& f, bool last)
      : f(f),
        last(last),
        x(images_size(f.height, f.width), true),
        w(i64{f.filters()} * f.rows * f.columns, true),
        bias(f.filters(), true),
        dy(images_size(f.out(0), f.out(1)) * f.multiplier, true),
        y(dy.count, false),
        dx(x.count, false),
        dw(w.count, false),
        want_y(y.count),
        want_dx(x.count),
        want_dw(w.count) {
    for (int n = 0; n < f.images; ++n)
      for (int c = 0; c < f.filters(); ++c)
        for (int i = 0; i < f.out(0); ++i)
          for (int j = 0; j < f.out(1); ++j) window(n, c, i, j);
  }
  void window(int n, int c, int i, int j) {
    const i64 to = place(n, c, i, j, f.out(0), f.out(1), f.filters());
    want_y[to] = bias[c];
    for (int r = 0; r < f.rows; ++r)
      for (int s = 0; s < f.columns; ++s) {
        const int h = i * f.stride[0] - f.padding[0] + r * f.dilation[0];
        const int v = j * f.stride[1] - f.padding[1] + s * f.dilation[1];
        if (h < 0 || v < 0 || h >= f.height || v >= f.width) continue;
        const i64 from = place(n, c / f.multiplier, h, v, f.height, f.width, f.channels),
                  tap = (i64{c} * f.rows + r) * f.columns + s;
        want_y[to] += x[from] * w[tap];
        want_dx[from] += dy[to] * w[tap];
        want_dw[tap] += dy[to] * x[from];
      }
  }
  i64 images_size(i64 height, i64 width) const { return f.images * f.channels * height * width; }
  i64 place(i64 n, i64 c, i64 h, i64 v, i64 height, i64 width, i64 channels) const {
    return last ? ((n * height + h) * width + v) * channels + c : ((n * channels + c) * height + h) * width + v;
  }
  /// dw from the sums of parts.
  void join(const std::vector<float>& partial, int parts) {
    const int taps = f.rows * f.columns;
    alignas(16) static float room[256];
    for (int block = 0; block < taps * ceil_div(f.channels, 32); ++block)
      simulated::run_block(block, 256,
                           [&] { join_filter_sums(partial.data(), parts, taps, f.channels, dw.start, room); });
    dw.expect_close(want_dw, "dw");
  }
};

template <class F>
void every_thread(int threads, const F& fn) {
  for (int thread = 0; thread < threads; ++thread) fn(thread);
}

template <class Layout, class T>
void check_three(const Form& f, bool last) {
  SCOPED_TRACE(testing::Message() << f.channels << " x " << f.height << " x " << f.width << " by " << f.stride[0]);
  constexpr int V = Layout::V;
  Convolution<T> c(f, last);
  Depthwise p(f.images, f.channels, f.height, f.width, f.stride[0], last, V);
  for (int least : {7, 2}) {
    p.cut(p.out_height, least, 1 << 20);
    every_thread(p.threads, [&](int thread) {
      if (f.stride[0] == 1) depthwise_steps_of_1<Layout>(p, thread, c.y.start, c.x.start, c.w.start, c.bias.start);
      else depthwise_steps_of_2<Layout>(p, thread, c.y.start, c.x.start, c.w.start, c.bias.start);
    });
    c.y.expect_close(c.want_y, "y");
    Depthwise back = p;
    back.flipped = true;
    every_thread(p.threads, [&](int thread) {
      const T* const none = nullptr;
      if (f.stride[0] == 1) depthwise_steps_of_1<Layout>(back, thread, c.dx.start, c.dy.start, c.w.start, none);
      else depthwise_images_of_2<Layout>(p, thread, c.dx.start, c.dy.start, c.w.start);
    });
    c.dx.expect_close(c.want_dx, "dx");
    if (!can_simulate) continue;
    for (int blocks : {1, 9}) {
      const DepthwiseParts s = DepthwiseParts::of(p, last, blocks);
      std::vector<float> partial(static_cast<size_t>(s.parts) * 9 * f.channels, NAN);
      alignas(16) static float room[filter_sums_room<V>];
      for (int block = 0; block < s.blocks(); ++block)
        simulated::run_block(block, depthwise_block, [&] {
          if (f.stride[0] == 1) depthwise_filter_sums<1, Layout>(p, s, partial.data(), c.x.start, c.dy.start, room);
          else depthwise_filter_sums<2, Layout>(p, s, partial.data(), c.x.start, c.dy.start, room);
        });
      c.join(partial, s.parts);
    }
  }
}

template <int V, class T>
void check_any(const Form& f, bool last) {
  SCOPED_TRACE(testing::Message() << f.rows << " x " << f.columns << " on " << f.height << " x " << f.width);
  Convolution<T> c(f, last);
  const auto window = [&](int d) {
    return ImageWindow::of(d ? f.width : f.height, d ? f.columns : f.rows, f.stride[d], f.dilation[d], f.padding[d]);
  };
  const auto windows = [&](int channels) {
    return DenseWindows(window(0), window(1), last ? f.images : f.images * channels, last ? channels / V : 1, false);
  };
  const AnyDepthwise results(windows(f.filters()).over_results(), f.filters(), !last, f.multiplier);
  every_thread(results.windows.threads, [&](int thread) {
    depthwise_window<V>(results, thread, c.y.start, c.x.start, c.w.start, c.bias.start);
  });
  c.y.expect_close(c.want_y, "y");
  const AnyDepthwise places(windows(f.channels).over_images(), f.channels, !last, f.multiplier);
  every_thread(places.windows.threads,
               [&](int thread) { depthwise_place<V>(places, thread, c.dx.start, c.dy.start, c.w.start); });
  c.dx.expect_close(c.want_dx, "dx");
  if (!last && can_simulate) {
    const DenseWindows runs = plane_taps_runs(places);
    const int parts = plane_taps_parts(places);
    for (int block = 0; block < f.filters() * f.rows * parts; ++block)
      simulated::run_block(block, plane_taps_block, [&] {
        depthwise_plane_taps<false>(places, runs, parts, c.dw.start, c.x.start, c.dy.start);
      });
    c.dw.expect_close(c.want_dw, "dw");
    if (f.stride[1] == 1 && f.dilation[1] == 1) {
      for (int block = 0; block < f.filters() * f.rows * parts; ++block)
        simulated::run_block(block, plane_taps_block, [&] {
          depthwise_plane_taps<true>(places, runs, parts, c.dw.start, c.x.start, c.dy.start);
        });
    }
    c.dw.expect_close(c.want_dw, "dw");
  }
  for (int parts : {1, 3}) {
    if (!last) break;
    const int sums = f.channels / V * f.rows * f.columns;
    std::vector<float> partial(static_cast<size_t>(parts) * sums * V, NAN);
    every_thread(sums * parts + 5, [&](int thread) {
      depthwise_tap_sums<V>(places, parts, thread, partial.data(), c.x.start, c.dy.start);
    });
    if (can_simulate) c.join(partial, parts);
  }
}

template <class T>
class DepthwiseBlocks : public testing::Test {};
using Types = testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(DepthwiseBlocks, Types);

TYPED_TEST(DepthwiseBlocks, VectorsOfChannels) {
  for (int stride : {1, 2}) {
    check_three<InVectors<4>, TypeParam>(three(2, 8, 15, 9, stride), true);
    check_three<InVectors<4>, TypeParam>(three(1, 36, 14, 8, stride), true);
    check_three<InVectors<4>, TypeParam>(three(3, 4, 1, 1, stride), true);
    check_three<InVectors<4>, TypeParam>(three(1, 132, 2, 5, stride), true);  // two groups of vectors
  }
}
TYPED_TEST(DepthwiseBlocks, WholeRowsOfPlanes) {
  for (int stride : {1, 2}) {
    check_three<InWholeRows, TypeParam>(three(2, 3, 15, 8, stride), false);
    check_three<InWholeRows, TypeParam>(three(1, 5, 4, 12, stride), false);
    check_three<InWholeRows, TypeParam>(three(3, 1, 1, 4, stride), false);
  }
}
TYPED_TEST(DepthwiseBlocks, SingleElements) {
  for (bool last : {false, true})
    for (int stride : {1, 2}) {
      check_three<InVectors<1>, TypeParam>(three(2, 3, 15, 7, stride), last);
      check_three<InVectors<1>, TypeParam>(three(1, 5, 2, 14, stride), last);
      check_three<InVectors<1>, TypeParam>(three(2, 1, 1, 1, stride), last);
    }
}
TYPED_TEST(DepthwiseBlocks, AnyWindows) {
  const Form forms[] = {{2, 8, 9, 7, 5, 5, {1, 1}, {2, 2}, {1, 1}},    {1, 8, 11, 13, 3, 2, {2, 3}, {1, 1}, {3, 2}},
                        {2, 4, 7, 7, 7, 7, {1, 1}, {3, 3}, {1, 1}},    {1, 12, 6, 5, 1, 1, {1, 1}, {0, 0}, {1, 1}},
                        {1, 4, 8, 9, 3, 3, {3, 3}, {0, 0}, {1, 1}},    {1, 4, 5, 6, 3, 3, {1, 1}, {0, 2}, {1, 1}},
                        {2, 4, 5, 4, 2, 4, {1, 1}, {3, 5}, {1, 1}},    {2, 3, 9, 8, 5, 1, {3, 1}, {2, 0}, {1, 1}, 2},
                        {1, 2, 7, 6, 3, 3, {2, 1}, {1, 2}, {1, 2}, 3}, {1, 4, 5, 21, 2, 11, {1, 1}, {1, 4}, {1, 1}},
                        {2, 4, 6, 15, 1, 9, {1, 2}, {0, 3}, {1, 1}}};
  for (const Form& f : forms)
    for (bool last : {false, true}) {
      if (last && f.multiplier > 1) continue;
      check_any<1, TypeParam>(f, last);
      if (last) check_any<4, TypeParam>(f, true);
    }
}

}  // namespace
