#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> reduction_kernels() { return {}; }

}  // namespace tessera::cpu
