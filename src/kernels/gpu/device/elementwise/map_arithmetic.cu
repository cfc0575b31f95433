#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch arithmetic_map(MapOp op, Scalar compute, Scalar memory) {
  return map_in<ArithmeticMaps>(op, compute, memory);
}

}  // namespace tessera::gpu_kernels
