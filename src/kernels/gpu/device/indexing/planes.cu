// Windows of planes: a thread for each result, or a warp's worth of them for a window of many taps.
#include "tile/kernels/planes.h"

#include "kernels/args/planes.h"
#include "kernels/gpu/device/runtime/gpu.h"

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
