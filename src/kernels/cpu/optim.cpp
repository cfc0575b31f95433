#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> optim_kernels() { return {}; }

}  // namespace tessera::cpu
