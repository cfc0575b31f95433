// What kernels of windows in planes take.
#pragma once
#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// Of depth, rows and columns; 0 taps: adaptive windows. All of it, and what it spans, is below 2^31.
struct PlaneLineArgs {
  int size, count, taps, stride, dilation, low;
};

/// Everything is contiguous. Planes [size...] are x, or dx; windows [count...] are y or dy, with the places of their
/// largest elements in a plane. fold takes columns [taps, windows] of each plane.
struct PlaneArgs {
  Scalar type;  // f32, f64, f16 or bf16
  long long planes;
  PlaneLineArgs line[3];
  void *plane, *windows;
  long long* places;
};

struct PlaneTable {
  void (*largest)(const PlaneArgs& args, Executor& executor);
  void (*largest_backward)(const PlaneArgs& args, Executor& executor);
  void (*fold)(const PlaneArgs& args, Executor& executor);
};

const PlaneTable& planes_table();

#define TESSERA_PLANE_TABLE(isa)        \
  namespace isa {                       \
  extern const PlaneTable planes_table; \
  }
TESSERA_PLANE_TABLE(baseline)
TESSERA_PLANE_TABLE(avx2)
TESSERA_PLANE_TABLE(avx512)
#undef TESSERA_PLANE_TABLE

}  // namespace tessera::TESSERA_KERNELS
