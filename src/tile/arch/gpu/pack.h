// Packs, neighbours that a thread moves at once: stores, shifts, and their elements in the type to compute in.
#pragma once
#include "block.h"

TESSERA_TILE_BEGIN

/// Stores a pack of 8 or 16 bytes at once: nvcc merges such a store with the single ones of another path, element by
/// element.
template <class P>
TESSERA_DEVICE void store_at_once(void* to, const P& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(P) == 16) {
    const auto w = bit_cast<Array<u32, 4>>(pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
    return;
  } else if constexpr (sizeof(P) == 8) {
    const auto w = bit_cast<Array<u32, 2>>(pack);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1])
                 : "memory");
    return;
  }
#endif
  *static_cast<P*>(to) = pack;
}

/// The 16 bytes that begin `shift` bytes into two packs: shifted by whole words and then by half a one.
template <class T, int width>
TESSERA_DEVICE Pack<T, width> shifted(const Pack<T, width>& first, const Pack<T, width>& second, int shift) {
  struct {
    Pack<T, width> pack[2];
  } const both{{first, second}};
  auto w = bit_cast<Array<u32, 8>>(both);
  if (shift != 0) {  // one way for all shifts: a choice between packs may become one between addresses
    unroll<6>([&](auto i) { w[i] = shift & 8 ? w[i + 2] : w[i]; });
    unroll<5>([&](auto i) { w[i] = shift & 4 ? w[i + 1] : w[i]; });
    if constexpr (sizeof(T) == 2) unroll<4>([&](auto i) { w[i] = shift & 2 ? w[i] >> 16 | w[i + 1] << 16 : w[i]; });
  }
  return bit_cast<Pack<T, width>>(Array<u32, 4>{{w[0], w[1], w[2], w[3]}});
}

/// The same in every lane, by words: nvcc would take packs apart, lane by lane, where one way has this and another
/// more.
template <class T, int width, class C>
TESSERA_DEVICE Pack<T, width> filled(C value) {
  Pack<T, 1> one{{convert_element<T>(value)}};
  if constexpr (sizeof(T) == 2 && width % 2 == 0) {
    const u32 bits = bit_cast<u16>(one);
    Array<u32, width / 2> words;
    unroll<width / 2>([&](auto i) { words[i] = bits | bits << 16; });
    return bit_cast<Pack<T, width>>(words);
  } else {
    Pack<T, width> pack;
    unroll<width>([&](auto j) { pack.lane[j] = one.lane[0]; });
    return pack;
  }
}

/// The elements of a pack in the type to compute in.
template <class T, int width, class C = compute_t<T>>
struct Lanes {
  C x[width];

  Lanes() = default;
  TESSERA_DEVICE explicit Lanes(const Pack<T, width>& p) {
    if constexpr (is_same_v<T, bf16> && is_same_v<C, float> && width % 2 == 0) {  // an instruction each
      const auto pairs = bit_cast<Array<u32, width / 2>>(p);
      unroll<width>(
          [&](auto j) { x[j] = bit_cast<float>(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u); });
    } else {
      unroll<width>([&](auto j) { x[j] = convert_element<C>(p.lane[j]); });
    }
  }
  TESSERA_DEVICE C operator[](int j) const { return x[j]; }
};

TESSERA_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }  // of NaN and a number, the number
TESSERA_DEVICE double larger(double a, double b) { return ::fmax(a, b); }
struct Larger {
  static constexpr bool commutes = true;
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return larger(a, b);
  }
};

/// The largest element of a pack; of NaN and a number, the number.
template <class T, int width>
TESSERA_DEVICE compute_t<T> largest_of(const Pack<T, width>& p) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && width == 8) {  // of pairs, an instruction each
    const auto w = bit_cast<Array<u32, 4>>(p);
    const auto pair = [](u32 a, u32 b) {
      if constexpr (is_same_v<T, bf16>) asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
      else asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
      return a;
    };
    return largest_of(bit_cast<Pack<T, 2>>(pair(pair(w[0], w[1]), pair(w[2], w[3]))));
  }
#endif
  const Lanes<T, width> v(p);
  auto top = v[0];
  for (int j = 1; j < width; ++j) top = larger(top, v[j]);
  return top;
}

/// The same as an array.
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
