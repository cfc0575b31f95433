// Where neighbours lie in rows with gaps, four at a time.
#pragma once
#include "loops.h"

namespace tessera::gpu_kernels {

/// Neighbours from place `at` on in rows of `length`, which is 0 where nothing lies between rows, and at least 4
/// elsewhere. Places are counted in rows of `width`: of `length`, so that four neighbours may lie in two rows, or with
/// the gap that some operands have, so that these lie as they are counted, and a row's last are followed by its gap.
class Neighbours {
 public:
  TESSERA_DEVICE Neighbours(i64 at, i64 length, i64 width) : at_(at), counted_(width - length) {
    if (length == 0) return;
    line_ = tile::quotient(at, width);
    left_ = length - (at - line_ * width);
  }
  /// How many there are up to the end of the row; none, or fewer, in its gap.
  TESSERA_DEVICE i64 left() const { return left_; }
  /// Where the j-th lies if its row begins `gap` elements behind the end of the one before.
  TESSERA_DEVICE i64 operator()(i64 gap, int j = 0) const {
    return at_ + line_ * (gap - counted_) + j + (j < left_ ? 0 : gap);
  }

 private:
  i64 at_, counted_, line_ = 0, left_ = 4;
};

}  // namespace tessera::gpu_kernels
