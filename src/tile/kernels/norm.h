// Layer, RMS, group and batch normalisation with their gradients.
//
// All of them are moments of a set of contiguous runs, and a linear map of those runs. In layer and RMS norm the set
// is one row and the weight runs along it; in group and batch norm the set is several runs of one channel each, and
// the weight is a number per run.
#pragma once

#include "softmax.h"

TESSERA_TILE_BEGIN

/// What follows a norm: nothing, or ReLU up to `high`.
struct NormRelu {
  bool follows = false;
  double high = __builtin_inf();
};

namespace detail {

/// Asks for the row 2 KB ahead of row r: the processor does not look beyond a page, and a walk over several tensors
/// gets through theirs too soon for it. Long rows it follows by itself.
template <class T>
inline void ask_ahead(Rows<T> rows, i64 r, i64 n) {
  constexpr i64 line = 64 / static_cast<i64>(sizeof(T)), page = 64 * line, ahead = page / 2;
  if (rows.data == nullptr || n > page) return;
  const T* const row = rows[r + max(i64(1), ahead / n)];
  for (i64 i = 0; i < n; i += line) __builtin_prefetch(row + i);
}

/// Longest stretch that is summed in the compute type.
inline constexpr i64 norm_block = 4096;

/// Mean and squared deviations of n contiguous elements, over blocks that stay in the first cache. One walk gives the
/// sums of elements and of squares; where the mean is so large that their difference cancels, a second is exact.
template <class C, class T>
TESSERA_HD Moments<double> run_moments(i64 n, const T* x) {
  using V = RowVec<C>;
  Moments<double> all{0, 0, 0};
  for (i64 i = 0; i < n; i += norm_block) {
    const i64 m = min(norm_block, n - i);
    const auto sums = sum_row_pair<C>(
        m,
        [](V v) TESSERA_LAMBDA {
          return Pair<V>{v, v * v};
        },
        x + i);
    const C mean = sums.first / static_cast<C>(m), of_mean = sums.first * mean;
    C squares = sums.second - of_mean;
    if (squares < of_mean) {
      squares = sum_row<C>(
          m, mean, [=](V v) TESSERA_LAMBDA { return (v - V(mean)) * (v - V(mean)); }, x + i);
    }
    const Moments<double> block{static_cast<double>(mean), static_cast<double>(squares), static_cast<double>(m)};
    all = i == 0 ? block : merge(all, block);
  }
  return all;
}

/// The gradient of scale x + shift from that of what relu makes of it; without relu they are the same.
template <class C>
struct ReluGate {
  NormRelu relu;
  C scale, shift;
  template <class V>
  TESSERA_HD V operator()(V g, V x) const {
    if (!relu.follows) return g;
    const V y = fma(x, V(scale), V(shift)), none = V(C(0));
    return select(y > none, select(y < V(static_cast<C>(relu.high)), g, none), none);
  }
};
template <class C>
inline constexpr ReluGate<C> open_gate{{}, C(0), C(0)};

/// Sums of dy and of dy * x over n contiguous elements, x counted from `centre`.
template <class C, class T>
TESSERA_HD Pair<double> run_sums(i64 n, const T* dy, const T* x, C centre, ReluGate<C> gate = open_gate<C>) {
  using V = RowVec<C>;
  Pair<double> all{0, 0};
  for (i64 i = 0; i < n; i += norm_block) {
    const auto s = sum_row_pair<C>(
        min(norm_block, n - i),
        [=](V g, V v) TESSERA_LAMBDA {
          g = gate(g, v);
          return Pair<V>{g, g * (v - V(centre))};
        },
        dy + i, x + i);
    all.first += static_cast<double>(s.first);
    all.second += static_cast<double>(s.second);
  }
  return all;
}

/// y = scale * x + shift, or what relu makes of that.
template <class C, class T>
TESSERA_HD void run_linear(i64 n, T* y, const T* x, C scale, C shift, NormRelu with = {}) {
  using V = RowVec<C>;
  map_row<C>(
      n, y,
      [=](V v) TESSERA_LAMBDA {
        const V line = fma(v, V(scale), V(shift));
        return with.follows ? min(relu(line), V(static_cast<C>(with.high))) : line;
      },
      x);
}

/// dx = a * dy + b * x + c
template <class C, class T>
TESSERA_HD void run_linear2(i64 n, T* dx, const T* dy, const T* x, C a, C b, C c, ReluGate<C> gate = open_gate<C>) {
  using V = RowVec<C>;
  map_row<C>(
      n, dx, [=](V g, V v) TESSERA_LAMBDA { return fma(gate(g, v), V(a), fma(v, V(b), V(c))); }, dy, x);
}

/// total += part, over n elements.
template <class C>
TESSERA_HD void add_row(i64 n, C* total, const C* part) {
  map_row<C>(
      n, total, [](auto a, auto b) TESSERA_LAMBDA { return a + b; }, static_cast<const C*>(total), part);
}

}  // namespace detail

// ---- layer and RMS norm ---------------------------------------------------------------------------------

/// y = (x - mean) rstd weight + bias along rows (Ba, Kiros and Hinton, arXiv:1607.06450), rstd being
/// 1 / sqrt(variance + eps). weight and bias may be null; mean and rstd, one number per row, are kept for backward.
template <class T, class Executor>
void layer_norm(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x, const T* weight, const T* bias,
                compute_t<T>* mean, compute_t<T>* rstd, double eps) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  for_rows(ExecutorRef(executor), rows, n * 2, [&](i64 r, int) {
    const auto moments = detail::run_moments<C>(n, x[r]);
    const C centre = static_cast<C>(moments.mean);
    const C scale = C(1) / sqrt(static_cast<C>(moments.squares) / static_cast<C>(n) + static_cast<C>(eps));
    mean[r] = centre;
    rstd[r] = scale;
    const auto normal = [=](V v) TESSERA_LAMBDA { return (v - V(centre)) * V(scale); };
    const T* from = x[r];
    detail::ask_ahead(y, r, n);
    if (weight && bias) {
      map_row<C>(
          n, y[r], [=](V v, V w, V b) TESSERA_LAMBDA { return fma(normal(v), w, b); }, from, weight, bias);
    } else if (weight) {
      map_row<C>(
          n, y[r], [=](V v, V w) TESSERA_LAMBDA { return normal(v) * w; }, from, weight);
    } else if (bias) {
      map_row<C>(
          n, y[r], [=](V v, V b) TESSERA_LAMBDA { return normal(v) + b; }, from, bias);
    } else {
      map_row<C>(n, y[r], normal, from);
    }
  });
}

/// y = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps) (Zhang and Sennrich, arXiv:1910.07467).
template <class T, class Executor>
void rms_norm(Executor& executor, i64 rows, i64 n, Rows<T> y, Rows<const T> x, const T* weight, compute_t<T>* rstd,
              double eps) {
  using C = compute_t<T>;
  using V = RowVec<C>;
  for_rows(ExecutorRef(executor), rows, n * 2, [&](i64 r, int) {
    double squares = 0;
    for (i64 i = 0; i < n; i += detail::norm_block) {
      squares += static_cast<double>(sum_row<C>(
          min(detail::norm_block, n - i), C(0), [](auto v) TESSERA_LAMBDA { return v * v; }, x[r] + i));
    }
    const C scale = static_cast<C>(1 / sqrt(squares / static_cast<double>(n) + eps));
    rstd[r] = scale;
    if (weight)
      map_row<C>(
          n, y[r], [=](V v, V w) TESSERA_LAMBDA { return v * V(scale) * w; }, x[r], weight);
    else
      map_row<C>(
          n, y[r], [=](V v) TESSERA_LAMBDA { return v * V(scale); }, x[r]);
  });
}

namespace detail {

/// One row of the backward of layer norm (Centred) or RMS norm: this row's part of dweight and dbias and the two
/// sums in one walk, then dx, with `addend` on top, in a second.
template <bool Centred, class C, class T>
TESSERA_HD void norm_backward_row(i64 n, T* dx, const T* addend, const T* dy, const T* x, const T* weight, C mean,
                                  C rstd, C* dweight, C* dbias) {
  using V = RowVec<C>;
  const V centre(mean), scale(rstd);
  const auto normal = [=](V v) TESSERA_LAMBDA { return Centred ? (v - centre) * scale : v * scale; };
  const auto multiply = [](V a, V b) TESSERA_LAMBDA { return a * b; };
  const auto multiply_add = [](V a, V b, V c) TESSERA_LAMBDA { return fma(a, b, c); };
  auto sum = fill_row(C(0)), sum_normal = sum;
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA {
    auto g = part.load(dy);
    const auto xn = map_tile(normal, part.load(x));
    if (dweight) part.store(dweight, map_tile(multiply_add, g, xn, part.load(dweight)));
    if (dbias) part.store(dbias, map_tile(Add{}, g, part.load(dbias)));
    if (weight) g = map_tile(multiply, g, part.load(weight));
    accumulate(sum, Add{}, g);
    accumulate(sum_normal, Add{}, map_tile(multiply, g, xn));
  });
  if (!dx) return;
  const V a(Centred ? reduce_row(sum, Add{}) / static_cast<C>(n) : C(0));
  const V b(reduce_row(sum_normal, Add{}) / static_cast<C>(n));
  const auto gradient = [=](V g, V v) TESSERA_LAMBDA { return (g - a - normal(v) * b) * scale; };
  walk_row<C>(n, [&](auto part) TESSERA_LAMBDA {
    auto g = part.load(dy);
    if (weight) g = map_tile(multiply, g, part.load(weight));
    g = map_tile(gradient, g, part.load(x));
    if (addend) g = map_tile(Add{}, g, part.load(addend));
    part.store(dx, g);
  });
}

}  // namespace detail

/// Bytes of workspace of layer_norm_backward and rms_norm_backward.
template <class T>
i64 norm_backward_workspace(i64 rows, i64 n) {
  return Slices(rows).count * 2 * n * static_cast<i64>(sizeof(compute_t<T>));
}

/// Gradients of layer_norm (Centred) or rms_norm. dx, which gets `addend` on top, may be dy; dx, dweight, dbias, weight
/// and addend may be null. The rows are summed in slices that depend on the shape alone.
template <bool Centred, class T, class Executor>
void norm_backward(Executor& executor, i64 rows, i64 n, Rows<T> dx, T* dweight, T* dbias, Rows<const T> dy,
                   Rows<const T> x, const T* weight, const compute_t<T>* mean, const compute_t<T>* rstd,
                   void* workspace, Rows<const T> addend = {}) {
  using C = compute_t<T>;
  const Slices slices(rows);
  auto* partial = static_cast<C*>(workspace);  // [slices][weight, bias][n]
  ExecutorRef(executor).parallel(slices.count, [&](i64 slice, int) {
    C* w = dweight ? partial + slice * 2 * n : nullptr;
    C* b = dbias ? partial + (slice * 2 + 1) * n : nullptr;
    if (w) __builtin_memset(w, 0, n * sizeof(C));
    if (b) __builtin_memset(b, 0, n * sizeof(C));
    for (i64 r = slice * slices.length; r < min(rows, (slice + 1) * slices.length); ++r) {
      detail::ask_ahead(dx, r, n);
      detail::ask_ahead(x, r, n);
      detail::ask_ahead(addend, r, n);
      detail::norm_backward_row<Centred, C>(n, dx.data ? dx[r] : nullptr, addend.data ? addend[r] : nullptr, dy[r],
                                            x[r], weight, Centred ? mean[r] : C(0), rstd[r], w, b);
    }
  });
  for (int k = 0; k < 2; ++k) {
    T* out = k == 0 ? dweight : dbias;
    if (!out) continue;
    for (i64 slice = 1; slice < slices.count; ++slice) {
      detail::add_row(n, partial + k * n, static_cast<const C*>(partial + (slice * 2 + k) * n));
    }
    map_row<C>(
        n, out, [](auto v) TESSERA_LAMBDA { return v; }, static_cast<const C*>(partial + k * n));
  }
}

// ---- group and batch norm ---------------------------------------------------------------------------------

/// Images [batch, channels, size] whose planes of `size` elements are contiguous.
template <class T>
struct Planes {
  T* data;
  i64 batch_stride, channel_stride;
  TESSERA_HD T* at(i64 b, i64 c) const { return data + b * batch_stride + c * channel_stride; }
};
struct PlaneShape {
  i64 batch, channels, size;
};

namespace detail {
/// Entry c of a weight that may be missing.
template <class C, class T>
TESSERA_HD C entry(const T* values, i64 c, C otherwise) {
  return values ? convert_element<C>(values[c]) : otherwise;
}
}  // namespace detail

/// Normalises groups of channels of each image (Wu and He, arXiv:1803.08494). mean and rstd: [batch, groups].
template <class T, class Executor>
void group_norm(Executor& executor, const PlaneShape& s, i64 groups, Planes<T> y, Planes<const T> x, const T* weight,
                const T* bias, compute_t<T>* mean, compute_t<T>* rstd, double eps) {
  using C = compute_t<T>;
  const i64 width = s.channels / groups;
  for_rows(ExecutorRef(executor), s.batch * groups, width * s.size * 2, [&](i64 i, int) {
    const i64 b = i / groups, first = i % groups * width;
    Moments<double> all{0, 0, 0};
    for (i64 c = first; c < first + width; ++c) all = merge(all, detail::run_moments<C>(s.size, x.at(b, c)));
    mean[i] = static_cast<C>(all.mean);
    rstd[i] = static_cast<C>(1 / sqrt(all.squares / all.count + eps));
    for (i64 c = first; c < first + width; ++c) {
      const C scale = rstd[i] * detail::entry(weight, c, C(1));
      detail::run_linear(s.size, y.at(b, c), x.at(b, c), scale, detail::entry(bias, c, C(0)) - mean[i] * scale);
    }
  });
}

/// Bytes of workspace of group_norm_backward and batch_norm_backward.
inline i64 plane_norm_workspace(const PlaneShape& s) {
  return s.batch * s.channels * static_cast<i64>(sizeof(Pair<double>));
}

/// dx, dweight and dbias (each may be null) of group_norm.
template <class T, class Executor>
void group_norm_backward(Executor& executor, const PlaneShape& s, i64 groups, Planes<T> dx, T* dweight, T* dbias,
                         Planes<const T> dy, Planes<const T> x, const T* weight, const compute_t<T>* mean,
                         const compute_t<T>* rstd, void* workspace) {
  using C = compute_t<T>;
  const i64 width = s.channels / groups;
  auto* sums = static_cast<Pair<double>*>(workspace);  // [batch, channels]: of dy, and of dy (x - mean)
  for_rows(ExecutorRef(executor), s.batch * groups, width * s.size * 4, [&](i64 i, int) {
    const i64 b = i / groups, first = i % groups * width;
    const double scale = static_cast<double>(rstd[i]), count = static_cast<double>(width * s.size);
    Pair<double> weighted{0, 0};
    for (i64 c = first; c < first + width; ++c) {
      const auto sum = sums[b * s.channels + c] = detail::run_sums<C>(s.size, dy.at(b, c), x.at(b, c), mean[i]);
      const double w = static_cast<double>(detail::entry(weight, c, C(1)));
      weighted.first += w * sum.first;
      weighted.second += w * sum.second;
    }
    if (!dx.data) return;
    const double slope = -scale * scale * scale * weighted.second / count;
    const double shift = -scale * weighted.first / count - slope * static_cast<double>(mean[i]);
    for (i64 c = first; c < first + width; ++c) {
      detail::run_linear2(s.size, dx.at(b, c), dy.at(b, c), x.at(b, c), rstd[i] * detail::entry(weight, c, C(1)),
                          static_cast<C>(slope), static_cast<C>(shift));
    }
  });
  for (i64 c = 0; c < s.channels; ++c) {
    Pair<double> sum{0, 0};
    for (i64 b = 0; b < s.batch; ++b) {
      sum.first += sums[b * s.channels + c].first;
      sum.second += sums[b * s.channels + c].second * static_cast<double>(rstd[b * groups + c / width]);
    }
    if (dweight) dweight[c] = convert_element<T>(sum.second);
    if (dbias) dbias[c] = convert_element<T>(sum.first);
  }
}

/// Running estimates of batch norm; null where none are kept.
template <class C>
struct RunningStats {
  C* mean;
  C* variance;
  double momentum;  // share of the new batch
};

namespace detail {
/// Moves the estimates of channel c towards a batch's moments.
template <class C>
TESSERA_HD void move_estimates(const RunningStats<C>& running, i64 c, const Moments<double>& batch) {
  const auto move = [&](C& estimate, double value) TESSERA_LAMBDA {
    const double before = running.momentum == 1 ? 0 : static_cast<double>(estimate);  // which may be anything
    estimate = static_cast<C>((1 - running.momentum) * before + running.momentum * value);
  };
  if (running.mean) move(running.mean[c], batch.mean);
  if (running.variance) move(running.variance[c], batch.squares / max(1.0, batch.count - 1));
}
}  // namespace detail

/// Normalises each channel over the batch (Ioffe and Szegedy, arXiv:1502.03167). In training mean and rstd, one per
/// channel, are those of the batch and the running estimates move towards them (the variance unbiased). With `relu`, y
/// is what that makes of it.
template <class T, class Executor>
void batch_norm_training(Executor& executor, const PlaneShape& s, Planes<T> y, Planes<const T> x, const T* weight,
                         const T* bias, RunningStats<compute_t<T>> running, compute_t<T>* mean, compute_t<T>* rstd,
                         double eps, NormRelu relu = {}) {
  using C = compute_t<T>;
  for_rows(ExecutorRef(executor), s.channels, s.batch * s.size * 2, [&](i64 c, int) {
    Moments<double> all{0, 0, 0};
    for (i64 b = 0; b < s.batch; ++b) all = merge(all, detail::run_moments<C>(s.size, x.at(b, c)));
    mean[c] = static_cast<C>(all.mean);
    rstd[c] = static_cast<C>(1 / sqrt(all.squares / all.count + eps));
    detail::move_estimates(running, c, all);
    const C scale = rstd[c] * detail::entry(weight, c, C(1)), shift = detail::entry(bias, c, C(0)) - mean[c] * scale;
    for (i64 b = 0; b < s.batch; ++b) detail::run_linear(s.size, y.at(b, c), x.at(b, c), scale, shift, relu);
  });
}

/// The same with given statistics.
template <class T, class Executor>
void batch_norm_inference(Executor& executor, const PlaneShape& s, Planes<T> y, Planes<const T> x, const T* weight,
                          const T* bias, const compute_t<T>* mean, const compute_t<T>* variance, double eps,
                          NormRelu relu = {}) {
  using C = compute_t<T>;
  for_rows(ExecutorRef(executor), s.batch * s.channels, s.size, [&](i64 i, int) {
    const i64 b = i / s.channels, c = i % s.channels;
    const C scale = static_cast<C>(1 / sqrt(static_cast<double>(variance[c]) + eps)) * detail::entry(weight, c, C(1));
    detail::run_linear(s.size, y.at(b, c), x.at(b, c), scale, detail::entry(bias, c, C(0)) - mean[c] * scale, relu);
  });
}

/// Gradients of batch norm; with fixed statistics where training is false, and from those of relu(y) with `relu`, which
/// alone needs the bias. dx, dweight and dbias may be null.
template <class T, class Executor>
void batch_norm_backward(Executor& executor, const PlaneShape& s, bool training, Planes<T> dx, T* dweight, T* dbias,
                         Planes<const T> dy, Planes<const T> x, const T* weight, const compute_t<T>* mean,
                         const compute_t<T>* rstd, NormRelu relu = {}, const T* bias = nullptr) {
  using C = compute_t<T>;
  for_rows(ExecutorRef(executor), s.channels, s.batch * s.size * 4, [&](i64 c, int) {
    const C line = rstd[c] * detail::entry(weight, c, C(1));  // as in the forward
    const detail::ReluGate<C> gate{relu, line, detail::entry(bias, c, C(0)) - mean[c] * line};
    Pair<double> sum{0, 0};
    for (i64 b = 0; b < s.batch; ++b) {
      const auto part = detail::run_sums<C>(s.size, dy.at(b, c), x.at(b, c), mean[c], gate);
      sum.first += part.first;
      sum.second += part.second;
    }
    const double scale = static_cast<double>(rstd[c]), count = static_cast<double>(s.batch * s.size);
    if (dweight) dweight[c] = convert_element<T>(sum.second * scale);
    if (dbias) dbias[c] = convert_element<T>(sum.first);
    if (!dx.data) return;
    const double gain = scale * static_cast<double>(detail::entry(weight, c, C(1)));
    const double slope = training ? -gain * scale * scale * sum.second / count : 0;
    const double shift = training ? -gain * sum.first / count - slope * static_cast<double>(mean[c]) : 0;
    for (i64 b = 0; b < s.batch; ++b) {
      detail::run_linear2(s.size, dx.at(b, c), dy.at(b, c), x.at(b, c), static_cast<C>(gain), static_cast<C>(slope),
                          static_cast<C>(shift), gate);
    }
  });
}

TESSERA_TILE_END
