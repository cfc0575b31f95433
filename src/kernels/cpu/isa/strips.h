// Strip functions by operation and compute type, in two translation units so that each compiles in seconds.
#pragma once

#include "internal.h"
#include "kernels/shared/map_ops.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

/// Null where the operation does not exist in that type, or is arithmetic.
tile::StripFn math_strip(MapOp op, Scalar compute);

template <class Entry, class T>
tile::StripFn typed_strip() {
  using F = typename Entry::Functor;
  using Out = tile::conditional_t<Entry::to_bool, bool, T>;
  if constexpr (Entry::op == MapOp::where) return tile::map_strip<F, T, tile::u8, T, T>;
  else if constexpr (Entry::inputs == 1) return tile::map_strip<F, Out, T>;
  else if constexpr (Entry::inputs == 2) return tile::map_strip<F, Out, T, T>;
  else return tile::map_strip<F, Out, T, T, T>;
}

/// The strip of an op that is in the list.
template <class List>
tile::StripFn strip_in(MapOp op, Scalar compute) {
  return List::template find<tile::StripFn>(op, [compute](auto entry) -> tile::StripFn {
    using Entry = decltype(entry);
    if (compute == Scalar::f64) return typed_strip<Entry, double>();
    if (compute == Scalar::f32) return typed_strip<Entry, float>();
    if constexpr (Entry::integers) {
      if (compute == Scalar::i64) return typed_strip<Entry, i64>();
      if (compute == Scalar::i32) return typed_strip<Entry, i32>();
    }
    return nullptr;
  });
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
