#include "kernels/cpu/tables.h"

namespace tessera::cpu_kernels {

std::span<const KernelTableEntry> matmul_kernels() { return {}; }

}  // namespace tessera::cpu_kernels
