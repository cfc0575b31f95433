// Elements as integers in their order, and what selects and sorts them.
#pragma once
#include "strided_lines.h"

namespace tessera::gpu_kernels {

/// A key in the order of the results, and of equal keys the smaller index first.
struct alignas(16) Item {
  u64 key;
  i64 index;
};
TESSERA_DEVICE bool before(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.index < b.index; }
/// The same in 64 bits: a key of 32 above an index of 32.
TESSERA_DEVICE bool before(u64 a, u64 b) { return a < b; }

/// Integers in the order of floating-point numbers, NaN largest and both zeros the same; and of integers. Where keys
/// are all that is sorted the zeros differ: the key tells the number.
TESSERA_DEVICE u64 key_of(double x, bool alone) {
  if (x != x) return ~0ull;
  const u64 bits = tile::bit_cast<u64>(alone ? x : x + 0.0), sign = 1ull << 63;
  return bits & sign ? ~bits : bits | sign;
}
TESSERA_DEVICE u32 key_of(float x, bool alone) {
  if (x != x) return ~0u;
  const u32 bits = tile::bit_cast<u32>(alone ? x : x + 0.0f), sign = 1u << 31;
  return bits & sign ? ~bits : bits | sign;
}
TESSERA_DEVICE u64 key_of(i64 x, bool) { return static_cast<u64>(x) ^ (1ull << 63); }
TESSERA_DEVICE u32 key_of(i32 x, bool) { return static_cast<u32>(x) ^ (1u << 31); }

/// Lines of the input, the values and the indices of topk, which may have no memory: then the values alone are wanted.
using OrderedLines = StridedLines<3>;
TESSERA_HD bool has_indices(const OrderedLines& lines) { return lines.data[2] != nullptr; }

/// The key of an element; types of up to 32 bits have one of 32.
template <class Key>
TESSERA_DEVICE Key key_at(const OrderedLines& lines, i64 at, bool largest) {
  constexpr bool narrow = sizeof(Key) == 4;
  using Float = tile::conditional_t<narrow, float, double>;
  using Int = tile::conditional_t<narrow, i32, i64>;
  const bool alone = !has_indices(lines);
  const Key key = lines.type[0] >= Scalar::f16 ? key_of(load_as<Float>(lines.data[0], lines.type[0], at), alone)
                                               : key_of(load_as<Int>(lines.data[0], lines.type[0], at), alone);
  return largest ? ~key : key;
}

/// Writes the value whose key it is, of the smallest first, at a place of the results.
template <class Key>
TESSERA_DEVICE void store_value(const OrderedLines& lines, i64 at, Key key) {
  constexpr bool narrow = sizeof(Key) == 4;
  constexpr Key sign = Key(1) << (8 * sizeof(Key) - 1);
  if (lines.type[0] >= Scalar::f16)
    store_as(lines.data[1], lines.type[1], at,
             tile::bit_cast<tile::conditional_t<narrow, float, double>>(key & sign ? key ^ sign : ~key));
  else store_as(lines.data[1], lines.type[1], at, static_cast<tile::conditional_t<narrow, i32, i64>>(key ^ sign));
}

template <class Bits>
TESSERA_DEVICE void copy_bits(const OrderedLines& lines, i64 from, i64 to) {
  static_cast<Bits*>(lines.data[1])[to] = static_cast<const Bits*>(lines.data[0])[from];
}

/// Writes the element with this index of the input at `place` of the results; at: where its line begins in each.
TESSERA_DEVICE void store_ordered(const OrderedLines& lines, const i64 (&at)[3], i64 place, i64 index) {
  const i64 from = at[0] + index * lines.step[0], to = at[1] + place * lines.step[1];
  switch (lines.bytes) {  // of an element, whose bits stay as they are
    case 1:
      copy_bits<u8>(lines, from, to);
      break;
    case 2:
      copy_bits<tile::u16>(lines, from, to);
      break;
    case 4:
      copy_bits<u32>(lines, from, to);
      break;
    default:
      copy_bits<u64>(lines, from, to);
  }
  if (has_indices(lines)) store_as(lines.data[2], lines.type[2], at[2] + place * lines.step[2], index);
}

}  // namespace tessera::gpu_kernels
