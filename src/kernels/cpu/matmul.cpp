#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> matmul_kernels() { return {}; }

}  // namespace tessera::cpu
