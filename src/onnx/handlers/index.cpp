// Indexing.
#include <algorithm>
#include <cmath>

#include "onnx/handler.h"
#include "ops/gradient.h"
#include "ops/map_graph.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// Indices below zero count from the end. Those out of range stay as they are, so that errors name what was given.
Tensor from_start(const Tensor& index, int64_t size) {
  const Tensor all = full({}, static_cast<double>(size), Int64, index.device());
  return map_elements({index, all}, Int64, Int64, [](const Tensor& place, const Tensor& n) {
    const Tensor zero = number_like(place, 0), moved = add(place, n);
    return where(logical_and(lt(place, zero), ge(moved, zero)), moved, place);
  });
}

Values gathers(const Call& c) {
  const Tensor &x = c.in(0), &index = c.in(1);
  const int64_t axis = c.axis(0, x.dim());
  if (index.dim() == 0 && index.device() == cpu()) return {select(x, axis, index.item<int64_t>())};
  const Tensor flat = reshape(from_start(index, x.size(axis)), {Dim(-1)});
  Shape shape;
  for (int64_t d = 0; d < axis; ++d) shape.push_back(x.size(d));
  for (int64_t d = 0; d < index.dim(); ++d) shape.push_back(index.size(d));
  for (int64_t d = axis + 1; d < x.dim(); ++d) shape.push_back(x.size(d));
  return {reshape(index_select(x, axis, flat), shape)};
}
Values gather_elements(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(0, x.dim());
  return {gather(x, axis, from_start(c.in(1), x.size(axis)))};
}

/// Of an input that may be of any type.
int64_t one_number(const Call& c, size_t i) {
  constexpr double kMost = 1e15;
  const double number = c.number(i);
  if (!(std::abs(number) <= kMost)) c.fail("input {} is {}", i, number);
  return static_cast<int64_t>(number);
}

Values one_hots(const Call& c) {
  const Tensor& index = c.in(0);
  const int64_t depth = one_number(c, 1), rank = index.dim() + 1;
  const int64_t axis = c.axis(-1, rank);
  if (depth < 0) c.fail("a depth of {}", depth);
  const Tensor whole = is_floating(index.dtype()) ? cast(index, Int64) : index;
  Shape classes;
  for (int64_t d = 0; d < rank; ++d) classes.push_back(d == axis ? depth : 1);
  const Tensor hot = eq(unsqueeze(from_start(whole, depth), axis),
                        reshape(arange(0, static_cast<double>(depth), 1, Int64, index.device()), classes));
  const Tensor& values = c.in(2);  // off, on
  return {where(hot, select(values, 0, 1), select(values, 0, 0))};
}

Values largest(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t k = c.has(1) ? one_number(c, 1) : c.integer("k", 1);
  const auto [values, indices] = topk(x, k, c.axis(-1, x.dim()), c.flag("largest", true));
  return {values, indices};
}

Values non_zero(const Call& c) {
  return {contiguous(transpose(nonzero(c.in(0).dim() == 0 ? unsqueeze(c.in(0), 0) : c.in(0)), 0, 1))};
}
Values compress(const Call& c) {
  const Tensor& condition = c.in(1);
  const Tensor chosen = reshape(nonzero(condition), {Dim(-1)});
  const Tensor& x = c.in(0);
  if (!c.has_attribute("axis")) return {index_select(reshape(x, {Dim(-1)}), 0, chosen)};
  return {index_select(x, c.axis(0, x.dim()), chosen)};
}

constexpr Entry entries[] = {
    {"Compress", 9, compress}, {"Gather", 1, gathers},  {"GatherElements", 11, gather_elements},
    {"NonZero", 9, non_zero},  {"OneHot", 9, one_hots}, {"TopK", 1, largest},
};

}  // namespace

std::span<const Entry> index_handlers() { return entries; }

}  // namespace tessera::onnx
