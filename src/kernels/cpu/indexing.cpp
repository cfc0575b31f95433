#include "kernels/cpu/tables.h"

namespace tessera::cpu_kernels {

std::span<const KernelTableEntry> indexing_kernels() { return {}; }

}  // namespace tessera::cpu_kernels
