#include "kernels/args/planes.h"

#include "internal.h"
#include "tile/kernels/planes.h"
#include "tile/kernels/rows.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

/// fn(Type<T>, windows)
template <class Fn>
void with_windows(const PlaneArgs& a, const Fn& fn) {
  tile::PlaneWindows p;
  for (int d = 0; d < 3; ++d) {
    const PlaneLineArgs& l = a.line[d];
    p.line[d] = {l.size, l.count, l.taps, l.stride, l.dilation, l.low};
  }
  with_float(a.type, [&](auto type) { fn(type, p); });
}

void largest(const PlaneArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    const i64 windows = p.windows(), plane = p.elements();
    tile::for_rows(executor, a.planes, windows + plane * 4, [&](i64 n, int) {
      const T* const x = static_cast<const T*>(a.plane) + n * plane;
      T* const y = static_cast<T*>(a.windows) + n * windows;
      for (i32 i = 0; i < windows; ++i) {
        const i32 place = tile::largest_in_window<tile::compute_t<T>>(p, i, x, 0, 1).place;
        y[i] = place < 0 ? T(0) : x[place];
        a.places[n * windows + i] = place;
      }
    });
  });
}

void largest_backward(const PlaneArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    const i64 windows = p.windows(), plane = p.elements();
    tile::for_rows(executor, a.planes, windows + plane * 4, [&](i64 n, int) {
      const i64* const places = a.places + n * windows;
      for (i32 i = 0; i < plane; ++i)
        static_cast<T*>(a.plane)[n * plane + i] = tile::convert_element<T>(
            tile::gradient_of_place<tile::compute_t<T>>(p, i, static_cast<const T*>(a.windows) + n * windows, places));
    });
  });
}

/// The windows [first, last) of which tap t lies inside.
struct TapWindows {
  i32 first, last;
  TapWindows(const tile::PlaneLine& l, i32 tap) {
    const i32 from = tap * l.dilation - l.low;
    first = from < 0 ? (-from + l.stride - 1) / l.stride : 0;
    last = tile::max(first, from < l.size ? tile::min(l.count, (l.size - 1 - from) / l.stride + 1) : 0);
  }
};

/// A plane gets the sum of its windows, tap by tap along rows.
template <class T>
void fold_plane(const tile::PlaneWindows& p, const T* x, T* to) {
  const auto& [depth, rows, columns] = p.line;
  for (i64 i = 0; i < p.elements(); ++i) to[i] = T(0);
  for (i32 a = 0; a < depth.taps; ++a)
    for (i32 b = 0; b < rows.taps; ++b)
      for (i32 c = 0; c < columns.taps; ++c, x += p.windows()) {
        const TapWindows deep(depth, a), down(rows, b), across(columns, c);
        for (i32 i = deep.first; i < deep.last; ++i)
          for (i32 j = down.first; j < down.last; ++j) {
            const i64 line = i64(i * depth.stride + a * depth.dilation - depth.low) * rows.size + j * rows.stride +
                             b * rows.dilation - rows.low;
            const i64 row = line * columns.size + c * columns.dilation - columns.low;
            const T* const from = x + (i64(i) * rows.count + j) * columns.count;
            if (columns.stride == 1)
              for (i32 k = across.first; k < across.last; ++k) to[row + k] += from[k];
            else
              for (i32 k = across.first; k < across.last; ++k) to[row + i64(k) * columns.stride] += from[k];
          }
      }
}

void fold(const PlaneArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    const i64 columns = i64(p.windows()) * p.taps(), plane = p.elements();
    tile::for_rows(executor, a.planes, columns, [&](i64 n, int) {
      const T* const x = static_cast<const T*>(a.windows) + n * columns;
      T* const y = static_cast<T*>(a.plane) + n * plane;
      if constexpr (sizeof(T) >= 4) return fold_plane(p, x, y);
      for (i32 i = 0; i < plane; ++i) y[i] = tile::convert_element<T>(tile::folded_place<tile::compute_t<T>>(p, i, x));
    });
  });
}

}  // namespace

extern const PlaneTable planes_table;
const PlaneTable planes_table{largest, largest_backward, fold};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
