#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> creation_kernels() { return {}; }

}  // namespace tessera::cpu
