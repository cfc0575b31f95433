// Roots, rounding and predicates, and what is not frequent of f32 alone.
#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch predicate_map(MapOp op, Scalar compute, Scalar memory) {
  if (const MapLaunch found = map_in<RoundingMaps>(op, compute, memory)) return found;
  return map_in<PredicateMaps>(op, compute, memory);
}

MapLaunch floats_map(MapOp op) {
  if (const MapLaunch found = floats_in<ArithmeticMaps, arithmetic_map>(op)) return found;
  if (const MapLaunch found = floats_in<MathMaps, math_map>(op)) return found;
  return floats_in<RoundingMaps, predicate_map>(op);
}

}  // namespace tessera::gpu_kernels
