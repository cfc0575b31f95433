// Gradients of batch norm of images: a pass for sums, and one for the gradient of x, whose blocks join what the first
// has found. Both go as those of line_norm.h do.
#pragma once
#include "line_norm.h"

namespace tessera::gpu_kernels {
namespace {

template <class T>
struct LineBackwardWork {
  using C = compute_t<T>;
  Lines lines;
  PlanesArg dx, dy, x, y, dresidual;
  ChannelWeights weight, bias;
  void *dweight, *dbias;
  const C *mean, *rstd;
  double share;  // of an element in its channel's statistics, or 0 where these are given
  bool relu;
  C high;                 // of relu
  ChannelWeights filter;  // that dy counts times, or none
  void* dfilter;
  Sums<C>* sums;  // [parts, channels] of dy and dy (x - mean)
};

/// dy counts where y, a line of x for each channel, was what relu lets through.
template <class C, int width>
struct Gate {
  struct Shared {
    BlockChannels<C> scales, shifts;

    TESSERA_DEVICE void set(int channel, const ScaleShift<C>& line) {
      scales.items[channel] = line.scale;
      shifts.items[channel] = line.shift;
    }
  };
  C scale[width], shift[width];

  TESSERA_DEVICE void read(const LinePart& part, const Shared& shared) {
    shared.scales.read(part, scale);
    shared.shifts.read(part, shift);
  }
  TESSERA_DEVICE C operator()(int j, C dy, C x, bool relu, C high) const {
    const C y = tile::fma(x, scale[j], shift[j]);
    return relu && !(y > C(0) && y < high) ? C(0) : dy;
  }
};
/// What belongs to a channel, read before its sums are joined.
template <class T>
struct GradientChannel {
  using C = compute_t<T>;
  i64 c;
  C mean, rstd, weight, bias, filter;

  TESSERA_DEVICE GradientChannel(const LineBackwardWork<T>& work, i64 c)
      : c(c),
        mean(work.mean[c]),
        rstd(work.rstd[c]),
        weight(work.weight.at(c, C(1))),
        bias(work.bias.at(c, C(0))),
        filter(work.filter.at(c, C(1))) {}

  TESSERA_DEVICE ScaleShift<C> line() const { return {mean, rstd, weight, bias}; }
  /// The gradients of what belongs to it, from sums of dy and of dy (x - mean) without the filter.
  TESSERA_DEVICE void store(const LineBackwardWork<T>& work, const Sums<double>& all) const {
    const Scalar type = work.weight.type;
    const double by = static_cast<double>(filter), of_normal = all.second * static_cast<double>(rstd);
    if (work.dweight) store_as(work.dweight, type, c, by * of_normal);
    if (work.dbias) store_as(work.dbias, type, c, by * all.first);
    if (work.dfilter)  // the sum of dy times what the norm gave
      store_as(work.dfilter, work.filter.type, c,
               static_cast<double>(weight) * of_normal + static_cast<double>(bias) * all.first);
  }
};

/// Where something was added before relu, y itself tells where dy counts, and that is the addend's gradient.
template <class Way, class T, int width, bool adds>
TESSERA_KERNEL(line_threads, 1)
void line_sums_kernel(const LineBackwardWork<T> work) {
  using C = compute_t<T>;
  __shared__ typename Gate<C, width>::Shared lines;
  __shared__ BlockChannels<C> means;
  Way::begin();
  const LinePart part(work.lines, width);
  const auto from = [&] {
    if constexpr (adds) return Walk<const T, width, 3>(part, {work.dy, work.x, work.y}, true);
    else return Walk<const T, width, 2>(part, {work.dy, work.x}, true);
  };
  auto in = from();
  Walk<T, width, 1> dresidual(part, {adds ? work.dresidual : work.dx}, true);
  Gate<C, width> gate;
  C first[width] = {}, second[width] = {}, mean[width];
  part.each<3>([&] { return in.load(); },
               [&](const auto& held) {
                 const auto g = held[0], v = held[1];
                 [[maybe_unused]] Pack<T, width> out;
                 tile::unroll<width>([&](auto j) {
                   C d;
                   if constexpr (adds) d = held[2][j] > C(0) ? g[j] : C(0), out.lane[j] = convert_element<T>(d);
                   else d = gate(j, g[j], v[j], work.relu, work.high);
                   first[j] += d;
                   second[j] = tile::fma(d, v[j] - mean[j], second[j]);
                 });
                 if constexpr (adds) dresidual.store({out});
               },
               [&] {
                 const int channel = tile::thread_in_block();
                 if (part.has(channel)) {
                   const i64 c = part.first_channel + channel;
                   if constexpr (!adds) lines.set(channel, GradientChannel<T>(work, c).line());
                   means.items[channel] = work.mean[c];
                 }
                 tile::sync_block();
                 if constexpr (!adds) gate.read(part, lines);
                 means.read(part, mean);
               });
  sum_up_block(part, first, second, [&](int channel, const Sums<double>& all) {
    work.sums[part.part * work.lines.channels + part.first_channel + channel] = {static_cast<C>(all.first),
                                                                                 static_cast<C>(all.second)};
  });
}

/// dx = gain dy + slope x + rest
template <class Way, class T, int width, bool filters>
TESSERA_KERNEL(line_threads, 1)
void line_backward_kernel(const LineBackwardWork<T> work) {
  using C = compute_t<T>;
  __shared__ typename Gate<C, width>::Shared lines;
  __shared__ BlockChannels<C> slopes, rests;
  __shared__ BlockChannels<C> gains;
  Way::begin();
  LinePart part(work.lines, width);
  if (!work.dx.data) part.steps = 0;
  Walk<const T, width, 2> in(part, {work.dy, work.x});
  Walk<T, width, 1> dx(part, {work.dx});
  Gate<C, width> gate;
  C gain[filters ? width : 1], slope[width], rest[width];
  part.each<filters ? 3 : 4>(
      [&] { return in.load(); },
      [&](const auto& held) {
        const auto g = held[0], v = held[1];
        Pack<T, width> out;
        tile::unroll<width>([&](auto j) {
          const C d = gate(j, g[j], v[j], work.relu, work.high);
          out.lane[j] = convert_element<T>(
              tile::fma(d, filters ? gain[filters ? j.value : 0] : gate.scale[j], tile::fma(v[j], slope[j], rest[j])));
        });
        dx.store({out});
      },
      [&] {
        const Share share(work.lines.group);
        const int channel = share.channel;
        const bool has = part.has(channel);
        const GradientChannel<T> of(work, part.first_channel + (has ? channel : 0));
        const Sums<double> all = join_parts(part, share, work.sums);
        if (share.index == 0 && has) {
          const ScaleShift<C> line = of.line();
          const double rstd = static_cast<double>(of.rstd);
          const double factor = static_cast<double>(of.filter) * static_cast<double>(line.scale),
                       of_x = -work.share * factor * rstd * rstd * all.second;
          lines.set(channel, line);
          if constexpr (filters) gains.items[channel] = static_cast<C>(factor);
          slopes.items[channel] = static_cast<C>(of_x);
          rests.items[channel] = static_cast<C>(-work.share * factor * all.first - of_x * static_cast<double>(of.mean));
          if (part.part == 0) of.store(work, all);
        }
        tile::sync_block();
        gate.read(part, lines);
        if constexpr (filters) gains.read(part, gain);
        slopes.read(part, slope);
        rests.read(part, rest);
      });
}

// ---- launches

template <class T>
LineBackwardWork<T> backward_work(const BatchNormBackwardArgs& a) {
  using C = compute_t<T>;
  LineBackwardWork<T> work{};
  work.dx = operand_of(a, a.dx);
  work.dy = operand_of(a, a.dy);
  work.x = operand_of(a, a.x);
  work.y = operand_of(a, a.y);
  work.dresidual = operand_of(a, a.dresidual);
  work.weight = {a.weight, a.weight_type};
  work.bias = {a.bias, a.weight_type};
  work.dweight = a.dweight;
  work.dbias = a.dbias;
  work.filter = {a.filter, a.type};
  work.dfilter = a.dfilter;
  work.mean = static_cast<const C*>(a.mean);
  work.rstd = static_cast<const C*>(a.rstd);
  work.relu = a.relu;
  work.high = static_cast<C>(a.high);
  work.sums = static_cast<Sums<C>*>(a.workspace);
  return work;
}

template <class Way, bool singles>
bool line_norm_backward_by(BatchNormBackwardArgs a, Executor& executor) {
  const PlanesArg operands[] = {operand_of(a, a.dx), operand_of(a, a.dy), operand_of(a, a.x), operand_of(a, a.y),
                                operand_of(a, a.dresidual)};
  by_lines(a);
  const auto run = [&](auto type, auto wide) {
    using T = typename decltype(type)::type;
    constexpr int width = decltype(wide)::value;
    LineBackwardWork<T> work = backward_work<T>(a);
    const bool behind = lie_behind(a.channels, a.size, operands[0], operands[1], operands[2], operands[3], operands[4]);
    work.lines = lines_of(a.batch, a.channels, a.size, behind, width, executor.multiprocessors);
    work.share = a.training ? 1 / work.lines.elements() : 0;
    const i64 blocks = work.lines.blocks();
    if (a.y.data) {
      Way::launch("batch_norm_backward", line_sums_kernel<Way, T, width, true>, blocks, line_threads, work, executor);
      work.dy = work.dresidual;
      work.relu = false;
    } else {
      Way::launch("batch_norm_backward", line_sums_kernel<Way, T, width, false>, blocks, line_threads, work, executor);
    }
    Way::launch("batch_norm_backward",
                a.filter ? line_backward_kernel<Way, T, width, true> : line_backward_kernel<Way, T, width, false>,
                blocks, line_threads, work, executor);
  };
  return with_packs<singles>(a.type, a.channels, a.size, run, operands[0], operands[1], operands[2], operands[3],
                             operands[4]);
}

}  // namespace
}  // namespace tessera::gpu_kernels
