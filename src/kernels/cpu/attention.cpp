#include "kernels/cpu/tables.h"

namespace tessera::cpu {

std::span<const KernelTableEntry> attention_kernels() { return {}; }

}  // namespace tessera::cpu
