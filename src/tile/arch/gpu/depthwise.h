// Convolutions of every channel by itself, and their gradients. 3x3 windows padded by 1, in steps of 1 or 2: a thread
// has a run of 4 columns of the images, in vectors of V channels where these lie last, and walks down rows, each of
// which it loads once, the next one while it multiplies. Other windows, further below, a vector a thread.
#pragma once
#include "group.h"
#include "pack.h"
#include "windows.h"

TESSERA_TILE_BEGIN

// ---- rows of a run, as they come from memory

/// V elements, as words that the compiler moves whole.
template <class T, int V>
using Words =
    conditional_t<sizeof(T) * V == 16, Array<u32, 4>,
                  conditional_t<sizeof(T) * V == 8, Array<u32, 2>, conditional_t<sizeof(T) * V == 4, u32, u16>>>;
template <class T, int V>
TESSERA_DEVICE Words<T, V> load_words(const void* from) {
  return bit_cast<Words<T, V>>(*static_cast<const Pack<T, V>*>(from));
}
template <class T, int V>
TESSERA_DEVICE Array<float, V> values_of(const Words<T, V>& words) {
  return unpacked(bit_cast<Pack<T, V>>(words));
}

/// Vectors of a run of columns.
template <int V, int N>
using Line = Array<Array<float, V>, N>;
/// Converts here, so that what they are converted from can be loaded anew.
template <int V, int N>
TESSERA_DEVICE void compute_now([[maybe_unused]] Line<V, N>& x) {
#if defined(__CUDA_ARCH__)
  unroll<N * V>([&](auto e) { asm volatile("" : "+f"(x[e / V][e % V])); });
#endif
}

/// A run's first column and the columns there are, how many bytes neighbours are apart.
struct ColumnRun {
  int column, width, step;

  TESSERA_DEVICE bool has(int c) const { return column + c >= 0 && column + c < width; }
  /// Where column c lies in a row.
  template <class B>
  TESSERA_DEVICE B* at(B* own, int c) const {
    return own + static_cast<i64>(step) * c;
  }
};

/// Columns from `Before` the run's own on, each a vector: zeros where there is none.
template <class T, int V, int Before, int Own, int After>
struct VectorRow {
  static constexpr int count = Before + Own + After;
  Words<T, V> words[count];

  TESSERA_DEVICE void load(const char* own, bool there, const ColumnRun& run) {
    unroll<count>([&](auto c) {
      words[c] = {};
      if (there && run.has(c - Before)) words[c] = load_words<T, V>(run.at(own, c - Before));
    });
  }
  TESSERA_DEVICE Line<V, count> values() const {
    Line<V, count> x;
    unroll<count>([&](auto c) { x[c] = values_of<T, V>(words[c]); });
    return x;
  }
};

/// The same of planes whose rows are whole vectors of Own columns, which are loaded at once.
template <class T, int Before, int Own, int After>
struct WholeRow {
  static constexpr int count = Before + Own + After;
  Words<T, Own> own_words;
  Words<T, 1> beside[Before + After + 1];

  TESSERA_DEVICE void load(const char* own, bool there, const ColumnRun& run) {
    own_words = {};
    if (there) own_words = load_words<T, Own>(own);
    unroll<Before + After>([&](auto c) {
      constexpr int from = c < Before ? c - Before : Own + c - Before;
      beside[c] = {};
      if (there && run.has(from)) beside[c] = load_words<T, 1>(own + from * static_cast<int>(sizeof(T)));
    });
  }
  TESSERA_DEVICE Line<1, count> values() const {
    Line<1, count> x;
    const auto middle = values_of<T, Own>(own_words);
    unroll<Before + After>([&](auto c) { x[c < Before ? c : Own + c] = values_of<T, 1>(beside[c]); });
    unroll<Own>([&](auto c) { x[Before + c][0] = middle[c]; });
    return x;
  }
};

/// Vectors of V channels, or for V = 1 any single elements.
template <int V_>
struct InVectors {
  static constexpr int V = V_;
  template <class T, int Before, int Own, int After>
  using Row = VectorRow<T, V, Before, Own, After>;

  template <class T, int Q>
  static TESSERA_DEVICE void store(char* own, const ColumnRun& run, const Line<V, Q>& x) {
    unroll<Q>([&](auto q) {
      if (run.has(q)) store_whole(run.at(own, q), packed_as<T>(x[q]));
    });
  }
};
/// Planes whose rows are whole runs.
struct InWholeRows {
  static constexpr int V = 1;
  template <class T, int Before, int Own, int After>
  using Row = WholeRow<T, Before, Own, After>;

  template <class T, int Q>
  static TESSERA_DEVICE void store(char* own, const ColumnRun&, const Line<1, Q>& x) {
    Array<float, Q> line;
    unroll<Q>([&](auto q) { line[q] = x[q][0]; });
    store_whole(own, packed_as<T>(line));
  }
};

// ---- 3x3 windows padded by 1

/// Rows of results, or for the gradient of images in steps of 2 pairs of their rows, are cut into strips.
struct Depthwise {
  static constexpr int columns = 4;  // of the images, in a run
  int outer, inner, channels;        // images, or all their planes; vectors of a pixel
  int height, width, out_height, out_width;
  int rows, strip, strips, runs, threads;
  bool flipped;  // taps count from the last one on
  Inverse by_inner, by_runs, by_strips, by_channels;

  Depthwise(i64 images, i64 channels, i64 height, i64 width, int stride, bool channels_last, int vector)
      : outer(static_cast<int>(channels_last ? images : images * channels)),
        inner(static_cast<int>(channels_last ? channels / vector : 1)),
        channels(static_cast<int>(channels)),
        height(static_cast<int>(height)),
        width(static_cast<int>(width)),
        out_height(static_cast<int>(ceil_div<i64>(height, stride))),
        out_width(static_cast<int>(ceil_div<i64>(width, stride))),
        runs(static_cast<int>(ceil_div<i64>(width, columns))),
        flipped(false),
        by_inner(Inverse::of(inner)),
        by_runs(Inverse::of(runs)),
        by_channels(Inverse::of(channels)) {
    cut(out_height, 7, 1 << 18);
  }
  /// Strips of at least `least` rows, with which some so many threads have work.
  void cut(int rows_in_all, int least, int wanted) {
    rows = rows_in_all;
    const i64 one = static_cast<i64>(outer) * runs * inner;
    strips = static_cast<int>(max<i64>(1, min<i64>(rows / least, wanted / max<i64>(one, 1))));
    strip = ceil_div(rows, strips);
    strips = ceil_div(rows, strip);
    threads = static_cast<int>(one * strips);
    by_strips = Inverse::of(strips);
  }
};

/// What a thread has of it.
struct DepthwisePlace {
  int outer, first_row, rows, run, inner;

  TESSERA_DEVICE DepthwisePlace(const Depthwise& p, int outer, int strip, int run, int inner)
      : outer(outer), first_row(strip * p.strip), rows(min(p.strip, p.rows - first_row)), run(run), inner(inner) {}
  static TESSERA_DEVICE DepthwisePlace of(const Depthwise& p, int thread) {
    const int pixels = p.by_inner(thread), lines = p.by_runs(pixels), outer = p.by_strips(lines);
    return {p, outer, lines - outer * p.strips, pixels - lines * p.runs, thread - pixels * p.inner};
  }
};

/// Rows of one kind of images, as a thread meets them. A row has less than 2^31 bytes.
template <class Layout, class T>
struct RowsOf {
  static constexpr int V = Layout::V;
  using Byte = conditional_t<is_same_v<T, const remove_cvref_t<T>>, const char, char>;
  using Element = remove_cvref_t<T>;
  Byte* first;  // of the run in row 0
  int pitch, height;
  ColumnRun run;

  TESSERA_DEVICE RowsOf(const Depthwise& p, const DepthwisePlace& at, T* data, int height, int width, int columns)
      : height(height) {
    const int bytes = static_cast<int>(sizeof(T)) * V;
    run = {at.run * columns, width, p.inner * bytes};
    pitch = width * run.step;
    first = reinterpret_cast<Byte*>(data) + static_cast<i64>(at.outer) * height * pitch +
            static_cast<i64>(run.column) * run.step + static_cast<i64>(at.inner) * bytes;
  }
  template <class Row>
  TESSERA_DEVICE void load(Row& row, int index, bool wanted = true) const {
    row.load(first + static_cast<i64>(index) * pitch, wanted && index >= 0 && index < height, run);
  }
  template <int Q>
  TESSERA_DEVICE void store(int index, const Line<V, Q>& x, bool wanted = true) const {
    if (wanted && index < height) Layout::template store<Element>(first + static_cast<i64>(index) * pitch, run, x);
  }
};

/// The taps of V channels.
template <int V>
struct DepthwiseFilter {
  Array<float, V> tap[9];

  template <class T>
  TESSERA_DEVICE DepthwiseFilter(const Depthwise& p, const T* w, const DepthwisePlace& at) {
    const int channel = V > 1 || p.inner > 1 ? at.inner * V : at.outer - p.by_channels(at.outer) * p.channels;
    Array<float, V> packs[9];
    unroll<9>([&](auto i) { packs[i] = values_of<T, V>(load_words<T, V>(w + static_cast<i64>(channel) * 9 + i * V)); });
    unroll<9 * V>([&](auto e) {
      constexpr int v = decltype(e)::value / 9, t = decltype(e)::value % 9, back = v * 9 + 8 - t;
      tap[t][v] = p.flipped ? packs[back / V][back % V] : packs[e / V][e % V];
    });
  }
};
template <int V, class T>
TESSERA_DEVICE Array<float, V> depthwise_bias(const Depthwise& p, const T* bias, const DepthwisePlace& at) {
  Array<float, V> b{};
  const int channel = V > 1 || p.inner > 1 ? at.inner * V : at.outer - p.by_channels(at.outer) * p.channels;
  if (bias) b = values_of<T, V>(load_words<T, V>(bias + channel));
  return b;
}

/// sum[q] += the three taps of a filter's row, of columns from Stride q on.
template <int Stride, int V, int Q, int N>
TESSERA_DEVICE void add_row(Line<V, Q>& sum, const Line<V, N>& x, const Array<float, V>* taps) {
  static_assert(N >= (Q - 1) * Stride + 3);
  unroll<Q * 3 * V>([&](auto e) {
    constexpr int v = decltype(e)::value % V, s = decltype(e)::value / V % 3, q = decltype(e)::value / (3 * V);
    sum[q][v] = fma(x[q * Stride + s][v], taps[s][v], sum[q][v]);
  });
}
template <int V, int Q>
TESSERA_DEVICE Line<V, Q> all_of(const Array<float, V>& x) {
  Line<V, Q> all;
  unroll<Q>([&](auto q) { all[q] = x; });
  return all;
}

/// y = x * w + bias in steps of 1, also the gradient of the images with a flipped filter.
template <class Layout, class T>
TESSERA_DEVICE void depthwise_steps_of_1(const Depthwise& p, int thread, T* y, const T* x, const T* w, const T* bias) {
  constexpr int V = Layout::V, Q = Depthwise::columns;
  const auto at = DepthwisePlace::of(p, thread);
  const RowsOf<Layout, const T> from(p, at, x, p.height, p.width, Q);
  const RowsOf<Layout, T> to(p, at, y, p.height, p.width, Q);
  typename Layout::template Row<T, 1, Q, 1> next;
  from.load(next, at.first_row - 1);
  const DepthwiseFilter<V> filter(p, w, at);
  const auto none = all_of<V, Q>(depthwise_bias<V>(p, bias, at));
  Line<V, Q> above = none, here = none;  // results of the row above, and of this one, so far
  for (int row = at.first_row - 1, end = at.first_row + at.rows; row <= end; ++row) {
    auto values = next.values();
    compute_now(values);
    from.load(next, row + 1, row < end);
    add_row<1>(above, values, filter.tap + 6);
    to.store(row - 1, above, row > at.first_row);
    above = here;
    add_row<1>(above, values, filter.tap + 3);
    here = none;
    add_row<1>(here, values, filter.tap);
  }
}

/// y = x * w + bias in steps of 2.
template <class Layout, class T>
TESSERA_DEVICE void depthwise_steps_of_2(const Depthwise& p, int thread, T* y, const T* x, const T* w, const T* bias) {
  constexpr int V = Layout::V, Q = Depthwise::columns / 2;
  const auto at = DepthwisePlace::of(p, thread);
  const RowsOf<Layout, const T> from(p, at, x, p.height, p.width, 2 * Q);
  const RowsOf<Layout, T> to(p, at, y, p.out_height, p.out_width, Q);
  typename Layout::template Row<T, 1, 2 * Q, 0> first, even, odd;
  from.load(first, 2 * at.first_row - 1);
  from.load(even, 2 * at.first_row);
  from.load(odd, 2 * at.first_row + 1);
  const DepthwiseFilter<V> filter(p, w, at);
  const auto none = all_of<V, Q>(depthwise_bias<V>(p, bias, at));
  auto above = first.values();
  for (int row = at.first_row, end = at.first_row + at.rows; row < end; ++row) {
    auto sum = none;
    add_row<2>(sum, above, filter.tap);
    auto middle = even.values();
    compute_now(middle);
    from.load(even, 2 * row + 2, row + 1 < end);
    add_row<2>(sum, middle, filter.tap + 3);
    above = odd.values();
    compute_now(above);
    from.load(odd, 2 * row + 3, row + 1 < end);
    add_row<2>(sum, above, filter.tap + 6);
    to.store(row, sum);
  }
}

/// dx in steps of 2: rows 2i see results i by the filter's middle row, rows 2i + 1 results i and i + 1 by its last and
/// first; and so do columns.
template <class Layout, class T>
TESSERA_DEVICE void depthwise_images_of_2(const Depthwise& p, int thread, T* dx, const T* dy, const T* w) {
  constexpr int V = Layout::V, Q = Depthwise::columns / 2;
  const auto at = DepthwisePlace::of(p, thread);
  const RowsOf<Layout, const T> from(p, at, dy, p.out_height, p.out_width, Q);
  const RowsOf<Layout, T> to(p, at, dx, p.height, p.width, 2 * Q);
  typename Layout::template Row<T, 0, Q, 1> first, next;
  from.load(first, at.first_row);
  from.load(next, at.first_row + 1);
  const DepthwiseFilter<V> filter(p, w, at);
  auto here = first.values();
  const auto add = [&](auto& sum, const auto& g, const Array<float, V>* taps) {
    unroll<Q * V>([&](auto e) {
      constexpr int q = decltype(e)::value / V, v = decltype(e)::value % V;
      sum[2 * q][v] = fma(g[q][v], taps[1][v], sum[2 * q][v]);
      sum[2 * q + 1][v] = fma(g[q][v], taps[2][v], fma(g[q + 1][v], taps[0][v], sum[2 * q + 1][v]));
    });
  };
  for (int row = at.first_row, end = at.first_row + at.rows; row < end; ++row) {
    auto below = next.values();
    compute_now(below);
    from.load(next, row + 2, row + 1 < end);
    Line<V, 2 * Q> even{}, odd{};
    add(even, here, filter.tap + 3);
    to.store(2 * row, even);
    add(odd, here, filter.tap + 6);
    add(odd, below, filter.tap);
    to.store(2 * row + 1, odd);
    here = below;
  }
}

// ---- gradients of filters: a block sums up a part of the images for some vectors of channels

constexpr int depthwise_block = 128;  // threads

/// Vectors of channels are shared among blocks, and so are the images' strips and runs, in parts.
struct DepthwiseParts {
  int vectors, of_block;  // of all channels, and of a block; with more, lanes beyond the last have none
  int groups, teams;      // of vectors; of threads of a block that share them
  int items, parts, length;
  bool planes;

  /// In some so many blocks.
  static DepthwiseParts of(const Depthwise& p, bool channels_last, int blocks) {
    DepthwiseParts s;
    s.planes = !channels_last;
    s.vectors = channels_last ? p.inner : p.channels;
    const int most = channels_last ? 32 : 1;
    s.groups = ceil_div(s.vectors, most);
    s.of_block = ceil_div(s.vectors, s.groups);
    s.groups = ceil_div(s.vectors, s.of_block);
    s.teams = depthwise_block / s.of_block;
    s.items = p.outer / (channels_last ? 1 : p.channels) * p.strips * p.runs;
    s.parts = max(1, min(ceil_div(blocks, s.groups), ceil_div(s.items, s.teams)));
    s.length = max(1, ceil_div(s.items, s.parts));
    s.parts = max(1, ceil_div(s.items, s.length));
    return s;
  }
  i64 blocks() const { return static_cast<i64>(parts) * groups; }
};

template <int V>
using FilterSums = Line<V, 9>;
/// What a block needs of shared memory.
template <int V>
constexpr int filter_sums_room = 9 * V* depthwise_block;

/// A row of the sums: += x[Stride q + s] g[q].
template <int Stride, int V, int Q, int N>
TESSERA_DEVICE void add_products(FilterSums<V>& sums, int row, const Line<V, N>& x, const Line<V, Q>& g) {
  unroll<Q * 3 * V>([&](auto e) {
    constexpr int v = decltype(e)::value % V, s = decltype(e)::value / V % 3, q = decltype(e)::value / (3 * V);
    sums[row * 3 + s][v] = fma(x[q * Stride + s][v], g[q][v], sums[row * 3 + s][v]);
  });
}

template <class Layout, class T>
TESSERA_DEVICE void add_strip_of_1(const Depthwise& p, const DepthwisePlace& at, const T* x, const T* dy,
                                   FilterSums<Layout::V>& sums) {
  constexpr int Q = Depthwise::columns;
  const RowsOf<Layout, const T> images(p, at, x, p.height, p.width, Q), results(p, at, dy, p.height, p.width, Q);
  typename Layout::template Row<T, 1, Q, 1> next;
  typename Layout::template Row<T, 0, Q, 0> g_next, g{}, g_above{}, g_two_above;
  images.load(next, at.first_row - 1);
  results.load(g_next, at.first_row);
  for (int row = at.first_row - 1, end = at.first_row + at.rows; row <= end; ++row) {
    auto values = next.values();
    compute_now(values);
    g_two_above = g_above;
    g_above = g;
    g = g_next;  // of the results in row + 1, row and row - 1
    images.load(next, row + 1, row < end);
    results.load(g_next, row + 2, row + 2 < end);
    add_products<1>(sums, 0, values, g.values());
    add_products<1>(sums, 1, values, g_above.values());
    add_products<1>(sums, 2, values, g_two_above.values());
  }
}
template <class Layout, class T>
TESSERA_DEVICE void add_strip_of_2(const Depthwise& p, const DepthwisePlace& at, const T* x, const T* dy,
                                   FilterSums<Layout::V>& sums) {
  constexpr int Q = Depthwise::columns / 2;
  const RowsOf<Layout, const T> images(p, at, x, p.height, p.width, 2 * Q);
  const RowsOf<Layout, const T> results(p, at, dy, p.out_height, p.out_width, Q);
  typename Layout::template Row<T, 1, 2 * Q, 0> first, even, odd;
  typename Layout::template Row<T, 0, Q, 0> g_next;
  images.load(first, 2 * at.first_row - 1);
  images.load(even, 2 * at.first_row);
  images.load(odd, 2 * at.first_row + 1);
  results.load(g_next, at.first_row);
  auto above = first.values();
  for (int row = at.first_row, end = at.first_row + at.rows; row < end; ++row) {
    auto g = g_next.values();
    compute_now(g);
    results.load(g_next, row + 1, row + 1 < end);
    add_products<2>(sums, 0, above, g);
    auto middle = even.values();
    compute_now(middle);
    images.load(even, 2 * row + 2, row + 1 < end);
    add_products<2>(sums, 1, middle, g);
    above = odd.values();
    compute_now(above);
    images.load(odd, 2 * row + 3, row + 1 < end);
    add_products<2>(sums, 2, above, g);
  }
}

/// partial [parts, 9, channels] = the sums of each part, in the order of strips and then of a block's teams.
template <int Stride, class Layout, class T>
TESSERA_DEVICE void depthwise_filter_sums(const Depthwise& p, const DepthwiseParts& s, float* partial, const T* x,
                                          const T* dy, float* room) {
  constexpr int V = Layout::V;
  const int thread = thread_in_block(), block = static_cast<int>(block_in_grid());
  const int team = thread / s.of_block, part = block / s.groups;
  const int vector = (block - part * s.groups) * s.of_block + thread - team * s.of_block;
  FilterSums<V> sums{};
  if (team < s.teams && vector < s.vectors)
    for (int item = part * s.length + team; item < min(s.items, (part + 1) * s.length); item += s.teams) {
      const int lines = p.by_runs(item), image = p.by_strips(lines);
      const DepthwisePlace at(p, s.planes ? image * p.channels + vector : image, lines - image * p.strips,
                              item - lines * p.runs, s.planes ? 0 : vector);
      if constexpr (Stride == 1) add_strip_of_1<Layout>(p, at, x, dy, sums);
      else add_strip_of_2<Layout>(p, at, x, dy, sums);
    }
  float* const mine = room + thread;
  unroll<9 * V>([&](auto e) { mine[e * depthwise_block] = sums[e / V][e % V]; });
  for (int step = 1; step < s.teams; step *= 2) {
    sync_block();
    if (team % (2 * step) == 0 && team + step < s.teams)
      unroll<9 * V>([&](auto e) { mine[e * depthwise_block] += mine[e * depthwise_block + step * s.of_block]; });
  }
  if (team == 0 && vector < s.vectors)
    unroll<9 * V>([&](auto e) {
      partial[(static_cast<i64>(part) * 9 + e / V) * p.channels + vector * V + e % V] = mine[e * depthwise_block];
    });
}

/// dw [channels, taps] = the sum of parts, by a block of 256 threads for 32 channels of a tap; room for 256 floats.
template <class T>
TESSERA_DEVICE void join_filter_sums(const float* partial, int parts, int taps, int channels, T* dw, float* room) {
  constexpr int lanes = 32, shares = 8;
  const int thread = thread_in_block(), block = static_cast<int>(block_in_grid()), groups = ceil_div(channels, lanes);
  const int tap = block / groups, channel = (block - tap * groups) * lanes + thread % lanes;
  float sum = 0;
  if (channel < channels)
    for (int part = thread / lanes; part < parts; part += shares)
      sum += partial[(static_cast<i64>(part) * taps + tap) * channels + channel];
  room[thread] = sum;
  sync_block();
  if (thread >= lanes || channel >= channels) return;
  for (int share = 1; share < shares; ++share) sum += room[share * lanes + thread];
  dw[static_cast<i64>(channel) * taps + tap] = convert_element<T>(sum);
}

// ---- any windows, a vector a thread

struct AnyDepthwise {
  DenseWindows windows;
  int channels;  // of the images, or forward of the results, as windows are counted
  bool planes;
  int multiplier;  // of planes: results for each channel
  Inverse by_channels;

  AnyDepthwise(const DenseWindows& windows, i64 channels, bool planes, i64 multiplier = 1)
      : windows(windows),
        channels(static_cast<int>(channels)),
        planes(planes),
        multiplier(static_cast<int>(multiplier)),
        by_channels(Inverse::of(channels)) {}
  /// The first channel of a vector.
  TESSERA_DEVICE int channel(const VectorPlace& at, int vector) const {
    return planes ? at.outer - by_channels(at.outer) * channels : at.inner * vector;
  }
};

/// sum += x times a tap of V filters of so many taps
template <int V, class T>
TESSERA_DEVICE void add_tap(Array<float, V>& sum, const Pack<T, V>& x, const T* w, int taps) {
  const auto values = unpacked(x);
  unroll<V>([&](auto v) { sum[v] = fma(values[v], convert_element<float>(w[v * taps]), sum[v]); });
}

template <int V, class T>
TESSERA_DEVICE void depthwise_window(const AnyDepthwise& d, int thread, T* y, const T* x, const T* w, const T* bias) {
  const DenseWindows& p = d.windows;
  const VectorPlace o = p.place(thread);
  const int top = p.h.start(o.row), left = p.w.start(o.column), last_row = p.h.last_tap(top);
  const int first_column = p.w.first_tap(left), last_column = p.w.last_tap(left);
  const int channel = d.channel(o, V), taps = p.h.filter * p.w.filter;
  const int images = d.multiplier == 1 ? o.outer : o.outer / d.multiplier;
  Array<float, V> sum{};
  if (bias) unroll<V>([&](auto v) { sum[v] = convert_element<float>(bias[channel + v]); });
  for (int r = p.h.first_tap(top); r < last_row; ++r)
#pragma unroll 4
    for (int s = first_column; s < last_column; ++s) {
      const int at = p.in_images(images, top + r * p.h.dilation, left + s * p.w.dilation, o.inner);
      add_tap<V>(sum, load_vector<V>(x, at), w + static_cast<i64>(channel) * taps + r * p.w.filter + s, taps);
    }
  store_vector<V>(y, thread, packed_as<T>(sum));
}

template <int V, class T>
TESSERA_DEVICE void depthwise_place(const AnyDepthwise& d, int thread, T* dx, const T* dy, const T* w) {
  const DenseWindows& p = d.windows;
  const VectorPlace at = p.place(thread);
  const int channel = d.channel(at, V), taps = p.h.filter * p.w.filter;
  Array<float, V> sum{};
  const int planes = p.in_results(1, 0, 0, 0);  // from one result of a channel to its next
  const T* const filters = w + static_cast<i64>(channel) * d.multiplier * taps;
  const auto add = [&](int i, int j, int tap) {
    add_tap<V>(sum, load_vector<V>(dy, p.in_results(at.outer, i, j, at.inner)), filters + tap, taps);
  };
  const auto add_each = [&](int i, int j, int tap) {
    const int results = p.in_results(at.outer * d.multiplier, i, j, at.inner);
#pragma unroll 4
    for (int k = 0; k < d.multiplier; ++k)
      add_tap<V>(sum, load_vector<V>(dy, results + k * planes), filters + k * taps + tap, taps);
  };
  if (d.multiplier > 1) p.each_window(at, add_each);
  else if (p.h.stride == 1 && p.w.stride == 1) p.each_tap(at, add);
  else p.each_window(at, add);
  store_vector<V>(dx, thread, packed_as<T>(sum));
}

// ---- taps of planes

inline constexpr int plane_taps_block = 512, plane_taps_run = 4, plane_taps_most = 8;

/// Results' runs of columns, which threads share; `outer` counts images.
inline DenseWindows plane_taps_runs(const AnyDepthwise& d) {
  DenseWindows runs = d.windows;
  runs.outer /= d.channels;
  return runs.over(runs.h.output, ceil_div(runs.w.output, plane_taps_run));
}
/// Blocks of a row of taps.
inline int plane_taps_parts(const AnyDepthwise& d) { return ceil_div(d.windows.w.filter, plane_taps_most); }

/// Of planes: a block sums up neighbours in a row of taps of one filter. A thread's runs are of four results, whose
/// images it holds where `dense` windows overlap, by steps and dilation of 1.
template <bool dense, class T>
TESSERA_DEVICE void depthwise_plane_taps(const AnyDepthwise& d, const DenseWindows& runs, int parts, T* dw, const T* x,
                                         const T* dy) {
  constexpr int Q = plane_taps_run, S = plane_taps_most;
  const DenseWindows& p = d.windows;
  const int filters = d.channels * d.multiplier, block = static_cast<int>(block_in_grid()), row_of_taps = block / parts;
  const int first = (block - row_of_taps * parts) * S, taps = min(S, p.w.filter - first);
  const int filter = row_of_taps / p.h.filter, r = row_of_taps - filter * p.h.filter, channel = filter / d.multiplier;
  Array<float, S> sum{};
  for (int run = thread_in_block(); run < runs.threads; run += plane_taps_block) {
    const VectorPlace at = runs.place(run);
    const int row = p.h.start(at.row) + r * p.h.dilation, result = at.column * Q;
    if (row < 0 || row >= p.h.length) continue;
    const T* const results = dy + p.in_results(at.outer * filters + filter, at.row, result, 0);
    const T* const images = x + p.in_images(at.outer * d.channels + channel, row, 0, 0);
    const int column = p.w.start(result) + first * p.w.dilation;
    const auto image = [&](int at) { return at >= 0 && at < p.w.length ? convert_element<float>(images[at]) : 0.f; };
    Array<float, Q> g{};
    unroll<Q>([&](auto q) {
      if (result + q < p.w.output) g[q] = convert_element<float>(results[q]);
    });
    if constexpr (dense) {
      Array<float, Q + S - 1> v{};
      unroll<Q + S - 1>([&](auto i) {
        if (i < Q + taps - 1) v[i] = image(column + i);
      });
      unroll<S>([&](auto s) { unroll<Q>([&](auto q) { sum[s] = fma(g[q], v[q + s], sum[s]); }); });
    } else {
      unroll<S>([&](auto s) {
        if (s < taps)
          unroll<Q>([&](auto q) { sum[s] = fma(g[q], image(column + q * p.w.stride + s * p.w.dilation), sum[s]); });
      });
    }
  }
  unroll<S>([&](auto s) {
    if (s >= taps) return;
    const float whole = join_in_turn<plane_taps_block>(sum[s], Add{}, s);
    if (thread_in_block() == 0) dw[row_of_taps * p.w.filter + first + s] = convert_element<T>(whole);
  });
}

/// partial [parts, taps, channels]: a thread sums up a part of the results for a tap of a vector of channels.
template <int V, class T>
TESSERA_DEVICE void depthwise_tap_sums(const AnyDepthwise& d, int parts, i64 thread, float* partial, const T* x,
                                       const T* dy) {
  const DenseWindows& p = d.windows;
  const int vectors = d.channels / V, taps = p.h.filter * p.w.filter, lines = p.outer / (d.planes ? d.channels : 1);
  const int part = static_cast<int>(thread / (static_cast<i64>(vectors) * taps));
  if (part >= parts) return;
  const int rest = static_cast<int>(thread - static_cast<i64>(part) * vectors * taps), tap = rest / vectors;
  const int vector = rest - tap * vectors, r = tap / p.w.filter, s = tap - r * p.w.filter;
  const int rows = lines * p.h.output, length = ceil_div(rows, parts);
  Array<float, V> sum{};
  for (int line = part * length; line < min(rows, (part + 1) * length); ++line) {
    const int image = line / p.h.output, i = line - image * p.h.output, h = p.h.start(i) + r * p.h.dilation;
    if (h < 0 || h >= p.h.length) continue;
    const int outer = d.planes ? image * d.channels + vector : image, inner = d.planes ? 0 : vector;
#pragma unroll 4
    for (int j = 0; j < p.w.output; ++j) {
      const int column = p.w.start(j) + s * p.w.dilation;
      if (column < 0 || column >= p.w.length) continue;
      const auto g = unpacked(load_vector<V>(dy, p.in_results(outer, i, j, inner)));
      const auto v = unpacked(load_vector<V>(x, p.in_images(outer, h, column, inner)));
      unroll<V>([&](auto k) { sum[k] = fma(g[k], v[k], sum[k]); });
    }
  }
  unroll<V>([&](auto k) { partial[(static_cast<i64>(part) * taps + tap) * d.channels + vector * V + k] = sum[k]; });
}

TESSERA_TILE_END
