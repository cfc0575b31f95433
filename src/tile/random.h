// Random words from a counter: any of them can be made anywhere, by any thread, in any order.
#pragma once

#include "vec.h"

TESSERA_TILE_BEGIN

/// Four words, each below 2^32; U is u64, or a vector of it for as many blocks at once.
template <class U>
struct PhiloxBlock {
  U word[4];
};

namespace detail {
/// The upper word of a product.
TESSERA_HD u32 high_product(u32 a, u32 b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);
#else
  return static_cast<u32>(u64{a} * b >> 32);
#endif
}
/// In words of 32 bits, of which nvcc would make 64 again.
TESSERA_HD PhiloxBlock<u64> philox_words(u64 seed, u64 block) {
  constexpr u32 first = 0xd2511f53, second = 0xcd9e8d57;
  u32 c0 = static_cast<u32>(block), c1 = static_cast<u32>(block >> 32), c2 = 0, c3 = 0;
  u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u32 a = c0, b = c2;
    c0 = high_product(second, b) ^ c1 ^ k0;
    c1 = second * b;
    c2 = high_product(first, a) ^ c3 ^ k1;
    c3 = first * a;
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return {{c0, c1, c2, c3}};
}
}  // namespace detail

/// Block `block` of the stream of `seed`: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, SC 2011)
/// with the counter {block, 0} and the key {seed}, low words first.
template <class U>
TESSERA_HD PhiloxBlock<U> philox(u64 seed, U block) {
  if constexpr (is_same_v<U, u64>) return detail::philox_words(seed, block);
  constexpr u64 low = 0xffffffff;
  U c0 = block & U(low), c1 = block >> U(32), c2 = U(0), c3 = U(0);
  u64 k0 = seed & low, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const U a = c0 * U(0xd2511f53), b = c2 * U(0xcd9e8d57);
    c0 = (b >> U(32)) ^ c1 ^ U(k0);
    c1 = b & U(low);
    c2 = (a >> U(32)) ^ c3 ^ U(k1);
    c3 = a & U(low);
    k0 = (k0 + 0x9e3779b9) & low;
    k1 = (k1 + 0xbb67ae85) & low;
  }
  return {{c0, c1, c2, c3}};
}

TESSERA_TILE_END
