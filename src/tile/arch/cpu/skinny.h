// Products of which one side has only a few rows or columns: bound by reading the other matrix once, which is
// therefore never packed. Where it is contiguous along k, by dot products; where it is contiguous along the
// result, by adding up its rows.
#pragma once

#include "pipeline.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// out[i * out_i + j * out_j] = sum over k of a[i * a_step + k] * b[j * b_step + k], in U chains per sum.
template <class V, int R, int C, int U>
__attribute__((noinline)) void dot_kernel(i64 k, const element_t<V>* a, i64 a_step, const element_t<V>* b, i64 b_step,
                                          element_t<V>* out, i64 out_i, i64 out_j) {
  V sum[U][R][C];
  TESSERA_UNROLL
  for (int u = 0; u < U; ++u) {
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < C; ++j) sum[u][i][j] = V(0);
    }
  }
  const auto step = [&](V(&to)[R][C], i64 at, auto fetch) __attribute__((always_inline)) {
    V right[C];
    TESSERA_UNROLL
    for (int j = 0; j < C; ++j) right[j] = fetch(b + j * b_step + at);
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const V left = fetch(a + i * a_step + at);
      TESSERA_UNROLL
      for (int j = 0; j < C; ++j) to[i][j] = fma(left, right[j], to[i][j]);
    }
  };
  const auto whole = [](auto* p) { return load<V>(p); };
  i64 at = 0;
  for (; at + U * V::lanes <= k; at += U * V::lanes) {
    TESSERA_UNROLL
    for (int u = 0; u < U; ++u) step(sum[u], at + u * V::lanes, whole);
  }
  for (; at + V::lanes <= k; at += V::lanes) step(sum[0], at, whole);
  const int rest = static_cast<int>(k - at);
  if (rest > 0) step(sum[0], at, [=](auto* p) { return load<V>(p, rest); });
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < C; ++j) {
      TESSERA_UNROLL
      for (int u = 1; u < U; ++u) sum[0][i][j] += sum[u][i][j];
      out[i * out_i + j * out_j] = reduce_sum(sum[0][i][j]);
    }
  }
}

/// out[j] = (or +=) sum over i < K of a[i] * b[i * b_step + j]; j runs over whole vectors up to n.
template <class V, int K>
__attribute__((noinline)) void add_rows_kernel(i64 n, const element_t<V>* a, const element_t<V>* b, i64 b_step,
                                               element_t<V>* out, bool add) {
  constexpr int lanes = lanes_v<V>;
  V left[K];
  TESSERA_UNROLL
  for (int i = 0; i < K; ++i) left[i] = V(a[i]);
  const auto columns = [&](i64 j, auto vectors) __attribute__((always_inline)) {
    constexpr int count = decltype(vectors)::value;
    V sum[count];
    TESSERA_UNROLL
    for (int v = 0; v < count; ++v) sum[v] = add ? load<V>(out + j + v * lanes) : V(0);
    TESSERA_UNROLL
    for (int i = 0; i < K; ++i) {
      TESSERA_UNROLL
      for (int v = 0; v < count; ++v) sum[v] = fma(left[i], load<V>(b + i * b_step + j + v * lanes), sum[v]);
    }
    TESSERA_UNROLL
    for (int v = 0; v < count; ++v) store(out + j + v * lanes, sum[v]);
  };
  i64 j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) columns(j, Int<4>{});
  for (; j + lanes <= n; j += lanes) columns(j, Int<1>{});
}

/// A skinny product seen from its small side: `small` has `count` lines, and `large` is read in place.
template <class T>
class SkinnyTask {
  using V = NativeVec<T>;
  static constexpr i64 most_lines = 1024;
  static constexpr i64 k_block = 16;  // rows of the large side that are added up together
  static constexpr int height = 4;    // lines of the small side per kernel

 public:
  /// Whether a product is skinny, and its large side can be read in place.
  static bool fits(const Product<T>& p) {
    const Extent& e = p.extent;
    if (min(e.m, e.n) > skinny_limit || e.k < V::lanes || p.b.panels != nullptr) return false;
    const Operand<T>& large = e.m <= e.n ? p.b : p.a;
    return large.data != nullptr && (large.k_stride == 1 || large.outer_stride == 1);
  }

  SkinnyTask(const Product<T>& p, Span lines)
      : p_(p),
        few_rows_(p.extent.m <= p.extent.n),
        large_(few_rows_ ? p.b : p.a),
        small_(few_rows_ ? p.a : p.b),
        count_(few_rows_ ? p.extent.m : p.extent.n),
        k_(p.extent.k),
        chunk_(count_ == 1 ? most_lines : most_lines / 2),
        lines_(lines) {}

  i64 scratch_bytes() const {
    return Workspace<T>::bytes(small_size()) + Workspace<T>::bytes(tail_size()) + 2 * Workspace<T>::bytes(block_size());
  }

  void run(void* scratch) {
    Workspace<T> memory(scratch);
    packed_ = memory.take(small_size());
    tail_ = memory.take(tail_size());
    block_ = memory.take(block_size());
    sums_ = memory.take(block_size());
    const bool dots = large_.k_stride == 1;
    pack_small(dots);
    const Epilogue<T>& e = p_.epilogue;
    if (dots && e.direct != nullptr && !e.add) {
      const i64 step = few_rows_ ? 1 : e.pitch;
      block_ = e.direct + lines_.begin * step;
      return dot_products(lines_.begin, lines_.size(), few_rows_ ? e.pitch : 1, step);
    }
    for (i64 line = lines_.begin; line < lines_.end; line += chunk_) {
      const i64 n = min(chunk_, lines_.end - line);
      const i64 pitch = round_up(few_rows_ ? n : count_, i64{V::lanes});
      if (dots) {
        few_rows_ ? dot_products(line, n, pitch, 1) : dot_products(line, n, 1, pitch);
      } else {
        add_rows(line, n, pitch);
      }
      if (few_rows_) {
        e.apply(e.sink, block_, pitch, 0, line, count_, n);
      } else {
        e.apply(e.sink, block_, pitch, line, 0, n, count_);
      }
    }
  }

 private:
  i64 small_size() const { return count_ * k_ + pack_slack<T>; }
  i64 tail_size() const { return k_ * V::lanes + pack_slack<T>; }
  i64 block_size() const { return round_up(chunk_, i64{V::lanes}) * round_up(skinny_limit, i64{V::lanes}); }

  /// Calls f(first, lines, kernel rows) for the small side in groups of nearly equal height.
  template <class F>
  TESSERA_HD void each_group(const F& f) const {
    const i64 groups = ceil_div(count_, i64{height});
    for (i64 g = 0; g < groups; ++g) {
      const Span s = part(count_, groups, g);
      f(s.begin, static_cast<int>(s.size()));
    }
  }

  /// For dot products line after line, each contiguous along k; otherwise as the outer-product kernel reads it.
  void pack_small(bool dots) {
    small_lines_ = packed_;
    small_step_ = k_;
    if (small_.data != nullptr && small_.k_stride == 1 && (dots || count_ == 1)) {
      small_lines_ = small_.data;
      small_step_ = small_.outer_stride;
    } else if (dots) {
      for (i64 i = 0; i < count_; ++i) small_.pack(small_.view, {i, 1, 0, k_}, 1, packed_ + i * k_);
    } else {
      each_group([&](i64 first, int lines) {
        small_.pack(small_.view, {first, lines, 0, k_}, lines, packed_ + first * k_);
      });
    }
  }

  template <int R, int C, int U = 1>
  void dots(i64 first, i64 line, i64 n, i64 out_small, i64 out_large) {
    i64 j = 0;
    const T* a = small_lines_ + first * small_step_;
    T* out = block_ + first * out_small;
    const T* b = large_.data + line * large_.outer_stride;
    for (; j + C <= n; j += C, b += C * large_.outer_stride, out += C * out_large) {
      dot_kernel<V, R, C, U>(k_, a, small_step_, b, large_.outer_stride, out, out_small, out_large);
    }
    for (; j < n; ++j, b += large_.outer_stride, out += out_large) {
      dot_kernel<V, R, 1, U>(k_, a, small_step_, b, large_.outer_stride, out, out_small, out_large);
    }
  }
  void dot_products(i64 line, i64 n, i64 out_small, i64 out_large) {
    constexpr i64 strip = 24;  // its lines stay in the cache for the next group
    for (i64 j = 0; j < n; j += strip) {
      const i64 lines = min(strip, n - j);
      each_group([&](i64 first, int rows) {
        T* const block = block_;
        block_ += j * out_large;
        if (rows == 1) dots<1, 4, 2>(first, line + j, lines, out_small, out_large);
        if (rows == 2) dots<2, 4>(first, line + j, lines, out_small, out_large);
        if (rows == 3) dots<3, 4>(first, line + j, lines, out_small, out_large);
        if (rows == 4) dots<4, 3>(first, line + j, lines, out_small, out_large);
        block_ = block;
      });
    }
  }

  template <int R, int Vectors>
  void rows(i64 first, i64 k, i64 depth, i64 line, i64 n) {
    const T* a = small_lines_ + first * k_ + k * R;
    const T* b = large_.data + k * large_.k_stride + line;
    T* out = sums_ + first * chunk_;
    const bool add = k > 0;
    const auto many = wide_kernel<V, R, Vectors>(), one = pick_outer<V, 1>(R);
    i64 j = 0;
    for (; j + Vectors * V::lanes <= n; j += Vectors * V::lanes) {
      many(depth, a, b + j, large_.k_stride, out + j, chunk_, V::lanes, add, {});
    }
    for (; j + V::lanes <= n; j += V::lanes) {
      one(depth, a, b + j, large_.k_stride, out + j, chunk_, V::lanes, add, {});
    }
    if (j < n) one(depth, a, tail_ + k * V::lanes, V::lanes, out + j, chunk_, V::lanes, add, {});
  }
  /// One row: four of the large side at a time, along all columns, so that few streams run through memory.
  void one_row(i64 line, i64 n) {
    const i64 whole = n / V::lanes * V::lanes;
    const T* b = large_.data + line;
    i64 k = 0;
    for (; k + 4 <= k_; k += 4) {
      add_rows_kernel<V, 4>(whole, small_lines_ + k, b + k * large_.k_stride, large_.k_stride, sums_, k > 0);
    }
    for (; k < k_; ++k) {
      add_rows_kernel<V, 1>(whole, small_lines_ + k, b + k * large_.k_stride, large_.k_stride, sums_, k > 0);
    }
    if (whole < n) {
      pick_outer<V, 1>(1)(k_, small_lines_, tail_, V::lanes, sums_ + whole, chunk_, V::lanes, false, {});
    }
  }
  void add_rows(i64 line, i64 n, i64 pitch) {
    if (n % V::lanes != 0) {  // columns that do not fill a vector are read from a copy
      const i64 rest = n % V::lanes;
      large_.pack(large_.view, {line + n - rest, rest, 0, k_}, V::lanes, tail_);
    }
    if (count_ == 1) one_row(line, n);
    for (i64 k = 0; k < k_ && count_ > 1; k += k_block) {
      const i64 depth = min(k_block, k_ - k);
      each_group([&](i64 first, int lines) {
        if (lines == 1) rows<1, 8>(first, k, depth, line, n);
        if (lines == 2) rows<2, 4>(first, k, depth, line, n);
        if (lines == 3) rows<3, 4>(first, k, depth, line, n);
        if (lines == 4) rows<4, 2>(first, k, depth, line, n);
      });
    }
    for (i64 i = 0; i < count_; ++i) {
      for (i64 j = 0; j < n; ++j) (few_rows_ ? block_[i * pitch + j] : block_[j * pitch + i]) = sums_[i * chunk_ + j];
    }
  }

  const Product<T>& p_;
  bool few_rows_;
  const Operand<T>&large_, &small_;
  i64 count_, k_;
  i64 chunk_;  // lines of the large side per call of the epilogue
  Span lines_;
  const T* small_lines_ = nullptr;
  i64 small_step_ = 0;
  T *packed_ = nullptr, *tail_ = nullptr, *block_ = nullptr, *sums_ = nullptr;
};

}  // namespace cpu
TESSERA_TILE_END
