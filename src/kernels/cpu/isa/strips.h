// Strip functions by operation and compute type, in two translation units so that each compiles in seconds.
#pragma once

#include "internal.h"
#include "kernels/shared/map_ops.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

/// Null where the operation does not exist in that type.
tile::StripFn strip_of(MapOp op, Scalar compute);
/// The same of math alone.
tile::StripFn math_strip(MapOp op, Scalar compute);
/// A function of a MapChain (kernels/args/map_chain.h); null where there is none in a type.
void (*chain_code(Scalar compute))();
void (*link_code(Scalar compute, int code))();
/// Cost of an element in additions, roughly: decides how many elements are worth a thread.
long long cost_of(MapOp op, Scalar compute);

/// Widened by doubling, since compilers take wider steps element by element.
template <class To, class V>
auto widened(V v) {
  using From = tile::element_t<V>;
  if constexpr (sizeof(To) <= 2 * sizeof(From)) return tile::convert<To>(v);
  else return widened<To>(tile::convert<tile::conditional_t<sizeof(From) == 1, tile::u16, tile::u32>>(v));
}

/// Chooses by bytes that are 0 or 1.
struct Choice {
  template <class C, class V>
  V operator()(C condition, V a, V b) const {
    using Mask = tile::op::mask_element_t<V>;
    return tile::select(tile::op::is_true(widened<Mask>(condition)), a, b);
  }
};

template <class Entry, class T>
tile::StripFn typed_strip() {
  using F = typename Entry::Functor;
  using Out = tile::conditional_t<Entry::to_bool, bool, T>;
  if constexpr (Entry::op == MapOp::where) return tile::map_strip<Choice, T, tile::u8, T, T>;
  else if constexpr (Entry::inputs == 1) return tile::map_strip<F, Out, T>;
  else if constexpr (Entry::inputs == 2) return tile::map_strip<F, Out, T, T>;
  else return tile::map_strip<F, Out, T, T, T>;
}

/// Maps in which a u64 is not an i64 of the same bits, as it is where numbers are only added, multiplied or moved.
constexpr bool minds_the_sign(MapOp op) {
  switch (op) {
    case MapOp::abs:
    case MapOp::sign:
    case MapOp::relu:
    case MapOp::floor_div:
    case MapOp::remainder:
    case MapOp::maximum:
    case MapOp::minimum:
    case MapOp::pow:
    case MapOp::clamp:
    case MapOp::lt:
    case MapOp::le:
    case MapOp::gt:
    case MapOp::ge:
      return true;
    default:
      return false;
  }
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
      if constexpr (minds_the_sign(Entry::op))
        if (compute == Scalar::u64) return typed_strip<Entry, tile::u64>();
    }
    return nullptr;
  });
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
