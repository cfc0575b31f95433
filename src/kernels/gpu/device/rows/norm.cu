// Layer and RMS norm: a team per row, which it holds in registers where that is short enough.
#include "norm_columns.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

template <class T>
struct LayerNormWork {
  i64 rows, n;
  bool rms;
  int kept;
  Rows<T> y;
  Rows<const T> x;
  const T *weight, *bias;
  compute_t<T>*mean, *rstd;
  compute_t<T> eps;
};

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads, Team::resident)
void layer_norm_kernel(const LayerNormWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  const C n = static_cast<C>(work.n);
  HeldRows<T, width, Team, held, 1> x(work.y[r], {work.x[r]}, work.n, work.kept);
  C sum = C(0), squares = C(0), mean = C(0);
  x.read([&](auto at, const auto& row) {
    const auto v = lanes(row[0]);
    tile::unroll<at.width>([&](auto j) {
      if (work.rms) squares = tile::fma(v[j], v[j], squares);
      else sum += v[j];
    });
  });
  if (!work.rms) {
    mean = Team::join(sum, Plus{}) / n;
    x.each([&](auto at, const auto& row) {
      const auto v = lanes(row[0]);
      tile::unroll<at.width>([&](auto j) {
        const C d = v[j] - mean;
        squares = tile::fma(d, d, squares);
      });
    });
  }
  const C rstd = C(1) / tile::sqrt(Team::join(squares, Plus{}) / n + work.eps);
  if (Team::rank() == 0) {
    if (!work.rms) work.mean[r] = mean;
    work.rstd[r] = rstd;
  }
  T* const y = work.y[r];
  const Beside<T> weight(work.weight, y), bias(work.bias, y);
  const auto fetch = [&](auto at) {
    struct {
      decltype(weight.fetch(at)) weight, bias;
    } raw{weight.fetch(at), bias.fetch(at)};
    return raw;
  };
  x.each(fetch, [&](auto at, const auto& row, const auto& raw) {
    auto v = lanes(row[0]);
    tile::unroll<at.width>([&](auto j) { v.x[j] = (v[j] - mean) * rstd; });
    if (weight) {
      const auto w = weight[raw.weight];
      tile::unroll<at.width>([&](auto j) { v.x[j] *= w[j]; });
    }
    if (bias) {
      const auto b = bias[raw.bias];
      tile::unroll<at.width>([&](auto j) { v.x[j] += b[j]; });
    }
    store_piece(y, at, v);
  });
}

// ---- of a sum, or with weights of another type

template <class T, class Y>
struct SumNormWork {
  i64 rows, n;
  bool rms;
  Rows<T> sum;
  Rows<Y> y;
  Rows<const T> x;
  Rows<const Y> branch;
  const void *branch_bias, *weight, *bias;
  Scalar branch_bias_type, weight_type;
  float *mean, *rstd, eps;
};

template <class T, class Y, int fours, int height>
TESSERA_KERNEL(most_owners(fours))
void sum_norm_kernel(const SumNormWork<T, Y> work) {
  __shared__ float room[2][owner_teams][height];
  const i64 first = tile::block_in_grid() * height;
  const auto column = [&](int q) { return (q * static_cast<i64>(blockDim.x) + tile::thread_in_block()) * 4; };
  float x[height][fours][4], weight[fours][4], bias[fours][4], total[height];
  tile::unroll<fours>([&](auto q) {
    float shift[4];
    const i64 c = column(q);
    load_any_quad(work.weight, work.weight_type, c, c < work.n, 1.0f, weight[q]);
    load_any_quad(work.bias, work.weight_type, c, c < work.n, 0.0f, bias[q]);
    load_any_quad(work.branch_bias, work.branch_bias_type, c, c < work.n, 0.0f, shift);
    for (float& v : shift) v = tile::convert_element<float>(tile::convert_element<Y>(v));
    tile::unroll<height>([&](auto r) {
      const bool inside = first + r < work.rows && c < work.n;
      const auto from = load_quad(work.x[first + r], c, inside);
      tile::unroll<4>([&](auto j) { x[r][q][j] = tile::convert_element<float>(from.lane[j]); });
      if (!work.branch.data) return;
      const auto more = load_quad(work.branch[first + r], c, inside);
      tile::unroll<4>([&](auto j) { x[r][q][j] += tile::convert_element<float>(more.lane[j]) + shift[j]; });
      if (inside) store_quad(work.sum[first + r], c, x[r][q]);
    });
  });
  const auto over_row = [&](const auto& value, auto& room_) {
    tile::unroll<height>([&](auto r) {
      total[r] = 0;
      tile::unroll<fours>([&](auto q) {
        if (column(q) < work.n) tile::unroll<4>([&](auto j) { total[r] += value(x[r][q][j], r); });
      });
    });
    sum_over_owners(total, room_);
    tile::unroll<height>([&](auto r) { total[r] /= static_cast<float>(work.n); });
  };
  float mean[height] = {};
  if (!work.rms) {
    over_row([](float v, int) { return v; }, room[0]);
    tile::unroll<height>([&](auto r) { mean[r] = total[r]; });
  }
  over_row([&](float v, int r) { return (v - mean[r]) * (v - mean[r]); }, room[1]);
  float rstd[height];
  tile::unroll<height>([&](auto r) {
    rstd[r] = 1.0f / tile::sqrt(total[r] + work.eps);
    if (tile::thread_in_block() != 0 || first + r >= work.rows) return;
    if (!work.rms) work.mean[first + r] = mean[r];
    work.rstd[first + r] = rstd[r];
  });
  tile::unroll<fours>([&](auto q) {
    const i64 c = column(q);
    tile::unroll<height>([&](auto r) {
      float y[4];
      tile::unroll<4>([&](auto j) { y[j] = (x[r][q][j] - mean[r]) * rstd[r] * weight[q][j] + bias[q][j]; });
      if (first + r < work.rows && c < work.n) store_quad(work.y[first + r], c, y);
    });
  });
}

template <class T, class Y>
void launch_sum_norm(const LayerNormArgs& a, Executor& executor) {
  const SumNormWork<T, Y> work{a.rows,
                               a.n,
                               a.rms,
                               rows_of<T>(a.sum),
                               rows_of<Y>(a.y),
                               rows_of<const T>(a.x),
                               rows_of<const Y>(a.branch),
                               a.branch_bias,
                               a.weight,
                               a.bias,
                               a.branch_bias_type,
                               a.weight_type,
                               static_cast<float*>(a.mean),
                               static_cast<float*>(a.rstd),
                               static_cast<float>(a.eps)};
  with_owners(a.n, [&](auto fours, int threads) {
    constexpr int height = sizeof(T) == 2 && fours == 1 ? 2 : 1;
    launch("layer_norm", sum_norm_kernel<T, Y, fours, height>, tile::ceil_div<i64>(a.rows, height), threads, 0,
           executor, work);
  });
}

}  // namespace

void layer_norm(const LayerNormArgs& a, Executor& executor) {
  if (a.sum.data || a.weight_type != a.type) {
    if (a.type == Scalar::f16) return launch_sum_norm<f16, f16>(a, executor);
    if (a.type == Scalar::bf16) return launch_sum_norm<bf16, bf16>(a, executor);
    if (a.y_type == Scalar::f16) return launch_sum_norm<float, f16>(a, executor);
    return launch_sum_norm<float, bf16>(a, executor);
  }
  if (layer_norm_sm90(a, executor)) return;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    LayerNormWork<T> work{a.rows,
                          a.n,
                          a.rms,
                          0,
                          rows_of<T>(a.y),
                          rows_of<const T>(a.x),
                          static_cast<const T*>(a.weight),
                          static_cast<const T*>(a.bias),
                          static_cast<C*>(a.mean),
                          static_cast<C*>(a.rstd),
                          static_cast<C>(a.eps)};
    with_rows<T, 1, true, sizeof(T) == 2 ? 512 : 1024>(
        a.n, RowLayout(sizeof(T), a.x, a.y), [&](auto width, auto team, auto held, RowsHeld rows) {
          using Team = decltype(team);
          work.kept = rows.kept;
          launch_rows("layer_norm", layer_norm_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, rows,
                      executor, work);
        });
  });
}

NormTable norm_table = {layer_norm,
                        layer_norm_backward,
                        layer_norm_backward_workspace,
                        group_norm,
                        group_norm_backward,
                        group_norm_backward_workspace,
                        plane_parts_workspace,
                        batch_norm_workspace,
                        batch_norm,
                        batch_norm_backward,
                        move_estimates};

}  // namespace tessera::gpu_kernels
