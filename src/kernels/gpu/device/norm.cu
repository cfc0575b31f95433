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
  Rows<T> y;
  Rows<const T> x;
  const T *weight, *bias;
  compute_t<T>*mean, *rstd;
  compute_t<T> eps;
};

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void layer_norm_kernel(const LayerNormWork<T> work) {
  using C = compute_t<T>;
  using Loaded = Lanes<C, T, width>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  const T zero = convert_element<T>(0.0f);
  const C n = static_cast<C>(work.n);
  const RowReader<T, width, Team, held> x(work.x[r], work.n, zero);
  C mean = C(0);
  if (!work.rms) {
    for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
      const Loaded v(x.get(p, k));
      tile::unroll<width>([&](auto j) { mean += v[j]; });
    });
    mean = Team::join(mean, Plus{}) / n;
  }
  C squares = C(0);
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
    const Loaded v(x.get(p, k));
    const i64 first = x.span.first(p);
    const bool whole = x.span.whole(first);
    tile::unroll<width>([&](auto j) {
      const C d = whole || x.span.inside(first + j) ? v[j] - mean : C(0);
      squares = tile::fma(d, d, squares);
    });
  });
  const C rstd = C(1) / tile::sqrt(Team::join(squares, Plus{}) / n + work.eps);
  if (Team::rank() == 0) {
    if (!work.rms) work.mean[r] = mean;
    work.rstd[r] = rstd;
  }
  const Span<T, width> y(work.y[r], work.n);
  const Span<const T, width> weight(work.weight, work.n), bias(work.bias, work.n);
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
    const Loaded v(x.get(p, k));
    C out[width];
    tile::unroll<width>([&](auto j) { out[j] = (v[j] - mean) * rstd; });
    if (work.weight) {
      const Loaded w(weight.load(p, zero));
      tile::unroll<width>([&](auto j) { out[j] *= w[j]; });
    }
    if (work.bias) {
      const Loaded b(bias.load(p, zero));
      tile::unroll<width>([&](auto j) { out[j] += b[j]; });
    }
    Pack<T, width> result;
    tile::unroll<width>([&](auto j) { result.lane[j] = convert_element<T>(out[j]); });
    y.store(p, result);
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
TESSERA_KERNEL(most_owners)
void sum_norm_kernel(const SumNormWork<T, Y> work) {
  __shared__ float room[2][most_owners / team_lanes][height];
  const i64 first = tile::block_in_grid() * height;
  const auto column = [&](int q) { return (q * static_cast<i64>(blockDim.x) + tile::thread_in_block()) * 4; };
  float x[height][fours][4], weight[fours][4], bias[fours][4], total[height];
  tile::unroll<fours>([&](auto q) {
    float shift[4];
    const i64 c = column(q);
    load_any_quad(work.weight, work.weight_type, c, c < work.n, 1.0f, weight[q]);
    load_any_quad(work.bias, work.weight_type, c, c < work.n, 0.0f, bias[q]);
    load_any_quad(work.branch_bias, work.branch_bias_type, c, c < work.n, 0.0f, shift);
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
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    const LayerNormWork<T> work{a.rows,
                                a.n,
                                a.rms,
                                rows_of<T>(a.y),
                                rows_of<const T>(a.x),
                                static_cast<const T*>(a.weight),
                                static_cast<const T*>(a.bias),
                                static_cast<C*>(a.mean),
                                static_cast<C*>(a.rstd),
                                static_cast<C>(a.eps)};
    const RowArg weight{const_cast<void*>(a.weight), 0}, bias{const_cast<void*>(a.bias), 0};
    with_team<T, true>(a.n, RowLayout(sizeof(T), a.x, a.y, weight, bias), [&](auto width, auto team, auto held) {
      using Team = decltype(team);
      launch("layer_norm", layer_norm_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, 0, executor,
             work);
    });
  });
}

NormTable norm_table = {layer_norm,          layer_norm_backward,           layer_norm_backward_workspace, group_norm,
                        group_norm_backward, group_norm_backward_workspace, plane_parts_workspace,         batch_norm,
                        batch_norm_backward};

}  // namespace tessera::gpu_kernels
