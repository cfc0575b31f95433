// The kernels that calls ask for.
#pragma once
#include "norm.h"
#include "norm_rows.h"
#include "row_kernels.h"
#include "softmax_rows.h"

namespace tessera::gpu_kernels {

template <class T>
SoftmaxBackward<T> softmax_backward_of(const SoftmaxBackwardArgs& a) {
  return {a.rows, a.n, a.log, rows_of<T>(a.dx), rows_of<const T>(a.dy), rows_of<const T>(a.y)};
}
template <class T, class Y = T, class Weight = const T*>
LayerNorm<T, Y, Weight> layer_norm_of(const LayerNormArgs& a, Weight weight, Weight bias) {
  using C = tile::compute_t<T>;
  return {a.rows,
          a.n,
          a.rms,
          static_cast<C>(a.eps),
          C(1) / static_cast<C>(a.n),
          rows_of<Y>(a.y),
          rows_of<const T>(a.x),
          weight,
          bias,
          static_cast<C*>(a.mean),
          static_cast<C*>(a.rstd)};
}
template <class T>
LayerNorm<T> layer_norm_of(const LayerNormArgs& a) {
  return layer_norm_of<T>(a, static_cast<const T*>(a.weight), static_cast<const T*>(a.bias));
}
/// With `sums` for the weights in the workspace.
template <class Work>
Work norm_backward_of(const LayerNormBackwardArgs& a, int sums) {
  using C = typename Work::C;
  Work work{};
  work.count = a.rows;
  work.n = a.n;
  work.to = {static_cast<decltype(work.to.data)>(a.dx.data), a.dx.pitch};
  work.branch = {static_cast<decltype(work.branch.data)>(a.dbranch.data), a.dbranch.pitch};
  work.dy = {static_cast<decltype(work.dy.data)>(a.dy.data), a.dy.pitch};
  work.x = {static_cast<decltype(work.x.data)>(a.x.data), a.x.pitch};
  work.addend = {static_cast<decltype(work.x.data)>(a.addend.data), a.addend.pitch};
  if constexpr (requires { work.weight.type; }) work.weight = {a.weight, a.weight_type};
  else work.weight = static_cast<decltype(work.weight)>(a.weight);
  work.mean = a.rms ? nullptr : static_cast<const C*>(a.mean);
  work.rstd = static_cast<const C*>(a.rstd);
  work.share = C(1) / static_cast<C>(a.n);
  work.partial = static_cast<C*>(a.workspace);
  work.sums = sums;
  return work;
}

}  // namespace tessera::gpu_kernels
