// Convolutions that ops call, on every instruction set of this processor, against sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/args/conv.h"

namespace {
using namespace tessera::cpu_kernels;
using i64 = long long;

struct Set {
  const char* name;
  const ConvTable* table;
};
std::vector<Set> sets() {
#if defined(TESSERA_ONLY_ISA)
  return {{"only", &TESSERA_ONLY_ISA::conv_table}};
#else
  std::vector<Set> r{{"baseline", &baseline::conv_table}};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) r.push_back({"avx2", &avx2::conv_table});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    r.push_back({"avx512", &avx512::conv_table});
  }
  return r;
#endif
}

struct Case {
  i64 images, channels, filters, groups, size[2], filter[2], stride[2], dilation[2], padding[2];
};
const Case cases[] = {
    {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},     {2, 3, 5, 1, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {1, 16, 17, 1, {14, 14}, {3, 3}, {2, 2}, {1, 1}, {1, 1}}, {2, 8, 6, 2, {11, 6}, {3, 2}, {2, 1}, {1, 2}, {2, 1}},
    {1, 4, 4, 4, {9, 10}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},    {1, 3, 8, 1, {23, 21}, {7, 5}, {3, 2}, {1, 1}, {3, 2}},
    {2, 5, 7, 1, {13, 13}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},   {1, 5, 7, 1, {12, 13}, {1, 1}, {2, 3}, {1, 1}, {0, 0}},
    {1, 2, 3, 1, {17, 16}, {3, 3}, {2, 3}, {2, 3}, {2, 4}},   {2, 31, 19, 1, {20, 33}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
};

template <class T>
class Conv : public testing::Test {
 public:
  struct Tensor {
    std::vector<T> data;
    i64 stride[4];
    T& at(i64 a, i64 b, i64 c, i64 d) { return data[a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]]; }
    ConvTensor arg() { return {data.data(), {stride[0], stride[1], stride[2], stride[3]}}; }
  };
  std::mt19937 random{23};
  Case c;
  i64 out[2], group_channels, group_filters;
  Tensor x, w, y;
  std::vector<T> bias;

  Tensor fresh(i64 n, i64 ch, i64 h, i64 wd, bool channels_last) {
    Tensor t;
    std::uniform_real_distribution<double> uniform(-1, 1);
    t.data.resize(n * ch * h * wd);
    for (T& v : t.data) v = static_cast<T>(uniform(random));
    const i64 planar[] = {ch * h * wd, h * wd, wd, 1}, last[] = {h * wd * ch, 1, wd * ch, ch};
    for (int d = 0; d < 4; ++d) t.stride[d] = channels_last ? last[d] : planar[d];
    return t;
  }
  void prepare(const Case& shape, bool channels_last) {
    c = shape;
    for (int d = 0; d < 2; ++d) {
      out[d] = (c.size[d] + 2 * c.padding[d] - c.dilation[d] * (c.filter[d] - 1) - 1) / c.stride[d] + 1;
    }
    group_channels = c.channels / c.groups;
    group_filters = c.filters / c.groups;
    x = fresh(c.images, c.channels, c.size[0], c.size[1], channels_last);
    w = fresh(c.filters, group_channels, c.filter[0], c.filter[1], channels_last);
    y = fresh(c.images, c.filters, out[0], out[1], channels_last);
    bias.resize(c.filters);
    for (T& b : bias) b = static_cast<T>(random() % 4);  // few results vanish in relu
  }
  ConvArgs args(Activation activation = Activation::none) {
    ConvArgs a{};
    a.type = sizeof(T) == 8 ? Scalar::f64 : Scalar::f32;
    a.images = c.images, a.channels = c.channels, a.filters = c.filters, a.groups = c.groups;
    for (int d = 0; d < 2; ++d) {
      a.size[d] = c.size[d], a.filter[d] = c.filter[d], a.stride[d] = c.stride[d];
      a.dilation[d] = c.dilation[d], a.padding[d] = c.padding[d];
    }
    a.x = x.arg(), a.w = w.arg(), a.y = y.arg();
    a.bias = bias.data();
    a.activation = activation;
    return a;
  }
  void run(ConvArgs a, i64 (*workspace)(const ConvArgs&), void (*kernel)(const ConvArgs&, tessera::Executor&)) {
    std::vector<char> memory(workspace(a) + 64);
    a.workspace = memory.data();
    kernel(a, tessera::executor());
  }
  /// f(x index..., w index..., y index...) for every product of the convolution.
  template <class F>
  void each(F f) {
    for (i64 n = 0; n < c.images; ++n)
      for (i64 k = 0; k < c.filters; ++k)
        for (i64 i = 0; i < out[0]; ++i)
          for (i64 j = 0; j < out[1]; ++j)
            for (i64 ch = 0; ch < group_channels; ++ch)
              for (i64 r = 0; r < c.filter[0]; ++r)
                for (i64 s = 0; s < c.filter[1]; ++s) {
                  const i64 h = i * c.stride[0] + r * c.dilation[0] - c.padding[0];
                  const i64 v = j * c.stride[1] + s * c.dilation[1] - c.padding[1];
                  if (h < 0 || h >= c.size[0] || v < 0 || v >= c.size[1]) continue;
                  f(n, k / group_filters * group_channels + ch, h, v, k, ch, r, s, i, j);
                }
  }
  std::vector<double> outputs() {
    std::vector<double> sum(y.data.size());
    const auto place = [&](i64 n, i64 k, i64 i, i64 j) -> double& { return sum[&y.at(n, k, i, j) - y.data.data()]; };
    each([&](i64 n, i64 ch, i64 h, i64 v, i64 k, i64 wc, i64 r, i64 s, i64 i, i64 j) {
      place(n, k, i, j) += double(x.at(n, ch, h, v)) * w.at(k, wc, r, s);
    });
    for (i64 n = 0; n < c.images; ++n)
      for (i64 k = 0; k < c.filters; ++k)
        for (i64 i = 0; i < out[0]; ++i)
          for (i64 j = 0; j < out[1]; ++j) place(n, k, i, j) = std::max(0.0, place(n, k, i, j) + bias[k]);
    return sum;
  }
  std::vector<double> image_gradients() {
    std::vector<double> sum(x.data.size());
    each([&](i64 n, i64 ch, i64 h, i64 v, i64 k, i64 wc, i64 r, i64 s, i64 i, i64 j) {
      sum[&x.at(n, ch, h, v) - x.data.data()] += double(y.at(n, k, i, j)) * w.at(k, wc, r, s);
    });
    return sum;
  }
  std::vector<double> filter_gradients() {
    std::vector<double> sum(w.data.size());
    each([&](i64 n, i64 ch, i64 h, i64 v, i64 k, i64 wc, i64 r, i64 s, i64 i, i64 j) {
      sum[&w.at(k, wc, r, s) - w.data.data()] += double(y.at(n, k, i, j)) * x.at(n, ch, h, v);
    });
    return sum;
  }
  static double error(const std::vector<T>& got, const std::vector<double>& expected) {
    double difference = 0, norm = 1e-30;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    return std::sqrt(difference / norm);
  }
  static constexpr double tolerance = sizeof(T) == 8 ? 1e-14 : 2e-6;
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Conv, Types);

TYPED_TEST(Conv, forward) {
  for (const Set& set : sets()) {
    for (const Case& shape : cases) {
      for (bool last : {false, true}) {
        this->prepare(shape, last);
        this->run(this->args(Activation::relu), set.table->forward_workspace, set.table->forward);
        EXPECT_LE(this->error(this->y.data, this->outputs()), this->tolerance)
            << set.name << " case " << &shape - cases << last;
      }
    }
  }
}

TYPED_TEST(Conv, backward_images) {
  for (const Set& set : sets()) {
    for (const Case& shape : cases) {
      for (bool last : {false, true}) {
        this->prepare(shape, last);
        const auto expected = this->image_gradients();
        this->run(this->args(), set.table->backward_images_workspace, set.table->backward_images);
        EXPECT_LE(this->error(this->x.data, expected), this->tolerance)
            << set.name << " case " << &shape - cases << last;
      }
    }
  }
}

TYPED_TEST(Conv, backward_filters) {
  for (const Set& set : sets()) {
    for (const Case& shape : cases) {
      for (bool last : {false, true}) {
        this->prepare(shape, last);
        const auto sum = this->filter_gradients();
        this->run(this->args(), set.table->backward_filters_workspace, set.table->backward_filters);
        EXPECT_LE(this->error(this->w.data, sum), this->tolerance) << set.name << " case " << &shape - cases << last;
      }
    }
  }
}

class Winograd : public Conv<float> {
 public:
  // Prime channels, tiles cut off by the edges, runs of tiles shorter and longer than a vector, windows that see
  // nothing but padding.
  const std::vector<Case> shapes{{1, 1, 1, 1, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 1, 1, 1, {1, 1}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {3, 5, 7, 1, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {1, 13, 29, 1, {23, 21}, {3, 3}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 3, 2, 1, {2, 1}, {3, 3}, {1, 1}, {1, 1}, {2, 2}},
                                 {2, 17, 11, 1, {19, 34}, {3, 3}, {1, 1}, {1, 1}, {2, 1}},
                                 {1, 16, 16, 1, {32, 32}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {5, 64, 67, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {1, 2, 1, 1, {4, 131}, {3, 3}, {1, 1}, {1, 1}, {1, 0}},
                                 {2, 4, 6, 1, {97, 3}, {3, 3}, {1, 1}, {1, 1}, {0, 2}},
                                 {1, 401, 3, 1, {5, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}};
};

TEST_F(Winograd, forward) {
  for (const Set& set : sets()) {
    for (const Case& shape : shapes) {
      for (bool last : {false, true}) {
        prepare(shape, last);
        run(args(Activation::relu), set.table->winograd_workspace, set.table->winograd_forward);
        EXPECT_LE(error(y.data, outputs()), tolerance) << set.name << " case " << &shape - shapes.data() << last;
      }
    }
  }
}

TEST_F(Winograd, of_channels_that_lie_last) {
  for (const Set& set : sets()) {
    for (const Case& shape : shapes) {
      for (bool filters_last : {false, true}) {
        prepare(shape, true);
        w = fresh(c.filters, c.channels, 3, 3, filters_last);
        run(args(Activation::relu), set.table->winograd_last_workspace, set.table->winograd_last_forward);
        EXPECT_LE(error(y.data, outputs()), tolerance) << set.name << " case " << &shape - shapes.data();
        const auto expected = image_gradients();
        run(args(), set.table->winograd_last_workspace, set.table->winograd_last_backward_images);
        EXPECT_LE(error(x.data, expected), tolerance) << set.name << " case " << &shape - shapes.data();
      }
    }
  }
}

TEST_F(Winograd, takes_padding_wider_than_the_window) {
  for (const Set& set : sets()) {
    prepare({1, 3, 5, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {5, 4}}, false);
    run(args(Activation::relu), set.table->winograd_workspace, set.table->winograd_forward);
    EXPECT_LE(error(y.data, outputs()), tolerance) << set.name;
    prepare({1, 3, 5, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {5, 4}}, true);
    run(args(Activation::relu), set.table->winograd_last_workspace, set.table->winograd_last_forward);
    EXPECT_LE(error(y.data, outputs()), tolerance) << set.name;
  }
}

TEST_F(Winograd, backward_images) {
  for (const Set& set : sets()) {
    for (const Case& shape : shapes) {
      for (bool last : {false, true}) {
        prepare(shape, last);
        const auto expected = image_gradients();
        run(args(), set.table->winograd_workspace, set.table->winograd_backward_images);
        EXPECT_LE(error(x.data, expected), tolerance) << set.name << " case " << &shape - shapes.data() << last;
      }
    }
  }
}

// How an output is summed depends neither on the threads nor on its neighbours.
TEST_F(Winograd, is_the_same_for_any_number_of_threads) {
  const int threads = tessera::num_threads();
  for (const Set& set : sets()) {
    prepare({2, 17, 19, 1, {31, 29}, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, false);
    run(args(), set.table->winograd_workspace, set.table->winograd_forward);
    const auto expected = y.data;
    for (int n : {1, 2, 5}) {
      tessera::set_num_threads(n);
      run(args(), set.table->winograd_workspace, set.table->winograd_forward);
      EXPECT_EQ(y.data, expected) << set.name << ' ' << n;
    }
    tessera::set_num_threads(threads);
  }
}

class Direct : public Conv<float> {
 public:
  // Blocks of rows that end within an image, of columns and of several images; pixels that meet in few sets of a cache;
  // groups, dilation and strides beyond the window; windows that see nothing but padding, and inputs that none sees;
  // windows that are gathered for the gradient of filters.
  const std::vector<Case> shapes{{1, 1, 9, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 3, 64, 1, {23, 21}, {7, 5}, {2, 2}, {1, 1}, {3, 2}},
                                 {3, 5, 37, 1, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {3, 16, 33, 1, {7, 7}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 512, 20, 1, {5, 6}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 256, 70, 1, {9, 8}, {1, 1}, {2, 2}, {1, 1}, {0, 0}},
                                 {2, 512, 9, 1, {3, 5}, {3, 2}, {1, 1}, {1, 1}, {1, 1}},
                                 {2, 67, 9, 1, {33, 37}, {2, 3}, {2, 1}, {1, 1}, {1, 1}},
                                 {1, 1031, 9, 1, {1, 103}, {1, 2}, {1, 1}, {1, 1}, {0, 1}},
                                 {2, 24, 32, 2, {11, 12}, {3, 2}, {2, 1}, {1, 2}, {2, 1}},
                                 {1, 12, 18, 1, {17, 16}, {3, 3}, {2, 3}, {2, 3}, {2, 4}},
                                 {1, 9, 10, 1, {12, 13}, {1, 2}, {3, 4}, {1, 1}, {0, 0}},
                                 {2, 10, 8, 1, {3, 2}, {3, 3}, {1, 1}, {1, 1}, {4, 5}},
                                 {2, 3, 67, 1, {7, 11}, {3, 2}, {2, 1}, {1, 1}, {1, 1}},
                                 {3, 14, 86, 2, {9, 8}, {3, 3}, {1, 2}, {1, 2}, {2, 3}},
                                 {40, 8, 13, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {2, 4, 12, 1, {13, 21}, {1, 4}, {1, 2}, {1, 2}, {0, 9}},
                                 {3, 4, 12, 1, {13, 21}, {3, 4}, {2, 2}, {2, 2}, {3, 5}},
                                 {2, 8, 24, 2, {11, 17}, {3, 4}, {1, 1}, {1, 3}, {3, 7}}};
  std::string name(const Set& set, const Case& shape, bool last) {
    return std::string(set.name) + " case " + std::to_string(&shape - shapes.data()) + (last ? " last" : " first");
  }
  // Filters in both layouts; of images and outputs channels lie last, and pixels may have gaps between them.
  void prepare_direct(const Case& shape, bool filters_last, i64 gap) {
    prepare(shape, true);
    w = fresh(c.filters, group_channels, c.filter[0], c.filter[1], filters_last);
    spread(x, c.images, c.channels, c.size, gap);
    spread(y, c.images, c.filters, out, gap);
  }
  void spread(Tensor& t, i64 images, i64 channels, const i64 (&size)[2], i64 gap) {
    const i64 pixel = channels + gap;
    t = fresh(images, pixel, size[0], size[1], true);
    for (i64 i = 0; gap > 0 && i < static_cast<i64>(t.data.size()); ++i) {
      if (i % pixel >= channels) t.data[i] = 0;
    }
  }
};

TEST_F(Direct, forward) {
  for (const Case& shape : shapes) {
    for (bool last : {false, true}) {
      prepare_direct(shape, last, last ? 0 : 3);
      const auto expected = outputs();
      for (const Set& set : sets()) {
        run(args(Activation::relu), set.table->direct_workspace, set.table->direct_forward);
        EXPECT_LE(error(y.data, expected), tolerance) << name(set, shape, last);
        std::fill(y.data.begin(), y.data.end(), 0.f);
      }
    }
  }
}

// Results of at least 16 MB, of no whole lines of memory and of such.
TEST_F(Direct, forward_past_caches) {
  const Case large[] = {{1, 3, 331, 1, {115, 112}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                        {3, 4, 402, 2, {61, 60}, {2, 1}, {1, 1}, {1, 1}, {1, 0}},
                        {1, 5, 1023, 1, {9, 912}, {1, 3}, {2, 1}, {1, 1}, {0, 1}},
                        {1, 2, 320, 1, {116, 114}, {1, 1}, {1, 1}, {1, 1}, {0, 0}}};
  for (const Case& shape : large) {
    prepare_direct(shape, true, 0);
    const auto expected = outputs();
    for (const Set& set : sets()) {
      run(args(Activation::relu), set.table->direct_workspace, set.table->direct_forward);
      EXPECT_LE(error(y.data, expected), tolerance) << set.name << ' ' << shape.filters << " filters";
      std::fill(y.data.begin(), y.data.end(), 0.f);
    }
  }
}

TEST_F(Direct, forward_without_bias) {
  for (const Case& shape : shapes) {
    prepare_direct(shape, true, 0);
    std::fill(bias.begin(), bias.end(), 1e4f);  // relu changes nothing
    auto expected = outputs();
    for (double& v : expected) v -= 1e4;
    ConvArgs a = args();
    a.bias = nullptr;
    for (const Set& set : sets()) {
      run(a, set.table->direct_workspace, set.table->direct_forward);
      EXPECT_LE(error(y.data, expected), tolerance) << name(set, shape, true);
    }
  }
}

TEST_F(Direct, backward_images) {
  for (const Case& shape : shapes) {
    for (bool last : {false, true}) {
      prepare_direct(shape, last, last ? 0 : 3);
      const auto expected = image_gradients();
      for (const Set& set : sets()) {
        run(args(), set.table->direct_workspace, set.table->direct_backward_images);
        EXPECT_LE(error(x.data, expected), tolerance) << name(set, shape, last);
        std::fill(x.data.begin(), x.data.end(), 0.f);
      }
    }
  }
}

TEST_F(Direct, backward_filters) {
  const int threads = tessera::num_threads();
  for (const Case& shape : shapes) {
    for (bool last : {false, true}) {
      prepare_direct(shape, last, last ? 0 : 3);
      const auto sum = filter_gradients();
      for (const Set& set : sets()) {
        for (int n : {1, 3}) {
          tessera::set_num_threads(n);
          run(args(), set.table->direct_filters_workspace, set.table->direct_backward_filters);
          EXPECT_LE(error(w.data, sum), tolerance) << name(set, shape, last) << n;
        }
      }
    }
  }
  tessera::set_num_threads(threads);
}

class Spread : public Direct {
 public:
  // Lanes of several groups in one vector and in two, and seen in more; a last block of lanes that overlaps; strides,
  // of points too; dilation, both ways, beside strides, and of fewer rows than residues; padding wider than the window;
  // rows of images in several copies.
  const std::vector<Case> groups{{2, 48, 32, 16, {13, 11}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 48, 33, 3, {9, 10}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {3, 40, 24, 8, {7, 12}, {3, 2}, {2, 3}, {1, 1}, {1, 0}},
                                 {1, 18, 54, 9, {23, 19}, {2, 5}, {1, 1}, {2, 1}, {1, 2}},
                                 {2, 54, 18, 9, {12, 17}, {5, 2}, {1, 2}, {1, 2}, {3, 6}},
                                 {1, 96, 16, 8, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {2, 34, 17, 17, {15, 9}, {1, 1}, {3, 2}, {1, 1}, {0, 0}},
                                 {1, 34, 51, 17, {9, 8}, {1, 3}, {2, 1}, {2, 1}, {1, 4}},
                                 {1, 64, 64, 16, {61, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {2, 20, 20, 10, {3, 2}, {7, 7}, {1, 1}, {1, 1}, {5, 6}},
                                 {5, 48, 64, 16, {3, 7}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 32, 56, 8, {13, 13}, {7, 7}, {3, 1}, {2, 2}, {0, 6}},
                                 {1, 24, 36, 12, {17, 14}, {3, 2}, {4, 2}, {6, 3}, {7, 2}},
                                 {1, 36, 24, 12, {5, 19}, {2, 3}, {1, 3}, {4, 2}, {0, 1}}};
};

TEST_F(Spread, all_passes) {
  const int threads = tessera::num_threads();
  for (const Case& shape : groups) {
    for (bool last : {false, true}) {
      for (const Set& set : sets()) {
        for (int n : {1, 3}) {
          tessera::set_num_threads(n);
          const auto what = std::string(set.name) + " case " + std::to_string(&shape - groups.data()) + " " +
                            std::to_string(last) + " " + std::to_string(n);
          prepare_direct(shape, last, last ? 0 : 3);
          run(args(Activation::relu), set.table->spread_workspace, set.table->spread_forward);
          EXPECT_LE(error(y.data, outputs()), tolerance) << what;
          const auto images = image_gradients();
          std::fill(x.data.begin(), x.data.end(), 0.f);
          run(args(), set.table->spread_workspace, set.table->spread_backward_images);
          EXPECT_LE(error(x.data, images), tolerance) << what;
          const auto filters = filter_gradients();
          run(args(), set.table->spread_filters_workspace, set.table->spread_backward_filters);
          EXPECT_LE(error(w.data, filters), tolerance) << what;
        }
      }
    }
  }
  tessera::set_num_threads(threads);
}

class Scatter : public Direct {
 public:
  // Those of the direct kernel; taps in several chunks, rows of an image in several blocks.
  std::vector<Case> all() const {
    std::vector<Case> r = shapes;
    r.push_back({2, 5, 611, 1, {9, 8}, {5, 5}, {1, 1}, {1, 2}, {0, 2}});
    r.push_back({1, 613, 3, 1, {9, 8}, {5, 5}, {2, 1}, {1, 1}, {4, 2}});
    r.push_back({2, 3, 7, 1, {41, 131}, {4, 3}, {1, 1}, {2, 1}, {3, 1}});
    return r;
  }
};

TEST_F(Scatter, forward_of_stride_1) {
  const int threads = tessera::num_threads();
  for (const Case& shape : all()) {
    if (shape.stride[0] * shape.stride[1] > 1) continue;
    for (bool last : {false, true}) {
      prepare_direct(shape, last, last ? 0 : 3);
      const auto expected = outputs();
      for (const Set& set : sets()) {
        std::vector<float> one_thread;
        for (int n : {1, 3}) {
          tessera::set_num_threads(n);
          std::fill(y.data.begin(), y.data.end(), 0.f);
          run(args(Activation::relu), set.table->scatter_workspace, set.table->scatter_forward);
          EXPECT_LE(error(y.data, expected), tolerance) << set.name << " filters " << shape.filters << last << n;
          if (n == 1) one_thread = y.data;
          EXPECT_EQ(y.data, one_thread) << set.name << " filters " << shape.filters << last;
        }
      }
    }
  }
  tessera::set_num_threads(threads);
}

TEST_F(Scatter, backward_images) {
  const int threads = tessera::num_threads();
  for (const Case& shape : all()) {
    for (bool last : {false, true}) {
      prepare_direct(shape, last, last ? 0 : 3);
      const auto expected = image_gradients();
      for (const Set& set : sets()) {
        std::vector<float> one_thread;
        for (int n : {1, 3}) {
          tessera::set_num_threads(n);
          std::fill(x.data.begin(), x.data.end(), 0.f);
          run(args(), set.table->scatter_workspace, set.table->scatter_backward_images);
          EXPECT_LE(error(x.data, expected), tolerance) << set.name << " channels " << shape.channels << last << n;
          if (n == 1) one_thread = x.data;
          EXPECT_EQ(x.data, one_thread) << set.name << " channels " << shape.channels << last;
        }
      }
    }
  }
  tessera::set_num_threads(threads);
}

class Depthwise : public Direct {
 public:
  // Channels off a vector, or fewer than it has; windows that see nothing but padding, inputs that none sees, strides
  // beyond the window, windows wider than a block, strides that divide the dilation, points.
  const std::vector<Case> shapes{{2, 5, 5, 5, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {1, 37, 37, 37, {12, 13}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
                                 {3, 16, 16, 16, {11, 6}, {5, 2}, {1, 3}, {2, 1}, {3, 1}},
                                 {1, 19, 19, 19, {8, 17}, {1, 2}, {2, 3}, {1, 1}, {0, 0}},
                                 {2, 67, 67, 67, {3, 2}, {3, 3}, {1, 1}, {1, 1}, {4, 5}},
                                 {1, 33, 33, 33, {9, 31}, {7, 7}, {2, 1}, {1, 2}, {3, 6}},
                                 {2, 7, 7, 7, {23, 19}, {3, 4}, {2, 3}, {1, 1}, {1, 2}},
                                 {1, 11, 11, 11, {20, 23}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 3, 3, 3, {70, 61}, {6, 5}, {1, 1}, {2, 1}, {5, 2}},
                                 {2, 6, 6, 6, {41, 13}, {3, 9}, {3, 1}, {1, 2}, {0, 8}},
                                 {1, 20, 20, 20, {5, 43}, {2, 11}, {1, 1}, {1, 1}, {0, 5}},
                                 {1, 35, 35, 35, {9, 40}, {3, 3}, {2, 2}, {2, 2}, {2, 2}},
                                 {2, 90, 90, 90, {12, 21}, {5, 1}, {1, 3}, {1, 1}, {2, 0}},
                                 {2, 21, 21, 21, {7, 10}, {1, 1}, {2, 3}, {1, 1}, {1, 2}},
                                 {1, 150, 150, 150, {4, 33}, {1, 1}, {3, 1}, {1, 1}, {0, 1}},
                                 {2, 48, 48, 48, {3, 61}, {1, 1}, {1, 1}, {1, 1}, {0, 0}}};
};

TEST_F(Depthwise, forward_and_gradients) {
  const int threads = tessera::num_threads();
  for (const Case& shape : shapes) {
    for (bool last : {false, true}) {
      const auto at = [&](const Set& set) {
        return std::string(set.name) + " case " + std::to_string(&shape - shapes.data()) + (last ? " last" : "");
      };
      tessera::set_num_threads(last ? 1 : 3);
      for (const Set& set : sets()) {
        prepare_direct(shape, last, last ? 0 : 3);
        auto expected = outputs();
        run(args(Activation::relu), set.table->depthwise_workspace, set.table->depthwise_forward);
        EXPECT_LE(error(y.data, expected), tolerance) << at(set);
        expected = image_gradients();
        run(args(), set.table->depthwise_workspace, set.table->depthwise_backward_images);
        EXPECT_LE(error(x.data, expected), tolerance) << at(set);
        expected.assign(w.data.size(), 0);
        each([&](i64 n, i64 ch, i64 h, i64 v, i64 k, i64 wc, i64 r, i64 s, i64 i, i64 j) {
          expected[&w.at(k, wc, r, s) - w.data.data()] += double(y.at(n, k, i, j)) * x.at(n, ch, h, v);
        });
        run(args(), set.table->depthwise_filters_workspace, set.table->depthwise_backward_filters);
        EXPECT_LE(error(w.data, expected), tolerance) << at(set);
      }
    }
  }
  tessera::set_num_threads(threads);
}

class Planes : public Direct {
 public:
  // Rows shorter and longer than a vector, blocks of rows, of one image and of several, strides in both dimensions with
  // and without residues that no tap meets, dilation beyond the stride, windows that see nothing but padding, images
  // read where they lie, more filters than a block has, planes of points, inputs that no window sees, and channels that
  // exceed the cache, of long rows and of short ones.
  const std::vector<Case> shapes{{2, 4, 4, 4, {6, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {3, 6, 4, 2, {7, 19}, {5, 2}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 3, 11, 1, {23, 41}, {7, 5}, {2, 3}, {1, 1}, {3, 2}},
                                 {1, 6, 9, 3, {33, 37}, {6, 6}, {1, 1}, {2, 2}, {5, 4}},
                                 {2, 5, 5, 5, {8, 17}, {1, 2}, {2, 3}, {1, 1}, {0, 0}},
                                 {1, 4, 2, 2, {17, 16}, {3, 3}, {2, 3}, {2, 3}, {2, 4}},
                                 {1, 2, 3, 1, {15, 16}, {3, 2}, {2, 3}, {3, 2}, {1, 0}},
                                 {2, 3, 3, 1, {3, 2}, {3, 3}, {1, 1}, {1, 1}, {4, 5}},
                                 {3, 7, 7, 7, {9, 11}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 6, 10, 2, {9, 11}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {2, 3, 5, 1, {12, 13}, {1, 2}, {3, 4}, {1, 1}, {0, 0}},
                                 {1, 17, 3, 1, {131, 150}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {40, 2, 13, 1, {4, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                                 {2, 3, 2, 1, {7, 17}, {3, 2}, {1, 1}, {1, 1}, {0, 0}},
                                 {3, 4, 4, 4, {15, 15}, {2, 2}, {2, 1}, {2, 1}, {2, 1}},
                                 {1, 16, 12, 1, {60, 61}, {1, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 200, 10, 1, {4, 250}, {2, 3}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 150, 9, 1, {60, 9}, {3, 1}, {1, 1}, {1, 1}, {0, 0}},
                                 {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}}};
};

TEST_F(Planes, forward_and_gradients) {
  const int threads = tessera::num_threads();
  for (const Case& shape : shapes) {
    for (bool last : {false, true}) {
      for (const Set& set : sets()) {
        tessera::set_num_threads(last ? 1 : 3);
        prepare(shape, false);
        if (last) prepare_direct(shape, false, 3);
        auto expected = outputs();
        run(args(Activation::relu), set.table->planes_workspace, set.table->planes_forward);
        EXPECT_LE(error(y.data, expected), tolerance) << name(set, shape, last);
        expected = image_gradients();
        run(args(), set.table->planes_workspace, set.table->planes_backward_images);
        EXPECT_LE(error(x.data, expected), tolerance) << name(set, shape, last);
        expected.assign(w.data.size(), 0);
        each([&](i64 n, i64 ch, i64 h, i64 v, i64 k, i64 wc, i64 r, i64 s, i64 i, i64 j) {
          expected[&w.at(k, wc, r, s) - w.data.data()] += double(y.at(n, k, i, j)) * x.at(n, ch, h, v);
        });
        run(args(), set.table->planes_filters_workspace, set.table->planes_backward_filters);
        EXPECT_LE(error(w.data, expected), tolerance) << name(set, shape, last);
      }
    }
  }
  tessera::set_num_threads(threads);
}

TEST_F(Planes, nothing_or_a_residual_behind_the_sums) {
  for (const Case& shape : shapes) {
    for (const Set& set : sets()) {
      prepare(shape, false);
      std::fill(bias.begin(), bias.end(), 1e4f);  // relu changes nothing
      auto expected = outputs();
      for (double& v : expected) v -= 1e4;
      ConvArgs a = args();
      a.bias = nullptr;
      run(a, set.table->planes_workspace, set.table->planes_forward);
      EXPECT_LE(error(y.data, expected), tolerance) << name(set, shape, false);
      Tensor residual = fresh(c.images, c.filters, out[0], out[1], true);
      for (i64 n = 0; n < c.images; ++n)
        for (i64 k = 0; k < c.filters; ++k)
          for (i64 i = 0; i < out[0]; ++i)
            for (i64 j = 0; j < out[1]; ++j) expected[&y.at(n, k, i, j) - y.data.data()] += residual.at(n, k, i, j);
      a.residual = residual.arg();
      run(a, set.table->planes_workspace, set.table->planes_forward);
      EXPECT_LE(error(y.data, expected), tolerance) << name(set, shape, false);
    }
  }
}

TEST(conv_table, halves_are_left_to_casts) {
  ConvArgs args{};
  args.type = Scalar::bf16;
  for (const Set& set : sets()) EXPECT_FALSE(set.table->supports(args));
}

}  // namespace
