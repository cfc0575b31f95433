// Attention of one block on ordinary cores, for any GPU: softmax(scale q k' + mask) v for some queries of a head, keys
// block by block with running maxima and sums (Rabe and Staats, "Self-attention does not need O(n^2) memory",
// arXiv:2112.05682). Elements of any type and strides become float in shared memory. Eight neighbouring threads share
// rows of scores and of the result; every 16th row is theirs.
#pragma once
#include "attention.h"

TESSERA_TILE_BEGIN
namespace simt {

inline constexpr int attention_threads = 128, groups = attention_threads / 8;
TESSERA_DEVICE int own_row() { return thread_in_block() / 8; }
TESSERA_DEVICE int own_column() { return thread_in_block() % 8; }

/// Rows of a tile in shared memory: neighbours begin in other banks.
template <int Width>
inline constexpr int pitch_of = Width + 4;
/// The same for probabilities, which are written one by one.
template <int Width>
inline constexpr int weights_pitch = Width + 8;

TESSERA_DEVICE Four<float> four_at(const float* p) { return *reinterpret_cast<const Four<float>*>(p); }

/// Rows on their way from memory to a tile: chunks of four elements, in registers in between.
template <class T, int Rows, int Width>
class RowsUnderWay {
 public:
  /// Takes rows that begin at `from`, of which there are `rows` of `width` elements; what lies beyond becomes zero.
  TESSERA_DEVICE void load(const HeadsView<const T>& view, const T* from, i64 rows, i64 width) {
    const bool fours = lies_in_fours(view, from, width);
    from += line() * view.row() + column() * view.column();
    unroll<count>([&](auto i) {
      const bool inside = line() + i * step < rows;
      const T* at = from + i * step * view.row();
      if (fours) {
        held_[i] = inside && column() < width ? *reinterpret_cast<const Four<T>*>(at) : Four<T>{};
      } else {
        unroll<4>([&](auto e) {
          held_[i].lane[e] = inside && column() + e < width ? at[e * view.column()] : convert_element<T>(0.0f);
        });
      }
    });
  }
  TESSERA_DEVICE void store(float* tile) const {
    unroll<count>([&](auto i) {
      Four<float> wide;
      unroll<4>([&](auto e) { wide.lane[e] = static_cast<float>(held_[i].lane[e]); });
      *reinterpret_cast<Four<float>*>(tile + (line() + i * step) * pitch_of<Width> + column()) = wide;
    });
  }

 private:
  static constexpr int columns = Width / 4, step = attention_threads / columns, count = Rows / step;
  static_assert(count * step == Rows, "attention: the tile cannot be shared out evenly");
  static TESSERA_DEVICE int line() { return thread_in_block() / columns; }
  static TESSERA_DEVICE int column() { return thread_in_block() % columns * 4; }
  Four<T> held_[count];
};

/// Products of Rows x Columns rows of two tiles. This thread has rows own_row() + 16 i and columns own_column() + 8 j.
template <int Rows, int Columns>
struct RowProducts {
  static constexpr int rows = Rows, columns = Columns, down = Rows / groups, across = Columns / 8;
  float at[down][across] = {};

  /// fn(product, row, column) within the block.
  template <class Fn>
  TESSERA_DEVICE void each(const Fn& fn) {
    unroll<down>(
        [&](auto i) { unroll<across>([&](auto j) { fn(at[i][j], own_row() + i * groups, own_column() + j * 8); }); });
  }

  /// += a b'
  template <int Depth>
  TESSERA_DEVICE void add(const float* a, const float* b) {
    a += own_row() * pitch_of<Depth>;
    b += own_column() * pitch_of<Depth>;
#pragma unroll 1
    for (int k = 0; k < Depth; k += 4) {
      Four<float> left[down];
      unroll<down>([&](auto i) { left[i] = four_at(a + i * groups * pitch_of<Depth> + k); });
      unroll<across>([&](auto j) {
        const Four<float> right = four_at(b + j * 8 * pitch_of<Depth> + k);
        unroll<down>(
            [&](auto i) { unroll<4>([&](auto e) { at[i][j] = fma(left[i].lane[e], right.lane[e], at[i][j]); }); });
      });
    }
  }

  /// Brings them to shared memory for WeightedSums::add; only threads that share rows need them.
  TESSERA_DEVICE void share(float* weights) {
    sync_warp();  // whoever reads what was there is done
    each([&](float x, int row, int column) { weights[row * weights_pitch<Columns> + column] = x; });
    sync_warp();
  }
};

/// Sums of rows with weights, Rows of Width elements. This thread has rows own_row() + 16 i and columns
/// 4 own_column() + 32 j to 3 further on.
template <int Rows, int Width>
struct WeightedSums {
  static constexpr int down = Rows / groups, across = Width / 32;
  Four<float> at[down][across] = {};

  /// += w b for weights w [Rows][Depth].
  template <int Depth>
  TESSERA_DEVICE void add(const float* w, const float* b) {
    w += own_row() * weights_pitch<Depth>;
    b += own_column() * 4;
#pragma unroll 1
    for (int k = 0; k < Depth; k += 4) {
      Four<float> left[down];
      unroll<down>([&](auto i) { left[i] = four_at(w + i * groups * weights_pitch<Depth> + k); });
      unroll<4>([&](auto e) {
        unroll<across>([&](auto j) {
          const Four<float> right = four_at(b + (k + e) * pitch_of<Width> + j * 32);
          unroll<down>([&](auto i) {
            unroll<4>([&](auto c) { at[i][j].lane[c] = fma(left[i].lane[e], right.lane[c], at[i][j].lane[c]); });
          });
        });
      });
    }
  }

  TESSERA_DEVICE void scale_row(int i, float by) {
    unroll<across>([&](auto j) { unroll<4>([&](auto c) { at[i][j].lane[c] *= by; }); });
  }

  /// Brings them times `scale` to memory, to rows that begin at `to`, of which there are `rows` of `width` elements.
  template <class T>
  TESSERA_DEVICE void store(const HeadsView<T>& view, T* to, i64 rows, i64 width, float scale) const {
    const bool fours = lies_in_fours(view, to, width);
    unroll<down>([&](auto i) {
      if (own_row() + i * groups >= rows) return;
      T* row = to + (own_row() + i * groups) * view.row();
      unroll<across>([&](auto j) {
        const int column = own_column() * 4 + j * 32;
        Four<T> narrow;
        unroll<4>([&](auto c) { narrow.lane[c] = convert_element<T>(at[i][j].lane[c] * scale); });
        if (fours) {
          if (column < width) *reinterpret_cast<Four<T>*>(row + column) = narrow;
        } else {
          unroll<4>([&](auto c) {
            if (column + c < width) row[(column + c) * view.column()] = narrow.lane[c];
          });
        }
      });
    });
  }
};

// ---- forward

/// The threads of a row agree on op over their values.
template <class Op>
TESSERA_DEVICE float over_row(float x, const Op& op) {
  unroll<3>([&](auto i) { x = op(x, from_lane_xor(x, 1 << i)); });
  return x;
}

template <int Width>
struct ForwardSizes {
  static constexpr int queries = 64, keys = Width <= 64 ? 64 : 32;
  static constexpr int weights = (queries + keys) * pitch_of<Width>;  // where they begin
  static constexpr int shared_bytes = (weights + queries * weights_pitch<keys>)*4;
  static_assert(shared_bytes <= 64 << 10);
  static constexpr TESSERA_HD i64 blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(queries));
  }
};

/// One block of queries; widths are at most Width. lse may be null.
template <class T, int Width>
TESSERA_DEVICE void attention_forward(const AttentionProblem& p, const HeadsView<T>& y, const HeadsView<const T>& q,
                                      const HeadsView<const T>& k, const HeadsView<const T>& v, float* lse,
                                      float* shared) {
  using Sizes = ForwardSizes<Width>;
  constexpr int queries = Sizes::queries, keys = Sizes::keys;
  const i64 tiles = ceil_div(p.queries, i64(queries)), index = block_in_grid() / tiles;
  const i64 q0 = (tiles - 1 - block_in_grid() % tiles) * queries;  // what takes longest comes first
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const i64 visible = p.causal ? min(p.keys, q0 + queries) : p.keys;

  float *q_tile = shared, *tile = q_tile + queries * pitch_of<Width>, *weights = shared + Sizes::weights;
  RowsUnderWay<T, keys, Width> next;
  const auto fetch = [&](const HeadsView<const T>& x, i64 k0, i64 width) {
    next.load(x, x.head(b, shared_head) + k0 * x.row(), p.keys - k0, width);
  };
  {
    RowsUnderWay<T, queries, Width> rows;
    rows.load(q, q.head(b, h) + q0 * q.row(), p.queries - q0, p.width);
    rows.store(q_tile);
  }
  fetch(k, 0, p.width);

  constexpr int down = queries / groups, across = keys / 8;
  const auto higher = [](float x, float z) { return x < z ? z : x; };
  const auto plus = [](float x, float z) { return x + z; };
  WeightedSums<queries, Width> out;
  float largest[down], sum[down];  // `sum` is of this thread's columns
  unroll<down>([&](auto i) {
    largest[i] = minus_infinity();
    sum[i] = 0;
  });
#pragma unroll 1
  for (i64 k0 = 0; k0 < visible; k0 += keys) {
    sync_block();  // every warp is done with the values of the last step
    next.store(tile);
    fetch(v, k0, p.value_width);
    sync_block();
    RowProducts<queries, keys> scores;
    scores.template add<Width>(q_tile, tile);
    sync_block();  // ... and with these keys
    next.store(tile);
    fetch(k, k0 + keys, p.width);
    finish_scores<false, T>(scores, p, ScoreBlock(p, b, h, q0, k0));
    unroll<down>([&](auto i) {
      float top = largest[i];
      unroll<across>([&](auto j) { top = higher(top, scores.at[i][j]); });
      top = over_row(top, higher);
      const float shift = top == minus_infinity() ? 0 : top, factor = fast_exp2(largest[i] - shift);
      largest[i] = top;
      float total = 0;
      unroll<across>([&](auto j) { total += scores.at[i][j] = fast_exp2(scores.at[i][j] - shift); });
      sum[i] = fma(sum[i], factor, total);
      out.scale_row(i, factor);
    });
    scores.share(weights);
    sync_block();
    out.template add<keys>(weights, tile);
  }

  unroll<down>([&](auto i) {
    const float total = over_row(sum[i], plus);
    out.scale_row(i, total > 0 ? 1 / total : total == total ? 0 : total);  // a query that sees nothing has zeros
    const i64 query = q0 + own_row() + i * groups;
    if (lse && own_column() == 0 && query < p.queries)
      lse[index * p.queries + query] = (largest[i] + fast_log2(total)) * log_of_2;
  });
  out.store(y, y.head(b, h) + q0 * y.row(), p.queries - q0, p.value_width, 1);
}

}  // namespace simt
TESSERA_TILE_END
