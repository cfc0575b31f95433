// Shapes: views, joins and paddings.
#include <limits>

#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

// What is only about memory here.
Names same(const OpCall& c) { return {c.in(0)}; }

Names reshape_to(const OpCall& c) { return {c.reshape(c.in(0), c.type(0).shape, c.out().shape)}; }
Names permuted(const OpCall& c) {
  std::vector<int64_t> order;
  for (const int64_t d : c.attrs<PermuteAttrs>().dims) order.push_back(c.axis(d));
  return {c.transpose(c.in(0), order)};
}
Names expand_to(const OpCall& c) {
  if (c.type(0).shape == c.out().shape) return {c.in(0)};
  return {c.node("Expand", {c.in(0), c.sizes(c.out().shape)})};
}

Name sliced(const OpCall& c, int64_t dim, const Name& start, const Name& end, int64_t step) {
  return c.node("Slice", {c.in(0), start, end, c.ints({dim}), c.ints({step})});
}
Names slice_of(const OpCall& c) {
  const auto& a = c.attrs<SliceAttrs>();
  const int64_t dim = c.axis(a.dim);
  if (c.type(0).shape == c.out().shape && a.step == 1) return {c.in(0)};
  return {sliced(c, dim, c.dim(a.start), c.dim(a.end), a.step)};
}
Names select_of(const OpCall& c) {
  const auto& a = c.attrs<SelectAttrs>();
  const Name index = a.index.is_symbolic() ? c.node("Squeeze", {c.dim(a.index)})
                                           : c.constant(tensor(std::vector<int64_t>{a.index.value()}, {}));
  return {c.node("Gather", {c.in(0), index}, {integer("axis", c.axis(a.dim))})};
}
Names flip_of(const OpCall& c) {
  const IntList& dims = c.attrs<PermuteAttrs>().dims;
  if (dims.empty()) return {c.in(0)};
  const auto all = [&](int64_t value) { return c.ints(std::vector<int64_t>(dims.size(), value)); };
  return {c.node("Slice", {c.in(0), all(-1), all(std::numeric_limits<int64_t>::min()),
                           c.ints({dims.begin(), dims.end()}), all(-1)})};
}

Names concat_of(const OpCall& c) {
  Names parts;
  for (size_t i = 0; i < c.inputs(); ++i) parts.push_back(c.in_as(i, c.out().dtype));
  if (parts.size() == 1) return parts;
  return {c.node("Concat", parts, {integer("axis", c.axis(c.attrs<DimAttrs>().dim))})};
}

// Of the last six dims, outermost first.
Names pad_to(const OpCall& c) {
  const auto& a = c.attrs<PadAttrs>();
  if (c.type(0).shape == c.out().shape) return {c.in(0)};
  const int64_t rank = c.type(0).shape.rank();
  std::vector<int64_t> pads;
  for (const auto* side : {a.low, a.high})
    for (int64_t d = 0; d < rank; ++d) pads.push_back(d + 6 < rank ? 0 : side[6 - rank + d]);
  return {c.node("Pad", {c.in(0), c.ints(pads), c.number(a.value, c.out().dtype)})};
}

template <bool upper>
Names triangle(const OpCall& c) {
  const auto k = static_cast<double>(c.attrs<DiagonalAttrs>().diagonal);
  return {c.node("Trilu", {c.in(0), c.number(k, Int64)}, {integer("upper", upper)})};
}

Names shape_of_input(const OpCall& c) { return {c.node("Shape", {c.in(0)})}; }

// The place of each element in x, as an index.
Names windows_of(const OpCall& c) {
  const auto& a = c.attrs<WindowAttrs>();
  const int64_t dim = c.axis(a.dim), rank = c.type(0).shape.rank();
  const Dim count = c.out().shape[dim];
  const auto apart = [](int64_t n, int64_t by) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(i * by);
    return all;
  };
  const Name first = count.is_symbolic()
                         ? c.node("Mul", {c.places(count), c.number(static_cast<double>(a.stride), Int64)})
                         : c.ints(apart(count.value(), a.stride));
  const Name places = c.node("Add", {c.node("Unsqueeze", {first, c.ints({1})}), c.ints(apart(a.size, a.dilation))});
  const Name taken = c.node("Gather", {c.in(0), places}, {integer("axis", dim)});
  std::vector<int64_t> order;
  for (int64_t d = 0; d <= rank; ++d)
    if (d != dim + 1) order.push_back(d);
  order.push_back(dim + 1);
  return {c.transpose(taken, order)};
}

// dy spread over a dim of zeros, from `start` on, `step` apart: what folds windows.
Names spread(const OpCall& c) {
  const auto& a = c.attrs<ScatterAttrs>();
  const int64_t dim = c.axis(a.dim), rank = c.type(0).shape.rank();
  const Dim length = c.type(0).shape[dim];
  if (length.is_symbolic() || a.size.is_symbolic() || a.start.is_symbolic())
    c.refuse("needs a fixed size, not {}", length.to_string());
  const auto padded = [&](const Name& x, int64_t dims, int64_t at, int64_t low, int64_t high) {
    std::vector<int64_t> pads(static_cast<size_t>(2 * dims), 0);
    pads[static_cast<size_t>(at)] = low, pads[static_cast<size_t>(dims + at)] = high;
    return c.node("Pad", {x, c.ints(pads), c.number(0, c.out().dtype)});
  };
  Name x = c.in(0);
  int64_t n = length.value();
  if (a.step > 1 && n > 0) {
    Shape apart = c.type(0).shape, wide = apart;
    apart.insert(apart.begin() + dim + 1, Dim(1));
    Shape stepped = apart;
    stepped[dim + 1] = a.step;
    wide[dim] = n * a.step;
    x = c.reshape(padded(c.reshape(x, c.type(0).shape, apart), rank + 1, dim + 1, 0, a.step - 1), stepped, wide);
    n *= a.step;
  }
  const int64_t start = a.start.value(), high = a.size.value() - start - n;
  if (high < 0) x = c.node("Slice", {x, c.ints({0}), c.ints({n + high}), c.ints({dim})});
  return {padded(x, rank, dim, start, std::max<int64_t>(high, 0))};
}

constexpr WriterEntry entries[] = {
    {"clone", same},
    {"concat", concat_of},
    {"expand", expand_to},
    {"flip", flip_of},
    {"pad", pad_to},
    {"permute", permuted},
    {"reshape", reshape_to},
    {"select", select_of},
    {"shape_of", shape_of_input},
    {"slice", slice_of},
    {"slice_backward", spread},
    {"sliding_window", windows_of},
    {"to_device", same},
    {"tril", triangle<false>},
    {"triu", triangle<true>},
};

}  // namespace

std::span<const WriterEntry> shape_writers() { return entries; }

}  // namespace tessera::onnx
