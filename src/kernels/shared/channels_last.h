// Images [n, c, h, w] whose channels lie last in memory.
#pragma once
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {

/// Strides of dense ones.
inline Strides channels_last(const Operand& t) {
  return {t.size(1) * t.size(2) * t.size(3), 1, t.size(1) * t.size(3), t.size(1)};
}
/// Whether it lies so, aligned to 16 bytes.
inline bool lies_channels_last(const Operand& t) {
  const Strides dense = channels_last(t);
  for (size_t d = 0; d < 4; ++d)
    if (t.size(static_cast<int64_t>(d)) != 1 && t.strides()[d] != dense[d]) return false;
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
}

}  // namespace tessera::TESSERA_KERNELS
