// Many maps in one pass, per instruction set of the CPU.
#pragma once

#include "map_chain.h"

namespace tessera::TESSERA_KERNELS {

/// Where elements of an input lie that is not dense: loops over all of them, outermost first, and strides in bytes.
struct MapLayout {
  int rank;
  long long lengths[max_rank], strides[max_rank];
};

/// What steps read and write: a tensor, or a strip of a thread's room.
struct MapValue {
  void* data;      // of a tensor, its first element; null otherwise
  int size;        // bytes of an element
  int offset;      // in the room: of a strip, of what repeats, or of a tensor's odd end
  bool repeats;    // one element, for all
  bool local;      // written and read by one chain: a unit holds what it is at
  void (*copy)();  // the conversion that makes what repeats, of `data` or of `number`, or copies as the layout says
  const MapLayout* layout;
  double number;
};

/// What a step does that is a polynomial of its second operand t, begun with the first one v: v = (v + addend) * t for
/// `products` addends, which are of the compute type, and one addend more where it `ends` so.
struct MapPolynomial {
  const void* addends;
  long long products;
  bool ends;
};

/// A map, a conversion of its first operand, or a chain.
struct MapStep {
  void (*code)();  // of MapProgramTable
  bool converts;
  short inputs;
  short to, from[3];  // values
  double numbers[2];
  MapPolynomial polynomial;  // without addends it is none
  MapOp op = MapOp::count;   // of a map
  Scalar compute = Scalar::f32;
  const MapLink* link = nullptr;  // of a chain
  int links = 0;
};

/// Runs over `count` elements, strip by strip; tensors are the first values. What repeats is computed once,
/// by the first steps.
struct MapProgramArgs {
  static constexpr int room = 64 << 10, most_values = 400;
  long long count, cost;                      // of an element, in additions
  int strip;                                  // elements, a multiple of 64
  bool streams;                               // outputs leave their strips past the caches
  int outputs, tensors, values, once, steps;  // tensors are outputs and inputs
  const MapValue* value;
  const MapStep* step;
};

struct MapProgramTable {
  /// Null where the map does not exist in a type.
  void (*(*map)(MapOp op, Scalar compute))();
  void (*(*conversion)(Scalar to, Scalar from))();
  void (*(*polynomial)(Scalar compute))();  // null where it does not exist, as below
  void (*(*chain)(Scalar compute))();
  void (*(*link)(Scalar compute, int code))();
  long long (*cost)(MapOp op, Scalar compute);
  void (*run)(const MapProgramArgs& args, Executor& executor);
};
const MapProgramTable& map_program_table();

#define TESSERA_MAP_PROGRAM_TABLE(isa)            \
  namespace isa {                                 \
  extern const MapProgramTable map_program_table; \
  }
TESSERA_MAP_PROGRAM_TABLE(baseline)
TESSERA_MAP_PROGRAM_TABLE(avx2)
TESSERA_MAP_PROGRAM_TABLE(avx512)
#undef TESSERA_MAP_PROGRAM_TABLE

}  // namespace tessera::TESSERA_KERNELS
