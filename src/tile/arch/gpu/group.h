// Threads that work on a row together, and what they have put together, in the same order each time. A group is a warp
// or a block: it says which row it has, which of its threads this is, and joins what they have. A cluster of blocks is
// one, too (arch/sm90/cluster_rows.h).
#pragma once
#include "block.h"

TESSERA_TILE_BEGIN

/// The smallest group, a warp: as many neighbours run together on every GPU.
inline constexpr int team_lanes = 32;

/// The same value of the lane whose number differs by `mask`.
template <class S>
TESSERA_DEVICE S from_lane(const S& value, int mask) {
  constexpr int words = sizeof(S) / 4;
  static_assert(sizeof(S) % 4 == 0);
  auto w = bit_cast<Array<u32, words>>(value);
  unroll<words>([&](auto i) { w[i] = from_lane_xor(w[i], mask); });
  return bit_cast<S>(w);
}

/// Whether the order of a and b makes no difference to op(a, b).
template <class Op>
inline constexpr bool commutes = is_same_v<Op, Add> || requires {
  Op::commutes;
};

/// Two sums at once.
template <class C>
struct Sums {
  C first, second;
  TESSERA_DEVICE Sums operator+(const Sums& b) const { return {first + b.first, second + b.second}; }
};

/// op(a, b) over the values of a warp, in the order of its lanes: the same result in each.
template <class S, class Op>
TESSERA_DEVICE S join_lanes(S value, const Op& op) {
  const int lane = thread_in_block() % team_lanes;
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) {
    const S other = from_lane(value, mask);
    if constexpr (commutes<Op>) value = op(value, other);
    else value = lane & mask ? op(other, value) : op(value, other);
  }
  return value;
}

/// The same over a block of up to `most` threads. Calls that follow each other take turns with two rooms, for which one
/// barrier is enough.
template <int most, class S, class Op>
TESSERA_DEVICE S join_in_turn(S value, const Op& op, int turn, int threads = most) {
  TESSERA_SHARED S rooms[2][most / team_lanes];
  S* const room = rooms[turn & 1];
  value = join_lanes(value, op);
  if (thread_in_block() % team_lanes == 0) room[thread_in_block() / team_lanes] = value;
  sync_block();
  value = room[0];
  unroll<most / team_lanes - 1>([&](auto i) {  // all are under way at once
    if (i + 1 < threads / team_lanes) value = op(value, room[i + 1]);
  });
  return value;
}
template <int threads, class S, class Op>
TESSERA_DEVICE S join_block(S value, const Op& op) {
  value = join_in_turn<threads>(value, op, 0);
  sync_block();  // the room is free again
  return value;
}

/// `size` threads: a warp, or a block of so many.
template <int size_>
struct Team {
  static constexpr int most = size_;
  static constexpr int threads = most == team_lanes ? 256 : most;  // of a block
  static constexpr int rows = threads / most;
  static TESSERA_DEVICE i64 row() { return block_in_grid() * rows + (rows > 1 ? thread_in_block() / most : 0); }
  static TESSERA_DEVICE int rank() { return rows > 1 ? thread_in_block() % most : thread_in_block(); }
  static constexpr TESSERA_HD int size() { return most; }
  template <class S, class Op>
  static TESSERA_DEVICE S join(S value, const Op& op) {
    if constexpr (most == team_lanes) return join_lanes(value, op);
    else return join_block<most>(value, op);
  }
  template <class S, class Op>
  static TESSERA_DEVICE S join(S value, const Op& op, int turn) {
    if constexpr (most == team_lanes) return join_lanes(value, op);
    else return join_in_turn<most>(value, op, turn);
  }
  static i64 blocks(i64 count) { return ceil_div<i64>(count, rows); }
};

/// Blocks of four warps, of which each is a group.
struct FourWarps : Team<team_lanes> {
  static constexpr int threads = 4 * team_lanes, rows = 4;
  static TESSERA_DEVICE i64 row() { return block_in_grid() * rows + thread_in_block() / team_lanes; }
};

/// A block of up to `most` threads, as many as it was launched with.
template <int most_>
struct BlockOf {
  static constexpr int most = most_, threads = most, rows = 1;
  static TESSERA_DEVICE i64 row() { return block_in_grid(); }
  static TESSERA_DEVICE int rank() { return thread_in_block(); }
  static TESSERA_DEVICE int size() { return threads_in_block(); }
  template <class S, class Op>
  static TESSERA_DEVICE S join(S value, const Op& op, int turn) {
    return join_in_turn<most>(value, op, turn, size());
  }
  static i64 blocks(i64 count) { return count; }
};

TESSERA_TILE_END
