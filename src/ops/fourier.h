// Fourier transforms as linear maps of rows: by passes on the host, and on GPUs by a kernel that keeps rows in shared
// memory.
#pragma once
#include <optional>
#include <utility>

#include "tessera/tensor.h"

namespace tessera {

/// Rows [in, parts] to [out, out_parts], of `length` elements each: what is missing is 0. Parts: of a complex number.
struct FourierMap {
  int64_t length, in, parts, out, out_parts;
  bool inverse;
  bool doubles_in, doubles_out;  // elements that stand for their mirrored ones, too
  double scale;

  /// What takes gradients of results to those of inputs.
  FourierMap adjoint() const {
    FourierMap t = *this;
    std::swap(t.in, t.out);
    std::swap(t.parts, t.out_parts);
    std::swap(t.doubles_in, t.doubles_out);
    t.inverse = !inverse;
    return t;
  }
};

/// Of x [rows, in, parts], f32 or f64, on the host or on a card. None where there is no such kernel.
std::optional<Tensor> transform_rows(const Tensor& x, const FourierMap& map);

}  // namespace tessera
