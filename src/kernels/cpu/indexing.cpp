#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> indexing_kernels() { return {}; }

}  // namespace tessera::cpu
