// Elementwise maps, copies and casts per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// What a map computes, of tile/kernels/maps.h. Results of logical_not and what follows are bool.
enum class MapOp : unsigned char {
#define TESSERA_MAP(name, ...) name,
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#define TESSERA_NUMBER_MAP TESSERA_MAP
#include "tile/kernels/maps.h"
  count
};

/// tensor[0] = op(tensor[1], ...) over `lengths`, computed in `compute` (f64, f32, i64, u64 or i32); memory may hold
/// any type and is converted on the way.
struct MapArgs {
  MapOp op;
  Scalar compute;
  int rank;
  int inputs;
  long long lengths[max_rank];
  TensorArg tensor[4];
  double scalars[2];
};

struct CopyArgs {
  int rank;
  long long lengths[max_rank];
  TensorArg to, from;
};

/// Of every matrix in the last two dims, what lies on one side of a diagonal is copied and the rest is `otherwise`.
struct TriangleArgs {
  int rank;  // at least 2
  long long lengths[max_rank];
  TensorArg to, from;  // of one type; may be the same elements
  long long diagonal;
  bool upper;  // keeps row + diagonal <= column, or column <= row + diagonal
  double otherwise;
};

struct ElementwiseTable {
  /// Whether op exists in a compute type.
  bool (*supports)(MapOp op, Scalar compute);
  void (*map)(const MapArgs& args, Executor& executor);
  /// Converts where types differ; `from` may be broadcast (a fill is a copy of one element).
  void (*copy)(const CopyArgs& args, Executor& executor);
  void (*triangle)(const TriangleArgs& args, Executor& executor);
};

#define TESSERA_ELEMENTWISE_TABLE(isa)             \
  namespace isa {                                  \
  extern const ElementwiseTable elementwise_table; \
  }
TESSERA_ELEMENTWISE_TABLE(baseline)
TESSERA_ELEMENTWISE_TABLE(avx2)
TESSERA_ELEMENTWISE_TABLE(avx512)
#undef TESSERA_ELEMENTWISE_TABLE

}  // namespace tessera::TESSERA_KERNELS
