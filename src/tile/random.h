// Random words from a counter: any of them can be made anywhere, by any thread, in any order.
#pragma once

#include "vec.h"

TESSERA_TILE_BEGIN

/// Four words, each below 2^32; U is u64, or a vector of it for as many blocks at once.
template <class U>
struct PhiloxBlock {
  U word[4];
};

/// Block `block` of the stream of `seed`: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, SC 2011)
/// with the counter {block, 0} and the key {seed}, low words first.
template <class U>
TESSERA_HD PhiloxBlock<U> philox(u64 seed, U block) {
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
