// Convolutions and pools.
#include <cmath>

#include "core/conv_attrs.h"
#include "core/sample_attrs.h"
#include "onnx/writer.h"
#include "onnx/writers/convolution.h"
#include "onnx/writers/integers.h"
#include "tessera/ops.h"

namespace tessera::onnx {

Name convolution(const OpCall& c, const Name& x, const ConvAttrs& a) {
  const Names in = c.has(2) ? Names{x, c.in(1), c.in(2)} : Names{x, c.in(1)};
  return c.node("Conv", in,
                {integers("strides", {a.stride[0], a.stride[1]}),
                 integers("pads", {a.padding[0], a.padding[1], a.padding[0], a.padding[1]}),
                 integers("dilations", {a.dilation[0], a.dilation[1]}), integer("group", a.groups)});
}

namespace {

Names conv2d_of(const OpCall& c) {
  if (const Name exact = integer_convolution(c); !exact.empty()) return {exact};
  return {convolution(c, c.in(0), c.attrs<ConvAttrs>())};
}

Names conv2d_act_of(const OpCall& c) {
  const auto& a = c.attrs<ConvActAttrs>();
  const DType dtype = c.out().dtype;
  Name y = convolution(c, c.in(0), a.conv());
  if (c.has(3)) y = c.node("Add", {y, c.in(3)});
  if (std::isfinite(a.high)) return {c.node("Clip", {y, c.number(0, dtype), c.number(a.high, dtype)})};
  return {c.activation(y, a.activation, dtype)};
}

Names conv_transpose2d_of(const OpCall& c) {
  const auto& a = c.attrs<ConvTransposeAttrs>();
  const Names in = c.has(2) ? Names{c.in(0), c.in(1), c.in(2)} : Names{c.in(0), c.in(1)};
  return {c.node("ConvTranspose", in,
                 {integers("strides", {a.stride[0], a.stride[1]}),
                  integers("pads", {a.padding[0], a.padding[1], a.padding[0], a.padding[1]}),
                  integers("dilations", {a.dilation[0], a.dilation[1]}), integer("group", a.groups),
                  integers("output_padding", {a.output_padding[0], a.output_padding[1]})})};
}

// What conv2d takes to dy: the sizes say how much of the input no window reaches.
Names conv2d_input_grad_of(const OpCall& c) {
  const auto& a = c.attrs<ConvAttrs>();
  std::vector<int64_t> beyond;
  for (int64_t d = 0; d < 2; ++d) {
    const Dim size = c.type(0).shape[2 + d], wanted = c.out().shape[2 + d], taps = c.type(1).shape[2 + d];
    const Dim rest = wanted - ((size - 1) * a.stride[d] - 2 * a.padding[d] + (taps - 1) * a.dilation[d] + 1);
    if (rest.is_symbolic()) c.refuse("needs fixed sizes, not {}", size.to_string());
    beyond.push_back(rest.value());
  }
  return {c.node("ConvTranspose", {c.in(0), c.in(1)},
                 {integers("strides", {a.stride[0], a.stride[1]}),
                  integers("pads", {a.padding[0], a.padding[1], a.padding[0], a.padding[1]}),
                  integers("dilations", {a.dilation[0], a.dilation[1]}), integer("group", a.groups),
                  integers("output_padding", beyond)})};
}

Attributes windows(const PoolAttrs& a) {
  return {integers("kernel_shape", {a.window[0], a.window[1]}), integers("strides", {a.stride[0], a.stride[1]}),
          integers("pads", {a.padding[0], a.padding[1], a.padding[0], a.padding[1]})};
}
Names max_pool2d_of(const OpCall& c) {
  const auto& a = c.attrs<PoolAttrs>();
  Attributes attributes = windows(a);
  attributes.push_back(integers("dilations", {a.dilation[0], a.dilation[1]}));
  return {c.node("MaxPool", {c.in(0)}, std::move(attributes))};
}
Names avg_pool2d_of(const OpCall& c) {
  const auto& a = c.attrs<PoolAttrs>();
  Attributes attributes = windows(a);
  attributes.push_back(integer("count_include_pad", a.count_include_pad));
  return {c.node("AveragePool", {c.in(0)}, std::move(attributes))};
}

Names grid_sample_of(const OpCall& c) {
  const auto& a = c.attrs<GridSampleAttrs>();
  constexpr const char* beyond[] = {"zeros", "border", "reflection"};
  constexpr const char* modes[2][3] = {{"nearest", "bilinear", "bicubic"}, {"nearest", "linear", "cubic"}};
  const bool renamed = c.opset() >= 20;
  const Shape& x = c.type(0).shape;
  if (!renamed && x.rank() != 4) c.refuse("three spatial dims cannot be written before opset 20");
  Name grid = c.in(1);
  if (a.elements) {  // coordinates of elements as those from -1 to 1
    std::vector<double> scale, shift;
    for (int64_t d = x.rank() - 1; d > 1; --d) {
      const auto last = static_cast<double>(x[d].value() - 1), size = static_cast<double>(x[d].value());
      if (a.align_corners && last < 1) c.refuse("coordinates of one element have no corners");
      scale.push_back(a.align_corners ? 2 / last : 2 / size);
      shift.push_back(a.align_corners ? -1 : 1 / size - 1);
    }
    const auto line = [&](const std::vector<double>& v) {
      return c.constant(tensor(v, {static_cast<int64_t>(v.size())}).to(c.type(1).dtype));
    };
    grid = c.node("Add", {c.node("Mul", {grid, line(scale)}), line(shift)});
  }
  return {c.node("GridSample", {c.in(0), grid},
                 {text("mode", modes[renamed][a.interpolation]), text("padding_mode", beyond[a.beyond]),
                  integer("align_corners", a.align_corners)})};
}
Names roi_align_of(const OpCall& c) {
  const auto& a = c.attrs<RoiAlignAttrs>();
  return {c.node("RoiAlign", {c.in(0), c.in_as(1, c.type(0).dtype), c.in_as(2, Int64)},
                 {text("coordinate_transformation_mode", a.aligned ? "half_pixel" : "output_half_pixel"),
                  integer("output_height", a.rows), integer("output_width", a.columns),
                  integer("sampling_ratio", a.sampling_ratio), real("spatial_scale", a.spatial_scale)})};
}

constexpr WriterEntry entries[] = {
    {"avg_pool2d", avg_pool2d_of},
    {"conv2d", conv2d_of},
    {"conv2d_act", conv2d_act_of},
    {"conv2d_input_grad", conv2d_input_grad_of},
    {"conv_transpose2d", conv_transpose2d_of},
    {"grid_sample", grid_sample_of},
    {"max_pool2d", max_pool2d_of},
    {"roi_align", roi_align_of},
};

}  // namespace

std::span<const WriterEntry> window_writers() { return entries; }

}  // namespace tessera::onnx
