// What functions along one dim share.
#pragma once
#include <string_view>
#include <utility>

#include "tessera/ops.h"

namespace tessera {

inline Tensor index_numbers(int64_t n, Device device) { return arange(0, static_cast<double>(n), 1, Int64, device); }

// A dim of x, and its size; a 0-d tensor counts as one element.
struct Line {
  Tensor x;
  int64_t dim, size;
  bool number;
  Line(std::string_view op, const Tensor& given, int64_t d) : x(given), number(given.dim() == 0) {
    if (number && (d == 0 || d == -1)) x = reshape(given, {1});
    dim = normalize_dim(op, d, x.shape());
    size = x.size(dim);
  }
  Tensor back(const Tensor& y) const { return number ? reshape(y, {}) : y; }
};

using Chosen = std::pair<Tensor, Tensor>;

inline Chosen kept_or_dropped(const Line& line, const Tensor& value, const Tensor& index, bool keepdim) {
  if (line.number) return {line.back(value), line.back(index)};
  if (keepdim) return {value, index};
  return {squeeze(value, line.dim), squeeze(index, line.dim)};
}

}  // namespace tessera
