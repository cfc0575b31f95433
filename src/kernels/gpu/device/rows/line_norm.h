// Batch norm of images of halves whose channels lie last: every pixel is a line of channels, and a thread has eight
// channels of every 32nd line of a part of them. A Way says how kernels follow each other: Way::begin() is called by
// each before it touches memory, Way::launch as gpu.h's.
#pragma once
#include "plane_norm.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int width = 8, across = 64;  // channels of a thread, and of a block
constexpr int teams = across / width, abreast = plane_threads / teams;

/// The channel of a block that thread `i` of the first 64 looks after: place i of what a block has of its channels,
/// where those of a thread lie `teams` apart, so that lanes meet all banks.
TESSERA_DEVICE int channel_of(int i) { return i % teams * width + i / teams; }

struct Lines {
  i64 count, channels, parts, length;  // of a part
  int groups;                          // of 64 channels

  i64 blocks() const { return parts * groups; }
};
/// In some so many blocks.
Lines lines_of(i64 batch, i64 size, i64 channels, i64 blocks) {
  const i64 count = batch * size, parts = line_norm_parts(count, channels, blocks);
  return {count, channels, parts, tile::ceil_div(count, parts),
          static_cast<int>(tile::ceil_div<i64>(channels, across))};
}

constexpr int shares = plane_threads / across;
TESSERA_DEVICE Sums<double> widened(const Sums<float>& s) {
  return {static_cast<double>(s.first), static_cast<double>(s.second)};
}
/// The sums of the threads that look after a place, for the first 64 threads.
TESSERA_DEVICE Sums<double> over_shares(Sums<double> mine) {
  __shared__ __attribute__((aligned(16))) Sums<double> room[shares][across];
  const int thread = tile::thread_in_block();
  room[thread / across][thread % across] = mine;
  tile::sync_block();
  if (thread < across)
    for (int i = 1; i < shares; ++i) mine = mine + room[i][thread];
  return mine;
}

/// A block's part of the lines and of the channels.
struct LinePart {
  const Lines& lines;
  i64 index, begin, end, first_channel, channel;  // of the block, and of this thread

  explicit TESSERA_DEVICE LinePart(const Lines& lines) : lines(lines) {
    const i64 block = tile::block_in_grid();
    index = tile::quotient(block, lines.groups);
    begin = tile::min(lines.count, index * lines.length);
    end = tile::min(lines.count, begin + lines.length);
    first_channel = (block - index * lines.groups) * across;
    channel = first_channel + tile::thread_in_block() % teams * width;
  }
  TESSERA_DEVICE bool inside() const { return channel < lines.channels; }
  TESSERA_DEVICE i64 place(i64 line) const { return line * lines.channels + channel; }

  /// use(place, load(place)) for this thread's packs, some loads ahead; meanwhile() by all threads of the block, while
  /// the first are under way.
  template <class Load, class Use, class Meanwhile>
  TESSERA_DEVICE void each(const Load& load, const Use& use, const Meanwhile& meanwhile) const {
    constexpr int ahead = 4;
    decltype(load(begin)) held[ahead];
    i64 i = begin + tile::thread_in_block() / teams;
    tile::unroll<ahead>([&](auto k) {
      if (inside() && i + k * abreast < end) held[k] = load(place(i + k * abreast));
    });
    meanwhile();
    if (!inside()) return;
    for (; i < end; i += ahead * abreast)
      tile::unroll<ahead>([&](auto k) {
        const i64 line = i + k * abreast, next = line + ahead * abreast;
        if (line < end) use(place(line), held[k]);
        if (next < end) held[k] = load(place(next));
      });
  }

  /// store(channel, sums over the block) by a thread for each channel.
  template <class Store>
  TESSERA_DEVICE void sum_up(const float (&first)[width], const float (&second)[width], const Store& store) const {
    __shared__ Sums<float> room[abreast][across + 8];  // lines begin in other banks
    const int thread = tile::thread_in_block();
    for (int j = 0; j < width; ++j) room[thread / teams][thread % teams + j * teams] = {first[j], second[j]};
    tile::sync_block();
    Sums<double> sums{0, 0};
    for (int i = thread / across; i < abreast; i += shares) sums = sums + widened(room[i][thread % across]);
    sums = over_shares(sums);
    const i64 c = first_channel + channel_of(thread);
    if (thread < across && c < lines.channels) store(c, sums);
  }
};

template <class T>
TESSERA_DEVICE const Pack<T, width>& eight_at(const void* data, i64 place) {
  return pack_at<T, width>(static_cast<const T*>(data) + place);
}

/// A number for each of a block's channels, in shared memory, by place; those of a thread from there.
struct BlockChannels {
  float items[across];

  TESSERA_DEVICE void read(float (&own)[width]) const {
    for (int j = 0; j < width; ++j) own[j] = items[j * teams + tile::thread_in_block() % teams];
  }
};

/// The channel of a team of lanes, for what parts are joined by.
TESSERA_DEVICE i64 channel_of_team() { return first_index() / team_lanes; }
i64 team_blocks(const Lines& lines) { return tile::ceil_div<i64>(lines.channels, plane_threads / team_lanes); }

// ---- forward

struct LineNormWork {
  Lines lines;
  void* y;
  const void* x;
  ChannelWeights weight, bias;
  float *mean, *rstd, *running_mean, *running_variance;
  double momentum, eps, correction;
  bool given, relu;      // given: the running estimates are used, this one corrected
  PartMoments* moments;  // [channels, parts]
};

/// The moments of each part, around its first line, so that nothing cancels.
template <class Way, class T>
TESSERA_KERNEL(plane_threads)
void line_moments_kernel(const LineNormWork work) {
  Way::begin();
  const LinePart part(work.lines);
  if (part.begin == part.end) {
    const i64 c = part.first_channel + tile::thread_in_block();
    if (tile::thread_in_block() < across && c < work.lines.channels)
      work.moments[c * work.lines.parts + part.index] = {0, 0, 0};
    return;
  }
  float sums[width] = {}, squares[width] = {}, centre[width] = {};
  if (part.inside()) {
    const auto v = lanes(eight_at<T>(work.x, part.place(part.begin)));
    tile::unroll<width>([&](auto j) { centre[j] = v[j]; });
  }
  part.each([&](i64 at) { return eight_at<T>(work.x, at); },
            [&](i64, const Pack<T, width>& pack) {
              const auto v = lanes(pack);
              tile::unroll<width>([&](auto j) {
                const float d = v[j] - centre[j];
                sums[j] += d;
                squares[j] = tile::fma(d, d, squares[j]);
              });
            },
            [] {});
  part.sum_up(sums, squares, [&](i64 c, const Sums<double>& all) {
    const double count = static_cast<double>(part.end - part.begin), offset = all.first / count;
    const double around =
        tile::convert_element<double>(static_cast<const T*>(work.x)[part.begin * work.lines.channels + c]);
    const double rest = all.second - all.first * offset;
    work.moments[c * work.lines.parts + part.index] = {around + offset, rest < 0 ? 0 : rest, count};
  });
}

template <class Way>
TESSERA_KERNEL(plane_threads)
void join_moments_kernel(const LineNormWork work) {
  Way::begin();
  const i64 c = channel_of_team();
  if (c >= work.lines.channels) return;
  const PartMoments all = join_moments(work.moments + c * work.lines.parts, work.lines.parts);
  if (tile::thread_in_block() % team_lanes != 0) return;
  work.mean[c] = static_cast<float>(all.mean);
  work.rstd[c] = static_cast<float>(1 / tile::sqrt(all.squares / all.count + work.eps));
  move_estimate(work.running_mean, c, all.mean, work.momentum);
  move_estimate(work.running_variance, c, all.squares / tile::max(1.0, all.count - 1), work.momentum);
}

template <class Way, class T>
TESSERA_KERNEL(plane_threads)
void line_norm_kernel(const LineNormWork work) {
  __shared__ __attribute__((aligned(16))) BlockChannels scales, shifts;
  Way::begin();
  const LinePart part(work.lines);
  const int thread = tile::thread_in_block();
  float scale[width], shift[width];
  const auto find_factors = [&] {
    if (const i64 c = part.first_channel + channel_of(thread); thread < across && c < work.lines.channels) {
      float mean, rstd;
      if (work.given) {
        mean = work.running_mean[c];
        rstd = 1 / tile::sqrt(tile::fma(work.running_variance[c], static_cast<float>(work.correction),
                                        static_cast<float>(work.eps)));  // f64 would take longer than small images
        if (work.rstd && part.index == 0) work.rstd[c] = rstd;
      } else {
        mean = work.mean[c];
        rstd = work.rstd[c];
      }
      const ScaleShift<float> line(mean, rstd, work.weight.at(c, 1.0f), work.bias.at(c, 0.0f));
      scales.items[thread] = line.scale;
      shifts.items[thread] = line.shift;
    }
    tile::sync_block();
    scales.read(scale);
    shifts.read(shift);
  };
  part.each([&](i64 at) { return eight_at<T>(work.x, at); },
            [&](i64 at, const Pack<T, width>& pack) {
              const auto v = lanes(pack);
              Pack<T, width> out;
              tile::unroll<width>([&](auto j) {
                const float y = tile::fma(v[j], scale[j], shift[j]);
                out.lane[j] = convert_element<T>(work.relu ? tile::relu(y) : y);
              });
              store_at_once(static_cast<T*>(work.y) + at, out);
            },
            find_factors);
}

// ---- backward

struct LineBackwardWork {
  Lines lines;
  void* dx;
  const void *dy, *x;
  ChannelWeights weight, bias;
  void *dweight, *dbias;
  const float *mean, *rstd;
  double share;  // of an element in its channel's statistics, or 0 where these are given
  bool relu;
  Sums<float>* sums;  // [parts, channels] of dy and dy (x - mean)
  i64 parts;          // of these
};
constexpr i64 joined_parts = 64;  // at most, by a block

template <class T>
struct GradientPacks {
  Pack<T, width> dy, x;
};
template <class T>
TESSERA_DEVICE GradientPacks<T> load_gradient(const LineBackwardWork& work, i64 at) {
  return {eight_at<T>(work.dy, at), eight_at<T>(work.x, at)};
}

/// What belongs to the channel of one of a block's first 64 threads.
struct GradientChannel {
  i64 c;
  float mean, rstd, weight, bias;

  TESSERA_DEVICE GradientChannel(const LineBackwardWork& work, i64 first_channel)
      : c(first_channel + channel_of(tile::thread_in_block())) {
    if (!is_there(work)) return;
    mean = work.mean[c];
    rstd = work.rstd[c];
    weight = work.weight.at(c, 1.0f);
    bias = work.bias.at(c, 0.0f);
  }
  TESSERA_DEVICE bool is_there(const LineBackwardWork& work) const {
    return tile::thread_in_block() < across && c < work.lines.channels;
  }
};

/// The line of a norm for each channel of a block, and for those of a thread: dy counts where y was positive.
struct LineGradient {
  struct Shared {
    BlockChannels scales, shifts, means;

    TESSERA_DEVICE void set(const GradientChannel& of) {
      const ScaleShift<float> line(of.mean, of.rstd, of.weight, of.bias);
      const int place = tile::thread_in_block();
      scales.items[place] = line.scale;
      shifts.items[place] = line.shift;
      means.items[place] = of.mean;
    }
  };
  float scale[width], shift[width], mean[width];

  TESSERA_DEVICE void read(const Shared& shared) {
    shared.scales.read(scale);
    shared.shifts.read(shift);
    shared.means.read(mean);
  }
  /// fn(lane, dy, x)
  template <class T, class Fn>
  TESSERA_DEVICE void each(const GradientPacks<T>& packs, bool relu, const Fn& fn) const {
    const auto g = lanes(packs.dy), v = lanes(packs.x);
    tile::unroll<width>([&](auto j) { fn(j, relu && !(tile::fma(v[j], scale[j], shift[j]) > 0) ? 0.0f : g[j], v[j]); });
  }
};

template <class Way, class T>
TESSERA_KERNEL(plane_threads)
void line_sums_kernel(const LineBackwardWork work) {
  __shared__ __attribute__((aligned(16))) LineGradient::Shared shared;
  Way::begin();
  const LinePart part(work.lines);
  LineGradient gradient;
  float first[width] = {}, second[width] = {};
  part.each([&](i64 at) { return load_gradient<T>(work, at); },
            [&](i64, const GradientPacks<T>& packs) {
              gradient.each(packs, work.relu, [&](auto j, float g, float v) {
                first[j] += g;
                second[j] = tile::fma(g, v - gradient.mean[j], second[j]);
              });
            },
            [&] {
              const GradientChannel channel(work, part.first_channel);
              if (channel.is_there(work)) shared.set(channel);
              tile::sync_block();
              gradient.read(shared);
            });
  part.sum_up(first, second, [&](i64 c, const Sums<double>& all) {
    work.sums[part.index * work.lines.channels + c] = {static_cast<float>(all.first), static_cast<float>(all.second)};
  });
}

/// The sums of parts from `begin` to `end` of the channel of each of a block's first 64 threads.
TESSERA_DEVICE Sums<double> join_parts(const LineBackwardWork& work, i64 first_channel, i64 begin, i64 end) {
  const int thread = tile::thread_in_block();
  const i64 c = first_channel + channel_of(thread % across);
  Sums<double> all{0, 0};
  if (c < work.lines.channels) {
#pragma unroll 8
    for (i64 part = begin + thread / across; part < end; part += shares)
      all = all + widened(work.sums[part * work.lines.channels + c]);
  }
  return over_shares(all);
}

/// Each block makes one part of many, behind the others.
template <class Way>
TESSERA_KERNEL(plane_threads)
void join_sums_kernel(const LineBackwardWork work) {
  Way::begin();
  const i64 block = tile::block_in_grid(), to = tile::quotient(block, work.lines.groups), begin = to * joined_parts,
            first_channel = (block - to * work.lines.groups) * across;
  const Sums<double> all = join_parts(work, first_channel, begin, tile::min(work.parts, begin + joined_parts));
  const i64 c = first_channel + channel_of(tile::thread_in_block());
  if (tile::thread_in_block() >= across || c >= work.lines.channels) return;
  work.sums[(work.parts + to) * work.lines.channels + c] = {static_cast<float>(all.first),
                                                            static_cast<float>(all.second)};
}

/// dx = scale dy + slope x + rest
template <class Way, class T>
TESSERA_KERNEL(plane_threads)
void line_backward_kernel(const LineBackwardWork work) {
  __shared__ __attribute__((aligned(16))) LineGradient::Shared shared;
  __shared__ __attribute__((aligned(16))) BlockChannels slopes, rests;
  Way::begin();
  const LinePart part(work.lines);
  LineGradient gradient;
  float slope[width], rest[width];
  const auto set = [&](const GradientChannel& of, const Sums<double>& all) {
    const Scalar type = work.weight.type;
    const double gain = static_cast<double>(of.rstd), share = work.share * gain * static_cast<double>(of.weight),
                 line = -gain * gain * share * all.second;
    slopes.items[tile::thread_in_block()] = static_cast<float>(line);
    rests.items[tile::thread_in_block()] = static_cast<float>(-share * all.first - line * static_cast<double>(of.mean));
    shared.set(of);
    if (part.index != 0) return;
    if (work.dweight) store_as(work.dweight, type, of.c, all.second * gain);
    if (work.dbias) store_as(work.dbias, type, of.c, all.first);
  };
  part.each([&](i64 at) { return load_gradient<T>(work, at); },
            [&](i64 at, const GradientPacks<T>& packs) {
              Pack<T, width> out;
              gradient.each(packs, work.relu, [&](auto j, float g, float v) {
                out.lane[j] = convert_element<T>(tile::fma(g, gradient.scale[j], tile::fma(v, slope[j], rest[j])));
              });
              store_at_once(static_cast<T*>(work.dx) + at, out);
            },
            [&] {
              const GradientChannel channel(work, part.first_channel);
              const Sums<double> all = join_parts(work, part.first_channel, 0, work.parts);
              if (channel.is_there(work)) set(channel, all);
              tile::sync_block();
              gradient.read(shared);
              slopes.read(slope);
              rests.read(rest);
            });
}

// ---- running estimates, of any layout

template <class Way, class C>
TESSERA_KERNEL(plane_threads)
void move_estimates_kernel(const EstimatesArgs a) {
  Way::begin();
  const i64 c = first_index();
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
              tile::ceil_div<i64>(a.channels, plane_threads), a, executor);
}

template <class Fn>
void with_half(Scalar type, const Fn& fn) {
  type == Scalar::f16 ? fn(Type<f16>{}) : fn(Type<bf16>{});
}

template <class Way>
void line_norm_by(const BatchNormArgs& a, Executor& executor) {
  LineNormWork work{};
  work.lines = lines_of(a.batch, a.size, a.channels, line_blocks);
  work.y = a.y.data;
  work.x = a.x.data;
  work.weight = {a.weight, a.weight_type};
  work.bias = {a.bias, a.weight_type};
  work.mean = static_cast<float*>(a.mean);
  work.rstd = static_cast<float*>(a.rstd);
  work.running_mean = static_cast<float*>(a.running_mean);
  work.running_variance = static_cast<float*>(a.running_variance);
  work.momentum = a.momentum;
  work.eps = a.eps;
  work.correction = a.correction;
  work.given = !a.training;
  work.relu = a.relu;
  work.moments = static_cast<PartMoments*>(a.workspace);
  with_half(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (a.training) {
      Way::launch("batch_norm", line_moments_kernel<Way, T>, work.lines.blocks(), work, executor);
      Way::launch("batch_norm", join_moments_kernel<Way>, team_blocks(work.lines), work, executor);
    }
    work.lines = lines_of(a.batch, a.size, a.channels, 2 * line_blocks);
    Way::launch("batch_norm", line_norm_kernel<Way, T>, work.lines.blocks(), work, executor);
  });
}

template <class Way>
void line_norm_backward_by(const BatchNormBackwardArgs& a, Executor& executor) {
  LineBackwardWork work{};
  work.lines = lines_of(a.batch, a.size, a.channels, line_blocks);
  work.dx = a.dx.data;
  work.dy = a.dy.data;
  work.x = a.x.data;
  work.weight = {a.weight, a.weight_type};
  work.bias = {a.bias, a.weight_type};
  work.dweight = a.dweight;
  work.dbias = a.dbias;
  work.mean = static_cast<const float*>(a.mean);
  work.rstd = static_cast<const float*>(a.rstd);
  work.share = a.training ? 1 / static_cast<double>(work.lines.count) : 0;
  work.relu = a.relu;
  work.sums = static_cast<Sums<float>*>(a.workspace);
  work.parts = work.lines.parts;
  with_half(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    Way::launch("batch_norm_backward", line_sums_kernel<Way, T>, work.lines.blocks(), work, executor);
    if (work.parts > joined_parts) {
      const i64 parts = tile::ceil_div(work.parts, joined_parts);
      Way::launch("batch_norm_backward", join_sums_kernel<Way>, work.lines.blocks() / work.parts * parts, work,
                  executor);
      work.sums += work.parts * work.lines.channels;
      work.parts = parts;
    }
    Way::launch("batch_norm_backward", line_backward_kernel<Way, T>, work.lines.blocks(), work, executor);
  });
}

}  // namespace
}  // namespace tessera::gpu_kernels
