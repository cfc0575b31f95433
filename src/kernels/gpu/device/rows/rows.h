// Rows and the teams of threads that work on them: 32 neighbours, or a whole block. A row is cut into packs of 16 bytes
// at multiples of 16 bytes, of which the first and the last may be partly outside.
#pragma once
#include "kernels/gpu/device/elementwise/join.h"

namespace tessera::gpu_kernels {

using tile::Exponents, tile::fast_exp, tile::JoinExponents, tile::Lanes, tile::Larger, tile::larger, tile::largest_of,
    tile::Rows;

/// n contiguous elements as packs.
template <class T, int width>
struct Span {
  using Element = tile::remove_cvref_t<T>;
  using Packed = Pack<Element, width>;
  T* data;
  i64 n;
  int phase;  // elements of the first pack that lie before the row

  TESSERA_DEVICE Span(T* data, i64 n)
      : data(data), n(n), phase(static_cast<int>(reinterpret_cast<size_t>(data) / sizeof(T) % width)) {}
  TESSERA_DEVICE i64 packs() const { return (n + phase + width - 1) / width; }
  /// Index of the first element of a pack.
  TESSERA_DEVICE i64 first(i64 pack) const { return pack * width - phase; }
  TESSERA_DEVICE bool whole(i64 i) const { return i >= 0 && i + width <= n; }
  TESSERA_DEVICE bool inside(i64 i) const { return i >= 0 && i < n; }

  TESSERA_DEVICE Packed load(i64 pack, Element outside) const {
    const i64 i = first(pack);
    if (whole(i)) return *reinterpret_cast<const Packed*>(data + i);
    Packed p;
    tile::unroll<width>([&](auto j) { p.lane[j] = inside(i + j) ? data[i + j] : outside; });
    return p;
  }
  TESSERA_DEVICE void store(i64 pack, const Packed& p) const {
    const i64 i = first(pack);
    if (whole(i)) {
      store_at_once(data + i, p);
    } else {
      tile::unroll<width>([&](auto j) {
        if (inside(i + j)) data[i + j] = p.lane[j];
      });
    }
  }
};

template <class T, int width>
TESSERA_DEVICE Lanes<T, width> lanes(const Pack<T, width>& p) {
  return Lanes<T, width>(p);
}

}  // namespace tessera::gpu_kernels
