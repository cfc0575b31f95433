// Writes in place: what is in a tensor afterwards. ONNX has values alone, so the writer gives that another name.
#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

// What is written, as elements of the tensor's type and shape.
Name written(const OpCall& c) {
  const Name x = c.in_as(1, c.out().dtype);
  return c.type(1).shape == c.out().shape ? x : c.node("Expand", {x, c.sizes(c.out().shape)});
}
Names copy_of(const OpCall& c) { return {written(c)}; }
Names fill_of(const OpCall& c) {
  return {c.node("Expand", {c.number(c.attrs<ScalarAttrs>().value, c.out().dtype), c.sizes(c.out().shape)})};
}

void require_numbers(const OpCall& c) {
  if (c.out().dtype == Bool) c.refuse("of bools has no counterpart in ONNX");
}
Names add_to(const OpCall& c) {
  require_numbers(c);
  const double alpha = c.attrs<ScalarAttrs>().value;
  const DType dtype = c.out().dtype;
  const Name b = c.in_as(1, dtype);
  return {c.node("Add", {c.in(0), alpha == 1 ? b : c.node("Mul", {b, c.number(alpha, dtype)})})};
}
Names multiply_by(const OpCall& c) {
  require_numbers(c);
  return {c.node("Mul", {c.in(0), c.in_as(1, c.out().dtype)})};
}
Names multiply_by_number(const OpCall& c) {
  require_numbers(c);
  return {c.node("Mul", {c.in(0), c.number(c.attrs<ScalarAttrs>().value, c.out().dtype)})};
}

// `part` in the place of those places of a dim.
Name at_places(const OpCall& c, int64_t dim, const Name& chosen, const Name& part) {
  std::vector<int64_t> front{dim}, back;  // the dim becomes the first one
  for (int64_t d = 0; d < c.type(0).shape.rank(); ++d) {
    if (d != dim) front.push_back(d);
    back.push_back(d < dim ? d + 1 : d == dim ? 0 : d);
  }
  const Name rows = c.node("Unsqueeze", {chosen, c.ints({1})});
  return c.transpose(c.node("ScatterND", {c.transpose(c.in(0), front), rows, c.transpose(part, front)}), back);
}

Name slice_back(const OpCall& c, const Name& part) {
  const auto& a = c.attrs<SliceAttrs>();
  const int64_t dim = c.axis(a.dim);
  if (c.type(0).shape == c.out().shape && a.step == 1) return part;
  const Name all = c.places(c.type(0).shape[dim]);
  return at_places(c, dim, c.node("Slice", {all, c.dim(a.start), c.dim(a.end), c.ints({0}), c.ints({a.step})}), part);
}
Name select_back(const OpCall& c, const Name& part) {
  const auto& a = c.attrs<SelectAttrs>();
  const int64_t dim = c.axis(a.dim);
  const Name chosen = c.node("Gather", {c.places(c.type(0).shape[dim]), c.dim(a.index)});
  return at_places(c, dim, chosen, c.node("Unsqueeze", {part, c.ints({dim})}));
}
Name permute_back(const OpCall& c, const Name& part) {
  const IntList& dims = c.attrs<PermuteAttrs>().dims;
  std::vector<int64_t> order(dims.size());
  for (int64_t d = 0; d < dims.count; ++d) order[static_cast<size_t>(c.axis(dims[d]))] = d;
  return c.transpose(part, order);
}

constexpr WriterEntry entries[] = {
    {"add_", add_to},
    {"copy_", copy_of},
    {"fill_", fill_of},
    {"mul_", multiply_by},
    {"mul_scalar_", multiply_by_number},
};

}  // namespace

Name written_back(const OpCall& view, const Name& part) {
  if (view.op() == "reshape") return view.reshape(part, view.out().shape, view.type(0).shape);
  if (view.op() == "permute") return permute_back(view, part);
  if (view.op() == "slice") return slice_back(view, part);
  if (view.op() == "select") return select_back(view, part);
  view.refuse("writes to what '{}' gives, which has no counterpart in ONNX", view.op());
}

std::span<const WriterEntry> update_writers() { return entries; }

}  // namespace tessera::onnx
