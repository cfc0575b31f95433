#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> norm_kernels() { return {}; }

}  // namespace tessera::cpu
