// Attention of one block on AMD's CDNA cards: softmax(scale q k' + mask) v for some queries of a head, keys block by
// block with running maxima and sums, so that no score reaches memory (Dao, "FlashAttention-2", arXiv:2307.08691). A
// wave owns 32 rows, one for each lane of either half: scores are computed as their transpose, so that a lane has those
// of its row in registers, where they are the right operand of the next product.
#pragma once
#include "../gpu/attention.h"
#include "layout.h"
#include "mfma.h"

TESSERA_TILE_BEGIN
namespace cdna {

/// The same view, its strides in scalar registers of their own: those loaded together lie side by side and, where a
/// loop has too few registers for all, come back together for each that is used.
template <class T>
TESSERA_DEVICE HeadsView<T> apart(HeadsView<T> view) {
#if defined(__HIP_DEVICE_COMPILE__)
  for (i64& stride : view.strides) asm volatile("" : "+s"(stride));
#endif
  return view;
}

inline constexpr int attention_waves = 4, attention_threads = attention_waves * wave_size;
inline constexpr int wave_rows = 32, block_rows = attention_waves * wave_rows;
inline constexpr int most_shared_bytes = traits(Arch::cdna).shared_bytes;

/// A float as a T, to nearest even; for bf16 without the branch of its conversion, which would be taken for each lane.
template <class T>
TESSERA_DEVICE T rounded(float x) {
  if constexpr (is_same_v<T, bf16>) {
    const u32 bits = bit_cast<u32>(x), up = bits + 0x7fffu + (bits >> 16 & 1u);
    bf16 y;
    y.bits = static_cast<u16>((x == x ? up : 0x7fc00000u) >> 16);
    return y;
  } else {
    return T(x);
  }
}

/// Where the transpose of a tile has line `line`: the lines of each half of a wave's sums become chunks of 8.
constexpr TESSERA_HD int transposed_line(int line) { return (line & ~12) | (line & 4) << 1 | (line & 8) >> 1; }

/// The left operands of a step along k, for the 32 rows from `row` on.
template <class Tile>
class LeftRows {
 public:
  using T = typename Tile::Element;
  static_assert(reads_conflict_free<Tile>(), "attention: bank conflicts");

  explicit TESSERA_DEVICE LeftRows(const T* tile)
      : tile_(tile), at_(thread_coords<Operands<T>>(thread_in_block() % wave_size)) {}
  TESSERA_DEVICE void load(T (&to)[Operands<T>::held], int row, int k) const {
    __builtin_memcpy(to, __builtin_assume_aligned(tile_ + Tile::offset(row + at_[0], k + at_[1]), 16), 16);
  }

 private:
  const T* tile_;
  Array<int, 2> at_;
};

/// The same of the transpose of a tile of floats, which are operands by themselves, and so are read one by one.
template <class Tile>
class LeftColumns {
 public:
  explicit TESSERA_DEVICE LeftColumns(const float* tile)
      : tile_(tile), at_(thread_coords<Operands<float>>(thread_in_block() % wave_size)) {}
  TESSERA_DEVICE void load(float (&to)[Operands<float>::held], int row, int k) const {
    static_assert(is_conflict_free(), "attention: bank conflicts");
    unroll<Operands<float>::held>([&](auto e) { to[e] = tile_[Tile::offset(k + at_[1] + e, row + at_[0])]; });
  }

 private:
  struct Read {
    static constexpr TESSERA_HD auto layout() { return named("rk", lanes(1, 2) * lanes(32, 1)); }
  };
  static constexpr bool is_conflict_free() {
    const auto offset = [](const auto& c) { return Tile::offset(c[1] * Operands<float>::held, c[0]); };
    return bank_use(Read::layout(), SharedMemory::amd_read, 4, offset).is_conflict_free();
  }

  const float* tile_;
  Array<int, 2> at_;
};

/// Four neighbours of a row, zeros from `left` on.
template <class T>
TESSERA_DEVICE Four<T> four_of(const HeadsView<const T>& view, const T* from, i64 left, bool fours) {
  Four<T> four{};
  if (fours) {
    if (left > 0) four = *reinterpret_cast<const Four<T>*>(from);
  } else {
    unroll<4>([&](auto e) {
      if (e < left) four.lane[e] = from[e * view.column()];
    });
  }
  return four;
}

/// The rows of this wave as right operands, in registers.
template <class T, int Width>
class OwnRows {
 public:
  TESSERA_DEVICE OwnRows(const HeadsView<const T>& view, const T* from, i64 rows, i64 width) {
    const auto at = thread_coords<Operands<T>>(thread_in_block() % wave_size);
    const bool fours = lies_in_fours(view, from, width);
    from += at[0] * view.row();
    unroll<Width / 8>([&](auto n) {
      constexpr int fours_of_step = Operands<T>::held / 4;
      const i64 column = n / fours_of_step * Operands<T>::depth + at[1] + n % fours_of_step * 4;
      kept_[n] = four_of(view, from + column * view.column(), at[0] < rows ? width - column : 0, fours);
    });
  }
  TESSERA_DEVICE void load(T (&to)[Operands<T>::held], int k) const { __builtin_memcpy(to, kept_ + k / 8, 16); }

 private:
  Four<T> kept_[Width / 8];
};

/// Blocks of Lines rows of two tensors on their way to shared memory, in registers in between. A thread has 4 lines x 4
/// columns at a time, so that it can store them as they are and, of halves, transposed.
template <class T, int Lines, int Width>
class HeadRows {
 public:
  static constexpr bool transposes = sizeof(T) == 2;
  using Tile = OperandTile<T, Lines, Width>;
  using Transposed = conditional_t<transposes, OperandTile<T, Width, Lines>, Tile>;
  using Read = LeftRows<Tile>;
  using ReadTransposed = conditional_t<transposes, LeftRows<Transposed>, LeftColumns<Tile>>;

  /// Starts loading rows that begin at x and y, of which there are `rows`; what lies beyond becomes zero.
  TESSERA_DEVICE void load(const HeadsView<const T>& view_x, const T* x, i64 width_x, const HeadsView<const T>& view_y,
                           const T* y, i64 width_y, i64 rows) {
    rows_ = static_cast<int>(min(rows, i64(Lines)));
    width_x_ = static_cast<int>(width_x);
    width_y_ = static_cast<int>(width_y);
    each([&](auto i, int tensor, int line, int column) {
      if (tensor == 0) load_unit(held_[i], view_x, x, width_x, line, column);
      else load_unit(held_[i], view_y, y, width_y, line, column);
    });
  }

  /// fn(tensor, put, put_transposed) stores a unit: put(tile), put_transposed(tile) for ReadTransposed.
  template <class Fn>
  TESSERA_DEVICE void store(const Fn& fn) {
    each([&](auto i, int tensor, int line, int column) {
      clear(held_[i], tensor == 0 ? width_x_ : width_y_, line, column);
      const auto put = [&](T* tile) {
        unroll<4>([&](auto l) { write(tile + Tile::offset(line + l, column), held_[i][l]); });
      };
      const auto put_transposed = [&](T* tile) {
        if constexpr (transposes) {
          unroll<4>([&](auto c) {
            Four<T> four;
            unroll<4>([&](auto l) { four.lane[l] = held_[i][l].lane[c]; });
            write(tile + Transposed::offset(column + c, transposed_line(line)), four);
          });
        } else {
          put(tile);
        }
      };
      fn(tensor, put, put_transposed);
    });
  }

 private:
  static constexpr int units = Lines * Width / 16, count = 2 * units / attention_threads;
  static_assert(count * attention_threads == 2 * units, "attention: the tiles cannot be shared out evenly");

  /// The first line and column of unit `unit`.
  static constexpr TESSERA_HD int line_of(int unit) {
    return (unit / 8 % 2 * 2 + unit / 16 % 2 + unit / 32 % (Lines / 16) * 4) * 4;
  }
  static constexpr TESSERA_HD int column_of(int unit) { return (unit % 8 + unit / (2 * Lines) * 8) * 4; }

  struct Units {
    static constexpr TESSERA_HD auto layout() { return named("ul", lanes(64, 1) * vec(1, 4)); }
  };
  static constexpr bool writes_conflict_free() {
    const auto offset = [](const auto& c) { return Tile::offset(line_of(c[0]), column_of(c[0])) + c[1]; };
    const auto transposed = [](const auto& c) {
      return Transposed::offset(column_of(c[0]), transposed_line(line_of(c[0]))) + c[1];
    };
    return bank_use(Units::layout(), SharedMemory::amd_write, sizeof(T), offset).is_conflict_free() &&
           (!transposes ||
            bank_use(Units::layout(), SharedMemory::amd_write, sizeof(T), transposed).is_conflict_free());
  }

  template <class Fn>
  static TESSERA_DEVICE void each(const Fn& fn) {
    static_assert(writes_conflict_free(), "attention: bank conflicts");
    const int thread = thread_anew();
    unroll<count>([&](auto i) {
      const int unit = thread + i * attention_threads, within = unit % units;
      const int tensor = count > 1 ? i * attention_threads / units : uniform(unit / units);
      fn(i, tensor, line_of(within), column_of(within));
    });
  }

  /// Loads never branch where rows lie in fours, as they do, so that they are all under way at once: what is not there
  /// reads the first elements instead, and is cleared later.
  TESSERA_DEVICE void load_unit(Four<T> (&held)[4], const HeadsView<const T>& view, const T* from, i64 width, int line,
                                int column) {
    const bool near = view.row() < 1 << 24 && view.row() > -(1 << 24);
    if (width > 0 && near && lies_in_fours(view, from, width)) {
      const int row = static_cast<int>(view.row());
      unroll<4>([&](auto l) {
        const bool inside = line + l < rows_ && column < width;
        held[l] = *reinterpret_cast<const Four<T>*>(from + (inside ? (line + l) * row + column : 0));
      });
    } else {
      unroll<4>([&](auto l) {
        const bool inside = line + l < rows_ && column < width;
        const T* at = from + (inside ? (line + l) * view.row() + column * view.column() : 0);
        held[l] = four_of(view, at, inside ? width - column : 0, false);
      });
    }
  }
  TESSERA_DEVICE void clear(Four<T> (&held)[4], int width, int line, int column) const {
    unroll<4>([&](auto l) {
      const bool inside = line + l < rows_ && column < width;
      u32 words[sizeof held[l] / 4];
      __builtin_memcpy(words, &held[l], sizeof words);
      unroll<sizeof words / 4>([&](auto w) {
        touch(words[w]);
        words[w] = inside ? words[w] : 0;
      });
      __builtin_memcpy(&held[l], words, sizeof words);
    });
  }
  static TESSERA_DEVICE void write(T* to, const Four<T>& four) {
    __builtin_memcpy(__builtin_assume_aligned(to, sizeof four), &four, sizeof four);
  }

  int rows_, width_x_, width_y_;
  Four<T> held_[count][4];
};

/// What a wave computes: its 32 rows of Columns columns. A lane has half of row lane % 32.
template <int Columns>
struct WaveSums {
  static constexpr int rows = wave_rows, columns = Columns;
  float at[Columns / 32][16] = {};

  /// Of this lane; and of its sum r of an atom.
  static TESSERA_DEVICE int row() { return thread_in_block() % wave_rows; }
  static TESSERA_DEVICE int column(int r) { return r / 4 * 8 + thread_in_block() / 32 % 2 * 4 + r % 4; }

  /// fn(sum, row, column).
  template <class Fn>
  TESSERA_DEVICE void each(const Fn& fn) {
    const int thread = thread_anew(), row = thread % wave_rows, column = thread / 32 % 2 * 4;
    unroll<Columns / 32>(
        [&](auto j) { unroll<16>([&](auto r) { fn(at[j][r], row, column + j * 32 + r / 4 * 8 + r % 4); }); });
  }

  /// += own right' over Depth columns of both.
  template <int Depth, class T, int Width, class Right>
  TESSERA_DEVICE void add_product(const OwnRows<T, Width>& own, const Right& right) {
    unroll<Depth / Operands<T>::depth>([&](auto k) {
      T mine[Operands<T>::held];
      own.load(mine, k * Operands<T>::depth);
      add_step(mine, right, k * Operands<T>::depth);
    });
  }

  /// += p right over the columns of p, which are rounded; `right` reads the transpose.
  template <class T, int Depth, class Right>
  TESSERA_DEVICE void add_product_of(const WaveSums<Depth>& p, const Right& right) {
    constexpr int held = Operands<T>::held;
    unroll<Depth / Operands<T>::depth>([&](auto k) {
      T mine[held];
      unroll<held>([&](auto e) { mine[e] = rounded<T>(p.at[k * held / 16][k * held % 16 + e]); });
      add_step(mine, right, k * Operands<T>::depth);
    });
  }

  /// The sum or the maximum of what both halves have of a row.
  template <class Op>
  static TESSERA_DEVICE float over_row(float x, const Op& op) {
    return op(x, from_lane_xor(x, 32));
  }

  /// Brings the sums times factor to memory, rounded.
  template <class T>
  TESSERA_DEVICE void store(const HeadsView<T>& view, T* to, i64 rows_left, i64 width, float factor) const {
    if (row() >= rows_left) return;
    const bool fours = lies_in_fours(view, to, width);
    to += row() * view.row();
    unroll<Columns / 8>([&](auto n) {
      const i64 first = n / 4 * 32 + column(n % 4 * 4);
      Four<T> four;
      unroll<4>([&](auto e) { four.lane[e] = rounded<T>(at[n / 4][n % 4 * 4 + e] * factor); });
      if (fours) {
        if (first < width) *reinterpret_cast<Four<T>*>(to + first) = four;
      } else {
        unroll<4>([&](auto e) {
          if (first + e < width) to[(first + e) * view.column()] = four.lane[e];
        });
      }
    });
  }

 private:
  template <class T, int Held, class Right>
  TESSERA_DEVICE void add_step(const T (&mine)[Held], const Right& right, int k) {
    using Core = MatrixCore<T>;
    unroll<Columns / 32>([&](auto j) {
      T other[Held];
      right.load(other, j * 32, k);
      typename Core::Sums sums;
      __builtin_memcpy(&sums, at[j], sizeof sums);
      unroll<Held / Core::held>(
          [&](auto part) { sums = Core::multiply_add(other + part * Core::held, mine + part * Core::held, sums); });
      __builtin_memcpy(at[j], &sums, sizeof sums);
    });
  }
};

// ---- forward

template <int Width, class T = f16>
struct ForwardSizes {
  static constexpr int bytes = static_cast<int>(sizeof(T));
  static constexpr int queries = block_rows, keys = Width * bytes <= 128 ? 64 : 32;
  static constexpr int stage = 2 * keys * Width, shared_bytes = 2 * stage * bytes;
  static constexpr int resident = shared_bytes <= most_shared_bytes / 2 ? 2 : 1;  // blocks that share a multiprocessor
  static_assert(shared_bytes <= most_shared_bytes);
  static constexpr TESSERA_HD i64 blocks(const AttentionProblem& p) {
    return p.batch * p.heads * ceil_div(p.queries, i64(queries));
  }
};

/// Of the row of this lane; `sum` is of this lane's columns.
struct RunningSoftmax {
  float largest = minus_infinity(), sum = 0;

  /// Turns scores into exponentials and moves what was summed before to the new maximum.
  template <int Columns, int Width>
  TESSERA_DEVICE void step(WaveSums<Columns>& scores, WaveSums<Width>& out) {
    const auto higher = [](float a, float b) { return a < b ? b : a; };
    float top = largest;
    scores.each([&](float& x, int, int) { top = higher(top, x); });
    top = scores.over_row(top, higher);
    const float shift = top == minus_infinity() ? 0 : top, factor = fast_exp2(largest - shift);
    largest = top;
    float total = 0;
    scores.each([&](float& x, int, int) {
      x = fast_exp2(x - shift);
      total += x;
    });
    sum = fma(sum, factor, total);
    out.each([&](float& x, int, int) { x *= factor; });
  }
};

/// One block of queries; widths are at most Width. lse may be null.
template <class T, int Width>
TESSERA_DEVICE void attention_forward(const AttentionProblem& p, const HeadsView<T>& y, const HeadsView<const T>& q,
                                      const HeadsView<const T>& k, const HeadsView<const T>& v, float* lse, T* shared) {
  using Sizes = ForwardSizes<Width, T>;
  using Rows = HeadRows<T, Sizes::keys, Width>;
  const i64 tiles = ceil_div(p.queries, i64(block_rows)), index = block_in_grid() / tiles;
  const i64 block_q0 = (tiles - 1 - block_in_grid() % tiles) * block_rows;  // what takes longest comes first
  const i64 q0 = block_q0 + uniform(thread_in_block() / wave_size) * wave_rows;
  const i64 b = index / p.heads, h = index % p.heads, shared_head = h / (p.heads / p.kv_heads);
  const T *k_head = k.head(b, shared_head), *v_head = v.head(b, shared_head);
  const i64 visible = p.causal ? min(p.keys, block_q0 + block_rows) : p.keys;
  const int steps = static_cast<int>(ceil_div(visible, i64(Sizes::keys)));

  Rows next;
  const auto load = [&](int step) {
    const i64 k0 = static_cast<i64>(step) * Sizes::keys;
    next.load(k, k_head + k0 * k.row(), p.width, v, v_head + k0 * v.row(), p.value_width, p.keys - k0);
  };
  const auto stage = [&](int step) { return shared + step % 2 * Sizes::stage; };
  const auto store = [&](int step) {
    next.store([&](int tensor, const auto& put, const auto& put_transposed) {
      if (tensor == 0) put(stage(step));
      else put_transposed(stage(step) + Rows::Tile::size);
    });
  };
  if (steps > 0) load(0);
  const OwnRows<T, Width> own(q, q.head(b, h) + q0 * q.row(), p.queries - q0, p.width);
  if (steps > 0) store(0);

  WaveSums<Width> out;
  RunningSoftmax softmax;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    sync_block();  // this step's rows have arrived, and every wave is done with those of the last
    if (step + 1 < steps) load(step + 1);
    keep_order();  // or the compiler moves the loads down to where they are needed,
    const i64 k0 = static_cast<i64>(step) * Sizes::keys;
    if (!p.causal || k0 < q0 + wave_rows) {
      WaveSums<Sizes::keys> scores;
      scores.template add_product<Width>(own, typename Rows::Read(stage(step)));
      finish_scores<false, T>(scores, p, ScoreBlock(p, b, h, q0, k0));
      softmax.step(scores, out);
      out.template add_product_of<T>(scores, typename Rows::ReadTransposed(stage(step) + Rows::Tile::size));
    }
    keep_order();  // and waits for them up here
    if (step + 1 < steps) store(step + 1);
  }

  const float sum = out.over_row(softmax.sum, [](float x, float z) { return x + z; });
  const float inverse = sum > 0 ? 1 / sum : sum == sum ? 0 : sum;  // a query that sees nothing has zeros
  const i64 query = q0 + out.row();
  if (lse && thread_in_block() % wave_size < wave_rows && query < p.queries)
    lse[index * p.queries + query] = (softmax.largest + fast_log2(sum)) * log_of_2;
  out.store(y, y.head(b, h) + q0 * y.row(), p.queries - q0, p.value_width, inverse);
}

}  // namespace cdna
TESSERA_TILE_END
