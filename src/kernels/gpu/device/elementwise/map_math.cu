#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch math_map(MapOp op, Scalar compute, Scalar memory) { return map_in<MathMaps>(op, compute, memory); }

}  // namespace tessera::gpu_kernels
