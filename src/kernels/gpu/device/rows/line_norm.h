// Batch norm of images: a pass for statistics, and one over elements, whose blocks join what the first has found. A Way
// says how kernels follow each other: Way::begin() is called by each before it touches memory, Way::launch as gpu.h's.
// The first pass goes from the last line to the first, since the end of what the kernel before wrote is still in the
// cache, and the second pass the other way.
#pragma once
#include "channel_line.h"
#include "image_lines.h"
#include "norm.h"

namespace tessera::gpu_kernels {
namespace {

using tile::compute_t;
using tile::convert_element;

/// Kernels one after the other, on any card.
struct InTurn {
  static TESSERA_DEVICE void begin() {}
  template <class Work>
  static void launch(const char* what, void (*kernel)(Work), i64 blocks, int threads, const Work& work,
                     Executor& executor) {
    gpu_kernels::launch(what, kernel, blocks, threads, 0, executor, work);
  }
};

/// A running estimate, if there is one, moves towards `value`; all the way whatever it was.
template <class C>
TESSERA_DEVICE void move_estimate(C* estimate, i64 i, double value, double momentum) {
  if (!estimate) return;
  const double before = momentum == 1 ? 0 : static_cast<double>(estimate[i]);
  estimate[i] = static_cast<C>((1 - momentum) * before + momentum * value);
}

// ---- forward

template <class T>
struct LineNormWork {
  using C = compute_t<T>;
  Lines lines;
  PlanesArg y, x, residual;
  ChannelWeights weight, bias;
  C *mean, *rstd, *running_mean, *running_variance;
  double momentum, eps, correction, elements;
  C high;
  bool given, relu;  // given: the running estimates are used, this one corrected
  Sums<C>* sums;     // [parts, channels] of x - centre and its square, and behind them the centres

  TESSERA_DEVICE Sums<C>& centre(i64 c) const { return sums[lines.parts * lines.channels + c]; }
};

/// The mean of eight elements from all over a channel: what is summed up around it does not cancel. It has few bits, as
/// elements have, or each of millions of differences would be rounded the same way.
template <class T, int width>
TESSERA_DEVICE compute_t<T> centre_of(const LineNormWork<T>& work, i64 c) {
  const Lines& of = work.lines;
  const T* const x = static_cast<const T*>(work.x.data) + c * work.x.channel_stride;
  compute_t<T> sum(0);
  tile::unroll<8>([&](auto i) {
    const i64 image = of.images * i / 8, place = of.in_image * i / 8;
    sum += convert_element<compute_t<T>>(x[image * work.x.batch_stride + place * width]);
  });
  return convert_element<compute_t<T>>(convert_element<bf16>(static_cast<float>(sum / 8)));
}

template <class Way, class T, int width>
TESSERA_KERNEL(line_threads, 1)
void line_moments_kernel(const LineNormWork<T> work) {
  using C = compute_t<T>;
  __shared__ BlockChannels<C> centres;
  Way::begin();
  const LinePart part(work.lines, width);
  Walk<const T, width, 1> x(part, {work.x}, true);
  C sums[width] = {}, squares[width] = {}, centre[width];
  part.each<width == 1 ? 4 : 6>([&] { return x.load(); },
                                [&](const auto& held) {
                                  const auto v = held[0];
                                  tile::unroll<width>([&](auto j) {
                                    const C d = v[j] - centre[j];
                                    sums[j] += d;
                                    squares[j] = tile::fma(d, d, squares[j]);
                                  });
                                },
                                [&] {
                                  const int channel = tile::thread_in_block();
                                  if (part.has(channel)) {
                                    const i64 c = part.first_channel + channel;
                                    centres.items[channel] = centre_of<T, width>(work, c);
                                    if (part.part == 0) work.centre(c) = {centres.items[channel], C(0)};
                                  }
                                  tile::sync_block();
                                  centres.read(part, centre);
                                });
  sum_up_block(part, sums, squares, [&](int channel, const Sums<double>& all) {
    work.sums[part.part * work.lines.channels + part.first_channel + channel] = {static_cast<C>(all.first),
                                                                                 static_cast<C>(all.second)};
  });
}

/// What belongs to a channel, read before its sums are joined.
template <class T>
struct NormChannel {
  using C = compute_t<T>;
  i64 c;
  C mean, variance, weight, bias;  // the mean that is given, or what was summed up around

  TESSERA_DEVICE NormChannel(const LineNormWork<T>& work, i64 c)
      : c(c),
        mean(work.given ? work.running_mean[c] : work.centre(c).first),
        variance(work.given ? work.running_variance[c] : C(0)),
        weight(work.weight.at(c, C(1))),
        bias(work.bias.at(c, C(0))) {}

  /// From the sums of a batch; one block keeps its statistics.
  TESSERA_DEVICE ScaleShift<C> line(const LineNormWork<T>& work, const Sums<double>& all, bool keeps) const {
    const double offset = all.first / work.elements, of_batch = static_cast<double>(mean) + offset;
    const double rest = all.second / work.elements - offset * offset, variance = rest < 0 ? 0 : rest;
    const C rstd = C(1) / tile::sqrt(static_cast<C>(variance + work.eps));
    if (keeps) {
      work.mean[c] = static_cast<C>(of_batch);
      work.rstd[c] = rstd;
      move_estimate(work.running_mean, c, of_batch, work.momentum);
      move_estimate(work.running_variance, c, variance * (work.elements / tile::max(1.0, work.elements - 1)),
                    work.momentum);
    }
    return {static_cast<C>(of_batch), rstd, weight, bias};
  }
  /// From running estimates.
  TESSERA_DEVICE ScaleShift<C> given_line(const LineNormWork<T>& work, bool keeps) const {
    const C rstd = C(1) / tile::sqrt(tile::fma(variance, static_cast<C>(work.correction), static_cast<C>(work.eps)));
    if (work.rstd && keeps) work.rstd[c] = rstd;
    return {mean, rstd, weight, bias};
  }
};

template <class Way, class T, int width, bool adds>
TESSERA_KERNEL(line_threads, 1)
void line_norm_kernel(const LineNormWork<T> work) {
  using C = compute_t<T>;
  __shared__ BlockChannels<C> scales, shifts;
  Way::begin();
  const LinePart part(work.lines, width);
  Walk<T, width, 1> y(part, {work.y});
  const auto from = [&] {
    if constexpr (adds) return Walk<const T, width, 2>(part, {work.x, work.residual});
    else return Walk<const T, width, 1>(part, {work.x});
  };
  auto in = from();
  C scale[width], shift[width];
  part.each<adds || width == 1 ? 4 : 8>(
      [&] { return in.load(); },
      [&](const auto& held) {
        const auto v = held[0];
        Pack<T, width> out;
        tile::unroll<width>([&](auto j) {
          C to = tile::fma(v[j], scale[j], shift[j]);
          if constexpr (adds) to += held[1][j];
          out.lane[j] = convert_element<T>(work.relu ? tile::min(tile::relu(to), work.high) : to);
        });
        y.store({out});
      },
      [&] {
        const Share share(work.lines.group);
        const bool has = part.has(share.channel), keeps = part.part == 0;
        const NormChannel<T> channel(work, part.first_channel + (has ? share.channel : 0));
        Sums<double> all{0, 0};
        if (!work.given) all = join_parts(part, share, work.sums);
        if (share.index == 0 && has) {
          const ScaleShift<C> line = work.given ? channel.given_line(work, keeps) : channel.line(work, all, keeps);
          scales.items[share.channel] = line.scale;
          shifts.items[share.channel] = line.shift;
        }
        tile::sync_block();
        scales.read(part, scale);
        shifts.read(part, shift);
      });
}

// ---- running estimates, of any layout

template <class Way, class C>
TESSERA_KERNEL(256)
void move_estimates_kernel(const EstimatesArgs a) {
  Way::begin();
  const i64 c = tile::block_in_grid() * 256 + tile::thread_in_block();
  if (c >= a.channels) return;
  const auto move = [&](void* estimate, const void* to) {
    move_estimate(static_cast<C*>(estimate), c, static_cast<double>(static_cast<const C*>(to)[c]), a.momentum);
  };
  move(a.mean, a.batch_mean);
  move(a.variance, a.batch_variance);
}

template <class Way>
void move_estimates_by(const EstimatesArgs& a, Executor& executor) {
  Way::launch("batch_norm",
              a.type == Scalar::f64 ? move_estimates_kernel<Way, double> : move_estimates_kernel<Way, float>,
              tile::ceil_div<i64>(a.channels, 256), 256, a, executor);
}

// ---- launches

/// Where channels lie last, pixels are images of one, one behind the other.
template <class Args>
void by_lines(Args& a) {
  if (!a.lines) return;
  a.batch *= a.size;
  a.size = 1;
}
template <class Args>
PlanesArg operand_of(const Args& a, const PlanesArg& p) {
  return a.lines ? PlanesArg{p.data, a.channels, 1} : p;
}

template <class T>
LineNormWork<T> norm_work(const BatchNormArgs& a) {
  using C = compute_t<T>;
  LineNormWork<T> work{};
  work.y = operand_of(a, a.y);
  work.x = operand_of(a, a.x);
  work.residual = operand_of(a, a.residual);
  work.weight = {a.weight, a.weight_type};
  work.bias = {a.bias, a.weight_type};
  work.mean = static_cast<C*>(a.mean);
  work.rstd = static_cast<C*>(a.rstd);
  work.running_mean = static_cast<C*>(a.running_mean);
  work.running_variance = static_cast<C*>(a.running_variance);
  work.momentum = a.momentum;
  work.eps = a.eps;
  work.correction = a.correction;
  work.given = !a.training;
  work.relu = a.relu;
  work.high = static_cast<C>(a.high);
  work.sums = static_cast<Sums<C>*>(a.workspace);
  return work;
}

/// Whether planes lie one behind the other in each operand.
template <class... P>
bool lie_behind(i64 channels, i64 size, const P&... planes) {
  return ((!planes.data || channels == 1 || planes.channel_stride == size) && ...);
}
/// fn(Type<T>, Int<width>) for packs where all lie in them, and else, or for f64, for single elements.
template <bool singles, class Fn, class... P>
bool with_packs(Scalar type, i64 channels, i64 size, const Fn& fn, const P&... planes) {
  const int bytes = size_of(type);
  const bool packs = bytes < 8 && lie_in_packs(16 / bytes, bytes, channels, size, planes...);
  if (!packs && !singles) return false;
  with_float(type, [&](auto t) {
    using T = typename decltype(t)::type;
    constexpr int width = line_width<T>;
    if constexpr (width > 1) {
      if (packs) return fn(t, tile::Int<width>{});
    }
    if constexpr (singles) fn(t, tile::Int<1>{});
  });
  return true;
}

/// `singles`: also where elements do not lie in packs, or false.
template <class Way, bool singles>
bool line_norm_by(BatchNormArgs a, Executor& executor) {
  const PlanesArg y = operand_of(a, a.y), x = operand_of(a, a.x), residual = operand_of(a, a.residual);
  by_lines(a);
  const auto run = [&](auto type, auto wide) {
    using T = typename decltype(type)::type;
    constexpr int width = decltype(wide)::value;
    LineNormWork<T> work = norm_work<T>(a);
    work.lines = lines_of(a.batch, a.channels, a.size, lie_behind(a.channels, a.size, y, x, residual), width,
                          executor.multiprocessors);
    work.elements = work.lines.elements();
    const i64 blocks = work.lines.blocks();
    if (a.training) Way::launch("batch_norm", line_moments_kernel<Way, T, width>, blocks, line_threads, work, executor);
    Way::launch("batch_norm",
                a.residual.data ? line_norm_kernel<Way, T, width, true> : line_norm_kernel<Way, T, width, false>,
                blocks, line_threads, work, executor);
  };
  return with_packs<singles>(a.type, a.channels, a.size, run, y, x, residual);
}

}  // namespace
}  // namespace tessera::gpu_kernels
