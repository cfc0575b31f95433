// What plain references are written with: elements as doubles, addressed by coordinates.
#pragma once
#include <span>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::reference {

using Index = std::vector<int64_t>;

/// The element at `index`; dims align at the last one, and dims of size 1 repeat.
double get(const Tensor& t, std::span<const int64_t> index);
void set(const Tensor& t, std::span<const int64_t> index, double value);

/// Calls fn(index) for every index of `shape`, in row-major order.
template <class F>
void each_index(const Shape& shape, F fn) {
  int64_t rank = shape.rank(), count = shape.numel().value();
  Index index(rank, 0);
  for (int64_t n = 0; n < count; ++n) {
    fn(static_cast<const Index&>(index));
    for (int64_t d = rank - 1; d >= 0 && ++index[d] == shape[d].value(); --d) index[d] = 0;
  }
}

/// A new tensor whose elements are fn(index).
template <class F>
Tensor generate(const Shape& shape, DType dtype, F fn) {
  Tensor out = empty(shape, dtype);
  each_index(shape, [&](const Index& index) { set(out, index, fn(index)); });
  return out;
}

}  // namespace tessera::reference
