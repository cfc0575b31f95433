// Packing: panels of a matrix copied into the order in which a micro-kernel reads them, converted to the
// compute type on the way. Every view can be packed; strided ones by vectors, with a transposition in
// registers where k is the contiguous dimension.
#pragma once

#include "../../view.h"
#include "microkernel.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// A stretch of one matrix: `count` rows (or columns) from `outer` on, `depth` steps of k from `k` on.
struct PanelRange {
  i64 outer, count, k, depth;
  const i64* steps = nullptr;  // of a separable operand: the distances of these steps of k from the very first
};

namespace detail {

#if defined(__x86_64__) && !TESSERA_GPU_COMPILER
/// One step of the transposition: swaps the off-diagonal blocks of S x S in every 2S x 2S block.
template <class V, int S, int... J>
TESSERA_HD void swap_blocks(V& a, V& b, Seq<J...>) {
  constexpr int n = lanes_v<V>;
  const V low = V::of(__builtin_shufflevector(a.v, b.v, ((J & S) == 0 ? J : n + J - S)...));
  b = V::of(__builtin_shufflevector(a.v, b.v, ((J & S) == 0 ? J + S : n + J)...));
  a = low;
}
template <class V, int S = lanes_v<V> / 2>
TESSERA_HD void transpose(V (&row)[lanes_v<V>]) {
  constexpr int n = lanes_v<V>;
  if constexpr (S >= 1) {
    unroll<n>([&](auto i) {
      if constexpr ((decltype(i)::value & S) == 0) {
        swap_blocks<V, S>(row[decltype(i)::value], row[decltype(i)::value + S], make_seq<n>{});
      }
    });
    transpose<V, S / 2>(row);
  }
}
#else
template <class V>
TESSERA_HD void transpose(V (&row)[lanes_v<V>]) {
  for (int i = 0; i < lanes_v<V>; ++i) {
    for (int j = 0; j < i; ++j) {
      const auto t = row[i][j];
      row[i].set(j, row[j][i]);
      row[j].set(i, t);
    }
  }
}
#endif

/// to[k * width + i] from rows that are contiguous along i.
template <class T, class S>
void pack_along_outer(const S* from, i64 k_stride, int count, int width, i64 depth, T* to) {
  using V = NativeVec<T>;
  if (count == width && width % V::lanes == 0) {
    for (i64 k = 0; k < depth; ++k, from += k_stride, to += width) {
      for (int i = 0; i < width; i += V::lanes) store(to + i, load<V>(from + i));
    }
    return;
  }
  if (width <= V::lanes) {  // panels of the left side: with one mask for all
    for (i64 k = 0; k < depth; ++k, from += k_stride, to += width) store(to, load<V>(from, count));
    return;
  }
  for (i64 k = 0; k < depth; ++k, from += k_stride, to += width) {
    for (int i = 0; i < width; i += V::lanes) store(to + i, load<V>(from + i, count - i));
  }
}

/// The first elements of the lines of a panel.
template <class S>
struct Lines {
  static constexpr int most = 64;
  const S* first[most];
};

/// to[k * width + i] from lines that are contiguous along k.
template <class T, class S>
void pack_along_k(const Lines<S>& lines, i64 offset, int count, int width, i64 depth, T* to) {
  using V = NativeVec<T>;
  constexpr int n = V::lanes;
  for (int i0 = 0; i0 < width; i0 += n) {
    const int rows = min(count - i0, n), columns = min(width - i0, n);
    const S* const* source = lines.first + i0;
    const auto put = [&](i64 k, int steps, V(&row)[n]) __attribute__((always_inline)) {
      transpose(row);
      T* target = to + k * width + i0;
      // Whole vectors where they fit, or where what spills over belongs to the next step of k, written later.
      if (steps == n && (columns == n || i0 == 0)) {
        TESSERA_UNROLL
        for (int i = 0; i < n; ++i) store(target + i * width, row[i]);
      } else {
        for (int i = 0; i < steps; ++i) store(target + i * width, row[i], columns);
      }
    };
    i64 k = 0;
    for (; k + n <= depth; k += n) {
      V row[n];
      TESSERA_UNROLL
      for (int i = 0; i < n; ++i) row[i] = i < rows ? load<V>(source[i] + offset + k) : V(T(0));
      put(k, n, row);
    }
    if (k < depth) {  // a loop in the binary, too: seldom run, and long where masks are branches
      const int rest = static_cast<int>(depth - k);
      V row[n];
      for (int i = 0; i < n; ++i) row[i] = i < rows ? load<V>(source[i] + offset + k, rest) : V(T(0));
      put(k, rest, row);
    }
  }
}

#if !TESSERA_GPU_COMPILER  // in the library, as micro-kernels are
#define TESSERA_PACK_ALONG_K(prefix, T, S) prefix void pack_along_k<T, S>(const Lines<S>&, i64, int, int, i64, T*);
TESSERA_PACK_ALONG_K(extern template, float, float)
TESSERA_PACK_ALONG_K(extern template, float, f16)
TESSERA_PACK_ALONG_K(extern template, float, bf16)
TESSERA_PACK_ALONG_K(extern template, double, double)
#endif

template <class T, class S>
void pack_strided(const S* from, i64 outer_stride, i64 k_stride, int count, int width, i64 depth, T* to) {
  if (outer_stride == 1) return pack_along_outer(from, k_stride, count, width, depth, to);
  if (k_stride == 1) {
    Lines<S> lines;
    for (int i = 0; i < count; ++i) lines.first[i] = from + i * outer_stride;
    return pack_along_k(lines, 0, count, width, depth, to);
  }
  for (i64 k = 0; k < depth; ++k, from += k_stride, to += width) {
    for (int i = 0; i < width; ++i) to[i] = i < count ? convert_element<T>(from[i * outer_stride]) : T(0);
  }
}

/// One line of a view along `dim`, run by run, padding as zero.
template <class T, class View>
void copy_line(const View& view, typename View::Coords at, int dim, i64 length, T* to) {
  using V = NativeVec<T>;
  while (length > 0) {
    const Run run = view.run(at, dim, length);
    const auto* from = view.data + run.offset;
    if (!run.valid) {
      for (i64 i = 0; i < run.length; ++i) to[i] = T(0);
    } else if (run.stride == 1) {
      i64 i = 0;
      for (; i + V::lanes <= run.length; i += V::lanes) store(to + i, load<V>(from + i));
      if (i < run.length)
        store(to + i, load<V>(from + i, static_cast<int>(run.length - i)), static_cast<int>(run.length - i));
    } else {
      for (i64 i = 0; i < run.length; ++i) to[i] = convert_element<T>(from[i * run.stride]);
    }
    to += run.length;
    length -= run.length;
    at[dim] += static_cast<typename View::Index>(run.length);
  }
}

}  // namespace detail

/// Elements that pack() may write past the end of a panel.
template <class T>
inline constexpr int pack_slack = 2 * NativeVec<T>::lanes;

/// to[k * width + i] = view(outer + i, k) with the outer dimension first (Outer = 0) or second; zero for
/// count <= i < width. Up to pack_slack elements behind the panel are overwritten; panels are packed in
/// ascending order.
template <int Outer, class T, class View>
__attribute__((noinline)) void pack_panel(const void* untyped, const PanelRange& range, int width, T* to) {
  const View& view = *static_cast<const View*>(untyped);
  constexpr int inner = 1 - Outer;
  const int count = static_cast<int>(range.count);
  if constexpr (View::is_strided) {
    const i64 outer_stride = view.stride(Outer), k_stride = view.stride(inner);
    const auto* from = view.data + range.outer * outer_stride + range.k * k_stride;
    detail::pack_strided(from, outer_stride, k_stride, count, width, range.depth, to);
  } else {
    using Index = typename View::Index;
    typename View::Coords at{};
    at[Outer] = static_cast<Index>(range.outer);
    at[inner] = static_cast<Index>(range.k);
    if (view.run(at, Outer, count).length > view.run(at, inner, count).length) {
      for (i64 k = 0; k < range.depth; ++k, ++at[inner], to += width) {
        detail::copy_line(view, at, Outer, count, to);
        for (int i = count; i < width; ++i) to[i] = T(0);
      }
      return;
    }
    // Lines along k are gathered a stretch at a time, then transposed like a strided matrix.
    constexpr i64 stretch = 64;
    T line[detail::Lines<T>::most * stretch];
    for (i64 k = 0; k < range.depth; k += stretch) {
      const i64 depth = min(stretch, range.depth - k);
      for (int i = 0; i < count; ++i) {
        at[Outer] = static_cast<Index>(range.outer + i);
        at[inner] = static_cast<Index>(range.k + k);
        detail::copy_line(view, at, inner, depth, line + i * stretch);
      }
      detail::pack_strided(static_cast<const T*>(line), stretch, i64{1}, count, width, depth, to + k * width);
    }
  }
}

/// The promise that offset(i, k) = offset(i, 0) + offset(0, k) - offset(0, 0) and that every element is valid:
/// true of strided matrices, and of merged dimensions below which nothing mixes the two coordinates, such as
/// the windows of a convolution over an image that has its padding in memory.
template <class View>
struct Separable {
  using Element = typename View::Element;
  static constexpr int rank = 2;
  View view;
  bool in_place;  // whether kernels may read it without packing: worth it where steps of k share lines
  i64 length(int d) const { return view.length(d); }
};

namespace detail {

/// Where the lines of a panel of a separable view begin, at step 0 of k, and the pieces in which they follow each
/// other.
template <class S>
struct Panel {
  struct Piece {
    int begin, length;
  };
  Lines<S> lines;
  Piece pieces[Lines<S>::most];
  int piece_count = 0;
  bool contiguous = true;  // within every piece

  template <int Outer, class View>
  TESSERA_HD void find(const View& view, i64 outer, int count) {
    for (int i = 0; i < count;) {
      typename View::Coords c{};
      c[Outer] = static_cast<typename View::Index>(outer + i);
      const Run run = view.run(c, Outer, count - i);
      for (i64 j = 0; j < run.length; ++j) lines.first[i + j] = view.data + run.offset + j * run.stride;
      contiguous = contiguous && (run.stride == 1 || run.length == 1);
      pieces[piece_count++] = {i, static_cast<int>(run.length)};
      i += static_cast<int>(run.length);
    }
  }
};

}  // namespace detail

template <int Outer, class T, class View>
__attribute__((noinline)) void pack_separable(const void* untyped, const PanelRange& range, int width, T* to) {
  using V = NativeVec<T>;
  if (range.depth == 0) return;
  const View& view = static_cast<const Separable<View>*>(untyped)->view;
  const int count = static_cast<int>(range.count);
  detail::Panel<remove_cvref_t<typename View::Element>> panel;
  panel.template find<Outer>(view, range.outer, count);
  const bool in_pieces = panel.contiguous && 2 * panel.piece_count <= count && width >= V::lanes;
  for (i64 k = 0; k < range.depth;) {
    const i64 distance = range.steps[k];
    i64 along = 1;
    while (k + along < range.depth && range.steps[k + along] == distance + along) ++along;
    T* target = to + k * width;
    if (along >= V::lanes) {
      detail::pack_along_k(panel.lines, distance, count, width, along, target);
      k += along;
      continue;
    }
    if (panel.contiguous && panel.piece_count == 1) {
      const i64 stride = k + 1 < range.depth ? range.steps[k + 1] - distance : 0;
      i64 depth = 1;
      while (k + depth < range.depth && range.steps[k + depth] == distance + depth * stride) ++depth;
      detail::pack_along_outer(panel.lines.first[0] + distance, stride, count, width, depth, target);
      k += depth;
      continue;
    }
    if (in_pieces) {
      for (int p = 0; p < panel.piece_count; ++p) {
        const auto [begin, length] = panel.pieces[p];
        const auto* from = panel.lines.first[begin] + distance;
        for (int i = 0; i < length; i += V::lanes) store(target + begin + i, load<V>(from + i, length - i));
      }  // what spilled over was overwritten
      for (int i = count; i < width; ++i) target[i] = T(0);
    } else {
      for (int i = 0; i < width; ++i) target[i] = i < count ? convert_element<T>(panel.lines.first[i][distance]) : T(0);
    }
    ++k;
  }
}

/// The distances of steps [k, k + depth) of a separable view from step 0.
template <int Outer, class View>
__attribute__((noinline)) void separable_steps(const void* untyped, i64 k, i64 depth, i64* to) {
  if (depth == 0) return;  // an empty sum has no first step
  const View& view = static_cast<const Separable<View>*>(untyped)->view;
  const i64 first = view.run({}, 1 - Outer, 1).offset;
  for (i64 i = 0; i < depth;) {
    typename View::Coords c{};
    c[1 - Outer] = static_cast<typename View::Index>(k + i);
    const Run run = view.run(c, 1 - Outer, depth - i);
    for (i64 j = 0; j < run.length; ++j) to[i + j] = run.offset - first + j * run.stride;
    i += run.length;
  }
}

/// The first step of columns of a separable view by vectors, if each of them lies contiguous in memory.
template <class T, class View>
__attribute__((noinline)) bool place_vectors(const void* untyped, i64 column, int vectors, const T** to) {
  const View& view = static_cast<const Separable<View>*>(untyped)->view;
  constexpr int lanes = NativeVec<T>::lanes;
  for (int j = 0; j < vectors; ++j, column += lanes) {
    const Run run = view.run({{0, static_cast<typename View::Index>(column)}}, 1, lanes);
    if (run.length < lanes || run.stride != 1) return false;
    to[j] = view.data + run.offset;
  }
  return true;
}

/// One factor of the product as the driver sees it: how to pack it, and where it may be read in place.
template <class T>
struct Operand {
  const void* view;
  void (*pack)(const void* view, const PanelRange& range, int width, T* to);
  const T* data = nullptr;  // null unless the elements are of type T and strided
  i64 outer_stride = 0, k_stride = 0;
  // Separable operands: the distances of steps of k, for PanelRange; and on the right side how to read whole vectors in
  // place.
  void (*steps)(const void* view, i64 k, i64 depth, i64* to) = nullptr;
  bool (*place)(const void* view, i64 column, int vectors, const T** to) = nullptr;
  PlacedKernel<T> (*placed_kernel)(int rows) = nullptr;  // block_vectors wide
  const T* panels = nullptr;  // the whole right side as pack_panel_of() leaves it; then all else is null
};

/// The columns that a panel has in memory, of which those past the matrix are zeros: whole vectors.
template <class T>
TESSERA_HD i64 panel_width(i64 columns, i64 first) {
  return round_up(min(i64{block_columns<T>}, columns - first), i64{NativeVec<T>::lanes});
}
/// Where the panel that begins with a column lies among those of a matrix: one after the other, each of all `depth`
/// steps of k.
TESSERA_HD i64 panel_offset(i64 depth, i64 first) {
  return first * depth;  // all panels before it are full
}
/// Elements of all panels of a matrix.
template <class T>
TESSERA_HD i64 panels_size(i64 columns, i64 depth) {
  return round_up(columns, i64{block_columns<T>}) * depth;
}

/// The panel of a right side [depth, columns] that begins with column `first`, to its place among them all.
template <class T, class View>
void pack_panel_of(const View& view, i64 columns, i64 depth, i64 first, T* panels) {
  const i64 width = panel_width<T>(columns, first);
  pack_panel<1, T, View>(&view, {first, min(width, columns - first), 0, depth}, static_cast<int>(width),
                         panels + panel_offset(depth, first));
}
/// The way back.
template <class T, class View>
void unpack_panel_of(const View& view, i64 columns, i64 depth, i64 first, const T* panels) {
  const i64 width = panel_width<T>(columns, first), count = min(width, columns - first);
  const T* from = panels + panel_offset(depth, first);
  for (i64 j = 0; j < count; ++j) {
    for (i64 k = 0; k < depth; ++k) view.data[k * view.stride(0) + (first + j) * view.stride(1)] = from[k * width + j];
  }
}

template <int Outer, class T, class View>
Operand<T> operand(const Separable<View>& view) {
  Operand<T> r{&view, pack_separable<Outer, T, View>};
  r.steps = separable_steps<Outer, View>;
  // In float only: the kernels take a while to compile.
  if constexpr (Outer == 1 && is_same_v<T, float> && is_same_v<remove_cvref_t<typename View::Element>, T>) {
    if (view.in_place) r.place = place_vectors<T, View>;
    r.placed_kernel = pick_placed<NativeVec<T>>;
  }
  return r;
}
template <int Outer, class T, class View>
Operand<T> operand(const View& view) {
  Operand<T> r{&view, pack_panel<Outer, T, View>};
  if constexpr (View::is_strided && is_same_v<remove_cvref_t<typename View::Element>, T>) {
    r.data = view.data;
    r.outer_stride = view.stride(Outer);
    r.k_stride = view.stride(1 - Outer);
  }
  return r;
}

}  // namespace cpu
TESSERA_TILE_END
