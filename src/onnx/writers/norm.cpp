// Norms, softmax and losses.
#include <cmath>

#include "onnx/writer.h"
#include "onnx/writers/convolution.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// A parameter of a norm: input i in that type, or a number for each of `shape`.
Name parameter(const OpCall& c, size_t i, const Shape& shape, double otherwise, DType dtype) {
  if (c.has(i)) return c.in_as(i, dtype);
  for (const Dim d : shape)
    if (d.is_symbolic()) c.refuse("without a weight needs fixed sizes, not {}", to_string(shape));
  return c.constant(full(shape, otherwise, dtype, cpu()));
}
/// The last dims of x, as many as the weight has, or one.
Shape normalized_shape(const OpCall& c, size_t weight) {
  const Shape& x = c.type(0).shape;
  const int64_t dims = c.has(weight) ? c.type(weight).shape.rank() : 1;
  return Shape(x.end() - dims, x.end());
}

Name layer_norm_in(const OpCall& c, const Name& x, size_t weight, DType dtype) {
  const Shape last = normalized_shape(c, weight);
  Names in{x, parameter(c, weight, last, 1, dtype)};
  if (c.has(weight + 1)) in.push_back(c.in_as(weight + 1, dtype));
  return c.node("LayerNormalization", in, {integer("axis", -last.rank()), real("epsilon", c.attrs<NormAttrs>().eps)});
}
Names layer_norm_of(const OpCall& c) { return {layer_norm_in(c, c.in(0), 1, c.out().dtype)}; }
// x, branch, branch_bias?, weight?, bias? -> sum, y
Names add_layer_norm_of(const OpCall& c) {
  const DType wide = c.type(0).dtype, narrow = c.type(1).dtype;
  const Name branch = c.has(2) ? c.node("Add", {c.in(1), c.in_as(2, narrow)}) : c.in(1);
  const Name sum = c.node("Add", {c.in(0), c.cast(branch, narrow, wide)});
  return {sum, c.cast(layer_norm_in(c, sum, 3, wide), wide, narrow)};
}

Names rms_norm_of(const OpCall& c) {
  const DType dtype = c.out().dtype;
  const double eps = c.attrs<NormAttrs>().eps;
  const Name x = c.in(0);
  if (c.opset() >= 23)
    return {c.node("RMSNormalization", {x, parameter(c, 1, normalized_shape(c, 1), 1, dtype)}, {real("epsilon", eps)})};
  const Name mean = c.node("ReduceMean", {c.node("Mul", {x, x}), c.ints({-1})});
  const Name y = c.node("Div", {x, c.node("Sqrt", {c.node("Add", {mean, c.number(eps, dtype)})})});
  return {c.has(1) ? c.node("Mul", {y, c.in_as(1, dtype)}) : y};
}

// Before GroupNormalization had a weight for each channel, a norm of instances on groups, as PyTorch's exporter has it.
Names group_norm_of(const OpCall& c) {
  const auto& a = c.attrs<NormAttrs>();
  const Shape& shape = c.type(0).shape;
  const DType dtype = c.out().dtype;
  const Shape channels{shape[1]};
  const Attributes eps{real("epsilon", a.eps)};
  const Name x = c.in(0);
  if (c.opset() >= 21 || Dim(a.groups) == shape[1]) {
    const Names in{x, parameter(c, 1, channels, 1, dtype), parameter(c, 2, channels, 0, dtype)};
    if (c.opset() < 21) return {c.node("InstanceNormalization", in, eps)};
    return {c.node("GroupNormalization", in, {integer("num_groups", a.groups), real("epsilon", a.eps)})};
  }
  const Name split = c.node("Reshape", {x, c.ints({0, a.groups, -1})});
  const Shape groups{a.groups};
  const Name normal =
      c.node("InstanceNormalization",
             {split, c.constant(full(groups, 1, dtype, cpu())), c.constant(full(groups, 0, dtype, cpu()))}, eps);
  Name y = c.node("Reshape", {normal, c.node("Shape", {x})});
  Shape apart(static_cast<size_t>(shape.rank() - 1), Dim(1));
  apart[0] = shape[1];
  const auto each = [&](size_t i) { return c.reshape(c.in_as(i, dtype), channels, apart); };
  if (c.has(1)) y = c.node("Mul", {y, each(1)});
  return {c.has(2) ? c.node("Add", {y, each(2)}) : y};
}

Name relu_up_to(const OpCall& c, const Name& x, const NormAttrs& a, DType dtype) {
  if (!a.relu) return x;
  if (std::isinf(a.high)) return c.node("Relu", {x});
  return c.node("Clip", {x, c.number(0, dtype), c.number(a.high, dtype)});
}
/// By given statistics, inputs `mean` and the next one; weight and bias follow.
Name batch_norm_in(const OpCall& c, size_t mean, size_t weight, const NormAttrs& a) {
  const TensorMeta& x = c.type(0);
  const Shape channels{x.shape[1]};
  return c.node("BatchNormalization",
                {c.in(0), parameter(c, weight, channels, 1, x.dtype), parameter(c, weight + 1, channels, 0, x.dtype),
                 c.in(mean), c.in(mean + 1)},
                {real("epsilon", a.eps)});
}
// x, weight?, bias? -> y, and mean and variance (divided by n - 1) of the batch. Runtimes that only evaluate lack
// ONNX's own training mode.
Names batch_norm_of(const OpCall& c) {
  const auto& a = c.attrs<NormAttrs>();
  const DType dtype = c.out().dtype;
  const Shape& shape = c.type(0).shape;
  const Shape channels{shape[1]};
  std::vector<int64_t> dims{0};
  Shape apart(static_cast<size_t>(shape.rank() - 1), Dim(1));
  apart[0] = shape[1];
  for (int64_t d = 2; d < shape.rank(); ++d) dims.push_back(d);
  const auto mean_of = [&](const Name& x) { return c.node("ReduceMean", {x, c.ints(dims)}); };
  const Name x = c.in(0), mean = mean_of(x), centered = c.node("Sub", {x, mean});
  const Name var = mean_of(c.node("Mul", {centered, centered}));
  Name y = c.node("Div", {centered, c.node("Sqrt", {c.node("Add", {var, c.number(a.eps, dtype)})})});
  if (c.has(1)) y = c.node("Mul", {y, c.reshape(c.in_as(1, dtype), channels, apart)});
  if (c.has(2)) y = c.node("Add", {y, c.reshape(c.in_as(2, dtype), channels, apart)});
  const Name sizes = c.node("Gather", {c.node("Shape", {x}), c.ints(dims)});
  const Name n = c.cast(c.node("ReduceProd", {sizes}, {integer("keepdims", 0)}), Int64, dtype);
  const Name estimate = c.node("Div", {c.node("Mul", {var, n}), c.node("Sub", {n, c.number(1, dtype)})});
  const auto flat = [&](const Name& name) {
    return c.cast(c.node("Reshape", {name, c.ints({-1})}), dtype, c.out(1).dtype);
  };
  return {relu_up_to(c, y, a, dtype), flat(mean), flat(estimate)};
}
// x, mean, var, weight?, bias?, residual?
Names batch_norm_inference_of(const OpCall& c) {
  const auto& a = c.attrs<NormAttrs>();
  Name y = batch_norm_in(c, 1, 3, a);
  if (c.has(5)) y = c.node("Add", {y, c.in(5)});
  return {relu_up_to(c, y, a, c.out().dtype)};
}
// x, filters, bias?, mean?, var?, norm_weight?, norm_bias?
Names norm_conv2d_of(const OpCall& c) {
  const auto& a = c.attrs<NormConvAttrs>();
  if (a.norm.training) c.refuse("in training has no counterpart in ONNX");
  const Name x = c.has(3) ? batch_norm_in(c, 3, 5, a.norm) : c.in(0);
  return {convolution(c, relu_up_to(c, x, a.norm, c.type(0).dtype), a.conv)};
}

template <bool logarithm>
Names softmax_of(const OpCall& c) {
  return {c.node(logarithm ? "LogSoftmax" : "Softmax", {c.in(0)}, {integer("axis", c.axis(c.attrs<DimAttrs>().dim))})};
}

// logits [..., classes], which ONNX wants in dim 1.
Names cross_entropy_of(const OpCall& c) {
  const auto& a = c.attrs<LossAttrs>();
  if (a.label_smoothing != 0) c.refuse("with smoothed labels has no counterpart in ONNX");
  const Shape &logits = c.type(0).shape, &target = c.type(1).shape;
  const DType dtype = c.out().dtype;
  constexpr Bytes names[] = {"none", "mean", "sum"};
  Name x = c.in_as(0, dtype), y = c.in(1);
  if (logits.rank() != 2) {
    x = c.node("Reshape", {x, c.constant(tensor(std::vector<int64_t>{-1, logits.back().value()}, {2}))});
    y = c.node("Reshape", {y, c.ints({-1})});
  }
  const Name loss =
      c.node("SoftmaxCrossEntropyLoss", {x, y},
             {integer("ignore_index", a.ignore_index), text("reduction", names[static_cast<size_t>(a.reduction)])});
  const bool flat = a.reduction != Reduction::None || logits.rank() == 2;
  return {flat ? loss : c.node("Reshape", {loss, c.sizes(target)})};
}

constexpr WriterEntry entries[] = {
    {"add_layer_norm", add_layer_norm_of},
    {"batch_norm", batch_norm_of},
    {"batch_norm_inference", batch_norm_inference_of},
    {"cross_entropy", cross_entropy_of},
    {"group_norm", group_norm_of},
    {"layer_norm", layer_norm_of},
    {"log_softmax", softmax_of<true>},
    {"norm_conv2d", norm_conv2d_of},
    {"rms_norm", rms_norm_of},
    {"softmax", softmax_of<false>},
};

}  // namespace

std::span<const WriterEntry> norm_writers() { return entries; }

}  // namespace tessera::onnx
