// Convolutions drawn at random on the CPU: results and gradients in f32 against those in f64, which no fast kernel
// takes, in both layouts.
#include <fmt/format.h>

#include <map>
#include <random>

#include "ops/call_plan.h"
#include "ops/conv.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

struct Drawn {
  Shape x, w;
  Conv2dOptions options;
  std::string text;
};

/// None where the window is larger than its padded image.
std::optional<Drawn> draw(std::mt19937& engine) {
  const auto upto = [&](int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(engine); };
  const auto one_of = [&](std::initializer_list<int64_t> all) { return *(all.begin() + upto(0, std::ssize(all) - 1)); };
  enum Kind : int64_t { Dense, Points, Groups, Depthwise };
  const int64_t kind = upto(Dense, Depthwise);
  int64_t groups = 1, channels = one_of({1, 2, 3, 5, 8, 15, 16, 17, 33, 40}), filters = one_of({1, 3, 6, 13, 16, 39});
  if (kind == Groups) groups = upto(2, 4), channels = groups * upto(1, 9), filters = groups * upto(1, 7);
  if (kind == Depthwise) groups = filters = channels;
  const auto pair = [&](int64_t least, int64_t most) { return std::array{upto(least, most), upto(least, most)}; };
  const auto taps = kind == Points ? std::array<int64_t, 2>{1, 1} : pair(1, 6), stride = pair(1, 3),
             padding = pair(0, 3), dilation = pair(1, 3), size = pair(1, 45);
  for (int d = 0; d < 2; ++d)
    if (size[d] + 2 * padding[d] < (taps[d] - 1) * dilation[d] + 1) return std::nullopt;
  Drawn drawn{{upto(1, 4), channels, size[0], size[1]},
              {filters, channels / groups, taps[0], taps[1]},
              {{stride[0], stride[1]}, {padding[0], padding[1]}, {dilation[0], dilation[1]}, groups},
              ""};
  drawn.text =
      fmt::format("{} by {}, stride {} {}, padding {} {}, dilation {} {}, {} groups", to_string(drawn.x),
                  to_string(drawn.w), stride[0], stride[1], padding[0], padding[1], dilation[0], dilation[1], groups);
  return drawn;
}

void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
  const double most = amax(abs(want)).item<double>(), error = amax(abs(sub(got.to(Float64), want))).item<double>();
  EXPECT_LE(error, 2e-5 * std::max(most, 1e-30)) << what;
}

Tensor last(const Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

void check(const Drawn& c, Generator& generator) {
  const Tensor x = normal64(c.x, generator), w = normal64(c.w, generator);
  const auto results = [&](const Tensor& images, const Tensor& filters, const Tensor& dy) {
    const Tensors leaves{images.detach().set_requires_grad(), filters.detach().set_requires_grad()};
    const Tensor y = conv2d(leaves[0], leaves[1], {}, c.options);
    Tensors all = grad({y}, leaves, {dy});
    all.push_back(y.detach());
    return all;
  };
  const Tensor dy = normal64(conv2d(x, w, {}, c.options).shape(), generator);
  const Tensors want = results(x, w, dy);
  for (const bool channels_last : {false, true}) {
    const Tensor images = x.to(Float32), near_dy = dy.to(Float32);
    const Tensors got =
        channels_last ? results(last(images), w.to(Float32), last(near_dy)) : results(images, w.to(Float32), near_dy);
    const char* const names[] = {"images", "filters", "result"};
    for (size_t i = 0; i < got.size(); ++i)
      expect_close(got[i], want[i], fmt::format("{} of {}{}", names[i], c.text, channels_last ? ", last" : ""));
  }
}

TEST(RandomConvolutions, AgreeWithFloat64) {
  std::mt19937 engine(20261201);
  Generator generator(7);
  int checked = 0;
  while (checked < 150)
    if (const auto drawn = draw(engine)) check(*drawn, generator), ++checked;
}

// Every kernel that can run a convolution, also one that is estimated to be slower than others.
TEST(RandomConvolutions, EveryKernelAgrees) {
  NoGrad guard;
  std::mt19937 engine(20261202);
  Generator generator(11);
  std::map<std::string, int> ran;
  for (int checked = 0; checked < 200;) {
    const auto c = draw(engine);
    if (!c) continue;
    ++checked;
    const Tensor x = normal64(c->x, generator), w = normal64(c->w, generator);
    const Tensor dy = normal64(conv2d(x, w, {}, c->options).shape(), generator);
    const auto sized = [&](const Tensor& like) {
      ConvAttrs a = conv_attrs(c->options);
      a.size[0] = like.size(2), a.size[1] = like.size(3);
      return a;
    };
    const auto compute = [&](const std::string& op, const Tensor& images, const Tensor& filters, const Tensor& d) {
      if (op == "conv2d") return conv2d(images, filters, {}, c->options);
      if (op == "conv2d_input_grad") return dispatch_one(find_op(op), {d, filters}, sized(x));
      return dispatch_one(find_op(op), {images, d, filters}, sized(w));
    };
    for (const std::string op : {"conv2d", "conv2d_input_grad", "conv2d_weight_grad"}) {
      const Tensor want = compute(op, x, w, dy), near_x = x.to(Float32), near_w = w.to(Float32), d = dy.to(Float32);
      for (const Kernel& kernel : kernels_for(find_op(op), DeviceType::CPU)) {
        const ForceKernel forced(op, kernel.name);
        for (const bool channels_last : {false, true}) {
          Tensor got;
          try {
            got = channels_last ? compute(op, last(near_x), near_w, last(d)) : compute(op, near_x, near_w, d);
          } catch (const Error& error) {
            EXPECT_NE(std::string_view(error.what()).find(", which is forced, "), std::string_view::npos)
                << error.what();
            continue;  // it does not take such a call
          }
          ++ran[op + " " + kernel.name];
          expect_close(got, want,
                       fmt::format("{} by {} of {}{}", op, kernel.name, c->text, channels_last ? ", last" : ""));
        }
      }
    }
  }
  for (const std::string op : {"conv2d", "conv2d_input_grad", "conv2d_weight_grad"})
    for (const Kernel& kernel : kernels_for(find_op(op), DeviceType::CPU))
      if (!std::string_view(kernel.name).starts_with("winograd")) {
        EXPECT_GE(ran[op + " " + kernel.name], 10) << op << " " << kernel.name;
      }
}

// By two threads and more, blocks of rows begin where windows see nothing of an image.
TEST(RandomConvolutions, RowsOfWindowsThatSeeNoImage) {
  Generator generator(8);
  check({{3, 2, 14, 17}, {3, 2, 5, 4}, {{2, 2}, {0, 1}, {3, 3}, 1}, "rows outside"}, generator);
}

// Groups of few channels with dilated taps, whose pixels are read where they lie.
TEST(RandomConvolutions, FiltersOfDilatedGroups) {
  Generator generator(9);
  check({{1, 6, 1, 5}, {2, 3, 1, 2}, {{1, 1}, {0, 0}, {1, 2}, 2}, "few"}, generator);
  check({{5, 15, 25, 35}, {6, 5, 5, 2}, {{1, 2}, {5, 0}, {3, 2}, 3}, "several"}, generator);
}

}  // namespace
}  // namespace tessera
