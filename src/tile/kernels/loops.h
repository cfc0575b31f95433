// Loop nests over strided operands: what elementwise, copy and reduction kernels share.
#pragma once

#include "../executor.h"

TESSERA_TILE_BEGIN

inline constexpr int max_loops = 8;
inline constexpr int max_operands = 4;

/// Nested loops, outermost first, over up to four operands that advance by byte strides.
struct LoopNest {
  int rank = 0;
  int operands = 0;
  i64 lengths[max_loops];
  i64 strides[max_operands][max_loops];

  i64 total() const {
    i64 n = 1;
    for (int d = 0; d < rank; ++d) n *= lengths[d];
    return n;
  }
};

namespace detail {

inline bool runs_outside(const LoopNest& nest, int a, int b) {  // whether loop a belongs outside loop b
  for (int k = 0; k < nest.operands; ++k) {
    const i64 x = nest.strides[k][a] < 0 ? -nest.strides[k][a] : nest.strides[k][a];
    const i64 y = nest.strides[k][b] < 0 ? -nest.strides[k][b] : nest.strides[k][b];
    if (x != y) return x > y;
  }
  return false;
}

inline void swap_loops(LoopNest& nest, int a, int b) {
  auto exchange = [](i64& x, i64& y) {
    const i64 t = x;
    x = y;
    y = t;
  };
  exchange(nest.lengths[a], nest.lengths[b]);
  for (int k = 0; k < nest.operands; ++k) exchange(nest.strides[k][a], nest.strides[k][b]);
}

}  // namespace detail

/// Drops loops of one iteration and joins neighbours that every operand walks as one. `keep` loops at the front
/// are neither joined with nor moved past the rest; returns how many of them are left.
inline int join_loops(LoopNest& nest, int keep = 0) {
  int rank = 0, front = 0;
  for (int d = 0; d < nest.rank; ++d) {
    if (d == keep) front = rank;
    if (nest.lengths[d] == 1) continue;
    bool joins = rank > (d >= keep ? front : 0);
    for (int k = 0; k < nest.operands && joins; ++k) {
      joins = nest.strides[k][rank - 1] == nest.strides[k][d] * nest.lengths[d];
    }
    if (!joins) {
      nest.lengths[rank] = nest.lengths[d];
      for (int k = 0; k < nest.operands; ++k) nest.strides[k][rank] = nest.strides[k][d];
      ++rank;
    } else {
      nest.lengths[rank - 1] *= nest.lengths[d];
      for (int k = 0; k < nest.operands; ++k) nest.strides[k][rank - 1] = nest.strides[k][d];
    }
  }
  if (keep >= nest.rank) front = rank;
  nest.rank = rank;
  return front;
}

/// Orders loops [begin, end) so that operand 0 (then 1, ...) is walked in the order of its memory.
inline void sort_loops(LoopNest& nest, int begin, int end) {
  for (int i = begin + 1; i < end; ++i) {
    for (int j = i; j > begin && detail::runs_outside(nest, j, j - 1); --j) detail::swap_loops(nest, j, j - 1);
  }
}

/// Whether operand k is walked in the order of its memory, without gaps.
inline bool is_dense(const LoopNest& nest, int k, i64 size) {
  for (int d = nest.rank - 1; d >= 0; size *= nest.lengths[d--])
    if (nest.strides[k][d] != size) return false;
  return true;
}

/// A position in a nest, with every operand's byte offset.
struct LoopWalk {
  i64 coord[max_loops];
  i64 offset[max_operands];

  LoopWalk(const LoopNest& nest, i64 position) {
    for (int k = 0; k < nest.operands; ++k) offset[k] = 0;
    for (int d = nest.rank - 1; d >= 0; --d) {
      const i64 rest = position / nest.lengths[d];
      coord[d] = position - rest * nest.lengths[d];
      position = rest;
      for (int k = 0; k < nest.operands; ++k) offset[k] += coord[d] * nest.strides[k][d];
    }
  }

  /// Iterations left in the innermost loop.
  i64 run(const LoopNest& nest) const { return nest.lengths[nest.rank - 1] - coord[nest.rank - 1]; }

  /// Moves on by n iterations, where n is at most run().
  void advance(const LoopNest& nest, i64 n) {
    int d = nest.rank - 1;
    coord[d] += n;
    for (int k = 0; k < nest.operands; ++k) offset[k] += n * nest.strides[k][d];
    for (; d > 0 && coord[d] == nest.lengths[d]; --d) {
      for (int k = 0; k < nest.operands; ++k) {
        offset[k] += nest.strides[k][d - 1] - coord[d] * nest.strides[k][d];
      }
      coord[d] = 0;
      ++coord[d - 1];
    }
  }
};

/// Calls fn(begin, end, thread) for consecutive parts of [0, total): one when the work (iterations times cost)
/// is too small to share, otherwise a few per thread, each a multiple of `unit` but for the last.
template <class Fn>
inline void split_range(const ExecutorRef& executor, i64 total, i64 cost, i64 unit, const Fn& fn) {
  constexpr i64 worth_a_thread = 1 << 15;
  const i64 threads = executor.threads();
  const i64 wanted = min(total * cost / worth_a_thread, threads * 4);
  if (wanted <= 1 || threads == 1) {
    if (total > 0) fn(i64(0), total, 0);
    return;
  }
  const i64 size = round_up(ceil_div(total, wanted), unit);
  executor.parallel(ceil_div(total, size),
                    [&](i64 part, int thread) { fn(part * size, min(total, (part + 1) * size), thread); });
}

TESSERA_TILE_END
