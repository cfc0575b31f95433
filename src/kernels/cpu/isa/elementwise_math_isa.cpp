#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

tile::StripFn math_strip(MapOp op, Scalar compute) { return strip_in<MathMaps>(op, compute); }

}  // namespace tessera::cpu_kernels::TESSERA_ISA
