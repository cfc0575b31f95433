// Which functor computes which map, and of what elements, as tile/kernels/maps.h has it: for every processor, in units
// so that each compiles in seconds.
#pragma once
#include "kernels/args/elementwise.h"
#include "tile/kernels/functors.h"

namespace tessera::TESSERA_ISA_KERNELS {

enum class MapUnit { arithmetic, rounding, math, predicate };
enum class MapTypes { floats, any };

/// A map of N inputs by a functor F, in f32 and f64, and of any type in i32 and i64, too, on CPUs also in u64.
template <MapOp Op, class F, int N, MapTypes Types, MapUnit Unit>
struct MapTraits {
  using Functor = F;
  static constexpr MapOp op = Op;
  static constexpr int inputs = N;
  static constexpr bool integers = Types == MapTypes::any, to_bool = Unit == MapUnit::predicate;
  static constexpr MapUnit unit = Unit;
  static_assert(to_bool == (Op >= MapOp::logical_not), "maps.h: predicates come last, logical_not first of them");
};
template <MapOp Op>
struct MapEntry;
#define TESSERA_MAP(name, Functor, inputs, types, unit, ...) \
  template <>                                                \
  struct MapEntry<MapOp::name> : MapTraits<MapOp::name, tile::op::Functor, inputs, MapTypes::types, MapUnit::unit> {};
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#define TESSERA_NUMBER_MAP TESSERA_MAP
#include "tile/kernels/maps.h"

/// The maps of one unit.
template <MapUnit Unit>
struct MapList {
  /// what(entry of op), a pointer; null if this list has none.
  template <class Result, class What>
  static Result find(MapOp op, const What& what) {
    return find_among<Result>(op, what, tile::make_seq<static_cast<int>(MapOp::count)>{});
  }

 private:
  template <class Result, class What, int... I>
  static Result find_among(MapOp op, const What& what, tile::Seq<I...>) {
    Result found = nullptr;
    (void)(found_in<MapEntry<static_cast<MapOp>(I)>>(op, what, found) || ...);
    return found;
  }
  template <class Entry, class Result, class What>
  static bool found_in(MapOp op, const What& what, Result& found) {
    if constexpr (Entry::unit == Unit) return op == Entry::op && (found = what(Entry{}), true);
    else return false;
  }
};
using ArithmeticMaps = MapList<MapUnit::arithmetic>;
/// Roots, rounding, powers, and gradients of arithmetic.
using RoundingMaps = MapList<MapUnit::rounding>;
using MathMaps = MapList<MapUnit::math>;
using PredicateMaps = MapList<MapUnit::predicate>;

}  // namespace tessera::TESSERA_ISA_KERNELS
