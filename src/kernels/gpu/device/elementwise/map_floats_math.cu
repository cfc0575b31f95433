#include "map.h"

namespace tessera::gpu_kernels {

MapLaunch floats_math_map(MapOp op) { return floats_in<MathMaps, math_map>(op); }

}  // namespace tessera::gpu_kernels
