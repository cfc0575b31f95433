// Maxima and averages over windows of dense images, and their gradients, for a thread each. Gradients are gathered: a
// place of the images asks which windows saw it, so that no order is left to chance.
#pragma once
#include "pack.h"
#include "windows.h"

TESSERA_TILE_BEGIN

/// Which taps V neighbours' maxima are, a byte each.
template <int V>
using TapBytes = conditional_t<V == 8, u64, conditional_t<V == 4, u32, conditional_t<V == 2, u16, u8>>>;
template <int V>
TESSERA_DEVICE int tap_of(TapBytes<V> taps, int lane) {
  return static_cast<int>(taps >> 8 * lane & 255u);
}
template <int V>
TESSERA_DEVICE TapBytes<V> load_taps(const u8* taps, int index) {
  return bit_cast<TapBytes<V>>(load_vector<V>(taps, index));
}

/// Computes x here: nvcc would rather remember what it depends on until it is needed.
TESSERA_DEVICE void compute_now([[maybe_unused]] int& x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
}

/// The largest of what was added, NaN before all others, and which tap it is: that of the first where all are -inf.
/// What was added already may be added again, as long as its row follows it.
template <class T, int V>
struct Largest {
  using C = compute_t<T>;
  using Values = Array<C, V>;
  static constexpr bool repeats = true;

  Values best;
  int tap[V];

  explicit TESSERA_DEVICE Largest(int first_tap) {
    unroll<V>([&](auto j) { best[j] = -static_cast<C>(__builtin_inf()), tap[j] = first_tap; });
  }
  TESSERA_DEVICE void add(int j, C v, int number) {
    const bool wins = v > best[j] || v != v;
    best[j] = wins ? v : best[j];
    tap[j] = wins ? number : tap[j];
  }
  TESSERA_DEVICE void add(const Values& v, int number) {
    unroll<V>([&](auto j) { add(j, v[j], number); });
  }
  TESSERA_DEVICE void store(const DenseWindows&, int, int, int at, T* y, u8* taps) {
    store_vector<V>(y, at, packed_as<T>(best));
    Pack<u8, V> pack;
    unroll<V>([&](auto j) {
      compute_now(tap[j]);
      pack.lane[j] = static_cast<u8>(tap[j]);
    });
    if (taps) store_vector<V>(taps, at, pack);
  }
};

template <class T, int V>
struct Average {
  using C = compute_t<T>;
  using Values = Array<C, V>;
  static constexpr bool repeats = false;

  Values sum{};

  explicit TESSERA_DEVICE Average(int) {}
  TESSERA_DEVICE void add(const Values& v, int) {
    unroll<V>([&](auto j) { sum[j] += v[j]; });
  }
  static TESSERA_DEVICE C share(const DenseWindows& p, int top, int left) {
    return C(1) / static_cast<C>(p.h.counted(top, p.count_padding) * p.w.counted(left, p.count_padding));
  }
  TESSERA_DEVICE void store(const DenseWindows& p, int top, int left, int at, T* y, u8*) {
    const C scale = share(p, top, left);
    unroll<V>([&](auto j) { sum[j] *= scale; });
    store_vector<V>(y, at, packed_as<T>(sum));
  }
};

/// y = what Fold makes of one window, of Size x Size taps or, for 0, of any number of them. Loads do not wait for each
/// other.
template <template <class, int> class Fold, int Size, int V, class T>
TESSERA_DEVICE void pool_window(const DenseWindows& p, int thread, T* y, u8* taps, const T* x) {
  using F = Fold<T, V>;
  const VectorPlace o = p.place(thread);
  const int top = p.h.start(o.row), left = p.w.start(o.column);
  const int first_row = p.h.first_tap(top), last_row = p.h.last_tap(top);
  const int first_column = p.w.first_tap(left), last_column = p.w.last_tap(left);
  const bool empty = first_row >= last_row || first_column >= last_column;
  F fold(empty ? p.h.filter * p.w.filter : first_row * p.w.filter + first_column);
  const auto at = [&](int r, int s) {
    return p.in_images(o.outer, top + r * p.h.dilation, left + s * p.w.dilation, o.inner);
  };
  if constexpr (Size > 0) {
    static_assert(F::repeats);
    if (!empty) {  // a tap beyond the edges is the nearest one on the image
      const auto row = [&](int r) { return min(max(r, first_row), last_row - 1); };
      const auto column = [&](int s) { return min(max(s, first_column), last_column - 1); };
      Pack<T, V> held[Size * Size];
      unroll<Size * Size>([&](auto t) { held[t] = load_vector<V>(x, at(row(t / Size), column(t % Size))); });
      unroll<Size * Size>([&](auto t) { fold.add(unpacked(held[t]), row(t / Size) * Size + column(t % Size)); });
    }
  } else {
    constexpr int at_once = 4;
    for (int r = first_row; r < last_row; ++r)
      for (int s = first_column; s < last_column; s += at_once) {
        Pack<T, V> held[at_once];
        const auto column = [&](int k) { return min(s + k, last_column - 1); };
        unroll<at_once>([&](auto k) {
          if constexpr (F::repeats) held[k] = load_vector<V>(x, at(r, column(k)));
          else if (s + k < last_column) held[k] = load_vector<V>(x, at(r, s + k));
        });
        unroll<at_once>([&](auto k) {
          if (F::repeats || s + k < last_column) fold.add(unpacked(held[k]), r * p.w.filter + column(k));
        });
      }
  }
  fold.store(p, top, left, thread, y, taps);
}

/// sum += g where a maximum is this tap
template <class C, int V>
TESSERA_DEVICE void add_where(Array<C, V>& sum, const Array<C, V>& g, TapBytes<V> taps, int tap) {
  unroll<V>([&](auto j) { sum[j] += tap_of<V>(taps, j) == tap ? g[j] : C(0); });
}

/// dx = the gradient of one place: of maxima by their taps, of averages without.
template <bool Max, int V, class T>
TESSERA_DEVICE void unpool_place(const DenseWindows& p, int thread, T* dx, const T* dy, const u8* taps) {
  const VectorPlace at = p.place(thread);
  Array<compute_t<T>, V> sum{};
  p.each_window(at, [&](int i, int j, int tap) {
    const int window = p.in_results(at.outer, i, j, at.inner);
    const auto g = unpacked(load_vector<V>(dy, window));
    if constexpr (Max) {
      add_where(sum, g, load_taps<V>(taps, window), tap);
    } else {
      const auto share = Average<T, V>::share(p, p.h.start(i), p.w.start(j));
      unroll<V>([&](auto k) { sum[k] = fma(g[k], share, sum[k]); });
    }
  });
  store_vector<V>(dx, thread, packed_as<T>(sum));
}

// ---- maxima of windows of one form, whose dilation is 1

template <int Size_, int Stride_, int Padding_>
struct PoolForm {
  static constexpr int Size = Size_, Stride = Stride_, Padding = Padding_;
  static_assert(Padding < Stride && Size - Padding >= Stride);
  /// How many windows see one of the Stride places from a multiple of it on: that of the same number, and the next
  /// ones.
  static constexpr int seers = (Stride - 1 + Padding) / Stride + 1;
  /// The tap of the window `ahead` that place `at` is; negative or Size and more where it is none.
  static constexpr TESSERA_HD int tap(int at, int ahead) { return at + Padding - ahead * Stride; }
  static constexpr TESSERA_HD bool sees(int at, int ahead) { return tap(at, ahead) >= 0 && tap(at, ahead) < Size; }
  static bool is(const ImageWindow& w) {
    return w.filter == Size && w.stride == Stride && w.padding == Padding && w.dilation == 1;
  }
  static bool is(const DenseWindows& p) { return is(p.h) && is(p.w); }
};

/// The gradient of Stride x Stride places; their blocks are counted.
template <class Form, int V, class T>
TESSERA_DEVICE void unpool_block(const DenseWindows& p, int thread, T* dx, const T* dy, const u8* taps) {
  constexpr int stride = Form::Stride, seers = Form::seers;
  const VectorPlace b = p.place(thread);
  Array<compute_t<T>, V> sum[stride * stride] = {};
  Pack<T, V> g[seers * seers];
  TapBytes<V> which[seers * seers];
  unroll<seers * seers>([&](auto e) {  // beyond the last windows are those again, but seeing nothing
    const int i = b.row + e / seers, j = b.column + e % seers;
    const int window = p.in_results(b.outer, min(i, p.h.output - 1), min(j, p.w.output - 1), b.inner);
    g[e] = load_vector<V>(dy, window);
    which[e] = load_taps<V>(taps, window);
    if (i >= p.h.output || j >= p.w.output) which[e] = static_cast<TapBytes<V>>(~u64{0});
  });
  unroll<seers * seers>([&](auto e) {
    const auto values = unpacked(g[e]);
    unroll<stride * stride>([&](auto u) {
      constexpr int window = decltype(e)::value, place = decltype(u)::value;
      constexpr int down = place / stride, across = place % stride, i = window / seers, j = window % seers;
      if constexpr (Form::sees(down, i) && Form::sees(across, j))
        add_where(sum[u], values, which[e], Form::tap(down, i) * Form::Size + Form::tap(across, j));
    });
  });
  unroll<stride * stride>([&](auto u) {
    const int row = b.row * stride + u / stride, column = b.column * stride + u % stride;
    if (row < p.h.length && column < p.w.length)
      store_vector<V>(dx, p.in_images(b.outer, row, column, b.inner), packed_as<T>(sum[u]));
  });
}

// ---- the same in planes whose rows are whole vectors: a thread has K results that are neighbours in a row

template <class Form>
bool has_rows_for(const DenseWindows& p, int results) {
  return p.inner == 1 && Form::is(p) && p.w.length % (results * Form::Stride) == 0;
}

template <class Form, int K, class T>
TESSERA_DEVICE void pool_row(const DenseWindows& p, int thread, T* y, u8* taps, const T* x) {
  constexpr int stride = Form::Stride, size = Form::Size, padding = Form::Padding, across = K * stride;
  static_assert(size - padding <= stride, "results need no column behind their own");
  const VectorPlace o = p.place(thread);
  const int top = o.row * stride - padding;
  const auto tap_row = [&](int r) { return min(max(r, -top), p.h.length - 1 - top); };  // on the image
  Pack<T, across> row[size];
  T before[size * padding + 1];  // the columns in front
  unroll<size>([&](auto r) {
    const int at = (o.outer * p.h.length + top + tap_row(r)) * p.columns + o.column;
    row[r] = load_vector<across>(x, at);
    const T* const end = x + static_cast<i64>(at) * across;
    unroll<padding>([&](auto c) { before[r * padding + c] = o.column > 0 ? end[c - padding] : end[0]; });
  });
  const int skipped = o.column > 0 ? 0 : padding;  // taps in front of the first column are that one
  Largest<T, K> fold(tap_row(0) * size);
  unroll<K>([&](auto k) { fold.tap[k] += max(0, skipped - k * stride); });
  unroll<size>([&](auto r) {
    const auto own = unpacked(row[r]);
    unroll<size * K>([&](auto e) {
      constexpr int s = decltype(e)::value / K, k = decltype(e)::value % K, c = k * stride + s - padding;
      const int number = tap_row(r) * size;
      if constexpr (c >= 0) fold.add(k, own[c], number + s);
      else
        fold.add(k, convert_element<compute_t<T>>(before[r * padding + padding + c]),
                 number + max(s, skipped - k * stride));
    });
  });
  fold.store(p, 0, 0, thread, y, taps);
}

/// The gradient of Stride rows of as many places as K windows step over.
template <class Form, int K, class T>
TESSERA_DEVICE void unpool_rows(const DenseWindows& p, int thread, T* dx, const T* dy, const u8* taps) {
  constexpr int stride = Form::Stride, seers = Form::seers, across = K * stride, behind = seers - 1;
  using C = compute_t<T>;
  const VectorPlace b = p.place(thread);
  Array<C, across> sum[stride] = {};
  unroll<seers>([&](auto e) {
    const int i = b.row + e, at = (b.outer * p.h.output + min(i, p.h.output - 1)) * p.columns + b.column;
    const bool more = b.column + 1 < p.columns;
    const auto own = unpacked(load_vector<K>(dy, at));
    Array<int, K + behind> which;
    const auto bytes = load_taps<K>(taps, at);
    unroll<K>([&](auto k) { which[k] = i < p.h.output ? tap_of<K>(bytes, k) : -1; });
    Array<C, K + behind> g;
    unroll<K>([&](auto k) { g[k] = own[k]; });
    unroll<behind>([&](auto k) {
      const i64 next = static_cast<i64>(at) * K + (more ? K + k : 0);
      g[K + k] = convert_element<C>(dy[next]);
      which[K + k] = more && i < p.h.output ? taps[next] : -1;
    });
    unroll<stride * across * seers>([&](auto u) {
      constexpr int i = decltype(e)::value, ahead = decltype(u)::value % seers, place = decltype(u)::value / seers;
      constexpr int down = place / across, c = place % across, j = c / stride + ahead;
      if constexpr (Form::sees(down, i) && Form::sees(c % stride, ahead))
        sum[down][c] += which[j] == Form::tap(down, i) * Form::Size + Form::tap(c % stride, ahead) ? g[j] : C(0);
    });
  });
  unroll<stride>([&](auto down) {
    const int row = b.row * stride + down;
    if (row < p.h.length)
      store_vector<across>(dx, (b.outer * p.h.length + row) * p.columns + b.column, packed_as<T>(sum[down]));
  });
}

TESSERA_TILE_END
