#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

tile::StripFn arithmetic_strip(MapOp op, Scalar compute) {
  if (const tile::StripFn found = strip_in<ArithmeticMaps>(op, compute)) return found;
  if (const tile::StripFn found = strip_in<RoundingMaps>(op, compute)) return found;
  return strip_in<PredicateMaps>(op, compute);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
