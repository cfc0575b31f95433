#include "kernels/cpu/tables.h"

namespace tessera::cpu_kernels {

std::span<const KernelTableEntry> reduction_kernels() { return {}; }

}  // namespace tessera::cpu_kernels
