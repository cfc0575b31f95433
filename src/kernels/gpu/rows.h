// What kernels that walk over rows with gaps ask of a tensor.
#pragma once
#include <optional>

#include "kernels/shared/workspace.h"

namespace tessera::gpu_kernels {

/// Elements between the end of a row of `t` and the next, fewer than none where rows repeat; nothing where kernels do
/// not walk so.
inline std::optional<long long> gap_of_rows(const Operand& t) {
  long long pitch = 0;
  if (t.is_contiguous()) return 0;
  if (t.size(-1) < 4 || !folds_to_rows(t, 1, pitch)) return {};
  return pitch - t.size(-1);
}

}  // namespace tessera::gpu_kernels
