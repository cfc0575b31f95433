// What attention's kernels on GPUs share, whichever cores multiply: scores and their masks, and the sums that the
// backward begins with. Exponents are of two: scores are in units of log 2.
#pragma once
#include "../../attention_problem.h"
#include "../../vec.h"
#include "block.h"

TESSERA_TILE_BEGIN

inline constexpr float log2_of_e = 1.44269504f, log_of_2 = 0.693147181f;
TESSERA_DEVICE float minus_infinity() { return bit_cast<float>(0xff800000u); }

template <class T>
using Four = Pack<T, 4>;

/// Whether rows of `width` elements that begin at `data` can be moved by fours.
template <class T>
TESSERA_DEVICE bool lies_in_fours(const HeadsView<T>& x, const void* data, i64 width) {
  return x.column() == 1 && x.row() % 4 == 0 && width % 4 == 0 &&
         reinterpret_cast<unsigned long long>(data) % sizeof(Four<T>) == 0;
}

// ---- scores

/// A block of scores: where it begins, and how many queries and keys there are from there on.
struct ScoreBlock {
  i64 batch, head, query, key;
  int queries, keys, diagonal;  // query i of the block sees keys up to i + diagonal

  TESSERA_DEVICE ScoreBlock(const AttentionProblem& p, i64 b, i64 h, i64 q, i64 k)
      : batch(b),
        head(h),
        query(q),
        key(k),
        queries(static_cast<int>(min(p.queries - q, far))),
        keys(static_cast<int>(min(p.keys - k, far))),
        diagonal(static_cast<int>(p.causal ? max(-far, min(q - k, far)) : far)) {}

  static constexpr i64 far = 1 << 20;
};

/// Makes products scores, in units of log 2; -inf where a mask, causality or the end of the keys excludes. Scores lie
/// [query][key], or [key][query] where KeysDown; scores.each(fn) calls fn(score, row, column).
template <bool KeysDown, class T, class Scores>
TESSERA_DEVICE void finish_scores(Scores& scores, const AttentionProblem& p, const ScoreBlock& block) {
  constexpr int block_keys = KeysDown ? Scores::rows : Scores::columns;
  const float scale = static_cast<float>(p.scale) * log2_of_e;
  scores.each([&](float& x, int, int) { x *= scale; });
  if (p.alibi > 0) {
    const float slope = alibi_slope<float>(block.head, p.heads, p.alibi) * log2_of_e;
    const int ahead = static_cast<int>(block.key - block.query);
    scores.each([&](float& x, int row, int column) {
      x = fma(slope, static_cast<float>(ahead + (KeysDown ? row - column : column - row)), x);
    });
  }
  if (p.mask.kind != AttentionMask::Kind::none) {
    const i64* stride = p.mask.strides;
    const i64 base = block.batch * stride[0] + block.head * stride[1] + block.query * stride[2] + block.key * stride[3];
    scores.each([&](float& x, int row, int column) {
      const int query = KeysDown ? column : row, key = KeysDown ? row : column;
      if (query >= block.queries || key >= block.keys) return;
      const i64 at = base + query * stride[2] + key * stride[3];
      if (p.mask.kind == AttentionMask::Kind::added)
        x = fma(static_cast<float>(static_cast<const T*>(p.mask.data)[at]), log2_of_e, x);
      else if (!static_cast<const bool*>(p.mask.data)[at]) x = minus_infinity();
    });
  }
  if (block.keys >= block_keys && block.diagonal >= block_keys - 1) return;
  scores.each([&](float& x, int row, int column) {
    const int query = KeysDown ? column : row, key = KeysDown ? row : column;
    if (key >= block.keys || key > query + block.diagonal) x = minus_infinity();
  });
}

// ---- backward

/// Tensors of the backward. row_sums holds the sums of dy * y over each row, [batch, heads, queries] like lse.
template <class T>
struct AttentionGradients {
  HeadsView<T> dq, dk, dv;
  HeadsView<const T> dy, q, k, v;
  const float *lse, *row_sums;
};

/// What the exponent of a probability is lowered by; a query that sees nothing has an lse of -inf.
TESSERA_DEVICE float shift_of(float lse) { return lse == minus_infinity() ? 0 : lse * log2_of_e; }

/// Sums of dy * y over rows, 16 lanes a row, which asks for several rows at a time; called by row_sum_blocks of 256
/// threads.
inline constexpr int rows_of_lanes = 4, rows_of_block = 16 * rows_of_lanes;  // of a head
constexpr TESSERA_HD i64 row_sum_blocks(const AttentionProblem& p) {
  return p.batch * p.heads * ceil_div(p.queries, i64(rows_of_block));
}
template <class T>
TESSERA_DEVICE void attention_row_sums(const AttentionProblem& p, const HeadsView<const T>& dy,
                                       const HeadsView<const T>& y, float* sums) {
  // A grid has less than 2^31 blocks, and 64-bit divisions would take longer than all the rest.
  const u32 tiles = static_cast<u32>(ceil_div(p.queries, i64(rows_of_block))),
            block = static_cast<u32>(block_in_grid());
  const u32 head = block / tiles, heads = static_cast<u32>(p.heads);
  const i64 b = head / heads, h = head % heads, first = static_cast<i64>(block % tiles) * rows_of_block;
  const T *left[rows_of_lanes], *right[rows_of_lanes];
  float sum[rows_of_lanes] = {};
  const auto row = [&](int r) { return first + r * 16 + thread_in_block() / 16; };
  bool fours = true;
  unroll<rows_of_lanes>([&](auto r) {
    const i64 query = min(row(r), p.queries - 1);
    left[r] = dy.head(b, h) + query * dy.row(), right[r] = y.head(b, h) + query * y.row();
    fours = fours && lies_in_fours(dy, left[r], p.value_width) && lies_in_fours(y, right[r], p.value_width);
  });
#pragma unroll 1
  for (i64 column = thread_in_block() % 16 * 4; column < p.value_width; column += 64) {
    if (fours) {
      Four<T> a[rows_of_lanes], c[rows_of_lanes];
      unroll<rows_of_lanes>([&](auto r) {
        a[r] = *reinterpret_cast<const Four<T>*>(left[r] + column);
        c[r] = *reinterpret_cast<const Four<T>*>(right[r] + column);
      });
      unroll<rows_of_lanes>([&](auto r) {
        unroll<4>(
            [&](auto i) { sum[r] = fma(static_cast<float>(a[r].lane[i]), static_cast<float>(c[r].lane[i]), sum[r]); });
      });
      continue;
    }
    for (i64 i = column; i < min(column + 4, p.value_width); ++i)
      unroll<rows_of_lanes>([&](auto r) {
        sum[r] =
            fma(static_cast<float>(left[r][i * dy.column()]), static_cast<float>(right[r][i * y.column()]), sum[r]);
      });
  }
  unroll<rows_of_lanes>([&](auto r) {
    unroll<4>([&](auto i) { sum[r] += from_lane_xor(sum[r], 8 >> i); });
    if (row(r) < p.queries && thread_in_block() % 16 == 0) sums[head * p.queries + row(r)] = sum[r];
  });
}

TESSERA_TILE_END
