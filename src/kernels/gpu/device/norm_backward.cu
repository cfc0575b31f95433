// Gradients of layer and RMS norm: dx by a team per row; those of the weights are sums down the columns, in slices of
// rows and then over the slices. Where a team holds a row in registers, one pass gives all of them.
#include "norm.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

template <class T>
struct NormBackwardWork {
  i64 rows, n;
  Rows<T> dx;
  Rows<const T> dy, x, addend;  // the last may be missing
  const T* weight;
  const compute_t<T>*mean, *rstd;  // no mean: RMS norm
};

/// dx of row r; visit(k, dy, normal) sees pack k of dy and of the normal values.
template <int width, class Team, int held, class T, class Visit>
TESSERA_DEVICE void backward_row(const NormBackwardWork<T>& work, i64 r, const Visit& visit) {
  using C = compute_t<T>;
  using Loaded = Lanes<C, T, width>;
  const T zero = convert_element<T>(0.0f);
  const RowReader<T, width, Team, held> dy(work.dy[r], work.n, zero), x(work.x[r], work.n, zero);
  const Span<const T, width> weight(work.weight, work.n);
  const C mean = entry(work.mean, r, C(0)), rstd = work.rstd[r];
  const auto normal = [&](i64 p, auto k) {
    Loaded v(x.get(p, k));
    tile::unroll<width>([&](auto j) { v.x[j] = (v[j] - mean) * rstd; });
    return v;
  };
  const auto gradient = [&](i64 p, Loaded g) {  // of the normal values, from that of the row
    if (work.weight) {
      const Loaded w(weight.load(p, zero));
      tile::unroll<width>([&](auto j) { g.x[j] *= w[j]; });
    }
    return g;
  };
  Sums<C> sums{C(0), C(0)};
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
    const Loaded d(dy.get(p, k)), v = normal(p, k), g = gradient(p, d);  // d is zero outside
    visit(k, d, v);
    tile::unroll<width>([&](auto j) {
      sums.first += g[j];
      sums.second = tile::fma(g[j], v[j], sums.second);
    });
  });
  sums = Team::join(sums, Plus{});
  const C a = work.mean ? sums.first / static_cast<C>(work.n) : C(0), b = sums.second / static_cast<C>(work.n);
  const Span<T, width> dx(work.dx[r], work.n);
  const Span<const T, width> addend(work.addend[r], work.n);
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
    const Loaded v = normal(p, k), g = gradient(p, Loaded(dy.get(p, k)));
    C to[width];
    tile::unroll<width>([&](auto j) { to[j] = (g[j] - a - v[j] * b) * rstd; });
    if (work.addend.data) {
      const Loaded more(addend.load(p, zero));
      tile::unroll<width>([&](auto j) { to[j] += more[j]; });
    }
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) { out.lane[j] = convert_element<T>(to[j]); });
    dx.store(p, out);
  });
}

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void norm_backward_kernel(const NormBackwardWork<T> work) {
  const i64 r = Team::row();
  if (r < work.rows) backward_row<width, Team, held>(work, r, [](auto...) {});
}

// ---- weights

/// Slices of rows that are summed apart, from the shape alone.
struct RowSlices {
  i64 count, length;
  RowSlices(i64 rows, i64 n) {
    const i64 columns = tile::ceil_div<i64>(n, 128);
    count = tile::max<i64>(1, tile::min<i64>(tile::ceil_div<i64>(1024, columns), tile::ceil_div<i64>(rows, 32)));
    length = tile::max<i64>(1, tile::ceil_div<i64>(rows, count));
    count = tile::max<i64>(1, tile::ceil_div<i64>(rows, length));
  }
};

inline constexpr int column_ways = 8;  // rows that a block takes at once, each by a team

template <class T>
struct WeightsWork {
  i64 rows, n, slice_length, column_blocks;
  Rows<const T> dy, x;
  const compute_t<T>*mean, *rstd;
  compute_t<T>* partial;  // [slices][2][n]
};

template <class T, int width>
TESSERA_KERNEL(256)
void weights_kernel(const WeightsWork<T> work) {
  using C = compute_t<T>;
  constexpr int columns = team_lanes * width;
  __shared__ C room[column_ways][columns];
  const i64 slice = tile::block_in_grid() / work.column_blocks;
  const i64 begin = (tile::block_in_grid() - slice * work.column_blocks) * columns;
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  const i64 column = begin + lane * width, end = tile::min<i64>(work.rows, (slice + 1) * work.slice_length);
  C sum[2][width];
  tile::unroll<width>([&](auto j) { sum[0][j] = sum[1][j] = C(0); });
  if (column < work.n) {
    for (i64 r = slice * work.slice_length + way; r < end; r += column_ways) {
      const C mean = entry(work.mean, r, C(0)), rstd = work.rstd[r];
      const Lanes<C, T, width> g(*reinterpret_cast<const Pack<T, width>*>(work.dy[r] + column)),
          v(*reinterpret_cast<const Pack<T, width>*>(work.x[r] + column));
      tile::unroll<width>([&](auto j) {
        sum[0][j] = tile::fma(g[j], (v[j] - mean) * rstd, sum[0][j]);
        sum[1][j] += g[j];
      });
    }
  }
  for (int k = 0; k < 2; ++k) {
    tile::unroll<width>([&](auto j) { room[way][lane * width + j] = k == 0 ? sum[0][j] : sum[1][j]; });
    tile::sync_block();
    for (int c = tile::thread_in_block(); c < columns; c += 256) {
      C total = room[0][c];
      for (int w = 1; w < column_ways; ++w) total += room[w][c];
      if (begin + c < work.n) work.partial[(slice * 2 + k) * work.n + begin + c] = total;
    }
    tile::sync_block();
  }
}

inline constexpr int whole_ways = 4;  // three blocks of so many teams have registers at a time
/// Blocks that take rows and weights at once, from the shape alone: about three for each multiprocessor of a large
/// card.
i64 whole_blocks(i64 rows) { return tile::max<i64>(1, tile::min<i64>(384, tile::ceil_div<i64>(rows, 4 * whole_ways))); }

/// Everything in one pass: each team goes through rows of its own, and adds up what they give the weights in registers.
template <class T, int width, int held>
TESSERA_KERNEL(whole_ways* team_lanes, sizeof(T) == 4 ? 3 : 2)
void whole_backward_kernel(const NormBackwardWork<T> work, i64 blocks, compute_t<T>* partial) {
  using C = compute_t<T>;
  constexpr int columns = team_lanes * width, threads = whole_ways * team_lanes;
  __shared__ C room[whole_ways][columns];
  C sum[2][held][width];
  tile::unroll<held>([&](auto k) { tile::unroll<width>([&](auto j) { sum[0][k][j] = sum[1][k][j] = C(0); }); });
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  for (i64 r = tile::block_in_grid() * whole_ways + way; r < work.rows; r += blocks * whole_ways) {
    backward_row<width, Team<team_lanes>, held>(work, r, [&](auto k, const auto& dy, const auto& normal) {
      tile::unroll<width>([&](auto j) {
        sum[0][k][j] = tile::fma(dy[j], normal[j], sum[0][k][j]);
        sum[1][k][j] += dy[j];
      });
    });
  }
  tile::unroll<2>([&](auto which) {
    tile::unroll<held>([&](auto k) {
      const i64 begin = k * columns;
      if (begin >= work.n) return;
      tile::unroll<width>([&](auto j) { room[way][lane * width + j] = sum[which][k][j]; });
      tile::sync_block();
      for (int c = tile::thread_in_block(); c < columns; c += threads) {
        C total = room[0][c];
        for (int w = 1; w < whole_ways; ++w) total += room[w][c];
        if (begin + c < work.n) partial[(tile::block_in_grid() * 2 + which) * work.n + begin + c] = total;
      }
      tile::sync_block();
    });
  });
}

/// Sums of all slices: eight ways to each of 32 columns.
template <class T>
TESSERA_KERNEL(256)
void weights_sum_kernel(const compute_t<T>* partial, i64 slices, i64 n, T* dweight, T* dbias) {
  using C = compute_t<T>;
  __shared__ C room[column_ways][team_lanes];
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  const i64 i = tile::block_in_grid() * team_lanes + lane;
  C sum = C(0);
  if (i < 2 * n) {
#pragma unroll 4
    for (i64 slice = way; slice < slices; slice += column_ways) sum += partial[slice * 2 * n + i];
  }
  room[way][lane] = sum;
  tile::sync_block();
  T* to = i < n ? dweight : dbias;
  if (way > 0 || i >= 2 * n || !to) return;
  for (int w = 1; w < column_ways; ++w) sum += room[w][lane];
  to[i < n ? i : i - n] = convert_element<T>(sum);
}

template <class T>
void sum_weights(const LayerNormBackwardArgs& a, i64 slices, Executor& executor) {
  launch("layer_norm_backward", weights_sum_kernel<T>, tile::ceil_div<i64>(2 * a.n, team_lanes), 256, 0, executor,
         static_cast<const compute_t<T>*>(a.workspace), slices, static_cast<i64>(a.n), static_cast<T*>(a.dweight),
         static_cast<T*>(a.dbias));
}

template <class T>
void weights_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  using C = compute_t<T>;
  constexpr int width = 16 / sizeof(T);
  const RowSlices slices(a.rows, a.n);
  WeightsWork<T> work{a.rows,
                      a.n,
                      slices.length,
                      1,
                      rows_of<const T>(a.dy),
                      rows_of<const T>(a.x),
                      a.rms ? nullptr : static_cast<const C*>(a.mean),
                      static_cast<const C*>(a.rstd),
                      static_cast<C*>(a.workspace)};
  const auto run = [&](auto wide, void (*kernel)(const WeightsWork<T>)) {
    work.column_blocks = tile::ceil_div<i64>(a.n, team_lanes * wide);
    launch("layer_norm_backward", kernel, work.column_blocks * slices.count, 256, 0, executor, work);
  };
  if (RowLayout(sizeof(T), a.dy, a.x).aligned && a.n % width == 0) run(tile::Int<width>{}, weights_kernel<T, width>);
  else run(tile::Int<1>{}, weights_kernel<T, 1>);
  sum_weights<T>(a, slices.count, executor);
}

}  // namespace

void layer_norm_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    const NormBackwardWork<T> work{a.rows,
                                   a.n,
                                   rows_of<T>(a.dx),
                                   rows_of<const T>(a.dy),
                                   rows_of<const T>(a.x),
                                   rows_of<const T>(a.addend),
                                   static_cast<const T*>(a.weight),
                                   a.rms ? nullptr : static_cast<const C*>(a.mean),
                                   static_cast<const C*>(a.rstd)};
    const RowArg weight{const_cast<void*>(a.weight), 0};
    const RowLayout layout(sizeof(T), a.x, a.dy, a.dx, a.addend, weight);
    const bool weights = a.dweight || a.dbias;
    with_team<T, true>(a.n, layout, [&](auto width, auto team, auto held) {
      using Team = decltype(team);
      if constexpr (Team::size == team_lanes && held > 0) {
        if (weights && a.dx.data && layout.aligned) {
          const i64 blocks = whole_blocks(a.rows);
          launch("layer_norm_backward", whole_backward_kernel<T, width, held>, blocks, whole_ways * team_lanes, 0,
                 executor, work, blocks, static_cast<C*>(a.workspace));
          return sum_weights<T>(a, blocks, executor);
        }
      }
      if (weights) weights_backward<T>(a, executor);  // first, since dx may be dy
      if (a.dx.data)
        launch("layer_norm_backward", norm_backward_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads,
               0, executor, work);
    });
  });
}

long long layer_norm_backward_workspace(Scalar type, long long rows, long long n) {
  return tile::max(RowSlices(rows, n).count, whole_blocks(rows)) * 2 * n * (type == Scalar::f64 ? 8 : 4);
}

}  // namespace tessera::gpu_kernels
