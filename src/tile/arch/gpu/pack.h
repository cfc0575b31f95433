// Packs of elements in registers, in the type to compute in.
#pragma once
#include "block.h"

TESSERA_TILE_BEGIN

template <class T, int width>
TESSERA_DEVICE Array<compute_t<T>, width> unpacked(const Pack<T, width>& pack) {
  Array<compute_t<T>, width> x;
  if constexpr (is_same_v<T, bf16> && width % 2 == 0) {  // an instruction each
    const auto pairs = bit_cast<Array<u32, width / 2>>(pack);
    unroll<width>(
        [&](auto j) { x[j] = bit_cast<float>(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u); });
  } else {
    unroll<width>([&](auto j) { x[j] = convert_element<compute_t<T>>(pack.lane[j]); });
  }
  return x;
}

template <class T, class C, int width>
TESSERA_DEVICE Pack<T, width> packed_as(const Array<C, width>& x) {
  Pack<T, width> pack;
  unroll<width>([&](auto j) { pack.lane[j] = convert_element<T>(x[j]); });
  return pack;
}

/// Stores a pack by one instruction: nvcc makes several of some that are put together from single elements.
template <class T, int width>
TESSERA_DEVICE void store_whole(void* to, const Pack<T, width>& pack) {
  if constexpr (sizeof(pack) == 8) *static_cast<u64*>(to) = bit_cast<u64>(pack);
  else if constexpr (sizeof(pack) == 4) *static_cast<u32*>(to) = bit_cast<u32>(pack);
  else *static_cast<Pack<T, width>*>(to) = pack;
}

TESSERA_TILE_END
