// Attention without the matrix of scores: softmax(scale q k' + mask) v, block by block with running maxima and sums
// (Dao et al., "FlashAttention", arXiv:2205.14135; Milakov and Gimelshein, arXiv:1805.02867).
//
// Blocks of scores are held transposed, [keys][queries]: queries lie along the lanes, so that softmax needs no
// horizontal reduction, and the probabilities are already what the next product streams. Keys and values are packed
// once per head. The four (backward: seven) products of a block are calls of the GEMM micro-kernel.
#pragma once

#include "../arch/cpu/blocking.h"
#include "../arch/cpu/pack.h"
#include "../executor.h"
#include "attention_problem.h"
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

/// Packs [rows, depth]: the panel that starts at row r begins at to[r * depth].
template <class C, class S>
inline void pack_panels(const S* from, i64 row_stride, i64 k_stride, i64 rows, i64 depth, C* to) {
  Panels(rows).each([&](i64 row, i64 count) {
    pack_block(from + row * row_stride, row_stride, k_stride, count, count, depth, to + row * depth);
  });
}

/// Columns [begin, end) of c[rows][...] = (or +=) A b, by blocks of a micro-kernel: run(vectors, column) computes one.
/// Both ends are multiples of the lanes.
template <class C, class Run>
TESSERA_HD void each_block(i64 begin, i64 end, const Run& run) {
  constexpr i64 nr = block_columns<C>;
  for (; begin + nr <= end; begin += nr) run(Int<2>{}, begin);
  if (begin < end) run(Int<1>{}, begin);
}

/// c[rows][begin, end) = (or +=) A b for one packed panel of A.
template <class C>
inline void multiply_panel(i64 rows, i64 begin, i64 end, i64 steps, const C* a, const C* b, i64 b_step, C* c,
                           i64 c_step, bool add) {
  using V = NativeVec<C>;
  each_block<C>(begin, end, [&](auto vectors, i64 j) TESSERA_LAMBDA {
    const auto kernel = pick_outer<V, vectors>(static_cast<int>(rows), make_seq<block_rows>{});
    kernel(steps, a, b + j, b_step, c + j, c_step, V::lanes, add, {});
  });
}

/// c[rows][0, columns) = (or +=) A b for rows of A in place, contiguous along k; `packed` has room for them.
template <class C>
inline void multiply_rows(i64 rows, i64 columns, i64 steps, const C* a, i64 a_row, const C* b, i64 b_step, C* c,
                          i64 c_step, bool add, C* packed) {
  using V = NativeVec<C>;
  if constexpr (block_rows > 8) {  // more rows than registers for pointers
    pack_block(a, a_row, i64(1), rows, rows, steps, packed);
    multiply_panel(rows, i64(0), columns, steps, static_cast<const C*>(packed), b, b_step, c, c_step, add);
  } else {
    each_block<C>(0, columns, [&](auto vectors, i64 j) TESSERA_LAMBDA {
      const auto kernel = pick_rows<V>(static_cast<int>(rows), vectors, make_seq<block_rows>{});
      kernel(steps, a, a_row, b + j, b_step, c + j, c_step, V::lanes, add, {});
    });
  }
}

/// Asks for rows of a result before it is computed: they take long to come from far away.
template <class T>
TESSERA_HD void ask_for_rows(T* row, i64 row_stride, i64 column_stride, i64 rows, i64 columns) {
  constexpr i64 line = 64 / static_cast<i64>(sizeof(T));
  if (column_stride != 1) return;
  for (i64 i = 0; i < rows; ++i, row += row_stride)
    for (i64 j = 0; j < columns; j += line) __builtin_prefetch(row + j, 1);
}

/// to[j * row_stride + i * column_stride] = from[i * pitch + j] for i < rows, j < columns.
template <class T, class C>
__attribute__((noinline)) void store_transposed(const C* from, i64 pitch, i64 rows, i64 columns, T* to, i64 row_stride,
                                                i64 column_stride) {
  using V = NativeVec<C>;
  constexpr i64 n = V::lanes;
  for (i64 i = 0; i < rows; i += n) {
    for (i64 j = 0; j < columns; j += n) {
      const int height = static_cast<int>(min(n, rows - i)), count = static_cast<int>(min(n, columns - j));
      V block[n];
      if (height == n && count == n && column_stride == 1) {
        TESSERA_UNROLL
        for (int k = 0; k < n; ++k) block[k] = load<V>(from + (i + k) * pitch + j);
        detail::transpose(block);
        TESSERA_UNROLL
        for (int k = 0; k < n; ++k) store(to + (j + k) * row_stride + i, block[k]);
        continue;
      }
      for (int k = 0; k < n; ++k) block[k] = k < height ? load<V>(from + (i + k) * pitch + j, count) : V(C(0));
      detail::transpose(block);
      for (int k = 0; k < count; ++k) {
        T* row = to + (j + k) * row_stride + i * column_stride;
        if (column_stride != 1) store_strided(row, column_stride, block[k], height);
        else store(row, block[k], height);
      }
    }
  }
}

}  // namespace cpu

namespace detail {

/// Sizes of the blocks and buffers of one problem.
template <class C>
struct AttentionBlocks {
  static constexpr i64 lanes = NativeVec<C>::lanes;
  static constexpr i64 forward_queries = 128 / static_cast<i64>(sizeof(C));   // of f32: 32
  static constexpr i64 backward_queries = 256 / static_cast<i64>(sizeof(C));  // of f32: 64
  static constexpr i64 forward_keys = 8 * cpu::block_rows <= 64 ? 16 * cpu::block_rows : 8 * cpu::block_rows;
  static constexpr i64 backward_keys = forward_keys <= 100 ? forward_keys : forward_keys / 2;
};

/// Applies masks to a block of transposed scores s[keys][queries]; beyond the queries nothing matters.
template <class C, class T>
inline void mask_scores(const AttentionProblem& p, i64 b, i64 h, i64 q0, i64 queries, i64 k0, i64 keys, C* s,
                        i64 pitch) {
  using V = NativeVec<C>;
  using I = rebind_t<V, typename SignedOfSize<sizeof(C)>::type>;
  using E = element_t<I>;
  const C low = -static_cast<C>(__builtin_inf());
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
      for (i64 i = 0; i < first; i += V::lanes) {
        const I query = iota<I>() + I(static_cast<E>(i));
        store(s + j * pitch + i, select(query < I(static_cast<E>(first)), V(low), load<V>(s + j * pitch + i)));
      }
    }
  }
}

/// What causality leaves of a block of keys from k0 on and queries from q0 on: the rest is neither computed nor read.
template <class C>
struct Visible {
  static constexpr i64 nr = cpu::block_columns<C>;
  i64 q0, k0, keys;
  bool causal;
  /// The first block of queries of which one sees the key.
  TESSERA_HD i64 first_query(i64 key) const { return causal ? max(i64(0), k0 + key - q0) / nr * nr : 0; }
  /// Keys that the queries of a block see.
  TESSERA_HD i64 keys_of(i64 query) const {
    return causal ? max(i64(0), min(keys, q0 + (query / nr + 1) * nr - k0)) : keys;
  }
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

/// Copies rows of a head into packed rows of `pitch` compute elements, zeros behind them.
template <class C, class T>
inline void copy_rows(const T* from, i64 row_stride, i64 column_stride, i64 rows, i64 columns, C* to, i64 pitch) {
  using V = NativeVec<C>;
  for (i64 r = 0; r < rows; ++r, from += row_stride, to += pitch) {
    if (column_stride == 1) {
      for (i64 i = 0; i < pitch; i += V::lanes) {
        const i64 left = columns - i;
        store(to + i, left >= V::lanes ? load<V>(from + i) : load<V>(from + i, static_cast<int>(left)));
      }
    } else {
      for (i64 i = 0; i < pitch; ++i) to[i] = i < columns ? convert_element<C>(from[i * column_stride]) : C(0);
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
  AttentionForward(const AttentionProblem& p, void* scratch) : p_(p) {
    Arena<C> arena(scratch);
    k_ = arena.take(p.keys * p.width);
    v_ = arena.take(p.keys * p.value_width);
    q_ = arena.take(p.width * q_block);
    scores_ = arena.take(k_block * q_block);
    out_ = arena.take(p.value_width * q_block);
  }
  static i64 scratch_bytes(const AttentionProblem& p) {
    return Arena<C>::bytes(p.keys * p.width) + Arena<C>::bytes(p.keys * p.value_width) +
           Arena<C>::bytes(p.width * q_block) + Arena<C>::bytes(k_block * q_block) +
           Arena<C>::bytes(p.value_width * q_block);
  }

  void pack(const HeadsView<const T>& k, const HeadsView<const T>& v, i64 b, i64 kv_head, i64 keys) {
    for (i64 k0 = 0; k0 < keys; k0 += k_block) {
      const i64 n = min(k_block, p_.keys - k0);
      cpu::pack_panels(k.head(b, kv_head) + k0 * k.row(), k.row(), k.column(), n, p_.width, k_ + k0 * p_.width);
      cpu::pack_panels(v.head(b, kv_head) + k0 * v.row(), v.column(), v.row(), p_.value_width, n,
                       v_ + k0 * p_.value_width);
    }
  }

  /// Queries [q0, q0 + count), count <= q_block; lse may be null.
  void block(const HeadsView<T>& y, const HeadsView<const T>& q, i64 b, i64 h, i64 q0, i64 count, C* lse) {
    cpu::pack_block(q.head(b, h) + q0 * q.row(), q.row(), q.column(), count, q_block, p_.width, q_);
    const V scale(static_cast<C>(p_.scale));
    for (i64 i = 0; i < p_.width * q_block; i += V::lanes) store(q_ + i, load<V>(q_ + i) * scale);

    T* const result = y.head(b, h) + q0 * y.row();
    cpu::ask_for_rows(result, y.row(), y.column(), count, p_.value_width);
    constexpr int columns = q_block / V::lanes;
    V largest[columns], sum[columns];
    for (int i = 0; i < columns; ++i) largest[i] = V(-static_cast<C>(__builtin_inf())), sum[i] = V(C(0));
    const i64 visible = p_.causal ? min(p_.keys, q0 + count) : p_.keys;
    for (i64 k0 = 0; k0 < visible; k0 += k_block) {
      const i64 n = min(k_block, p_.keys - k0), used = min(n, visible - k0);
      const Visible<C> seen{q0, k0, used, p_.causal};
      cpu::Panels(n).each([&](i64 key, i64 rows) {
        if (key >= used) return;
        cpu::multiply_panel(rows, seen.first_query(key), q_block, p_.width,
                            static_cast<const C*>(k_ + (k0 + key) * p_.width), static_cast<const C*>(q_), q_block,
                            scores_ + key * q_block, q_block, false);
      });
      mask_scores<C, T>(p_, b, h, q0, count, k0, used, scores_, q_block);
      for (int i = 0; i < columns; ++i) exponentials(i, seen.keys_of(i * V::lanes), k0 > 0, largest[i], sum[i]);
      sum_values(seen, n, v_ + k0 * p_.value_width, k0 > 0);
    }
    if (visible == 0) __builtin_memset(out_, 0, p_.value_width * q_block * sizeof(C));
    for (int i = 0; i < columns; ++i) {
      const V inverse = select(sum[i] > V(C(0)), V(C(1)) / sum[i], select(sum[i] == sum[i], V(C(0)), sum[i]));
      for (i64 d = 0; d < p_.value_width; ++d) scale_out(d, i, inverse);
      const i64 left = count - i * V::lanes;
      if (lse && left > 0) {
        store(lse + i * V::lanes, largest[i] + log(sum[i]), static_cast<int>(min(left, i64(V::lanes))));
      }
    }
    cpu::store_transposed(out_, q_block, p_.value_width, count, result, y.row(), y.column());
  }

 private:
  /// out_ = (or +=) v' P for a block of n keys.
  void sum_values(const Visible<C>& seen, i64 n, const C* v, bool add) {
    cpu::Panels(p_.value_width).each([&](i64 row, i64 rows) {
      for (i64 j = 0; j < q_block; j += seen.nr) {
        cpu::multiply_panel(rows, j, min(q_block, j + seen.nr), seen.keys_of(j), v + row * n,
                            static_cast<const C*>(scores_), q_block, out_ + row * q_block, q_block, add);
      }
    });
  }

  void scale_out(i64 d, int column, V factor) {
    C* p = out_ + d * q_block + column * V::lanes;
    store(p, load<V>(p) * factor);
  }

  /// Turns one vector of columns of scores into exponentials and moves what was summed before to the new maximum.
  void exponentials(int column, i64 keys, bool later, V& largest, V& sum) {
    C* s = scores_ + column * V::lanes;
    V best[2] = {largest, largest};
    i64 j = 0;
    for (; j + 2 <= keys; j += 2) {
      best[0] = max(load<V>(s + j * q_block), best[0]);
      best[1] = max(load<V>(s + (j + 1) * q_block), best[1]);
    }
    if (j < keys) best[0] = max(load<V>(s + j * q_block), best[0]);
    const V top = max(best[0], best[1]);
    const V shift = select(abs(top) < V(static_cast<C>(__builtin_inf())), top, V(C(0)));
    if (later && any(top > largest)) {
      const V factor = exp_nonpositive(largest - shift);
      sum *= factor;
      for (i64 d = 0; d < p_.value_width; ++d) scale_out(d, column, factor);
    }
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
  }

  const AttentionProblem& p_;
  C *k_, *v_, *q_, *scores_, *out_;
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
    forward.pack(k, v, b, h / (p.heads / p.kv_heads), p.causal ? min(p.keys, end) : p.keys);
    for (i64 q0 = begin; q0 < end; q0 += unit) {
      forward.block(y, q, b, h, q0, min(unit, end - q0), lse ? lse + index * p.queries + q0 : nullptr);
    }
  });
}

TESSERA_TILE_END
