// What operators on computed places check, and what their references share.
#pragma once
#include <fmt/format.h>

#include "core/attrs.h"
#include "core/op.h"
#include "ops/reference.h"

namespace tessera {

inline void check_index(std::string_view op, const TensorMeta& index) {
  if (index.dtype != Int64 && index.dtype != Int32)
    throw Error(fmt::format("{}: the index is {}, not i64 or i32", op, name(index.dtype)));
}

/// The dim of x that an index of as many dims points into.
inline int64_t check_places(std::string_view op, const Shape& x, const TensorMeta& index, int64_t dim) {
  check_index(op, index);
  dim = normalize_dim(op, dim, x);
  bool fits = index.shape.size() == x.size();
  for (int64_t d = 0; fits && d < x.rank(); ++d)
    fits = d == dim || index.shape[d] == x[d] ||
           (!x[d].is_symbolic() && !index.shape[d].is_symbolic() && index.shape[d].value() <= x[d].value());
  if (!fits)
    throw Error(fmt::format("{}: the index {} does not fit {} outside of dim {}", op, to_string(index.shape),
                            to_string(x), dim));
  return dim;
}

/// The place that `index` names for its element i.
inline reference::Index place(const Tensor& x, const Tensor& index, const Attrs& attrs, const reference::Index& i) {
  reference::Index at = i;
  at[normalize_dim("", attrs.as<DimAttrs>().dim, x.shape())] = static_cast<int64_t>(reference::get(index, i));
  return at;
}

}  // namespace tessera
