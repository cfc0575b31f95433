// Attention of one block on NVIDIA cards from compute capability 8.0 on: softmax(scale q k' + mask) v for some queries
// of a head, keys block by block with running maxima and sums, so that no score reaches memory (Dao,
// "FlashAttention-2", arXiv:2307.08691). Scores are float; what mma.sync leaves in registers is the left operand of the
// next product.
#pragma once
#include "../gpu/attention.h"
#include "layout.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm80 {

inline constexpr int attention_warps = 4, attention_threads = attention_warps * warp_size;

// ---- rows of a head: between memory and shared memory, and as operands

/// fn(line, column, offset in the tile) for the chunks of 8 elements that this thread moves.
template <class T, int Lines, int Width, class Fn>
TESSERA_DEVICE void each_chunk(const Fn& fn) {
  constexpr int columns = Width / 8, step = attention_threads / columns;
  static_assert(Lines % step == 0, "attention: the tile cannot be shared out evenly");
  const int line = thread_in_block() / columns, column = thread_in_block() % columns * 8;
  unroll<Lines / step>(
      [&](auto i) { fn(line + i * step, column, SharedTile<T, Lines, Width, 1>::offset(line + i * step, column)); });
}

/// Starts copying rows, of which there are `rows` of `width` elements; the rest of the tile becomes zero.
template <int Lines, int Width, class T>
TESSERA_DEVICE void fetch_rows(T* tile, const HeadsView<const T>& view, const T* from, i64 rows, i64 width) {
  each_chunk<T, Lines, Width>([&](int line, int column, int offset) {
    const bool inside = line < rows && column < width;
    copy_async<16>(tile + offset, from + (inside ? line * view.row() + column : 0), inside);
  });
}

/// Fragments of the rows of a tile, see RowFragments.
template <class T, int Lines, int Width, int Along, bool Right>
class RowOperand {
 public:
  explicit TESSERA_DEVICE RowOperand(const T* tile)
      : tile_(tile), lane_(Fragments::of_lane(thread_in_block() % warp_size)) {}
  TESSERA_DEVICE void load(u32 (&r)[4], int line, int column) const {
    load_matrices<Along == 0>(r, tile_ + Fragments::offset(lane_, line, column));
  }

 private:
  using Fragments = RowFragments<T, Lines, Width, Along, Right>;
  const T* tile_;
  int lane_;
};
/// Rows that this warp owns, on the left; all rows on the right; all rows on the right, summed over.
template <class T, int Lines, int Width>
using OwnRows = RowOperand<T, Lines, Width, 1, false>;
template <class T, int Lines, int Width>
using Rows = RowOperand<T, Lines, Width, 1, true>;
template <class T, int Lines, int Width>
using SummedRows = RowOperand<T, Lines, Width, 0, true>;

/// What a warp computes: 16 * Atoms rows of Columns columns, in the registers of mma.sync.
template <int Atoms, int Columns>
struct WarpSums {
  static constexpr int rows = attention_warps * 16 * Atoms, columns = Columns;  // of the block's
  float at[Atoms][Columns / 8][4] = {};

  /// This thread's first row and column; element r of atom (i, j) is 16 i + 8 (r / 2) rows and 8 j + r % 2 columns on.
  static TESSERA_DEVICE int row() { return thread_in_block() / warp_size * 16 * Atoms + thread_in_block() % 32 / 4; }
  static TESSERA_DEVICE int column() { return thread_in_block() % 4 * 2; }

  /// fn(sum, row, column) within the block.
  template <class Fn>
  TESSERA_DEVICE void each(const Fn& fn) {
    unroll<Atoms>([&](auto i) {
      unroll<Columns / 8>([&](auto j) {
        unroll<4>([&](auto r) { fn(at[i][j][r], row() + i * 16 + r / 2 * 8, column() + j * 8 + r % 2); });
      });
    });
  }

  /// += a b' over `depth` columns of both.
  template <class T, int Depth, class A, class B>
  TESSERA_DEVICE void add_product(const A& a, const B& b) {
    unroll<Depth / 16>([&](auto k) {
      u32 left[Atoms][4];
      unroll<Atoms>([&](auto i) { a.load(left[i], i * 16, k * 16); });
      unroll<Columns / 16>([&](auto j) {
        u32 right[4];
        b.load(right, j * 16, k * 16);
        multiply<T, j>(left, right);
      });
    });
  }

  /// += p b over the columns of p, which are rounded, and the rows of b.
  template <class T, int Depth, class B>
  TESSERA_DEVICE void add_product_of(const WarpSums<Atoms, Depth>& p, const B& b) {
    unroll<Depth / 16>([&](auto k) {
      u32 left[Atoms][4];
      unroll<Atoms>([&](auto i) {
        unroll<4>([&](auto r) {
          const float* from = p.at[i][2 * k + r / 2] + r % 2 * 2;
          left[i][r] = pack<T>(from[0], from[1]);
        });
      });
      unroll<Columns / 16>([&](auto j) {
        u32 right[4];
        b.load(right, k * 16, j * 16);
        multiply<T, j>(left, right);
      });
    });
  }

  /// Brings the sums to memory, rounded, through a tile that nobody uses any more.
  template <class T>
  TESSERA_DEVICE void store(T* tile, const HeadsView<T>& view, T* to, i64 rows, i64 width) const {
    constexpr int lines = attention_warps * 16 * Atoms;
    sync_block();
    unroll<Atoms>([&](auto i) {
      unroll<Columns / 8>([&](auto j) {
        unroll<2>([&](auto half) {
          const int offset = SharedTile<T, lines, Columns, 1>::offset(row() + i * 16 + half * 8, column() + j * 8);
          *reinterpret_cast<u32*>(tile + offset) = pack<T>(at[i][j][half * 2], at[i][j][half * 2 + 1]);
        });
      });
    });
    sync_block();
    each_chunk<T, lines, Columns>([&](int line, int column, int offset) {
      if (line < rows && column < width)
        *reinterpret_cast<uint4*>(to + line * view.row() + column) = *reinterpret_cast<const uint4*>(tile + offset);
    });
  }

 private:
  template <class T, int J>
  TESSERA_DEVICE void multiply(const u32 (&left)[Atoms][4], const u32 (&right)[4]) {
    unroll<Atoms>([&](auto i) {
      multiply_add<T>(at[i][2 * J], left[i], right);
      multiply_add<T>(at[i][2 * J + 1], left[i], right + 2);
    });
  }
};

// ---- forward

/// Left fragments that stay in registers.
template <class T, int Atoms, int Width>
struct KeptRows {
  u32 kept[Width / 16][Atoms][4];

  template <class Operand>
  TESSERA_DEVICE void keep(const Operand& rows) {
    unroll<Width / 16>([&](auto k) { unroll<Atoms>([&](auto i) { rows.load(kept[k][i], i * 16, k * 16); }); });
  }
  TESSERA_DEVICE void load(u32 (&r)[4], int line, int column) const {
    unroll<4>([&](auto e) { r[e] = kept[column / 16][line / 16][e]; });
  }
};

/// Maxima and sums of the rows of a warp's scores; `sum` is of this thread's columns.
template <int Atoms>
struct RunningSoftmax {
  float largest[Atoms][2], sum[Atoms][2];

  TESSERA_DEVICE RunningSoftmax() {
    unroll<Atoms * 2>([&](auto n) {
      largest[n / 2][n % 2] = minus_infinity();
      sum[n / 2][n % 2] = 0;
    });
  }

  /// The four lanes of a row agree on op over their values.
  template <class Op>
  static TESSERA_DEVICE float over_row(float x, const Op& op) {
    x = op(x, from_lane_xor(x, 1));
    return op(x, from_lane_xor(x, 2));
  }

  /// Turns scores into exponentials and moves what was summed before to the new maximum.
  template <int Columns, int Width>
  TESSERA_DEVICE void step(WarpSums<Atoms, Columns>& scores, WarpSums<Atoms, Width>& out) {
    unroll<Atoms * 2>([&](auto n) {
      constexpr int i = n / 2, half = n % 2 * 2;
      const auto higher = [](float a, float b) { return a < b ? b : a; };
      float top = largest[i][n % 2];
      unroll<Columns / 8>([&](auto j) { top = higher(top, higher(scores.at[i][j][half], scores.at[i][j][half + 1])); });
      top = over_row(top, higher);
      const float shift = top == minus_infinity() ? 0 : top, factor = fast_exp2(largest[i][n % 2] - shift);
      largest[i][n % 2] = top;
      float total = 0;
      unroll<Columns / 8>([&](auto j) {
        unroll<2>([&](auto e) {
          float& x = scores.at[i][j][half + e];
          x = fast_exp2(x - shift);
          total += x;
        });
      });
      sum[i][n % 2] = fma(sum[i][n % 2], factor, total);
      unroll<Width / 8>([&](auto j) {
        out.at[i][j][half] *= factor;
        out.at[i][j][half + 1] *= factor;
      });
    });
  }
};

template <int Width>
struct ForwardSizes {
  static constexpr int atoms = Width <= 64 ? 2 : 1;  // of 16 queries for each warp
  static constexpr int queries = attention_warps * atoms * 16, keys = 64;
  static constexpr int shared_bytes = (queries + 4 * keys) * Width * 2;
  static constexpr TESSERA_HD i64 blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(queries));
  }
};

/// One block of queries; widths are multiples of 8, at most Width, and rows are 16-byte vectors in memory.
/// lse may be null.
template <class T, int Width>
TESSERA_DEVICE void attention_forward(const AttentionProblem& p, const HeadsView<T>& y, const HeadsView<const T>& q,
                                      const HeadsView<const T>& k, const HeadsView<const T>& v, float* lse, T* shared) {
  using Sizes = ForwardSizes<Width>;
  constexpr int keys = Sizes::keys, atoms = Sizes::atoms;
  const i64 tiles = ceil_div(p.queries, i64(Sizes::queries)), index = block_in_grid() / tiles;
  const i64 q0 = (tiles - 1 - block_in_grid() % tiles) * Sizes::queries;  // what takes longest comes first
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const T *k_head = k.head(b, shared_head), *v_head = v.head(b, shared_head);
  const i64 visible = p.causal ? min(p.keys, q0 + Sizes::queries) : p.keys;
  const int steps = static_cast<int>(ceil_div(visible, i64(keys)));

  T *q_tile = shared, *ring = shared + Sizes::queries * Width;
  const auto stage = [&](int step) { return ring + step % 2 * 2 * keys * Width; };
  const auto fetch = [&](int step) {
    const i64 k0 = static_cast<i64>(step) * keys;
    fetch_rows<keys, Width>(stage(step), k, k_head + k0 * k.row(), p.keys - k0, p.width);
    fetch_rows<keys, Width>(stage(step) + keys * Width, v, v_head + k0 * v.row(), p.keys - k0, p.value_width);
    commit_copies();
  };
  fetch_rows<Sizes::queries, Width>(q_tile, q, q.head(b, h) + q0 * q.row(), p.queries - q0, p.width);
  fetch(0);

  KeptRows<T, atoms, Width> own;
  WarpSums<atoms, Width> out;
  RunningSoftmax<atoms> softmax;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    sync_block();  // this step's rows have arrived, and every warp is done with those of the last
    if (step + 1 < steps) fetch(step + 1);
    if (step == 0)
      own.keep(OwnRows<T, Sizes::queries, Width>(q_tile + thread_in_block() / warp_size * 16 * atoms * Width));
    WarpSums<atoms, keys> scores;
    scores.template add_product<T, Width>(own, Rows<T, keys, Width>(stage(step)));
    finish_scores<false, T>(scores, p, ScoreBlock(p, b, h, q0, static_cast<i64>(step) * keys));
    softmax.step(scores, out);
    out.template add_product_of<T>(scores, SummedRows<T, keys, Width>(stage(step) + keys * Width));
  }

  unroll<atoms * 2>([&](auto n) {
    constexpr int i = n / 2, half = n % 2 * 2;
    const float sum = softmax.over_row(softmax.sum[i][n % 2], [](float x, float z) { return x + z; });
    const float inverse = sum > 0 ? 1 / sum : sum == sum ? 0 : sum;  // a query that sees nothing has zeros
    unroll<Width / 8>([&](auto j) {
      out.at[i][j][half] *= inverse;
      out.at[i][j][half + 1] *= inverse;
    });
    const i64 query = q0 + out.row() + i * 16 + half * 4;
    if (lse && thread_in_block() % 4 == 0 && query < p.queries)
      lse[index * p.queries + query] = (softmax.largest[i][n % 2] + fast_log2(sum)) * log_of_2;
  });
  out.store(q_tile, y, y.head(b, h) + q0 * y.row(), p.queries - q0, p.value_width);
}

}  // namespace sm80
TESSERA_TILE_END
