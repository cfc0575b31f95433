#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> loss_kernels() { return {}; }

}  // namespace tessera::cpu
