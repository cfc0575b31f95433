#include "conv_typed.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
TESSERA_CONV_OF(, double)
}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
