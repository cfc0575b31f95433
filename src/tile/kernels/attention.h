// Attention without the matrix of scores: softmax(scale q k' + mask) v, block by block with running maxima and sums
// (Dao et al., "FlashAttention", arXiv:2205.14135; Milakov and Gimelshein, arXiv:1805.02867).
//
// Blocks of scores are held transposed, [keys][queries]: queries lie along the lanes, so that softmax needs no
// horizontal reduction. Rows of keys and values are gathered once per head; the products of a block (backward: five)
// are calls of the GEMM micro-kernel, which reads its left side from rows of memory or, for probabilities, from
// columns.
#pragma once

#include "../arch/cpu/blocking.h"
#include "../arch/cpu/pack.h"
#include "../attention_problem.h"
#include "../executor.h"
#include "rows.h"

TESSERA_TILE_BEGIN

namespace cpu {

/// A matrix of `rows` rows packed in panels of nearly equal height, at most block_rows, for products with k steps.
struct Panels {
  i64 count, height, taller;
  explicit TESSERA_HD Panels(i64 rows)
      : count(max(i64(1), ceil_div(rows, i64(block_rows)))), height(rows / count), taller(rows % count) {}

  template <class Fn>
  TESSERA_HD void each(const Fn& fn) const {
    for (i64 i = 0, row = 0; i < count; ++i) {
      const i64 rows = height + (i < taller);
      fn(row, rows);
      row += rows;
    }
  }
};

/// to[k * width + i] = from[i * row_stride + k * k_stride], zero for count <= i < width. Not inlined: the
/// transpositions in it are long.
template <class C, class S>
__attribute__((noinline)) void pack_block(const S* from, i64 row_stride, i64 k_stride, i64 count, i64 width, i64 depth,
                                          C* to) {
  detail::pack_strided(from, row_stride, k_stride, static_cast<int>(count), static_cast<int>(width), depth, to);
}

/// Columns of c[rows][columns] by blocks of a micro-kernel: run(vectors, column, columns of the last vector) computes
/// one.
template <class C, class Run>
TESSERA_HD void each_block(i64 columns, const Run& run) {
  constexpr i64 lanes = NativeVec<C>::lanes;
  i64 j = 0;
  for (; j + lanes < columns; j += 2 * lanes) run(Int<2>{}, j, static_cast<int>(min(lanes, columns - j - lanes)));
  if (j < columns) run(Int<1>{}, j, static_cast<int>(columns - j));
}

/// c[rows][columns] = (or +=) A b for rows of A in place, contiguous along k; `packed` has room for them.
template <class C>
inline void multiply_rows(i64 rows, i64 columns, i64 steps, const C* a, i64 a_row, const C* b, i64 b_step, C* c,
                          i64 c_step, bool add, C* packed) {
  using V = NativeVec<C>;
  if constexpr (block_rows > 8) {  // more rows than registers for pointers
    pack_block(a, a_row, i64(1), rows, rows, steps, packed);
    each_block<C>(columns, [&](auto vectors, i64 j, int last) TESSERA_LAMBDA {
      const auto kernel = pick_outer<V, vectors>(static_cast<int>(rows));
      kernel(steps, packed, b + j, b_step, c + j, c_step, last, add, {});
    });
  } else {
    each_block<C>(columns, [&](auto vectors, i64 j, int last) TESSERA_LAMBDA {
      const auto kernel = pick_rows<V, vectors>(static_cast<int>(rows));
      kernel(steps, a, a_row, b + j, b_step, c + j, c_step, last, add, {});
    });
  }
}

/// c[rows][columns] = (or +=) A b for the transpose of A in rows.
template <class C>
inline void multiply_columns(i64 rows, i64 columns, i64 steps, const C* a, i64 a_step, const C* b, i64 b_step, C* c,
                             i64 c_step, bool add) {
  using V = NativeVec<C>;
  each_block<C>(columns, [&](auto vectors, i64 j, int last) TESSERA_LAMBDA {
    pick_columns<V, vectors>(static_cast<int>(rows))(steps, a, a_step, b + j, b_step, c + j, c_step, last, add);
  });
}

/// Asks for rows of a result before it is computed: they take long to come from far away.
template <class T>
TESSERA_HD void ask_for_rows(T* row, i64 row_stride, i64 column_stride, i64 rows, i64 columns) {
  constexpr i64 line = 64 / static_cast<i64>(sizeof(T));
  if (column_stride != 1) return;
  for (i64 i = 0; i < rows; ++i, row += row_stride)
    for (i64 j = 0; j < columns; j += line) __builtin_prefetch(row + j, 1);
}

}  // namespace cpu

namespace detail {

/// Sizes of the blocks and buffers of one problem.
template <class C>
struct AttentionBlocks {
  static constexpr i64 lanes = NativeVec<C>::lanes;
  static constexpr i64 forward_queries = 128 / static_cast<i64>(sizeof(C));   // of f32: 32
  static constexpr i64 backward_queries = 256 / static_cast<i64>(sizeof(C));  // of f32: 64, and as many keys
  static constexpr i64 forward_keys = 8 * cpu::block_rows <= 64 ? 16 * cpu::block_rows : 8 * cpu::block_rows;
  static constexpr i64 pitch(i64 width) { return round_up(width, lanes); }
};

/// Applies slopes and masks to a block of transposed scores s[keys][queries]. Beyond the queries nothing matters, nor,
/// with causality, more than `before` queries ahead of a key and lanes that they share.
template <class C, class T>
inline void mask_scores(const AttentionProblem& p, i64 b, i64 h, i64 q0, i64 queries, i64 k0, i64 keys, C* s, i64 pitch,
                        i64 before) {
  using V = NativeVec<C>;
  using I = rebind_t<V, typename SignedOfSize<sizeof(C)>::type>;
  using E = element_t<I>;
  const C low = -static_cast<C>(__builtin_inf());
  if (p.alibi > 0) {
    const C slope = alibi_slope<C>(h, p.heads, p.alibi);
    for (i64 j = 0; j < keys; ++j) {
      for (i64 i = 0; i < pitch; i += V::lanes) {
        const V distance = V(static_cast<C>(k0 + j - q0 - i)) - iota<V>();
        store(s + j * pitch + i, fma(V(slope), distance, load<V>(s + j * pitch + i)));
      }
    }
  }
  if (p.mask.kind != AttentionMask::Kind::none) {
    const i64* st = p.mask.strides;
    const i64 base = b * st[0] + h * st[1] + q0 * st[2] + k0 * st[3];
    for (i64 j = 0; j < keys; ++j) {
      C* row = s + j * pitch;
      const i64 at = base + j * st[3];
      if (p.mask.kind == AttentionMask::Kind::allowed) {
        const bool* allowed = static_cast<const bool*>(p.mask.data) + at;
        for (i64 i = 0; i < queries; ++i) row[i] = allowed[i * st[2]] ? row[i] : low;
      } else {
        const T* added = static_cast<const T*>(p.mask.data) + at;
        for (i64 i = 0; i < queries; ++i) row[i] += convert_element<C>(added[i * st[2]]);
      }
    }
  }
  if (p.causal && k0 + keys > q0 + 1) {
    for (i64 j = max(i64(0), q0 + 1 - k0); j < keys; ++j) {
      const i64 first = min(k0 + j - q0, pitch);  // the first query that sees this key
      for (i64 i = max(i64(0), first - before) / V::lanes * V::lanes; i < first; i += V::lanes) {
        const I query = iota<I>() + I(static_cast<E>(i));
        store(s + j * pitch + i, select(query < I(static_cast<E>(first)), V(low), load<V>(s + j * pitch + i)));
      }
    }
  }
}

/// What causality leaves of a block of keys from k0 on and queries from q0 on: the rest is neither computed nor read.
struct Visible {
  i64 q0, k0, keys;
  bool causal;
  /// Keys that one of the queries before `end` sees.
  TESSERA_HD i64 keys_of(i64 end) const { return causal ? max(i64(0), min(keys, q0 + end - k0)) : keys; }
  /// The first query that sees a key.
  TESSERA_HD i64 first_query(i64 key) const { return causal ? max(i64(0), k0 + key - q0) : 0; }
};

/// How a grid of heads is shared: a task is one head, or a range of its queries where there are few heads.
struct AttentionTasks {
  i64 heads, ranges, length;
  AttentionTasks(i64 heads_, i64 queries, i64 unit, int threads) : heads(heads_) {
    const i64 blocks = ceil_div(queries, unit);
    ranges = heads >= 4 * threads || threads == 1 ? 1 : min(blocks, ceil_div(i64(4) * threads, heads));
    if (heads >= 2 * threads && heads % threads == 0) ranges = 1;
    length = ceil_div(blocks, max(i64(1), ranges)) * unit;
    ranges = max(i64(1), ceil_div(queries, length));
  }
};

template <class C>
class Arena {
 public:
  explicit Arena(void* memory) : next_(static_cast<char*>(memory)) {}
  C* take(i64 elements) {
    C* p = reinterpret_cast<C*>(next_);
    next_ += bytes(elements);
    return p;
  }
  static i64 bytes(i64 elements) {
    return round_up((elements + cpu::pack_slack<C>)*static_cast<i64>(sizeof(C)), i64(64));
  }

 private:
  char* next_;
};

/// Copies rows of a head times a factor into packed rows of `pitch` compute elements, zeros behind them.
template <class C, class T>
inline void copy_rows(const T* from, i64 row_stride, i64 column_stride, i64 rows, i64 columns, C* to, i64 pitch,
                      C factor = C(1)) {
  using V = NativeVec<C>;
  for (i64 r = 0; r < rows; ++r, from += row_stride, to += pitch) {
    if (column_stride == 1) {
      i64 i = 0;
      for (; i + V::lanes <= columns; i += V::lanes) store(to + i, load<V>(from + i) * V(factor));
      if (i < columns) store(to + i, load<V>(from + i, static_cast<int>(columns - i)) * V(factor));
    } else {
      for (i64 i = 0; i < pitch; ++i) to[i] = i < columns ? convert_element<C>(from[i * column_stride]) * factor : C(0);
    }
  }
}

/// The reverse: packed rows times factor(row).
template <class C, class T, class Factor>
inline void write_rows(const C* from, i64 pitch, i64 rows, i64 columns, T* to, i64 row_stride, i64 column_stride,
                       const Factor& factor) {
  for (i64 r = 0; r < rows; ++r, from += pitch, to += row_stride) {
    const C f = factor(r);
    if (column_stride == 1) {
      map_row<C>(
          columns, to, [=](auto v) { return v * decltype(v)(f); }, from);
    } else {
      for (i64 i = 0; i < columns; ++i) to[i * column_stride] = convert_element<T>(from[i] * f);
    }
  }
}

/// One head's forward over a range of queries.
template <class T>
class AttentionForward {
  using C = compute_t<T>;
  using V = NativeVec<C>;
  using Blocks = AttentionBlocks<C>;
  static constexpr i64 q_block = Blocks::forward_queries, k_block = Blocks::forward_keys;

 public:
  AttentionForward(const AttentionProblem& p, void* scratch)
      : p_(p), k_pitch_(Blocks::pitch(p.width)), v_pitch_(Blocks::pitch(p.value_width)) {
    Arena<C> arena(scratch);
    C** const buffers[] = {&k_, &v_, &q_, &scores_, &out_, &packed_, &factor_};
    for (int i = 0; i < buffer_count; ++i) *buffers[i] = arena.take(buffer_size(p, i));
  }
  static i64 scratch_bytes(const AttentionProblem& p) {
    i64 bytes = 0;
    for (int i = 0; i < buffer_count; ++i) bytes += Arena<C>::bytes(buffer_size(p, i));
    return bytes;
  }

  void gather(const HeadsView<const T>& k, const HeadsView<const T>& v, i64 b, i64 kv_head, i64 keys) {
    copy_rows(k.head(b, kv_head), k.row(), k.column(), keys, p_.width, k_, k_pitch_, static_cast<C>(p_.scale));
    copy_rows(v.head(b, kv_head), v.row(), v.column(), keys, p_.value_width, v_, v_pitch_);
  }

  /// Queries [q0, q0 + count), count <= q_block; lse may be null.
  void block(const HeadsView<T>& y, const HeadsView<const T>& q, i64 b, i64 h, i64 q0, i64 count, C* lse) {
    cpu::pack_block(q.head(b, h) + q0 * q.row(), q.row(), q.column(), count, q_block, p_.width, q_);
    T* const result = y.head(b, h) + q0 * y.row();
    cpu::ask_for_rows(result, y.row(), y.column(), count, p_.value_width);
    constexpr int columns = q_block / V::lanes;
    V largest[columns], sum[columns];
    for (int i = 0; i < columns; ++i) largest[i] = V(-static_cast<C>(__builtin_inf())), sum[i] = V(C(0));
    const i64 visible = p_.causal ? min(p_.keys, q0 + count) : p_.keys;
    for (i64 k0 = 0; k0 < visible; k0 += k_block) {
      const Visible seen{q0, k0, min(k_block, visible - k0), p_.causal};
      cpu::Panels(seen.keys).each([&](i64 key, i64 rows) {
        const i64 from = seen.first_query(key) / V::lanes * V::lanes;
        cpu::multiply_rows(rows, q_block - from, p_.width, static_cast<const C*>(k_ + (k0 + key) * k_pitch_), k_pitch_,
                           static_cast<const C*>(q_ + from), q_block, scores_ + key * q_block + from, q_block, false,
                           packed_);
      });
      mask_scores<C, T>(p_, b, h, q0, count, k0, seen.keys, scores_, q_block, i64(0));
      bool moved = false;
      for (int i = 0; i < columns; ++i) moved |= exponentials(i, seen, largest[i], sum[i]);
      if (k0 > 0 && moved) rescale(count);
      sum_values(seen, count);
    }
    if (visible == 0) __builtin_memset(out_, 0, v_pitch_ * q_block * sizeof(C));
    for (int i = 0; i < columns; ++i) {
      const V inverse = select(sum[i] > V(C(0)), V(C(1)) / sum[i], select(sum[i] == sum[i], V(C(0)), sum[i]));
      store(factor_ + i * V::lanes, inverse);
      const i64 left = count - i * V::lanes;
      if (lse && left > 0) {
        store(lse + i * V::lanes, largest[i] + log(sum[i]), static_cast<int>(min(left, i64(V::lanes))));
      }
    }
    write_rows(static_cast<const C*>(out_), v_pitch_, count, p_.value_width, result, y.row(), y.column(),
               [&](i64 r) { return factor_[r]; });
  }

 private:
  static constexpr int buffer_count = 7;
  static i64 buffer_size(const AttentionProblem& p, int i) {
    const i64 w = Blocks::pitch(p.width), vw = Blocks::pitch(p.value_width);
    const i64 sizes[buffer_count] = {p.keys * w,   p.keys * vw,         w * q_block, k_block * q_block,
                                     vw * q_block, w * cpu::block_rows, q_block};
    return sizes[i];
  }

  /// out_ = (or +=) P v for a block of keys.
  void sum_values(const Visible& seen, i64 count) {
    cpu::Panels(count).each([&](i64 row, i64 rows) {
      cpu::multiply_columns(rows, v_pitch_, seen.keys_of(row + rows), static_cast<const C*>(scores_ + row), q_block,
                            static_cast<const C*>(v_ + seen.k0 * v_pitch_), v_pitch_, out_ + row * v_pitch_, v_pitch_,
                            seen.k0 > 0);
    });
  }

  void rescale(i64 count) {
    C* p = out_;
    for (i64 r = 0; r < count; ++r) {
      for (i64 d = 0; d < v_pitch_; d += V::lanes, p += V::lanes) store(p, load<V>(p) * V(factor_[r]));
    }
  }

  /// Turns one vector of columns of scores into exponentials; whether what was summed before moves, by factor_.
  bool exponentials(int column, const Visible& seen, V& largest, V& sum) {
    C* s = scores_ + column * V::lanes;
    const i64 keys = seen.keys_of((column + 1) * V::lanes);
    V best[2] = {largest, largest};
    i64 j = 0;
    for (; j + 2 <= keys; j += 2) {
      best[0] = max(load<V>(s + j * q_block), best[0]);
      best[1] = max(load<V>(s + (j + 1) * q_block), best[1]);
    }
    if (j < keys) best[0] = max(load<V>(s + j * q_block), best[0]);
    const V top = max(best[0], best[1]);
    const V shift = select(abs(top) < V(static_cast<C>(__builtin_inf())), top, V(C(0)));
    const V factor = exp_nonpositive(largest - shift);
    const bool moved = any(top > largest);
    store(factor_ + column * V::lanes, factor);
    sum *= factor;
    largest = top;
    V total[2] = {V(C(0)), V(C(0))};
    const auto step = [&](i64 row, V& into) {
      const V e = exp_nonpositive(load<V>(s + row * q_block) - shift);
      into += e;
      store(s + row * q_block, e);
    };
    for (j = 0; j + 2 <= keys; j += 2) {
      step(j, total[0]);
      step(j + 1, total[1]);
    }
    if (j < keys) step(j, total[0]);
    sum += total[0] + total[1];
    // Panels of queries that begin in this vector end in the next.
    const i64 end = min(seen.keys, keys + cpu::block_rows - 1);
    for (j = keys; j < end; ++j) store(s + j * q_block, V(C(0)));
    return moved;
  }

  const AttentionProblem& p_;
  i64 k_pitch_, v_pitch_;
  C *k_, *v_;       // [keys][pitch], keys times the scale
  C *q_, *scores_;  // [width][q_block], [k_block][q_block]
  C *out_, *packed_, *factor_;
};

}  // namespace detail

/// y = softmax(scale q k' + mask) v per head; a query that sees no key gives zeros. lse, [batch, heads, queries], gets
/// the logarithms of the sums of exponentials, which the backward needs; it may be null.
template <class T, class Executor>
void attention(Executor& executor, const AttentionProblem& p, const HeadsView<T>& y, const HeadsView<const T>& q,
               const HeadsView<const T>& k, const HeadsView<const T>& v, compute_t<T>* lse) {
  using Forward = detail::AttentionForward<T>;
  constexpr i64 unit = detail::AttentionBlocks<compute_t<T>>::forward_queries;
  const ExecutorRef threads(executor);
  const detail::AttentionTasks tasks(p.batch * p.heads, p.queries, unit, threads.threads());
  if (p.queries == 0) return;
  threads.parallel(tasks.heads * tasks.ranges, [&](i64 task, int thread) {
    const i64 index = task / tasks.ranges, b = index / p.heads, h = index % p.heads;
    const i64 begin = task % tasks.ranges * tasks.length, end = min(p.queries, begin + tasks.length);
    Forward forward(p, threads.scratch(thread, Forward::scratch_bytes(p)));
    forward.gather(k, v, b, h / (p.heads / p.kv_heads), p.causal ? min(p.keys, end) : p.keys);
    for (i64 q0 = begin; q0 < end; q0 += unit) {
      forward.block(y, q, b, h, q0, min(unit, end - q0), lse ? lse + index * p.queries + q0 : nullptr);
    }
  });
}

TESSERA_TILE_END
