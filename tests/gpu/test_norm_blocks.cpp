// Batch norm's kernels for GPUs, run block by block on a simulated card and compared with float64: channels last and in
// planes, in packs of 16 bytes and by single elements, halves, f32 and f64.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#define TESSERA_GPU_KERNELS
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "kernels/gpu/device/rows/line_norm_backward.h"

namespace tessera::gpu_kernels {

void throw_unsupported(const char* what) { throw std::logic_error(what); }

namespace {

struct Simulated {
  static void begin() {}
  template <class Work>
  static void launch(const char*, void (*kernel)(Work), i64 blocks, int threads, const Work& work, Executor&) {
    for (i64 b = 0; b < blocks; ++b) simulated::run_block(b, threads, [&] { kernel(work); });
  }
};

std::mt19937 numbers(11);
double normal() { return std::normal_distribution<double>()(numbers); }

template <class T>
constexpr Scalar scalar = std::is_same_v<T, double>  ? Scalar::f64
                          : std::is_same_v<T, float> ? Scalar::f32
                          : std::is_same_v<T, f16>   ? Scalar::f16
                                                     : Scalar::bf16;
template <class T>
constexpr double limit = std::is_same_v<T, double>  ? 1e-12
                         : std::is_same_v<T, float> ? 2e-6
                         : std::is_same_v<T, f16>   ? 1e-3
                                                    : 6e-3;

struct Images {
  i64 batch, channels, size;
  bool last;      // channels
  i64 pitch = 0;  // by which planes lie further apart than they are large
  i64 count() const { return batch * channels * size; }
  i64 channel_of(i64 i) const { return i / size % channels; }
};

/// Images in memory, where NaN lies around them, and what they are in float64, image by image and plane by plane.
template <class T>
struct Memory {
  std::vector<T> memory;
  PlanesArg planes;
  Images of;

  explicit Memory(const Images& of, bool aligned = true) : of(of) {
    const i64 plane = of.size + of.pitch, all = of.batch * of.channels * plane;
    memory.assign(static_cast<size_t>(all) + 40, T(NAN));
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 16;
    planes = {memory.data() + (16 - misaligned) % 16 / sizeof(T) + (aligned ? 16 : 17), of.channels * plane, plane};
  }
  T& at(i64 i) {
    const i64 image = i / (of.channels * of.size), channel = of.channel_of(i), place = i % of.size;
    const i64 offset = of.last ? (image * of.size + place) * of.channels + channel
                               : image * planes.batch_stride + channel * planes.channel_stride + place;
    return static_cast<T*>(planes.data)[offset];
  }
  std::vector<double> fill(double mean = 0, double deviation = 1) {
    for (i64 i = 0; i < of.count(); ++i) at(i) = tile::convert_element<T>(mean + deviation * normal());
    return values();
  }
  std::vector<double> values() {
    std::vector<double> all(static_cast<size_t>(of.count()));
    for (i64 i = 0; i < of.count(); ++i) all[static_cast<size_t>(i)] = tile::convert_element<double>(at(i));
    return all;
  }
};

template <class V>
void expect_close(const V& got, const std::vector<double>& want, double most, const char* what) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(difference / std::max(size, 1e-300)), most) << what;
}

template <class C>
std::vector<C> channel_numbers(i64 count, double low, double high) {
  std::vector<C> all(static_cast<size_t>(count));
  for (C& c : all) c = static_cast<C>(std::uniform_real_distribution<double>(low, high)(numbers));
  return all;
}

/// A batch norm of one shape with everything that it takes, and its results in float64.
template <class T>
struct Norm {
  using C = tile::compute_t<T>;
  static constexpr double eps = 1e-5;
  Images images;
  bool relu, adds;
  double shift, high = INFINITY;  // of relu
  Memory<T> x, y, residual, dy, dx, dresidual;
  std::vector<C> weight, bias, mean, rstd, running_mean, running_variance, dweight, dbias;
  std::vector<double> exact_x, exact_residual, exact_y, exact_mean, exact_rstd, exact_variance;
  std::vector<char> workspace;
  Executor executor{nullptr, 5, nullptr};  // few multiprocessors, so that blocks have several lines

  Norm(const Images& images, bool relu, bool adds, double shift = 2, bool aligned = true)
      : images(images),
        relu(relu),
        adds(adds),
        shift(shift),
        x(images, aligned),
        y(images),
        residual(images),
        dy(images),
        dx(images),
        dresidual(images) {
    exact_x = x.fill(shift, 1.5);
    exact_residual = residual.fill();
    const size_t channels = static_cast<size_t>(images.channels);
    weight = channel_numbers<C>(images.channels, -1, 2);
    bias = channel_numbers<C>(images.channels, -1, 1);
    running_mean = channel_numbers<C>(images.channels, 1, 3);
    running_variance = channel_numbers<C>(images.channels, 1, 3);
    for (auto* v : {&mean, &rstd, &dweight, &dbias}) v->assign(channels, C(NAN));
    const auto bytes = (most_line_parts(images.channels, images.batch * images.size) + 1) * images.channels * 16;
    workspace.assign(static_cast<size_t>(bytes), char(-1));
  }

  BatchNormArgs args() {
    BatchNormArgs a{};
    a.type = scalar<T>;
    a.weight_type = scalar<C>;
    a.relu = relu;
    a.lines = images.last;
    a.batch = images.batch;
    a.channels = images.channels;
    a.size = images.size;
    a.y = y.planes;
    a.x = x.planes;
    if (adds) a.residual = residual.planes;
    a.weight = weight.data();
    a.bias = bias.data();
    a.running_mean = running_mean.data();
    a.running_variance = running_variance.data();
    a.correction = 1;
    a.eps = eps;
    a.high = high;
    a.mean = mean.data();
    a.rstd = rstd.data();
    a.workspace = workspace.data();
    return a;
  }
  BatchNormBackwardArgs backward_args(bool training) {
    BatchNormBackwardArgs a{};
    a.type = scalar<T>;
    a.weight_type = scalar<C>;
    a.training = training;
    a.relu = relu;
    a.high = high;
    a.lines = images.last;
    a.batch = images.batch;
    a.channels = images.channels;
    a.size = images.size;
    a.dx = dx.planes;
    a.dy = dy.planes;
    a.x = x.planes;
    if (adds) a.y = y.planes, a.dresidual = dresidual.planes;
    a.weight = weight.data();
    a.bias = bias.data();
    a.dweight = dweight.data();
    a.dbias = dbias.data();
    a.mean = mean.data();
    a.rstd = rstd.data();
    a.workspace = workspace.data();
    return a;
  }

  void find_statistics() {
    const double count = static_cast<double>(images.batch * images.size);
    exact_mean.assign(weight.size(), 0);
    exact_variance = exact_rstd = exact_mean;
    for (i64 i = 0; i < images.count(); ++i) exact_mean[channel(i)] += exact_x[static_cast<size_t>(i)] / count;
    for (i64 i = 0; i < images.count(); ++i) {
      const double d = exact_x[static_cast<size_t>(i)] - exact_mean[channel(i)];
      exact_variance[channel(i)] += d * d / count;
    }
    for (size_t c = 0; c < weight.size(); ++c) exact_rstd[c] = 1 / std::sqrt(exact_variance[c] + eps);
  }
  size_t channel(i64 i) const { return static_cast<size_t>(images.channel_of(i)); }
  double normal_of(i64 i) const {
    return (exact_x[static_cast<size_t>(i)] - exact_mean[channel(i)]) * exact_rstd[channel(i)];
  }
  void find_result() {
    exact_y.resize(exact_x.size());
    for (i64 i = 0; i < images.count(); ++i) {
      const size_t c = channel(i), at = static_cast<size_t>(i);
      const double v = normal_of(i) * static_cast<double>(weight[c]) + static_cast<double>(bias[c]) +
                       (adds ? exact_residual[at] : 0.0);
      exact_y[at] = relu ? std::clamp(v, 0.0, high) : v;
    }
  }

  void expect_training() {
    find_statistics();
    find_result();
    BatchNormArgs a = args();
    a.training = true;
    a.momentum = 0.25;
    const auto before_mean = running_mean, before_variance = running_variance;
    ASSERT_TRUE((line_norm_by<Simulated, true>(a, executor)));
    const double rounded = std::ldexp(std::abs(shift), sizeof(C) == 8 ? -52 : -23);  // the mean, of a deviation of 1.5
    expect_close(y.values(), exact_y, limit<T> + rounded, "y");
    const double statistics = sizeof(C) == 8 ? 1e-13 : 4e-7, count = static_cast<double>(images.batch * images.size);
    expect_close(mean, exact_mean, statistics, "mean");
    expect_close(rstd, exact_rstd, statistics * 4, "rstd");
    std::vector<double> moved_mean(mean.size()), moved_variance(mean.size());
    for (size_t c = 0; c < mean.size(); ++c) {
      moved_mean[c] = 0.75 * static_cast<double>(before_mean[c]) + 0.25 * exact_mean[c];
      moved_variance[c] =
          0.75 * static_cast<double>(before_variance[c]) + 0.25 * exact_variance[c] * count / (count - 1);
    }
    expect_close(running_mean, moved_mean, statistics, "running mean");
    expect_close(running_variance, moved_variance, statistics * 4, "running variance");
  }

  void expect_inference() {
    exact_mean.assign(running_mean.begin(), running_mean.end());
    exact_rstd = exact_mean;
    for (size_t c = 0; c < exact_rstd.size(); ++c)
      exact_rstd[c] = 1 / std::sqrt(static_cast<double>(running_variance[c]) + eps);
    find_result();
    ASSERT_TRUE((line_norm_by<Simulated, true>(args(), executor)));
    expect_close(y.values(), exact_y, limit<T>, "y of given statistics");
  }

  /// After expect_training(), whose statistics and y it takes. `filter`: one filter has followed.
  void expect_backward(bool training, bool filter = false) {
    auto exact_dy = dy.fill(0.3);
    BatchNormBackwardArgs a = backward_args(training);
    std::vector<T> filters(weight.size());
    std::vector<T> dfilters(weight.size(), T(NAN));
    for (T& f : filters) f = tile::convert_element<T>(normal());
    if (filter) {  // the same plane for each channel
      a.dy.channel_stride = 0;
      a.filter = filters.data();
      a.dfilter = dfilters.data();
      for (i64 i = 0; i < images.count(); ++i) {
        const i64 first = i - images.channel_of(i) * images.size;
        exact_dy[static_cast<size_t>(i)] = tile::convert_element<double>(dy.at(first));
      }
    }
    const auto y_kept = y.values();
    std::vector<double> exact_dx(exact_dy.size()), exact_dresidual, sum(weight.size()), of_normal = sum, exact_dfilter;
    for (i64 i = 0; i < images.count(); ++i) {
      const size_t at = static_cast<size_t>(i);
      const size_t c = channel(i);
      const double line = normal_of(i) * static_cast<double>(weight[c]) + static_cast<double>(bias[c]);
      const bool open = adds ? y_kept[at] > 0 : line > 0 && line < high;
      if (relu && !open) exact_dy[at] = 0;
      sum[channel(i)] += exact_dy[at];
      of_normal[channel(i)] += exact_dy[at] * normal_of(i);
    }
    exact_dresidual = exact_dy;
    const double count = static_cast<double>(images.batch * images.size);
    for (i64 i = 0; i < images.count(); ++i) {
      const size_t at = static_cast<size_t>(i), c = channel(i);
      double d = exact_dy[at];
      if (training) d -= sum[c] / count + normal_of(i) * of_normal[c] / count;
      exact_dx[at] = d * exact_rstd[c] * static_cast<double>(weight[c]) *
                     (filter ? tile::convert_element<double>(filters[c]) : 1.0);
    }
    if (filter)
      for (size_t c = 0; c < sum.size(); ++c) {
        exact_dfilter.push_back(of_normal[c] * static_cast<double>(weight[c]) + sum[c] * static_cast<double>(bias[c]));
        sum[c] *= tile::convert_element<double>(filters[c]);
        of_normal[c] *= tile::convert_element<double>(filters[c]);
      }
    ASSERT_TRUE((line_norm_backward_by<Simulated, true>(a, executor)));
    expect_close(dx.values(), exact_dx, 2 * limit<T>, "dx");
    expect_close(dweight, of_normal, 2 * limit<T>, "dweight");
    expect_close(dbias, sum, 2 * limit<T>, "dbias");
    if (adds) expect_close(dresidual.values(), exact_dresidual, limit<T>, "dresidual");
    std::vector<double> got;
    for (const T& f : dfilters) got.push_back(tile::convert_element<double>(f));
    if (filter) expect_close(got, exact_dfilter, 2 * limit<T>, "dfilter");
  }
};

// Every mode: pixels with few channels and many, planes whose packs lie across channels, large planes, single elements.
const Images shapes[] = {
    {3, 8, 65, true},    {2, 24, 171, true},   {7, 64, 81, true}, {2, 96, 43, true},  {1, 144, 119, true},
    {2, 136, 33, true},  {3, 5, 37, true},     {2, 328, 9, true}, {9, 16, 49, false}, {5, 20, 196, false},
    {3, 3, 800, false},  {2, 5, 83, false},    {13, 5, 1, false}, {70, 40, 1, false}, {4, 6, 64, false, 8},
    {1, 2, 9000, false}, {4, 6, 49, false, 3}, {2, 1, 24, false},
};

template <class T>
class NormBlocks : public testing::Test {};
using Types = testing::Types<bf16, f16, float, double>;
TYPED_TEST_SUITE(NormBlocks, Types);

TYPED_TEST(NormBlocks, AgreeWithFloat64) {
  if (!can_simulate) GTEST_SKIP() << "the sanitizer";
  for (const Images& images : shapes)
    for (int form = 0; form < 5; ++form) {
      SCOPED_TRACE(testing::Message() << images.batch << "x" << images.channels << "x" << images.size
                                      << (images.last ? " last" : "") << " form " << form);
      const bool relu = form > 0, adds = form == 2 || form == 3;
      Norm<TypeParam> norm(images, relu, adds, 2, form != 3);
      if (form == 4) norm.high = 0.7;
      norm.expect_training();
      norm.expect_backward(true);
      if (form == 1) norm.expect_backward(false);
      norm.expect_inference();
    }
}

TYPED_TEST(NormBlocks, TakeOneFiltersGradient) {
  if (!can_simulate) GTEST_SKIP() << "the sanitizer";
  for (const Images& images : {Images{3, 6, 64, false}, Images{2, 3, 35, false}}) {
    Norm<TypeParam> norm(images, true, false);
    norm.expect_training();
    norm.expect_backward(true, true);
  }
}

// Elements far from zero: sums of squares would leave nothing of the variance.
TEST(NormMoments, DoNotCancel) {
  if (!can_simulate) GTEST_SKIP() << "the sanitizer";
  for (const Images& images : {Images{9, 16, 300, true}, Images{9, 16, 49, false}, Images{2, 3, 1600, false}}) {
    Norm<float> norm(images, false, false, 1000);
    norm.expect_training();
  }
}

// The running estimate that moves all the way may have been anything.
TEST(NormMoments, MoveAllTheWay) {
  if (!can_simulate) GTEST_SKIP() << "the sanitizer";
  Norm<float> norm({4, 8, 25, true}, false, false);
  norm.find_statistics();
  BatchNormArgs a = norm.args();
  a.training = true;
  a.momentum = 1;
  norm.running_variance.assign(8, NAN);
  ASSERT_TRUE((line_norm_by<Simulated, true>(a, norm.executor)));
  std::vector<double> want;
  for (double v : norm.exact_variance) want.push_back(v * 100 / 99);
  expect_close(norm.running_variance, want, 2e-6, "variance");
}

// How images are cut: whatever their size, nearly all threads and blocks have something to do.
TEST(Lines, FillTheCard) {
  constexpr int multiprocessors = 132;
  for (const auto& [batch, channels] : {std::pair<i64, i64>{802816, 64},
                                        {200704, 256},
                                        {50176, 512},
                                        {12544, 1024},
                                        {3136, 2048},
                                        {1605632, 16},
                                        {1605632, 32},
                                        {1605632, 96},
                                        {401408, 24},
                                        {401408, 144},
                                        {25088, 576},
                                        {6272, 960},
                                        {6272, 320}}) {
    const Lines lines = lines_of(batch, channels, 1, true, 8, multiprocessors);
    const double threads = static_cast<double>(lines.packs * lines.abreast * channels) /
                           static_cast<double>(line_threads * lines.group * lines.groups);
    EXPECT_GE(threads * static_cast<double>(lines.blocks()) / multiprocessors, 0.9) << batch << "x" << channels;
    EXPECT_LE(lines.blocks(), multiprocessors);
    EXPECT_LE(lines.parts, most_line_parts(channels, batch));
  }
  for (const auto& [channels, size] :
       {std::pair<i64, i64>{64, 12544}, {256, 3136}, {512, 784}, {1024, 196}, {2048, 49}}) {
    const Lines lines = lines_of(64, channels, size, true, 8, multiprocessors);
    const double rounds = std::ceil(static_cast<double>(lines.blocks()) / multiprocessors);
    const double threads = static_cast<double>(lines.packs * lines.abreast) / line_threads;
    EXPECT_GE(threads * static_cast<double>(lines.blocks()) / (rounds * multiprocessors), 0.85) << channels;
    EXPECT_LE(lines.parts, most_line_parts(channels, 64 * size));
  }
}

}  // namespace
}  // namespace tessera::gpu_kernels
