#include "cases/cases.h"

#include <fmt/format.h>

#include <cmath>

#include "core/conv_attrs.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

struct Geometry {
  std::string label;
  Shape x, weight;
  ConvAttrs attrs;
  bool bias = true;
};

std::vector<Geometry> geometries() {
  return {
      {"one element", {1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {"1x1", {2, 5, 3, 7}, {4, 5, 1, 1}, {}},
      {"3x3 padded", {2, 3, 7, 5}, {5, 3, 3, 3}, {.padding = {1, 1}}},
      {"without bias", {1, 3, 6, 6}, {2, 3, 3, 3}, {}, false},
      {"stride 2", {2, 3, 9, 11}, {4, 3, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
      {"stride leaves a rest", {1, 2, 8, 9}, {3, 2, 3, 2}, {.stride = {3, 2}}},
      {"window of 2x5", {1, 3, 11, 13}, {3, 3, 2, 5}, {.stride = {1, 2}, .padding = {0, 2}}},
      {"dilated", {1, 2, 11, 9}, {3, 2, 3, 3}, {.padding = {2, 1}, .dilation = {2, 3}}},
      {"strided and dilated", {2, 2, 13, 12}, {3, 2, 3, 2}, {.stride = {2, 3}, .padding = {1, 1}, .dilation = {3, 2}}},
      {"two groups", {2, 6, 5, 7}, {4, 3, 3, 3}, {.padding = {1, 1}, .groups = 2}},
      {"depthwise", {1, 5, 7, 6}, {5, 1, 3, 3}, {.padding = {1, 1}, .groups = 5}},
      {"depthwise, vectors of channels", {2, 8, 9, 8}, {8, 1, 3, 3}, {.padding = {1, 1}, .groups = 8}},
      {"depthwise, stride 2", {2, 4, 7, 9}, {4, 1, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 4}},
      {"depthwise 5x3, dilated",
       {1, 4, 11, 9},
       {4, 1, 5, 3},
       {.stride = {2, 1}, .padding = {2, 2}, .dilation = {1, 2}, .groups = 4}},
      {"depthwise, two filters a channel", {2, 3, 6, 5}, {6, 1, 3, 3}, {.padding = {1, 1}, .groups = 3}},
      {"off the tile", {1, 7, 9, 10}, {17, 7, 3, 3}, {.padding = {1, 1}}},
      {"tiles of 2x2", {2, 17, 11, 13}, {19, 17, 3, 3}, {.padding = {1, 2}}},
  };
}

// Shapes of y by the rule in infer, which the cases of conv2d check against the reference.
Shape result(const Geometry& c) {
  Shape y{c.x[0], c.weight[0], Dim(0), Dim(0)};
  for (int d = 0; d < 2; ++d)
    y[2 + d] =
        (c.x[2 + d] + 2 * c.attrs.padding[d] - (c.weight[2 + d] - 1) * c.attrs.dilation[d] - 1) / c.attrs.stride[d] + 1;
  return y;
}
ConvAttrs sized(ConvAttrs attrs, const Shape& like) {
  for (int d = 0; d < 2; ++d) attrs.size[d] = like[2 + d].value();
  return attrs;
}

void add_activated(std::vector<OpCase>& cases, const Geometry& c) {
  const ConvAttrs& a = c.attrs;
  const auto add = [&](const std::string& what, Activation activation, double high, bool residual) {
    cases.push_back({.op = "conv2d_act",
                     .label = c.label + ", " + what,
                     .attrs = ConvActAttrs{.stride = {a.stride[0], a.stride[1]},
                                           .padding = {a.padding[0], a.padding[1]},
                                           .dilation = {a.dilation[0], a.dilation[1]},
                                           .groups = a.groups,
                                           .activation = activation,
                                           .high = high},
                     .inputs = [=](Generator& g) -> Tensors {
                       return {normal64(c.x, g), normal64(c.weight, g), c.bias ? normal64({c.weight[0]}, g) : Tensor(),
                               residual ? normal64(result(c), g) : Tensor()};
                     },
                     .gradients = 0b011u | c.bias << 2 | residual << 3,
                     .symbolic = c.attrs.groups == 1});
  };
  add("SiLU", Activation::Silu, INFINITY, false);
  add("ReLU to 1, residual", Activation::Relu, 1, true);
}

void add_convolutions(std::vector<OpCase>& cases) {
  for (const Geometry& c : geometries()) {
    cases.push_back({.op = "conv2d",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) -> Tensors {
                       return {normal64(c.x, g), normal64(c.weight, g), c.bias ? normal64({c.weight[0]}, g) : Tensor()};
                     },
                     .gradients = 0b011u | c.bias << 2,
                     .symbolic = c.attrs.groups == 1});
    if (result(c).numel() != result(c)[1]) {
      cases.push_back(cases.back());
      cases.back().op = "conv2d_moments";
      cases.back().dtypes = {Float32, Float64};  // its statistics are those of a rounded result
    }
    add_activated(cases, c);
    cases.push_back({.op = "conv2d_input_grad",
                     .label = c.label,
                     .attrs = sized(c.attrs, c.x),
                     .inputs = [=](Generator& g) -> Tensors {
                       return {normal64(result(c), g), normal64(c.weight, g)};
                     },
                     .gradients = 0b11,
                     .symbolic = false});
    cases.push_back({.op = "conv2d_weight_grad",
                     .label = c.label,
                     .attrs = sized(c.attrs, c.weight),
                     .inputs = [=](Generator& g) -> Tensors {
                       return {normal64(c.x, g), normal64(result(c), g), {}};
                     },
                     .gradients = 0b11,
                     .symbolic = false});
  }
  struct Transposed {
    std::string label;
    Shape x, weight;
    ConvTransposeAttrs attrs;
    bool bias = true;
  };
  for (const Transposed& c : std::initializer_list<Transposed>{
           {"one element", {1, 1, 1, 1}, {1, 1, 1, 1}, {}, false},
           {"2x2, twice the size", {2, 6, 5, 7}, {6, 3, 2, 2}, {.stride = {2, 2}}},
           {"3x3 padded, without bias", {2, 5, 7, 4}, {5, 7, 3, 3}, {.padding = {1, 1}}, false},
           {"the larger size",
            {1, 3, 5, 6},
            {3, 2, 3, 4},
            {.stride = {2, 3}, .padding = {1, 1}, .output_padding = {1, 2}}},
           {"dilated", {1, 2, 4, 5}, {2, 3, 3, 2}, {.stride = {1, 2}, .padding = {2, 0}, .dilation = {2, 3}}},
           {"two groups", {2, 4, 5, 3}, {4, 3, 3, 3}, {.stride = {2, 1}, .groups = 2}}})
    cases.push_back({.op = "conv_transpose2d",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) -> Tensors {
                       const Dim out = c.weight[1] * c.attrs.groups;
                       return {normal64(c.x, g), normal64(c.weight, g), c.bias ? normal64({out}, g) : Tensor()};
                     },
                     .gradients = 0b011u | c.bias << 2,
                     .symbolic = c.attrs.groups == 1});
}

// A convolution and its gradients; of those that memory bounds, their bytes count.
void add_benchmarks(std::vector<OpCase>& cases, const Geometry& c, bool moves_bytes) {
  const Shape y = result(c);
  const auto x_count = static_cast<double>(c.x.numel().value()), y_count = static_cast<double>(y.numel().value()),
             of_filter = static_cast<double>(c.weight.numel().value() / c.weight[0].value());
  const auto add = [&](std::string_view op, const ConvAttrs& attrs, const Shape& a, const Shape& b) {
    cases.push_back({.op = op,
                     .label = c.label,
                     .attrs = attrs,
                     .inputs = [=](Generator& g) -> Tensors {
                       Tensors in = {normal64(a, g), normal64(b, g)};
                       if (op != "conv2d_input_grad") in.push_back({});
                       return in;
                     },
                     .benchmark = true,
                     .bytes = moves_bytes ? 4 * (x_count + y_count) : 0,
                     .flops = 2 * y_count * of_filter});
  };
  add("conv2d", c.attrs, c.x, c.weight);
  add("conv2d_input_grad", sized(c.attrs, c.x), y, c.weight);
  add("conv2d_weight_grad", sized(c.attrs, c.weight), c.x, y);
}

void add_convolution_benchmarks(std::vector<OpCase>& cases) {
  for (const Geometry& c : {Geometry{"8x64x56x56, 64 3x3", {8, 64, 56, 56}, {64, 64, 3, 3}, {.padding = {1, 1}}},
                            {"32x256x14x14, 256 3x3", {32, 256, 14, 14}, {256, 256, 3, 3}, {.padding = {1, 1}}}})
    add_benchmarks(cases, c, false);
  struct Depthwise {
    int64_t channels, size, stride;
  };
  for (const Depthwise& d : std::initializer_list<Depthwise>{{32, 112, 1},
                                                             {96, 112, 2},
                                                             {144, 56, 1},
                                                             {144, 56, 2},
                                                             {192, 28, 1},
                                                             {192, 28, 2},
                                                             {384, 14, 1},
                                                             {576, 14, 1},
                                                             {576, 14, 2},
                                                             {960, 7, 1}})  // MobileNetV2's
    add_benchmarks(cases,
                   {fmt::format("128x{}x{}x{}, depthwise 3x3 by {}", d.channels, d.size, d.size, d.stride),
                    {128, d.channels, d.size, d.size},
                    {d.channels, 1, 3, 3},
                    {.stride = {d.stride, d.stride}, .padding = {1, 1}, .groups = d.channels}},
                   true);
}

struct Pooling {
  std::string label;
  Shape x;
  PoolAttrs attrs;
};

PoolAttrs pooling(int64_t r, int64_t s, int64_t stride, int64_t padding, int64_t dilation = 1, bool count_pad = true) {
  return {.window = {r, s},
          .stride = {stride, stride},
          .padding = {padding, padding},
          .dilation = {dilation, dilation},
          .count_include_pad = count_pad};
}
Shape result(const Pooling& c) {
  Shape y = c.x;
  for (int d = 0; d < 2; ++d)
    y[2 + d] =
        (c.x[2 + d] + 2 * c.attrs.padding[d] - (c.attrs.window[d] - 1) * c.attrs.dilation[d] - 1) / c.attrs.stride[d] +
        1;
  return y;
}
PoolAttrs sized(PoolAttrs attrs, const Shape& like) {
  for (int d = 0; d < 2; ++d) attrs.size[d] = like[2 + d].value();
  return attrs;
}

// Distinct values far apart, so that a small step changes no maximum.
Tensor shuffled(const Shape& shape, Generator& g) {
  Tensor x = uniform64(shape, g, 0, 1e-3);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] += static_cast<double>(i * 7919 % 1009) / 100;
  return x;
}

// For every position of the result, a tap of its window that lies on the image, as a maximum has one.
Tensor taps_in_windows(const PoolAttrs& a, const Shape& x, const Shape& result, Generator& g) {
  Tensor taps = indices(result, 1 << 20, g);
  const int64_t height = x[2].value(), width = x[3].value(), across = result[3].value();
  int64_t* tap = taps.data<int64_t>();
  for (int64_t n = 0; n < taps.numel(); ++n) {
    const int64_t row = n / across % result[2].value(), column = n % across;
    std::vector<int64_t> inside;
    for (int64_t r = 0; r < a.window[0]; ++r)
      for (int64_t s = 0; s < a.window[1]; ++s) {
        const int64_t y = row * a.stride[0] - a.padding[0] + r * a.dilation[0];
        const int64_t z = column * a.stride[1] - a.padding[1] + s * a.dilation[1];
        if (y >= 0 && y < height && z >= 0 && z < width) inside.push_back(r * a.window[1] + s);
      }
    tap[n] = inside[tap[n] % inside.size()];
  }
  return a.window[0] * a.window[1] <= 255 ? taps.to(UInt8) : taps;
}

void add_poolings(std::vector<OpCase>& cases, bool max) {
  std::vector<Pooling> list = {
      {"one element", {1, 1, 1, 1}, pooling(1, 1, 1, 0)},
      {"2x2", {2, 3, 6, 8}, pooling(2, 2, 2, 0)},
      {"prime sizes", {2, 3, 11, 13}, pooling(3, 3, 2, 1)},
      {"overlapping 2x3", {1, 2, 7, 5}, pooling(2, 3, 1, 1)},
      {"a rest is left out", {1, 2, 8, 10}, pooling(3, 3, 3, 0)},
      {"global", {2, 5, 7, 7}, pooling(7, 7, 7, 0)},
      {"channels across vectors", {2, 83, 7, 9}, pooling(3, 2, 2, 1)},
      {"more than 255 taps", {1, 2, 19, 17}, pooling(16, 17, 1, 0)},
  };
  if (max) list.push_back({"dilated", {1, 3, 11, 9}, pooling(3, 2, 2, 1, 2)});
  else list.push_back({"padding not counted", {1, 3, 11, 9}, pooling(3, 3, 2, 1, 1, false)});
  for (const Pooling& c : list) {
    cases.push_back({.op = max ? "max_pool2d" : "avg_pool2d",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) -> Tensors { return {max ? shuffled(c.x, g) : normal64(c.x, g)}; },
                     .gradients = 1});
    cases.push_back({.op = max ? "max_pool2d_backward" : "avg_pool2d_backward",
                     .label = c.label,
                     .attrs = sized(c.attrs, c.x),
                     .inputs = [=](Generator& g) -> Tensors {
                       Tensors in = {normal64(result(c), g)};
                       if (max) in.push_back(taps_in_windows(c.attrs, c.x, result(c), g));
                       return in;
                     },
                     .gradients = 1,
                     .symbolic = false});
  }
  for (const Pooling& c : {Pooling{"64x64x112x112, 3x3", {64, 64, 112, 112}, pooling(3, 3, 2, 1)},
                           {"4x64x512x512, 2x2", {4, 64, 512, 512}, pooling(2, 2, 2, 0)},
                           {"4x512x64x64, 2x2", {4, 512, 64, 64}, pooling(2, 2, 2, 0)}}) {
    const auto x = static_cast<double>(c.x.numel().value()), y = static_cast<double>(result(c).numel().value());
    const auto middle = static_cast<double>(c.attrs.window[0] / 2 * c.attrs.window[1] + c.attrs.window[1] / 2);
    cases.push_back({.op = max ? "max_pool2d" : "avg_pool2d",
                     .label = c.label,
                     .attrs = c.attrs,
                     .inputs = [=](Generator& g) -> Tensors { return {normal64(c.x, g)}; },
                     .benchmark = true,
                     .bytes = 4 * (x + y)});
    cases.push_back({.op = max ? "max_pool2d_backward" : "avg_pool2d_backward",
                     .label = c.label,
                     .attrs = sized(c.attrs, c.x),
                     .inputs = [=](Generator& g) -> Tensors {
                       Tensors in = {normal64(result(c), g)};
                       if (max) in.push_back(full(result(c), middle, UInt8));
                       return in;
                     },
                     .benchmark = true,
                     .bytes = 4 * (x + y) + (max ? 2 * y : 0)});  // a tap is half of a half
  }
}

}  // namespace

std::vector<OpCase> conv_cases() {
  std::vector<OpCase> cases;
  add_convolutions(cases);
  add_convolution_benchmarks(cases);
  add_poolings(cases, true);
  add_poolings(cases, false);
  return cases;
}

}  // namespace tessera
