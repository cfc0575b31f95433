// What the name of a GPU's architecture tells.
#pragma once
#include <string_view>

namespace tessera::gpu {

/// Whether it multiplies matrices of halves by instructions of its own: every card of NVIDIA's that is supported, AMD's
/// CDNA.
inline bool has_matrix_cores(std::string_view architecture) {
  for (std::string_view name : {"sm_", "gfx908", "gfx90a", "gfx94"})
    if (architecture.substr(0, name.size()) == name) return true;
  return false;
}

}  // namespace tessera::gpu
