// Convolutions whose operands come in packs of neighbours, where images' layouts and strides allow.
#pragma once
#include "conv.h"

namespace tessera::gpu_kernels {

/// Whether packs can be taken along rows of the image, `places`, wherever `taps` move them: its elements are
/// neighbours, and enough of them count for each tap that a pack which leaves them can be read from their end.
inline bool has_rows(const ImplicitMatrix& m, const Digits& places, const Digits& taps) {
  i64 first = m.left;
  for (int i = 0; i < 3; ++i) first += tile::min<i64>(0, taps.across[i] * (taps.length[i] - 1));
  return places.across[2] == 1 && m.stride[1] == 1 && tile::min<i64>(m.size[1], places.length[2] + first) >= image_pack;
}

/// Has packs taken along rows of the image, which are filled up to whole ones.
inline void take_rows(ImplicitMatrix& m, Digits& places) {
  m.pack = image_pack;
  m.run = static_cast<int>(places.length[2]);
  places.length[2] = tile::round_up<i64>(places.length[2], image_pack);
}

inline bool is_empty(const ImplicitGemm& p) { return p.rows == 0 || p.columns == 0 || p.depth == 0; }

/// Lines of filters that are packed, in elements.
inline i64 packed_line(const ImplicitGemm& p) { return tile::round_up<i64>(p.depth, 8); }

/// Makes the product of a convolution, or of its gradient by images, one in packs of b's elements: along channels where
/// those are neighbours, else along rows of the image. False where they do not lie so.
inline bool images_in_packs(ImplicitGemm& p) {
  const Digits &taps = p.b.depth, &places = p.b.edge;
  if (is_empty(p) || p.b.divisor[0] != 1 || p.b.divisor[1] != 1) return false;
  const i64 furthest = places.length[2] * places.across[2] + (p.b.left < 0 ? -p.b.left : p.b.left);
  if (furthest > p.b.run || p.rows * packed_line(p) >= i64{1} << 31) return false;
  p.b.along_depth = taps.stride[2] == 1 && taps.across[2] == 0 && taps.length[2] % image_pack == 0;
  p.c_run = 1;
  if (p.b.along_depth) return true;
  if (!has_rows(p.b, places, taps)) return false;
  take_rows(p.b, p.b.edge);
  p.columns = places.count();
  p.c_run = p.b.run;
  p.c_column.length[2] = places.length[2];
  p.c_column.across[2] = 1;
  return true;
}

/// The same for the gradient by filters, whose depth, places of the output, is along rows of y and of the image. The
/// left matrix becomes an image as well.
inline bool filters_in_packs(ImplicitGemm& p) {
  if (is_empty(p)) return false;
  Digits& places = p.a.depth;
  for (int d = 0; d < 2; ++d) {
    p.a.size[d] = places.length[1 + d];
    p.a.stride[d] = places.stride[1 + d];
    places.stride[1 + d] = 0;
  }
  places.down[1] = places.across[2] = 1;
  if (!has_rows(p.b, p.b.depth, p.b.edge) || !has_rows(p.a, places, p.a.edge)) return false;
  take_rows(p.a, places);
  take_rows(p.b, p.b.depth);
  p.a.along_depth = p.b.along_depth = true;
  p.depth = places.count();
  p.c_run = 1;
  return true;
}

/// Whether each line of the left matrix is contiguous, and begins and ends at whole chunks of any type.
inline bool has_packed_lines(const ImplicitGemm& p) {
  const Digits& d = p.a.depth;
  i64 next = 1;
  for (int i = 2; i >= 0; --i) {
    if (d.length[i] != 1 && d.stride[i] != next) return false;
    next *= d.length[i];
  }
  return (p.depth | p.a.edge.stride[2] | p.a.group_stride) % 8 == 0 && reinterpret_cast<u64>(p.a.data) % 16 == 0;
}

/// Bytes of the filters, where they are packed.
inline i64 packed_bytes(const ImplicitGemm& p) {
  return p.in_packs && !has_packed_lines(p) ? p.groups * p.rows * packed_line(p) * size_of(p.type) : 0;
}

template <class T>
TESSERA_KERNEL(256)
void pack_kernel(const ImplicitMatrix m, T* to, i64 rows, i64 depth, i64 line, i64 elements) {
  for (i64 i = first_index(); i < elements; i += index_step()) {
    const Division at = divide(i, line), group = divide(at.quotient, rows);
    const T* from = static_cast<const T*>(m.data) + group.quotient * m.group_stride;
    to[i] = at.rest < depth ? from[place_of(m.edge, group.rest).offset + place_of(m.depth, at.rest).offset] : T{};
  }
}

/// Makes the left matrix, filters, one whose lines are contiguous; T has the size of its elements. What does not lie so
/// is copied to `memory`, and filled up with zeros.
template <class T>
void pack_filters(ImplicitGemm& p, void* memory, Executor& executor) {
  ImplicitMatrix packed{};
  packed.along_depth = true;
  if (has_packed_lines(p)) {
    packed.data = p.a.data;
    packed.group_stride = p.a.group_stride;
    packed.edge.stride[2] = p.a.edge.stride[2];
  } else {
    const i64 line = packed_line(p), elements = p.groups * p.rows * line;
    launch("convolution", pack_kernel<T>, grid_for(elements, 256, executor), 256, 0, executor, p.a,
           static_cast<T*>(memory), p.rows, p.depth, line, elements);
    packed.data = memory;
    packed.group_stride = p.rows * line;
    packed.edge.stride[2] = line;
  }
  packed.edge.length[2] = p.rows;
  packed.depth.length[2] = packed_line(p);
  packed.depth.stride[2] = 1;
  p.a = packed;
}

}  // namespace tessera::gpu_kernels
