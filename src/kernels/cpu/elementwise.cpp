#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> elementwise_kernels() { return {}; }

}  // namespace tessera::cpu
