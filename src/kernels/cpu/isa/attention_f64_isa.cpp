#include "attention_typed.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
TESSERA_ATTENTION_OF(, double)
}  // namespace tessera::cpu_kernels::TESSERA_ISA
