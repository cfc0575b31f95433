#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> conv_kernels() { return {}; }

}  // namespace tessera::cpu
