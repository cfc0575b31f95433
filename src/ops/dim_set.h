// Some of the dims of a tensor.
#pragma once
#include <cstdint>
#include <utility>

#include "ops/check.h"

namespace tessera {

/// Dims of a tensor, as bits: it has at most 64.
class DimSet {
 public:
  static DimSet all(std::string_view op, const Shape& shape) {
    require_few(op, shape);
    DimSet set;
    set.bits_ = shape.empty() ? 0 : ~uint64_t{0} >> (64 - shape.size());
    return set;
  }
  static DimSet none(std::string_view op, const Shape& shape) {
    require_few(op, shape);
    return {};
  }
  /// False if it is there already.
  bool insert(int64_t dim) {
    const uint64_t bit = uint64_t{1} << dim;
    return !(std::exchange(bits_, bits_ | bit) & bit);
  }
  bool contains(int64_t dim) const { return bits_ >> dim & 1; }
  bool operator==(const DimSet&) const = default;

 private:
  static void require_few(std::string_view op, const Shape& shape) {
    if (shape.size() > 64) fail(op, "a tensor of {} dims: at most 64 are supported", shape.size());
  }
  uint64_t bits_ = 0;
};

}  // namespace tessera
