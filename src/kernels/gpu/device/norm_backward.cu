// Gradients of layer and RMS norm: dx by a team per row; those of the weights are sums down the columns, in slices of
// rows and then over the slices. Where columns have owners, one pass gives all of them.
#include "norm_columns.h"

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

/// dx of a row by a team.
template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void norm_backward_kernel(const NormBackwardWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
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
    const Loaded v = normal(p, k), g = gradient(p, Loaded(dy.get(p, k)));  // zero outside
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

// ---- rows and weights at once, where columns have owners

/// Blocks that take some rows after the others, from the shape alone: four for each multiprocessor of a large card.
i64 owner_blocks(i64 rows) { return tile::max<i64>(1, tile::min<i64>(528, tile::ceil_div<i64>(rows, 4))); }

template <class T, class Y>
struct ColumnsWork {
  i64 rows, n, blocks;
  int sums;  // of columns that are wanted: none; of the weights; and of dx
  Rows<T> dx;
  Rows<Y> dbranch;
  Rows<const Y> dy;
  Rows<const T> x, addend;
  const void* weight;
  Scalar weight_type;
  const float *mean, *rstd;
  float* partial;  // [blocks][sums][n]
};

/// What a thread fetches of `height` rows.
template <class T, class Y, int fours, int height>
struct OwnedRows {
  Quad<T> x[height][fours], more[height][fours];
  Quad<Y> dy[height][fours];
  float mean[height], rstd[height];

  /// Rows and columns past the end are others once more; theirs count for nothing.
  template <class Column>
  TESSERA_DEVICE void fetch(const ColumnsWork<T, Y>& work, i64 first, const Column& column) {
    tile::unroll<height>([&](auto r) {
      const i64 row = tile::min<i64>(first + r, work.rows - 1);
      mean[r] = work.mean ? work.mean[row] : 0.0f;
      rstd[r] = work.rstd[row];
      tile::unroll<fours>([&](auto q) {
        const i64 c = tile::min<i64>(column(q), work.n - 4);
        x[r][q] = *reinterpret_cast<const Quad<T>*>(work.x[row] + c);
        dy[r][q] = *reinterpret_cast<const Quad<Y>*>(work.dy[row] + c);
      });
    });
    if (!work.addend.data) return;
    tile::unroll<height>([&](auto r) {
      const i64 row = tile::min<i64>(first + r, work.rows - 1);
      tile::unroll<fours>([&](auto q) {
        more[r][q] = *reinterpret_cast<const Quad<T>*>(work.addend[row] + tile::min<i64>(column(q), work.n - 4));
      });
    });
  }
};

/// Each block takes `height` rows at a time, fetches the next ones meanwhile, and adds up in registers what they give
/// the weights.
template <class T, class Y, int fours, int height>
TESSERA_KERNEL(most_owners, fours == 1 ? 3 : 1)
void columns_backward_kernel(const ColumnsWork<T, Y> work) {
  __shared__ float room[2][most_owners / team_lanes][2 * height];
  const auto column = [&](int q) { return (q * static_cast<i64>(blockDim.x) + tile::thread_in_block()) * 4; };
  const float share = 1.0f / static_cast<float>(work.n);
  float weight[fours][4], sum[3][fours][4] = {};
  tile::unroll<fours>(
      [&](auto q) { load_any_quad(work.weight, work.weight_type, column(q), column(q) < work.n, 1.0f, weight[q]); });
  OwnedRows<T, Y, fours, height> now, next;
  i64 first = tile::block_in_grid() * height;
  if (first < work.rows) next.fetch(work, first, column);
  const i64 step = work.blocks * height;
  for (int parity = 0; first < work.rows; first += step, parity ^= 1) {
    now = next;
    if (first + step < work.rows) next.fetch(work, first + step, column);
    float total[2 * height] = {};
    const auto normal = [&](auto r, auto q, auto j) {
      return (tile::convert_element<float>(now.x[r][q].lane[j]) - now.mean[r]) * now.rstd[r];
    };
    const auto gradient = [&](auto r, auto q, auto j) { return tile::convert_element<float>(now.dy[r][q].lane[j]); };
    const auto inside = [&](auto r, auto q) { return first + r < work.rows && column(q) < work.n; };
    tile::unroll<height>([&](auto r) {
      tile::unroll<fours>([&](auto q) {
        if (!inside(r, q)) return;
        tile::unroll<4>([&](auto j) {
          const float v = normal(r, q, j), d = gradient(r, q, j), g = d * weight[q][j];
          total[2 * r] += g;
          total[2 * r + 1] = tile::fma(g, v, total[2 * r + 1]);
          sum[0][q][j] = tile::fma(d, v, sum[0][q][j]);
          sum[1][q][j] += d;
        });
      });
    });
    sum_over_owners(total, room[parity]);
    tile::unroll<height>([&](auto r) {
      const float a = work.mean ? total[2 * r] * share : 0.0f, b = total[2 * r + 1] * share;
      tile::unroll<fours>([&](auto q) {
        if (!inside(r, q)) return;
        float to[4];
        tile::unroll<4>([&](auto j) {
          to[j] = (gradient(r, q, j) * weight[q][j] - a - normal(r, q, j) * b) * now.rstd[r];
          if (work.addend.data) to[j] += tile::convert_element<float>(now.more[r][q].lane[j]);
          sum[2][q][j] += to[j];
        });
        if (work.dx.data) store_quad(work.dx[first + r], column(q), to);
        if (work.dbranch.data) store_quad(work.dbranch[first + r], column(q), to);
      });
    });
  }
  for (int s = 0; s < work.sums; ++s) {
    float* const to = work.partial + (tile::block_in_grid() * work.sums + s) * work.n;
    tile::unroll<fours>([&](auto q) {
      if (column(q) >= work.n) return;
      if (s == 0) store_quad(to, column(q), sum[0][q]);
      else store_quad(to, column(q), s == 1 ? sum[1][q] : sum[2][q]);
    });
  }
}

/// Where the sums of columns go, and of which type they are; each may be missing.
struct ColumnSums {
  void* to[3];
  Scalar type[3];
};

inline constexpr int sum_ways = 16;

/// Sums over all slices: sixteen ways to each of 32 columns.
template <class C>
TESSERA_KERNEL(sum_ways* team_lanes)
void weights_sum_kernel(const C* partial, i64 slices, i64 n, int sums, const ColumnSums out) {
  __shared__ C room[sum_ways][team_lanes];
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  const i64 i = tile::block_in_grid() * team_lanes + lane;
  C sum = C(0);
  if (i < sums * n) {
#pragma unroll 8
    for (i64 slice = way; slice < slices; slice += sum_ways) sum += partial[slice * sums * n + i];
  }
  room[way][lane] = sum;
  tile::sync_block();
  const int s = static_cast<int>(i / n);
  if (way > 0 || s >= sums) return;
  for (int w = 1; w < sum_ways; ++w) sum += room[w][lane];
  void* const to = s == 0 ? out.to[0] : s == 1 ? out.to[1] : out.to[2];
  if (to) store_as<C>(to, s == 0 ? out.type[0] : s == 1 ? out.type[1] : out.type[2], i - s * n, sum);
}

template <class C>
void sum_weights(const LayerNormBackwardArgs& a, i64 slices, int sums, Executor& executor) {
  const ColumnSums out{{a.dweight, a.dbias, a.dbranch_bias}, {a.weight_type, a.weight_type, a.branch_bias_type}};
  launch("layer_norm_backward", weights_sum_kernel<C>, tile::ceil_div<i64>(sums * a.n, team_lanes),
         sum_ways * team_lanes, 0, executor, static_cast<const C*>(a.workspace), slices, static_cast<i64>(a.n), sums,
         out);
}

template <class T, class Y>
void columns_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  ColumnsWork<T, Y> work{a.rows,
                         a.n,
                         owner_blocks(a.rows),
                         a.dbranch_bias         ? 3
                         : a.dweight || a.dbias ? 2
                                                : 0,
                         rows_of<T>(a.dx),
                         rows_of<Y>(a.dbranch),
                         rows_of<const Y>(a.dy),
                         rows_of<const T>(a.x),
                         rows_of<const T>(a.addend),
                         a.weight,
                         a.weight_type,
                         a.rms ? nullptr : static_cast<const float*>(a.mean),
                         static_cast<const float*>(a.rstd),
                         static_cast<float*>(a.workspace)};
  with_owners(a.n, [&](auto fours, int threads) {
    constexpr int height = sizeof(T) == 2 && fours == 1 ? 2 : 1;
    launch("layer_norm_backward", columns_backward_kernel<T, Y, fours, height>, work.blocks, threads, 0, executor,
           work);
  });
  if (work.sums) sum_weights<float>(a, work.blocks, work.sums, executor);
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
  sum_weights<C>(a, slices.count, 2, executor);
}

}  // namespace

namespace {

/// Whether rows are whole fours and lie as the kernel with owners takes them.
bool takes_owners(const LayerNormBackwardArgs& a) {
  if (a.type == Scalar::f64 || !takes_columns(a.n) || reinterpret_cast<size_t>(a.weight) % 16 != 0) return false;
  const auto whole = [](const RowArg& row, Scalar type) {
    return !row.data || (reinterpret_cast<size_t>(row.data) % 16 == 0 && row.pitch * size_of(type) % 16 == 0);
  };
  return whole(a.x, a.type) && whole(a.dx, a.type) && whole(a.addend, a.type) && whole(a.dy, a.y_type) &&
         whole(a.dbranch, a.y_type);
}

}  // namespace

void layer_norm_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  if (takes_owners(a)) {
    if (a.type == Scalar::f16) return columns_backward<f16, f16>(a, executor);
    if (a.type == Scalar::bf16) return columns_backward<bf16, bf16>(a, executor);
    if (a.y_type == Scalar::f32) return columns_backward<float, float>(a, executor);
    return a.y_type == Scalar::f16 ? columns_backward<float, f16>(a, executor)
                                   : columns_backward<float, bf16>(a, executor);
  }
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
    if (a.dweight || a.dbias) weights_backward<T>(a, executor);  // first, since dx may be dy
    if (!a.dx.data) return;
    with_team<T, true>(a.n, layout, [&](auto width, auto team, auto held) {
      using Team = decltype(team);
      launch("layer_norm_backward", norm_backward_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, 0,
             executor, work);
    });
  });
}

long long layer_norm_backward_workspace(Scalar type, long long rows, long long n) {
  return tile::max(RowSlices(rows, n).count * 2, owner_blocks(rows) * 3) * n * (type == Scalar::f64 ? 8 : 4);
}

}  // namespace tessera::gpu_kernels
