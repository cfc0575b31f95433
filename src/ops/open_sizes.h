// Sizes that may be symbols, as tensors to compute with.
#pragma once
#include "tessera/ops.h"

namespace tessera {

/// The size as a number without dims. A view of one element, which takes no memory, has it.
inline Tensor size_number(Dim size, DType dtype, Device device) {
  if (!size.is_symbolic()) return full({}, static_cast<double>(size.value()), dtype, device);
  return cast(reshape(shape_of(expand(full({}, 0, Float32, device), {size})), {}), dtype).to(device);
}

}  // namespace tessera
