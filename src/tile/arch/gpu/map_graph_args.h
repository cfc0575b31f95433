// What the host passes to a function of elements that is compiled at run time.
#pragma once
#include "../../numbers.h"

TESSERA_TILE_BEGIN

struct MapGraphArgs {
  static constexpr int most_operands = 16, most_dims = 8;
  struct Operand {
    void* data;
    i64 strides[most_dims];  // in elements
  };
  i64 total;
  bool small;  // places are below 2^30: then they are counted in 32 bits, and inverses divide by the lengths
  int rank;
  i64 lengths[most_dims];
  Inverse inverses[most_dims];
  Operand operand[most_operands];  // results, then inputs
};

TESSERA_TILE_END
