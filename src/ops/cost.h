// What a call takes, whichever kernel runs it: from metas alone.
#pragma once
#include "core/op.h"

namespace tessera {

struct Cost {
  double flops = 0;  ///< floating-point operations
  double bytes = 0;  ///< of memory that must be read or written
};

/// FLOPs are those of the products of matrices, convolutions and attention: two for each multiplication and its
/// addition, in the padding of images and for hidden scores, too, but causal attention has half of its pairs. What is
/// applied to elements on the way counts nothing, nor does what only moves them, such as concat; other operators count
/// one for each element of their outputs.
/// Bytes are those of each input, read once, and each output, written once; elements that strides repeat count once.
/// Absent inputs and outputs cost nothing. Not for views, which cost nothing at all. Throws Error on symbols.
Cost cost_of(const Op& op, std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs& attrs);

/// As a double, which does not overflow.
double elements_of(const Shape& shape);
/// Of x [..., k] times a matrix, whatever is applied on the way: what Op::flops points to.
double product_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs& attrs);
/// Of a convolution that gives y: each element takes a window's products.
inline double convolution_flops(const Shape& y, const Shape& filters) {
  return 2 * elements_of(y) * elements_of({filters[1], filters[2], filters[3]});
}

}  // namespace tessera
