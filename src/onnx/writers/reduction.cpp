// Reductions, scans and order.
#include <algorithm>

#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

// Over the dims of the call, or all of them.
Name reduced(const OpCall& c, std::string_view op, const Name& x, bool keepdim) {
  const IntList& dims = c.attrs<ReduceAttrs>().dims;
  Names in{x};
  if (!dims.empty() && !c.type(0).shape.empty()) in.push_back(c.ints({dims.begin(), dims.end()}));
  return c.node(op, in, {integer("keepdims", keepdim)});
}
template <const char* op>
Names reduction(const OpCall& c) {
  return {reduced(c, op, c.in_as(0, c.out().dtype), c.attrs<ReduceAttrs>().keepdim)};
}
constexpr char kSum[] = "ReduceSum", kMean[] = "ReduceMean", kProd[] = "ReduceProd", kMax[] = "ReduceMax",
               kMin[] = "ReduceMin", kL2[] = "ReduceL2", kLogSumExp[] = "ReduceLogSumExp", kArgMax[] = "ArgMax",
               kArgMin[] = "ArgMin";

// ONNX's extremes of bools are newer than these of integers.
template <const char* op>
Names extremum(const OpCall& c) {
  const bool keepdim = c.attrs<ReduceAttrs>().keepdim;
  const DType dtype = c.out().dtype;
  if (dtype != Bool) return {reduced(c, op, c.in(0), keepdim)};
  const Name truth = c.in_as(0, Bool);
  return {c.cast(reduced(c, op, c.cast(truth, Bool, Int32), keepdim), Int32, Bool)};
}

// The elements that are reduced, less the correction.
Name divisor(const OpCall& c, DType dtype) {
  const auto& a = c.attrs<ReduceAttrs>();
  const Shape& shape = c.type(0).shape;
  Dim count = 1;
  if (a.dims.empty())
    for (const Dim d : shape) count = count * d;
  for (const int64_t d : a.dims) count = count * shape[c.axis(d)];
  if (!count.is_symbolic()) return c.number(static_cast<double>(count.value() - a.correction), dtype);
  const Name size = c.cast(c.node("Squeeze", {c.dim(count)}), Int64, dtype);
  return c.node("Sub", {size, c.number(static_cast<double>(a.correction), dtype)});
}
Name variance(const OpCall& c) {
  const auto& a = c.attrs<ReduceAttrs>();
  const DType dtype = c.out().dtype;
  const Name x = c.in_as(0, dtype), centered = c.node("Sub", {x, reduced(c, "ReduceMean", x, true)});
  const Name squares = c.node("Mul", {centered, centered});
  if (a.correction == 0) return reduced(c, "ReduceMean", squares, a.keepdim);
  return c.node("Div", {reduced(c, "ReduceSum", squares, a.keepdim), divisor(c, dtype)});
}
Names var_of(const OpCall& c) { return {variance(c)}; }
Names std_of(const OpCall& c) { return {c.node("Sqrt", {variance(c)})}; }

// Over several dims in the place of one, row-major.
template <const char* op>
Names index_of(const OpCall& c) {
  const auto& a = c.attrs<ReduceAttrs>();
  const Shape& shape = c.type(0).shape;
  Name x = c.type(0).dtype == Bool ? c.in_as(0, Int32) : c.in(0);
  if (a.dims.size() == 1 && !shape.empty())
    return {c.node(op, {x}, {integer("axis", c.axis(a.dims[0])), integer("keepdims", a.keepdim)})};
  std::vector<int64_t> kept, gone;
  for (int64_t d = 0; d < shape.rank(); ++d) {
    const bool is_named = std::any_of(a.dims.begin(), a.dims.end(), [&](int64_t named) { return c.axis(named) == d; });
    (a.dims.empty() || is_named ? gone : kept).push_back(d);
  }
  Shape flat;
  for (const int64_t d : kept) flat.push_back(shape[d]);
  const Shape rest = flat;
  Dim count = 1;
  for (const int64_t d : gone) count = count * shape[d];
  flat.push_back(count);
  std::vector<int64_t> order = kept;
  order.insert(order.end(), gone.begin(), gone.end());
  Shape turned;
  for (const int64_t d : order) turned.push_back(shape[d]);
  x = c.reshape(c.transpose(x, order), turned, flat);
  const Name y = c.node(op, {x}, {integer("axis", -1), integer("keepdims", 0)});
  return {c.reshape(y, rest, c.out().shape)};
}

Names cumsum_of(const OpCall& c) {
  if (c.type(0).shape.empty()) return {c.in_as(0, c.out().dtype)};
  const Name axis = c.number(static_cast<double>(c.axis(c.attrs<DimAttrs>().dim)), Int64);
  return {c.node("CumSum", {c.in_as(0, c.out().dtype), axis})};
}
Names topk_of(const OpCall& c) {
  const auto& a = c.attrs<TopkAttrs>();
  return c.nodes("TopK", {c.in(0), c.ints({a.k})}, 2,
                 {integer("axis", c.axis(a.dim)), integer("largest", a.largest), integer("sorted", 1)});
}

Names sort_values_of(const OpCall& c) {
  const int64_t axis = c.axis(c.attrs<DimAttrs>().dim);
  const Name count = c.sizes({c.type(0).shape[static_cast<size_t>(axis)]});
  const Names found =
      c.nodes("TopK", {c.in(0), count}, 2, {integer("axis", axis), integer("largest", 0), integer("sorted", 1)});
  return {found[0]};
}

constexpr WriterEntry entries[] = {
    {"all", extremum<kMin>},
    {"amax", extremum<kMax>},
    {"amin", extremum<kMin>},
    {"any", extremum<kMax>},
    {"argmax", index_of<kArgMax>},
    {"argmin", index_of<kArgMin>},
    {"cumsum", cumsum_of},
    {"logsumexp", reduction<kLogSumExp>},
    {"mean", reduction<kMean>},
    {"norm", reduction<kL2>},
    {"prod", reduction<kProd>},
    {"sort_values", sort_values_of},
    {"std_dev", std_of},
    {"sum", reduction<kSum>},
    {"sum_wide", reduction<kSum>},
    {"topk", topk_of},
    {"var", var_of},
};

}  // namespace

std::span<const WriterEntry> reduction_writers() { return entries; }

}  // namespace tessera::onnx
