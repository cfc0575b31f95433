#include "attention_typed.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
TESSERA_ATTENTION_OF(, tile::f16)
TESSERA_ATTENTION_OF(, tile::bf16)
}  // namespace tessera::cpu_kernels::TESSERA_ISA
