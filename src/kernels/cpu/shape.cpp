#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> shape_kernels() { return {}; }

}  // namespace tessera::cpu
