// What the threads of a team or a block have, put together in the same order each time.
#pragma once
#include "loops.h"

namespace tessera::gpu_kernels {

/// The smallest team: as many neighbours run together on every GPU.
inline constexpr int team_lanes = 32;

/// The same value of the lane whose number differs by `mask`.
template <class S>
TESSERA_DEVICE S from_lane(const S& value, int mask) {
  constexpr int words = sizeof(S) / 4;
  static_assert(sizeof(S) % 4 == 0);
  auto w = tile::bit_cast<tile::Array<u32, words>>(value);
  tile::unroll<words>([&](auto i) { w[i] = tile::from_lane_xor(w[i], mask); });
  return tile::bit_cast<S>(w);
}

struct Plus {
  static constexpr bool commutes = true;  // the order of a and b makes no difference
  template <class S>
  TESSERA_DEVICE S operator()(S a, S b) const {
    return a + b;
  }
};

/// op(a, b) over the values of a team of 32, in the order of its lanes: the same result in each.
template <class S, class Op>
TESSERA_DEVICE S join_lanes(S value, const Op& op) {
  const int lane = tile::thread_in_block() % team_lanes;
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) {
    const S other = from_lane(value, mask);
    if constexpr (requires { Op::commutes; }) value = op(value, other);
    else value = lane & mask ? op(other, value) : op(value, other);
  }
  return value;
}

/// The same over all threads of a block.
template <int threads, class S, class Op>
TESSERA_DEVICE S join_block(S value, const Op& op) {
  constexpr int teams = threads / team_lanes;
  __shared__ __attribute__((aligned(16))) S room[teams];
  value = join_lanes(value, op);
  if (tile::thread_in_block() % team_lanes == 0) room[tile::thread_in_block() / team_lanes] = value;
  tile::sync_block();
  value = room[0];
  for (int i = 1; i < teams; ++i) value = op(value, room[i]);
  tile::sync_block();  // the room is free again
  return value;
}

/// Two sums at once.
template <class C>
struct Sums {
  C first, second;
  TESSERA_DEVICE Sums operator+(const Sums& b) const { return {first + b.first, second + b.second}; }
};

}  // namespace tessera::gpu_kernels
