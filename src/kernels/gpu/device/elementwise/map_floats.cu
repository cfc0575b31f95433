#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch floats_map(MapOp op) {
  if (const MapLaunch found = floats_in<ArithmeticMaps, arithmetic_map>(op)) return found;
  return floats_in<RoundingMaps, predicate_map>(op);
}

}  // namespace tessera::gpu_kernels
