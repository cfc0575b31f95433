#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch predicate_map(MapOp op, Scalar compute, Scalar memory) {
  if (const MapLaunch found = map_in<RoundingMaps>(op, compute, memory)) return found;
  return map_in<PredicateMaps>(op, compute, memory);
}

}  // namespace tessera::gpu_kernels
