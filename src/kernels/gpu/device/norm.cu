// Layer and RMS norm: a team per row, which it holds in registers where that is short enough.
#include "norm.h"

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

}  // namespace

void layer_norm(const LayerNormArgs& a, Executor& executor) {
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
