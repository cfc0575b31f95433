// Gradients of layer and RMS norm: dx by a team per row; those of the weights are sums down the columns, in slices of
// rows and then over the slices. Where columns have owners, one pass gives all of them.
#include "norm_columns.h"
#include "slice_sums.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

template <class T>
struct NormBackwardWork {
  i64 rows, n;
  int kept;
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
  HeldRows<T, width, Team, held, 2> rows(work.dx[r], {work.dy[r], work.x[r]}, work.n, work.kept);
  const Beside<T> weight(work.weight, work.dx[r]), addend(work.addend[r], work.dx[r]);
  const C mean = entry(work.mean, r, C(0)), rstd = work.rstd[r];
  const auto normal = [&](auto v) {
    tile::unroll<sizeof(v) / sizeof(C)>([&](auto j) { v.x[j] = (v[j] - mean) * rstd; });
    return v;
  };
  const auto gradient = [&](auto g, const auto& raw) {  // of the normal values, from that of the row
    if (weight) {
      const auto w = weight[raw];
      tile::unroll<sizeof(g) / sizeof(C)>([&](auto j) { g.x[j] *= w[j]; });
    }
    return g;
  };
  const auto fetch = [&](auto at) { return weight.fetch(at); };
  Sums<C> sums{C(0), C(0)};
  rows.read(fetch, [&](auto at, const auto& row, const auto& raw) {
    const auto v = normal(lanes(row[1])), g = gradient(lanes(row[0]), raw);
    tile::unroll<at.width>([&](auto j) {
      sums.first += g[j];
      sums.second = tile::fma(g[j], v[j], sums.second);
    });
  });
  sums = Team::join(sums, Plus{});
  const C a = work.mean ? sums.first / static_cast<C>(work.n) : C(0), b = sums.second / static_cast<C>(work.n);
  T* const dx = work.dx[r];
  rows.each(fetch, [&](auto at, const auto& row, const auto& raw) {
    const auto v = normal(lanes(row[1]));
    auto g = gradient(lanes(row[0]), raw);
    tile::unroll<at.width>([&](auto j) { g.x[j] = (g[j] - a - v[j] * b) * rstd; });
    if (work.addend.data) {
      const auto more = addend[addend.fetch(at)];
      tile::unroll<at.width>([&](auto j) { g.x[j] += more[j]; });
    }
    store_piece(dx, at, g);
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

template <class T>
TESSERA_KERNEL(256)
void weights_kernel(const WeightsWork<T> work) {
  using C = compute_t<T>;
  __shared__ C room[2][column_ways][team_lanes];
  const i64 slice = tile::block_in_grid() / work.column_blocks;
  const int lane = tile::thread_in_block() % team_lanes, way = tile::thread_in_block() / team_lanes;
  const i64 column = (tile::block_in_grid() - slice * work.column_blocks) * team_lanes + lane;
  const i64 end = tile::min<i64>(work.rows, (slice + 1) * work.slice_length);
  C sum[2] = {C(0), C(0)};
  if (column < work.n) {
#pragma unroll 8
    for (i64 r = slice * work.slice_length + way; r < end; r += column_ways) {
      const C g = convert_element<C>(work.dy[r][column]), v = convert_element<C>(work.x[r][column]);
      sum[0] = tile::fma(g, (v - entry(work.mean, r, C(0))) * work.rstd[r], sum[0]);
      sum[1] += g;
    }
  }
  tile::unroll<2>([&](auto k) { room[k][way][lane] = sum[k]; });
  tile::sync_block();
  if (way > 1 || column >= work.n) return;  // the first team adds up one sum, the second the other
  C total = room[way][0][lane];
  for (int w = 1; w < column_ways; ++w) total += room[way][w][lane];
  work.partial[(slice * 2 + way) * work.n + column] = total;
}

// ---- rows and weights at once, where columns have owners

/// Blocks of so many threads that take some rows after the others: as many as a large card runs at once.
i64 owner_blocks(i64 rows, int threads, int fours) {
  const i64 together = fours > 1 ? 512 / threads : threads > 192 ? 3 : 4;
  return tile::max<i64>(1, tile::min<i64>(132 * together, tile::ceil_div<i64>(rows, 4)));
}

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
TESSERA_KERNEL(most_owners(fours), fours == 1 ? 3 : 1)
void columns_backward_kernel(const ColumnsWork<T, Y> work) {
  __shared__ float room[2][owner_teams][2 * height];
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
  tile::unroll<3>([&](auto s) {
    if (s >= work.sums) return;
    float* const to = work.partial + (tile::block_in_grid() * work.sums + s) * work.n;
    tile::unroll<fours>([&](auto q) {
      if (column(q) < work.n) store_quad(to, column(q), sum[s][q]);
    });
  });
}

// ---- the same, of up to 1024 columns of halves: a warp takes a row

inline constexpr int warp_columns = 1024, warp_rows = 4;

/// Each warp adds up in registers what its rows give the weights, a block then what its warps have.
template <class T>
TESSERA_KERNEL(warp_rows* team_lanes, 3)
void halves_backward_kernel(const ColumnsWork<T, T> work) {
  constexpr int width = 8, packs = warp_columns / (team_lanes * width);
  using Warp = Team<team_lanes>;
  using Packed = Pack<T, width>;
  using Line = tile::SharedLine<float, width>;
  __shared__ __attribute__((aligned(16))) float room[2][warp_columns];
  const int n = static_cast<int>(work.n), lane = tile::thread_in_block() % team_lanes;
  const int warp = tile::thread_in_block() / team_lanes;
  const auto column = [&](int k) { return (k * team_lanes + lane) * width; };
  const float share = 1.0f / static_cast<float>(n);
  float weight[packs][width], sum[2][packs][width] = {};
  tile::unroll<packs>([&](auto k) {
    tile::unroll<2>([&](auto h) {
      float four[4];
      load_any_quad(work.weight, work.weight_type, column(k) + h * 4, column(k) < n, 1.0f, four);
      tile::unroll<4>([&](auto j) { weight[k][h * 4 + j] = four[j]; });
    });
  });
  for (i64 r = tile::block_in_grid() * warp_rows + warp; r < work.rows; r += work.blocks * warp_rows) {
    const auto pack = [&](const T* row, int k) { return *reinterpret_cast<const Packed*>(row + column(k)); };
    Packed x[packs], dy[packs];
    tile::unroll<packs>([&](auto k) {
      if (column(k) >= n) return;
      x[k] = pack(work.x[r], k);
      dy[k] = pack(work.dy[r], k);
    });
    const float mean = work.mean ? work.mean[r] : 0.0f, rstd = work.rstd[r];
    Sums<float> total{0.0f, 0.0f};
    tile::unroll<packs>([&](auto k) {
      if (column(k) >= n) return;
      const auto v = lanes(x[k]), d = lanes(dy[k]);
      tile::unroll<width>([&](auto j) {
        const float normal = (v[j] - mean) * rstd, g = d[j] * weight[k][j];
        total.first += g;
        total.second = tile::fma(g, normal, total.second);
        sum[0][k][j] = tile::fma(d[j], normal, sum[0][k][j]);
        sum[1][k][j] += d[j];
      });
    });
    total = Warp::join(total, Plus{});
    const float a = work.mean ? total.first * share : 0.0f, b = total.second * share;
    tile::unroll<packs>([&](auto k) {
      if (column(k) >= n || !work.dx.data) return;
      const auto v = lanes(x[k]);
      auto g = lanes(dy[k]);
      tile::unroll<width>([&](auto j) { g.x[j] = (g[j] * weight[k][j] - a - (v[j] - mean) * rstd * b) * rstd; });
      if (work.addend.data) {
        const auto more = lanes(pack(work.addend[r], k));
        tile::unroll<width>([&](auto j) { g.x[j] += more[j]; });
      }
      store_piece(work.dx[r], Piece<width, int>{column(k)}, g);
    });
  }
  if (work.sums == 0) return;
  for (int w = 0; w < warp_rows; ++w) {
    if (w == warp)
      tile::unroll<2 * packs>([&](auto i) {
        constexpr int s = decltype(i)::value / packs, k = decltype(i)::value % packs;
        float before[width] = {};
        if (w > 0) Line::load(room[s], column(k), before);
        tile::unroll<width>([&](auto j) { sum[s][k][j] += before[j]; });
        Line::store(room[s], column(k), sum[s][k]);
      });
    tile::sync_block();
  }
  for (int s = 0; s < 2; ++s)
    for (int c = tile::thread_in_block(); c < n; c += warp_rows * team_lanes)
      work.partial[(tile::block_in_grid() * 2 + s) * n + c] = room[s][Line::place(c)];
}

template <class C>
TESSERA_KERNEL(sum_threads)
void weights_sum_kernel(const SliceSums<C> work) {
  work.run();
}

template <class C>
void sum_weights(const LayerNormBackwardArgs& a, i64 slices, int sums, Executor& executor) {
  const SliceSums<C> work(a, slices, sums);
  if constexpr (tile::is_same_v<C, float>)
    if (sum_slices_sm90(work, executor)) return;
  launch("layer_norm_backward", weights_sum_kernel<C>, work.blocks(), sum_threads, 0, executor, work);
}

template <class T, class Y>
void columns_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  ColumnsWork<T, Y> work{a.rows,
                         a.n,
                         0,
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
  if constexpr (tile::is_same_v<T, Y> && sizeof(T) == 2) {
    if (a.n <= warp_columns && !a.dbranch.data && work.sums < 3) {
      constexpr int threads = warp_rows * team_lanes;
      work.blocks = owner_blocks(a.rows, 256, 1);
      launch("layer_norm_backward", halves_backward_kernel<T>, work.blocks, threads, 0, executor, work);
      if (work.sums) sum_weights<float>(a, work.blocks, work.sums, executor);
      return;
    }
  }
  with_owners(a.n, [&](auto fours, int threads) {
    constexpr int height = 1;
    work.blocks = owner_blocks(a.rows, threads, fours);
    launch("layer_norm_backward", columns_backward_kernel<T, Y, fours, height>, work.blocks, threads, 0, executor,
           work);
  });
  if (work.sums) sum_weights<float>(a, work.blocks, work.sums, executor);
}

template <class T>
void weights_backward(const LayerNormBackwardArgs& a, Executor& executor) {
  using C = compute_t<T>;
  const RowSlices slices(a.rows, a.n);
  const WeightsWork<T> work{a.rows,
                            a.n,
                            slices.length,
                            tile::ceil_div<i64>(a.n, team_lanes),
                            rows_of<const T>(a.dy),
                            rows_of<const T>(a.x),
                            a.rms ? nullptr : static_cast<const C*>(a.mean),
                            static_cast<const C*>(a.rstd),
                            static_cast<C*>(a.workspace)};
  launch("layer_norm_backward", weights_kernel<T>, work.column_blocks * slices.count, 256, 0, executor, work);
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
  // Floats that have owners, and halves of which a warp takes a row, are faster by those.
  const bool owners = takes_owners(a), first = owners && (a.type == Scalar::f32 || a.n <= warp_columns);
  if (!first && layer_norm_backward_sm90(a, executor)) return;
  if (owners) {
    if (a.type == Scalar::f16) return columns_backward<f16, f16>(a, executor);
    if (a.type == Scalar::bf16) return columns_backward<bf16, bf16>(a, executor);
    if (a.y_type == Scalar::f32) return columns_backward<float, float>(a, executor);
    return a.y_type == Scalar::f16 ? columns_backward<float, f16>(a, executor)
                                   : columns_backward<float, bf16>(a, executor);
  }
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    NormBackwardWork<T> work{a.rows,
                             a.n,
                             0,
                             rows_of<T>(a.dx),
                             rows_of<const T>(a.dy),
                             rows_of<const T>(a.x),
                             rows_of<const T>(a.addend),
                             static_cast<const T*>(a.weight),
                             a.rms ? nullptr : static_cast<const C*>(a.mean),
                             static_cast<const C*>(a.rstd)};
    if (a.dweight || a.dbias) weights_backward<T>(a, executor);  // first, since dx may be dy
    if (!a.dx.data) return;
    with_rows<T, 2, true, 32>(a.n, RowLayout(sizeof(T), a.x, a.dy, a.dx),
                              [&](auto width, auto team, auto held, RowsHeld rows) {
                                using Team = decltype(team);
                                work.kept = rows.kept;
                                launch_rows("layer_norm_backward", norm_backward_kernel<T, width, Team, held>,
                                            Team::blocks(a.rows), Team::threads, rows, executor, work);
                              });
  });
}

long long layer_norm_backward_workspace(Scalar type, long long rows, long long n) {
  const i64 owned = takes_columns(n) ? owner_blocks(rows, 0, 1) * 3 : 0;
  const i64 shared = tile::min<i64>(rows, most_row_slices(n)) * 2;
  return tile::max(RowSlices(rows, n).count * 2, tile::max(owned, shared)) * n * (type == Scalar::f64 ? 8 : 4);
}

}  // namespace tessera::gpu_kernels
