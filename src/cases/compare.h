// How results are compared with a reference.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera {

/// The relative L2 norm of the difference; values that are not finite must be the same, or it is infinite.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    if (same) difference += 0;
    else if (!std::isfinite(got[i]) || !std::isfinite(want[i])) return INFINITY;
    else difference += (got[i] - want[i]) * (got[i] - want[i]);
    if (std::isfinite(want[i])) size += want[i] * want[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

}  // namespace tessera
