// What a dim that is an expression is made of.
#pragma once
#include <vector>

#include "tessera/shape.h"

namespace tessera {

/// A symbol, or a floor division.
struct DimFactor {
  Dim self;
  Dim numerator = 0, denominator = 0;  ///< of a division; 0 of a symbol
};
/// The coefficient times the product of the factors.
struct DimTerm {
  int64_t coefficient = 0;
  std::vector<DimFactor> factors;
};
/// The terms whose sum it is.
std::vector<DimTerm> terms_of(Dim dim);

}  // namespace tessera
