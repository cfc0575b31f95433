// Products with sparse matrices along a dim, or along two at once: a thread for four results, and a warp for one of
// many entries.
#include "kernels/args/lines.h"

#include "kernels/args/planes.h"
#include "kernels/gpu/device/elementwise/loops.h"
#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/kernels/lines.h"
#include "tile/kernels/planes.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int line_threads = 256, line_results = 4;

template <class T, class C>
TESSERA_KERNEL(line_threads)
void sparse_lines_kernel(i64 total, i64 count, const tile::SparseRows<C> rows, const T* x, T* out, bool whole) {
  for (i64 n = first_index() * line_results; n < total; n += index_step() * line_results) {
    i64 row = tile::quotient(n, rows.inner), j = n - row * rows.inner;
    i64 o = tile::quotient(row, count), i = row - o * count;
    const i64 left = tile::min<i64>(total - n, line_results);
    C sum[line_results] = {};
    if (left == line_results && j + line_results <= rows.inner) {
      const T* const from = x + o * rows.length * rows.inner + j;
      rows.each(i, [&](i64 place, C weight) {
        for (int k = 0; k < line_results; ++k)
          sum[k] = tile::fma(weight, tile::convert_element<C>(from[place * rows.inner + k]), sum[k]);
      });
    } else {
      tile::unroll<line_results>([&](auto k) {
        if (k >= left) return;
        sum[k] = rows.template product<C>(x + o * rows.length * rows.inner, i, j, 1);
        if (++j < rows.inner) return;
        j = 0;
        if (++i == count) i = 0, ++o;
      });
    }
    Pack<T, line_results> results;
    for (int k = 0; k < line_results; ++k) results.lane[k] = tile::convert_element<T>(sum[k]);
    store_unit(out + n, results, whole, left);
  }
}

/// Rows of many entries, of lines that lie one behind the other.
template <class T, class C>
TESSERA_KERNEL(line_threads)
void long_rows_kernel(i64 total, i64 count, const tile::SparseRows<C> rows, const T* x, T* out) {
  constexpr int lanes = 32;
  const int lane = static_cast<int>(first_index() % lanes);
  for (i64 n = first_index() / lanes; n < total; n += index_step() / lanes) {
    const i64 o = tile::quotient(n, count), i = n - o * count;
    C sum(0);
    rows.each(
        i,
        [&](i64 place, C weight) {
          sum = tile::fma(weight, tile::convert_element<C>(x[o * rows.length + place]), sum);
        },
        lane, lanes);
    for (int mask = lanes / 2; mask > 0; mask /= 2) sum += tile::from_lane_xor(sum, mask);
    if (lane == 0) out[n] = tile::convert_element<T>(sum);
  }
}

/// Neighbouring rows of a sparse matrix of at most two entries each, as those of linear interpolation.
template <class C>
struct RowsOfTwo {
  int place[line_results][2];  // negative where there is none
  C weight[line_results][2];
  bool fits = true;

  TESSERA_DEVICE RowsOfTwo(const tile::SparseRows<C>& rows, i64 first) {
    tile::unroll<line_results>([&](auto r) {
      const int begin = tile::max(rows.begins[first + r], 0);
      const i64 end = tile::min<i64>(rows.begins[first + r + 1], rows.entries);
      fits = fits && end - begin <= 2;
      tile::unroll<2>([&](auto e) {
        place[r][e] = begin + e < end ? rows.places[begin + e] : -1;
        if (place[r][e] >= rows.length) place[r][e] = -1;
        weight[r][e] = place[r][e] >= 0 ? rows.weights[begin + e] : C(0);
      });
    });
  }
  template <class T>
  TESSERA_DEVICE C product(int r, const T* x) const {
    C sum(0);
    tile::unroll<2>([&](auto e) {
      if (place[r][e] >= 0) sum = tile::fma(weight[r][e], tile::convert_element<C>(x[place[r][e]]), sum);
    });
    return sum;
  }
};

template <class T, class C, bool Selects>
TESSERA_KERNEL(line_threads)
void sparse_planes_kernel(i64 total, const tile::SparseRows<C> rows, i64 down, const tile::SparseRows<C> columns,
                          i64 across, const T* x, T* out, bool whole) {
  for (i64 n = first_index() * line_results; n < total; n += index_step() * line_results) {
    const i64 row = tile::quotient(n, across), left = tile::min<i64>(total - n, line_results);
    i64 k = n - row * across, o = tile::quotient(row, down), i = row - o * down;
    Pack<T, line_results> results{};
    if constexpr (!Selects) {
      if (left == line_results && k + line_results <= across) {
        if (const RowsOfTwo<C> near(columns, k); near.fits) {
          const T* const plane = x + o * rows.length * columns.length;
          C sum[line_results] = {};
          rows.each(i, [&](i64 line, C weight) {
            const T* const from = plane + line * columns.length;
            tile::unroll<line_results>([&](auto r) { sum[r] = tile::fma(weight, near.product(r, from), sum[r]); });
          });
          tile::unroll<line_results>([&](auto r) { results.lane[r] = tile::convert_element<T>(sum[r]); });
          store_unit(out + n, results, whole, left);
          continue;
        }
      }
    }
    tile::unroll<line_results>([&](auto r) {
      if (r >= left) return;
      const T* const plane = x + o * rows.length * columns.length;
      if constexpr (Selects) {
        const i64 line = rows.places[i], place = columns.places[k];
        if (line >= 0 && line < rows.length && place >= 0 && place < columns.length)
          results.lane[r] = plane[line * columns.length + place];
      } else {
        C sum(0);
        rows.each(i, [&](i64 line, C weight) {
          sum = tile::fma(weight, columns.template product<C>(plane + line * columns.length, k, 0, 1), sum);
        });
        results.lane[r] = tile::convert_element<T>(sum);
      }
      if (++k < across) return;
      k = 0;
      if (++i == down) i = 0, ++o;
    });
    store_unit(out + n, results, whole, left);
  }
}

template <class T>
bool is_whole(const void* out) {
  return reinterpret_cast<size_t>(out) % (line_results * sizeof(T)) == 0;
}

void sparse(const LinesArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const tile::SparseRows<C> rows{a.begins, a.places, static_cast<const C*>(a.weights), a.entries, a.length, a.inner};
    const i64 total = a.outer * a.count * a.inner;
    const T* const x = static_cast<const T*>(a.x);
    T* const out = static_cast<T*>(a.out);
    if (a.inner == 1 && a.entries >= 32 * a.count)
      return launch("sparse_lines", long_rows_kernel<T, C>, grid_for(total * 32, line_threads, executor), line_threads,
                    0, executor, total, i64{a.count}, rows, x, out);
    launch("sparse_lines", sparse_lines_kernel<T, C>,
           grid_for(tile::ceil_div<i64>(total, line_results), line_threads, executor), line_threads, 0, executor, total,
           i64{a.count}, rows, x, out, is_whole<T>(out));
  });
}

void planes(const LinePlanesArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const auto matrix = [&](int d) {
      return tile::SparseRows<C>{a.begins[d],  a.places[d], static_cast<const C*>(a.weights[d]),
                                 a.entries[d], a.length[d], 1};
    };
    const i64 total = a.outer * a.count[0] * a.count[1];
    launch("sparse_planes", a.selects ? sparse_planes_kernel<T, C, true> : sparse_planes_kernel<T, C, false>,
           grid_for(tile::ceil_div<i64>(total, line_results), line_threads, executor), line_threads, 0, executor, total,
           matrix(0), i64{a.count[0]}, matrix(1), i64{a.count[1]}, static_cast<const T*>(a.x), static_cast<T*>(a.out),
           is_whole<T>(a.out));
  });
}

}  // namespace

const LinesTable* device_lines_table() {
  static const LinesTable table{sparse, planes};
  return &table;
}

}  // namespace tessera::gpu_kernels

// ---- windows of planes

namespace tessera::gpu_kernels {
namespace {

constexpr int plane_threads = 256;

template <class T, int Lanes>
TESSERA_KERNEL(plane_threads)
void largest_kernel(const tile::PlaneWindows p, i64 results, const T* x, T* y, i64* places) {
  using C = tile::compute_t<T>;
  const i32 windows = p.windows(), lane = static_cast<i32>(first_index() % Lanes);
  const i64 plane = p.elements();
  for (i64 i = first_index() / Lanes; i < results; i += index_step() / Lanes) {
    const i64 n = tile::quotient(i, i64(windows));
    const T* const from = x + n * plane;
    auto largest = tile::largest_in_window<C>(p, static_cast<i32>(i - n * windows), from, lane, Lanes);
    for (int mask = Lanes / 2; mask > 0; mask /= 2) {
      const C value = tile::from_lane_xor(largest.value, mask);
      const i32 place = tile::from_lane_xor(largest.place, mask);
      if (place >= 0) largest.add(value, place);
    }
    if (lane > 0) continue;
    y[i] = largest.place < 0 ? tile::convert_element<T>(C(0)) : from[largest.place];
    places[i] = largest.place;
  }
}

template <class T>
TESSERA_KERNEL(plane_threads)
void largest_backward_kernel(const tile::PlaneWindows p, i64 results, const T* dy, const i64* places, T* dx) {
  const i64 windows = p.windows(), plane = p.elements();
  for (i64 i = first_index(); i < results; i += index_step()) {
    const i64 n = tile::quotient(i, plane);
    dx[i] = tile::convert_element<T>(tile::gradient_of_place<tile::compute_t<T>>(
        p, static_cast<i32>(i - n * plane), dy + n * windows, places + n * windows));
  }
}

template <class T>
TESSERA_KERNEL(plane_threads)
void fold_kernel(const tile::PlaneWindows p, i64 results, const T* x, T* y) {
  const i64 plane = p.elements(), columns = i64(p.windows()) * p.taps();
  for (i64 i = first_index(); i < results; i += index_step()) {
    const i64 n = tile::quotient(i, plane);
    y[i] = tile::convert_element<T>(
        tile::folded_place<tile::compute_t<T>>(p, static_cast<i32>(i - n * plane), x + n * columns));
  }
}

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

void largest(const PlaneArgs& a, Executor& executor) {
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    i64 taps = 1;
    for (const tile::PlaneLine& l : p.line) taps *= l.taps ? l.taps : tile::ceil_div(l.size, l.count);
    const i64 results = a.planes * p.windows();
    const auto run = [&](auto lanes) {
      constexpr int Lanes = decltype(lanes)::value;
      launch("pooling", largest_kernel<T, Lanes>, grid_for(results * Lanes, plane_threads, executor), plane_threads, 0,
             executor, p, results, static_cast<const T*>(a.plane), static_cast<T*>(a.windows), a.places);
    };
    if (taps >= 32) run(tile::Int<32>{});
    else run(tile::Int<1>{});
  });
}

void largest_backward(const PlaneArgs& a, Executor& executor) {
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    const i64 results = a.planes * p.elements();
    launch("pooling", largest_backward_kernel<T>, grid_for(results, plane_threads, executor), plane_threads, 0,
           executor, p, results, static_cast<const T*>(a.windows), static_cast<const i64*>(a.places),
           static_cast<T*>(a.plane));
  });
}

void fold(const PlaneArgs& a, Executor& executor) {
  with_windows(a, [&](auto type, const tile::PlaneWindows& p) {
    using T = typename decltype(type)::type;
    const i64 results = a.planes * p.elements();
    launch("fold", fold_kernel<T>, grid_for(results, plane_threads, executor), plane_threads, 0, executor, p, results,
           static_cast<const T*>(a.windows), static_cast<T*>(a.plane));
  });
}

}  // namespace

const PlaneTable* device_planes_table() {
  static const PlaneTable table{largest, largest_backward, fold};
  return &table;
}

}  // namespace tessera::gpu_kernels
