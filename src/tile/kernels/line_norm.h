// Batch norm of images whose channels lie last: lines of channels, one for each pixel, all dense. Vectors run along
// channels; sums go down the columns, a block of lines after the other.
#pragma once

#include "norm.h"

TESSERA_TILE_BEGIN

/// Lines of channels, one after the other. Few channels are walked as `repeats` lines in one, so that it is made of
/// whole vectors.
struct LineShape {
  LineShape(i64 lines, i64 channels) : lines(lines), channels(channels) {
    constexpr i64 whole = 64, many = 256;
    while (this->channels < many && this->channels % whole != 0 && this->lines % 2 == 0) {
      this->lines /= 2;
      this->channels *= 2;
      repeats *= 2;
    }
  }
  i64 lines, channels, repeats = 1;
  /// Channels of a pixel.
  i64 distinct() const { return channels / repeats; }
  /// Values for each element of all pixels.
  i64 count() const { return lines * repeats; }
};

/// Dense tensors of a batch norm by lines; the residual may be null.
template <class T>
struct NormLines {
  T* y;
  const T *x, *residual;
};
/// Those of its gradient: dx may be null. Where a residual was added before ReLU, y is what that made of the sum, and
/// dresidual is a result; else both are null.
template <class T>
struct NormLineGradients {
  T *dx, *dresidual;
  const T *dy, *x, *y;
};

namespace detail {

/// Lines whose sums are in the compute type.
inline constexpr i64 line_block = 64;

/// Lines in slices by shape alone, so that sums do not depend on the threads.
struct LineSlices {
  i64 count, length;
  explicit LineSlices(const LineShape& s)
      : count(max(i64(1), min(min(i64(16), s.lines / line_block), s.lines * s.channels >> 15))),
        length(ceil_div(s.lines, count)) {
    count = ceil_div(s.lines, length);
  }
  i64 lines(const LineShape& s, i64 slice) const { return min(s.lines, (slice + 1) * length) - slice * length; }
};

/// total += part, of the columns of a part of a line.
template <class C, int Vectors>
void add_columns(const RowPart<C, Vectors>& part, const RowTile<C, Vectors>& t, double* total) {
  C values[Vectors * RowVec<C>::lanes];
  unroll<Vectors>([&](auto i) { store(values + i * RowVec<C>::lanes, t.part[i]); });
  const i64 count = Vectors == 1 ? part.count : Vectors * RowVec<C>::lanes;
  for (i64 i = 0; i < count; ++i) total[part.at + i] += static_cast<double>(values[i]);
}

/// Means and squared deviations of the columns of `lines` lines, counted from a line of the same block: what cancels
/// then is never much more than what is left.
template <class C, class T>
void column_moments(const LineShape& s, i64 lines, const T* x, double* mean, double* squares) {
  using V = RowVec<C>;
  for (i64 c = 0; c < s.channels; ++c) mean[c] = squares[c] = 0;
  for (i64 block = 0; block < lines; block += line_block) {
    const i64 count = min(line_block, lines - block);
    const double share = static_cast<double>(count) / static_cast<double>(block + count);
    const double weight = share * static_cast<double>(block);
    walk_row<C>(s.channels, [&](auto part) {
      constexpr int vectors = decltype(part)::vectors;
      const T* row = x + block * s.channels;
      const auto first = part.load(row);
      auto sum = fill_tile<C, RowLayout<C, vectors>>(C(0)), square = sum;
      for (i64 l = 1; l < count; ++l) {
        row += s.channels;
        const auto v = part.load(row);
        unroll<vectors>([&](auto i) {
          const V d = v.part[i] - first.part[i];
          sum.part[i] += d;
          square.part[i] = fma(d, d, square.part[i]);
        });
      }
      const V each(C(1) / static_cast<C>(count));
      C means[vectors * V::lanes], deviations[vectors * V::lanes];
      unroll<vectors>([&](auto i) {
        store(means + i * V::lanes, fma(sum.part[i], each, first.part[i]));
        store(deviations + i * V::lanes, square.part[i] - sum.part[i] * sum.part[i] * each);
      });
      const i64 columns = vectors == 1 ? part.count : vectors * V::lanes;
      double *const m = mean + part.at, *const q = squares + part.at;
      for (i64 i = 0; i < columns; ++i) {
        const double apart = static_cast<double>(means[i]) - m[i];
        m[i] += apart * share;
        q[i] += static_cast<double>(deviations[i]) + apart * apart * weight;
      }
    });
  }
}

/// The gradient of a part of the line at `at` before ReLU, if that follows: y is found again, as forward.
template <class C>
struct LineGate {
  NormRelu relu;
  const C *scale, *shift;
  template <class Part, class T>
  auto operator()(const Part& part, const NormLineGradients<T>& t, i64 at) const {
    using V = RowVec<C>;
    auto g = part.load(t.dy + at);
    if (!relu.follows) return g;
    const auto v = part.load(t.x + at), a = part.load(scale), b = part.load(shift);
    unroll<Part::vectors>([&](auto i) {
      const V y = fma(v.part[i], a.part[i], b.part[i]), none(C(0));
      g.part[i] = select(y > none, select(y < V(static_cast<C>(relu.high)), g.part[i], none), none);
    });
    return g;
  }
};
/// The same where y was kept.
template <class C>
struct ResultGate {
  template <class Part, class T>
  auto operator()(const Part& part, const NormLineGradients<T>& t, i64 at) const {
    using V = RowVec<C>;
    return map_tile([](V g, V y) { return select(y > V(C(0)), g, V(C(0))); }, part.load(t.dy + at),
                    part.load(t.y + at));
  }
};

/// Sums of dy and of dy * x down the columns of `lines` lines, x counted from `centre`.
template <class C, class T, class Gate>
void column_sums(const LineShape& s, i64 begin, i64 lines, const NormLineGradients<T>& t, const C* centre,
                 const Gate& gate, double* first, double* second) {
  using V = RowVec<C>;
  for (i64 c = 0; c < s.channels; ++c) first[c] = second[c] = 0;
  for (i64 block = 0; block < lines; block += line_block) {
    const i64 count = min(line_block, lines - block);
    walk_row<C>(s.channels, [&](auto part) {
      constexpr int vectors = decltype(part)::vectors;
      const auto middle = part.load(centre);
      auto sum = fill_tile<C, RowLayout<C, vectors>>(C(0)), product = sum;
      for (i64 l = 0, at = (begin + block) * s.channels; l < count; ++l, at += s.channels) {
        const auto g = gate(part, t, at);
        const auto v = part.load(t.x + at);
        unroll<vectors>([&](auto i) {
          sum.part[i] += g.part[i];
          product.part[i] = fma(g.part[i], V(v.part[i] - middle.part[i]), product.part[i]);
        });
        if (t.dresidual) part.store(t.dresidual + at, g);
      }
      add_columns<C>(part, sum, first);
      add_columns<C>(part, product, second);
    });
  }
}

/// Rows [n] of a thread's own, of which each repeats what `value(c)` is for the channels of a pixel.
template <class C>
class LineRows {
 public:
  LineRows(const ExecutorRef& executor, int thread, const LineShape& s, int rows)
      : s_(s), at_(static_cast<C*>(executor.scratch(thread, rows * s.channels * static_cast<i64>(sizeof(C))))) {}
  template <class Value>
  const C* row(const Value& value) {
    C* const row = at_;
    at_ += s_.channels;
    for (i64 c = 0; c < s_.distinct(); ++c) row[c] = value(c);
    for (i64 c = s_.distinct(); c < s_.channels; ++c) row[c] = row[c - s_.distinct()];
    return row;
  }

 private:
  const LineShape& s_;
  C* at_;
};

/// y = scale x + shift (+ residual), or what relu makes of that.
template <class C, class T>
void map_lines(const LineShape& s, i64 begin, i64 end, const NormLines<T>& t, const C* scale, const C* shift,
               NormRelu with) {
  using V = RowVec<C>;
  const V high(static_cast<C>(with.high));
  for (i64 at = begin * s.channels; at < end * s.channels; at += s.channels) {
    walk_row<C>(s.channels, [&](auto part) {
      auto y =
          map_tile([](V v, V a, V b) { return fma(v, a, b); }, part.load(t.x + at), part.load(scale), part.load(shift));
      if (t.residual) y = map_tile(Add{}, y, part.load(t.residual + at));
      if (with.follows) y = map_tile([=](V v) { return min(relu(v), high); }, y);
      part.store(t.y + at, y);
    });
  }
}

}  // namespace detail

/// Bytes of workspace of line_norm_training and line_norm_backward.
inline i64 line_norm_workspace(const LineShape& s) {
  return detail::LineSlices(s).count * s.channels * 2 * static_cast<i64>(sizeof(double));
}

/// batch_norm_inference by lines, with a residual.
template <class T>
void line_norm_inference(const ExecutorRef& executor, const LineShape& s, const NormLines<T>& t, const T* weight,
                         const T* bias, const compute_t<T>* mean, const compute_t<T>* variance, double eps,
                         NormRelu relu = {}) {
  using C = compute_t<T>;
  split_range(executor, s.lines, s.channels, 1, [&](i64 begin, i64 end, int thread) {
    detail::LineRows<C> rows(executor, thread, s, 2);
    const C* const scale = rows.row(
        [&](i64 c) { return C(1) / sqrt(variance[c] + static_cast<C>(eps)) * detail::entry(weight, c, C(1)); });
    const C* const shift = rows.row([&](i64 c) { return detail::entry(bias, c, C(0)) - mean[c] * scale[c]; });
    detail::map_lines(s, begin, end, t, scale, shift, relu);
  });
}

/// batch_norm_training by lines, with a residual.
template <class T>
void line_norm_training(const ExecutorRef& executor, const LineShape& s, const NormLines<T>& t, const T* weight,
                        const T* bias, RunningStats<compute_t<T>> running, compute_t<T>* mean, compute_t<T>* rstd,
                        double eps, void* workspace, NormRelu relu = {}) {
  using C = compute_t<T>;
  const detail::LineSlices slices(s);
  auto* const parts = static_cast<double*>(workspace);  // [slices][means, squares][channels]
  executor.parallel(slices.count, [&](i64 slice, int) {
    double* const part = parts + slice * 2 * s.channels;
    detail::column_moments<C>(s, slices.lines(s, slice), t.x + slice * slices.length * s.channels, part,
                              part + s.channels);
  });
  split_range(executor, s.distinct(), slices.count * s.repeats * 8, 16, [&](i64 begin, i64 end, int) {
    for (i64 c = begin; c < end; ++c) {
      Moments<double> all{0, 0, 0};
      for (i64 slice = 0; slice < slices.count; ++slice) {
        const double count = static_cast<double>(slices.lines(s, slice));
        const double* const part = parts + slice * 2 * s.channels;
        for (i64 i = c; i < s.channels; i += s.distinct()) all = merge(all, {part[i], part[s.channels + i], count});
      }
      mean[c] = static_cast<C>(all.mean);
      rstd[c] = static_cast<C>(1 / sqrt(all.squares / all.count + eps));
      detail::move_estimates(running, c, all);
    }
  });
  split_range(executor, s.lines, s.channels, 1, [&](i64 begin, i64 end, int thread) {
    detail::LineRows<C> rows(executor, thread, s, 2);
    const C* const scale = rows.row([&](i64 c) { return rstd[c] * detail::entry(weight, c, C(1)); });
    const C* const shift = rows.row([&](i64 c) { return detail::entry(bias, c, C(0)) - mean[c] * scale[c]; });
    detail::map_lines(s, begin, end, t, scale, shift, relu);
  });
}

/// batch_norm_backward by lines.
template <class T>
void line_norm_backward(const ExecutorRef& executor, const LineShape& s, bool training, NormLineGradients<T> t,
                        T* dweight, T* dbias, const T* weight, const compute_t<T>* mean, const compute_t<T>* rstd,
                        void* workspace, NormRelu relu = {}, const T* bias = nullptr) {
  using C = compute_t<T>;
  const detail::LineSlices slices(s);
  auto* const parts = static_cast<double*>(workspace);  // [slices][of dy, of dy * (x - mean)][channels]
  const auto gate = [&](detail::LineRows<C>& rows) {
    const C* const scale = rows.row([&](i64 c) { return rstd[c] * detail::entry(weight, c, C(1)); });
    const C* const shift = rows.row([&](i64 c) { return detail::entry(bias, c, C(0)) - mean[c] * scale[c]; });
    return detail::LineGate<C>{relu, scale, shift};
  };
  executor.parallel(slices.count, [&](i64 slice, int thread) {
    double* const part = parts + slice * 2 * s.channels;
    detail::LineRows<C> rows(executor, thread, s, 3);
    const C* const centre = rows.row([&](i64 c) { return mean[c]; });
    const auto sums = [&](const auto& open) {
      detail::column_sums<C>(s, slice * slices.length, slices.lines(s, slice), t, centre, open, part,
                             part + s.channels);
    };
    if (t.y) sums(detail::ResultGate<C>{});
    else sums(gate(rows));
  });
  // The first slice's entry of a channel gets the sums of all.
  split_range(executor, s.distinct(), slices.count * s.repeats * 4, 16, [&](i64 begin, i64 end, int) {
    for (int k = 0; k < 2; ++k) {
      for (i64 i = begin; i < end; ++i) {
        double sum = 0;
        for (i64 slice = 0; slice < slices.count; ++slice) {
          const double* const part = parts + (slice * 2 + k) * s.channels;
          for (i64 j = i; j < s.channels; j += s.distinct()) sum += part[j];
        }
        parts[k * s.channels + i] = sum;
        T* const to = k == 0 ? dbias : dweight;
        if (to) to[i] = convert_element<T>(k == 0 ? sum : sum * static_cast<double>(rstd[i]));
      }
    }
  });
  if (!t.dx) return;
  if (t.y) t.dy = t.dresidual;
  const double* const sum = parts;
  const double* const product = parts + s.channels;
  const double count = static_cast<double>(s.count());
  split_range(executor, s.lines, s.channels * 2, 1, [&](i64 begin, i64 end, int thread) {
    using V = RowVec<C>;
    detail::LineRows<C> rows(executor, thread, s, 5);
    const auto of = [&](i64 c) { return static_cast<double>(rstd[c]) * detail::entry(weight, c, C(1)); };
    const auto slope_of = [&](i64 c) {
      const double scale = static_cast<double>(rstd[c]);
      return training ? -of(c) * scale * scale * product[c] / count : 0;
    };
    const C* const gain = rows.row([&](i64 c) { return static_cast<C>(of(c)); });
    const C* const slope = rows.row([&](i64 c) { return static_cast<C>(slope_of(c)); });
    const C* const shift = rows.row([&](i64 c) {
      return static_cast<C>(training ? -of(c) * sum[c] / count - slope_of(c) * static_cast<double>(mean[c]) : 0);
    });
    const auto map = [&](const auto& open) {
      for (i64 at = begin * s.channels; at < end * s.channels; at += s.channels) {
        walk_row<C>(s.channels, [&](auto part) {
          const auto line = map_tile([](V v, V a, V b) { return fma(v, a, b); }, part.load(t.x + at), part.load(slope),
                                     part.load(shift));
          part.store(t.dx + at,
                     map_tile([](V g, V a, V b) { return fma(g, a, b); }, open(part, t, at), part.load(gain), line));
        });
      }
    };
    if (t.y) map(detail::LineGate<C>{});
    else map(gate(rows));
  });
}

TESSERA_TILE_END
