// Batch norm of images of halves whose channels lie last: every pixel is a line of channels, and a thread has eight
// channels of every 32nd line of a part of them.
#include "plane_norm.h"
#include "tile/arch/gpu/shared_line.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int width = 8, across = 64;  // channels of a thread, and of a block
constexpr int abreast = plane_threads / (across / width);

struct Lines {
  i64 count, channels, parts;

  i64 blocks() const { return parts * tile::ceil_div<i64>(channels, across); }
};
Lines lines_of(i64 batch, i64 size, i64 channels) {
  return {batch * size, channels, line_norm_parts(batch * size, channels)};
}

/// A block's part of the lines and of the channels.
struct LinePart {
  const Lines& lines;
  i64 index, begin, end, channel;  // this thread's first channel

  explicit TESSERA_DEVICE LinePart(const Lines& lines) : lines(lines) {
    const i64 block = tile::block_in_grid(), groups = tile::ceil_div<i64>(lines.channels, across);
    const i64 length = tile::ceil_div(lines.count, lines.parts);
    index = tile::quotient(block, groups);
    begin = tile::min(lines.count, index * length);
    end = tile::min(lines.count, begin + length);
    channel = first_channel() + tile::thread_in_block() % (across / width) * width;
  }
  TESSERA_DEVICE i64 first_channel() const {
    return (tile::block_in_grid() - index * tile::ceil_div<i64>(lines.channels, across)) * across;
  }
  TESSERA_DEVICE bool inside() const { return channel < lines.channels; }
  TESSERA_DEVICE i64 place(i64 line) const { return line * lines.channels + channel; }

  /// use(place, load(place)) for this thread's packs, some loads ahead.
  template <class Load, class Use>
  TESSERA_DEVICE void each(const Load& load, const Use& use) const {
    constexpr int ahead = 4;
    if (!inside()) return;
    for (i64 i = begin + tile::thread_in_block() / (across / width); i < end; i += ahead * abreast) {
      decltype(load(i)) held[ahead];
      tile::unroll<ahead>([&](auto k) {
        if (i + k * abreast < end) held[k] = load(place(i + k * abreast));
      });
      tile::unroll<ahead>([&](auto k) {
        if (i + k * abreast < end) use(place(i + k * abreast), held[k]);
      });
    }
  }

  /// store(channel, sums over the block) by a thread for each channel.
  template <class Store>
  TESSERA_DEVICE void sum_up(const float (&first)[width], const float (&second)[width], const Store& store) const {
    constexpr int teams = across / width;
    __shared__ Sums<float> room[abreast][across + 8];  // lines begin in other banks; a thread's channels, teams apart
    Sums<float>* const mine = room[tile::thread_in_block() / teams] + tile::thread_in_block() % teams;
    for (int j = 0; j < width; ++j) mine[j * teams] = {first[j], second[j]};
    tile::sync_block();
    const int at = tile::thread_in_block();
    const i64 c = first_channel() + at % teams * width + at / teams;
    if (at >= across || c >= lines.channels) return;
    Sums<double> sums{0, 0};
    for (int i = 0; i < abreast; ++i)
      sums = sums + Sums<double>{static_cast<double>(room[i][at].first), static_cast<double>(room[i][at].second)};
    store(c, sums);
  }
};

template <class T>
TESSERA_DEVICE const Pack<T, width>& eight_at(const void* data, i64 place) {
  return pack_at<T, width>(static_cast<const T*>(data) + place);
}

/// The channel of a team of lanes, for what parts are joined by.
TESSERA_DEVICE i64 channel_of_team() { return first_index() / team_lanes; }
i64 teams(const Lines& lines) { return tile::ceil_div<i64>(lines.channels, plane_threads / team_lanes); }

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
template <class T>
TESSERA_KERNEL(plane_threads)
void line_moments_kernel(const LineNormWork work) {
  const LinePart part(work.lines);
  if (part.begin == part.end) {
    const i64 c = part.first_channel() + tile::thread_in_block();
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
            });
  part.sum_up(sums, squares, [&](i64 c, const Sums<double>& all) {
    const double count = static_cast<double>(part.end - part.begin), offset = all.first / count;
    const double around =
        tile::convert_element<double>(static_cast<const T*>(work.x)[part.begin * work.lines.channels + c]);
    const double rest = all.second - all.first * offset;
    work.moments[c * work.lines.parts + part.index] = {around + offset, rest < 0 ? 0 : rest, count};
  });
}

TESSERA_KERNEL(plane_threads)
void join_moments_kernel(const LineNormWork work) {
  const i64 c = channel_of_team();
  if (c >= work.lines.channels) return;
  const PartMoments all = join_moments(work.moments + c * work.lines.parts, work.lines.parts);
  if (tile::thread_in_block() % team_lanes != 0) return;
  work.mean[c] = static_cast<float>(all.mean);
  work.rstd[c] = static_cast<float>(1 / tile::sqrt(all.squares / all.count + work.eps));
  move_estimate(work.running_mean, c, all.mean, work.momentum);
  move_estimate(work.running_variance, c, all.squares / tile::max(1.0, all.count - 1), work.momentum);
}

template <class T>
TESSERA_KERNEL(plane_threads)
void line_norm_kernel(const LineNormWork work) {
  using Line = tile::SharedLine<float, width>;
  __shared__ __attribute__((aligned(16))) float scales[across], shifts[across];
  const LinePart part(work.lines);
  const int thread = tile::thread_in_block();
  if (const i64 c = part.first_channel() + thread; thread < across && c < work.lines.channels) {
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
    scales[Line::place(thread)] = line.scale;
    shifts[Line::place(thread)] = line.shift;
  }
  tile::sync_block();
  if (!part.inside()) return;
  float scale[width], shift[width];
  const int own = thread % (across / width) * width;
  Line::load(scales, own, scale);
  Line::load(shifts, own, shift);
  part.each([&](i64 at) { return eight_at<T>(work.x, at); },
            [&](i64 at, const Pack<T, width>& pack) {
              const auto v = lanes(pack);
              Pack<T, width> out;
              tile::unroll<width>([&](auto j) {
                const float y = tile::fma(v[j], scale[j], shift[j]);
                out.lane[j] = convert_element<T>(work.relu ? tile::relu(y) : y);
              });
              store_at_once(static_cast<T*>(work.y) + at, out);
            });
}

// ---- backward

struct LineBackwardWork {
  Lines lines;
  void* dx;
  const void *dy, *x;
  ChannelWeights weight, bias;
  void *dweight, *dbias;
  const float *mean, *rstd;
  bool constant, relu;
  Sums<double>* sums;  // [channels, parts] of dy and dy (x - mean); joined, a channel's first has slope and rest of
                       // dx = scale dy + slope x + rest
};

template <class T>
struct GradientPacks {
  Pack<T, width> dy, x;
};

/// A thread's channels, and dy of them where y was positive.
struct LineGradient {
  float scale[width], shift[width], mean[width];

  TESSERA_DEVICE LineGradient(const LineBackwardWork& work, i64 channel) {
    for (int j = 0; j < width; ++j) {
      const i64 c = tile::min(channel + j, work.lines.channels - 1);
      const ScaleShift<float> line(work.mean[c], work.rstd[c], work.weight.at(c, 1.0f), work.bias.at(c, 0.0f));
      scale[j] = line.scale;
      shift[j] = line.shift;
      mean[j] = work.mean[c];
    }
  }
  /// fn(lane, dy, x)
  template <class T, class Fn>
  TESSERA_DEVICE void each(const GradientPacks<T>& packs, bool relu, const Fn& fn) const {
    const auto g = lanes(packs.dy), v = lanes(packs.x);
    tile::unroll<width>([&](auto j) { fn(j, relu && !(tile::fma(v[j], scale[j], shift[j]) > 0) ? 0.0f : g[j], v[j]); });
  }
};

template <class T>
TESSERA_DEVICE GradientPacks<T> load_gradient(const LineBackwardWork& work, i64 at) {
  return {eight_at<T>(work.dy, at), eight_at<T>(work.x, at)};
}

template <class T>
TESSERA_KERNEL(plane_threads)
void line_sums_kernel(const LineBackwardWork work) {
  const LinePart part(work.lines);
  const LineGradient gradient(work, part.channel);
  float first[width] = {}, second[width] = {};
  part.each([&](i64 at) { return load_gradient<T>(work, at); },
            [&](i64, const GradientPacks<T>& packs) {
              gradient.each(packs, work.relu, [&](auto j, float g, float v) {
                first[j] += g;
                second[j] = tile::fma(g, v - gradient.mean[j], second[j]);
              });
            });
  part.sum_up(first, second,
              [&](i64 c, const Sums<double>& all) { work.sums[c * work.lines.parts + part.index] = all; });
}

TESSERA_KERNEL(plane_threads)
void join_sums_kernel(const LineBackwardWork work) {
  const i64 c = channel_of_team();
  if (c >= work.lines.channels) return;
  Sums<double>* const parts = work.sums + c * work.lines.parts;
  Sums<double> all{0, 0};
  for (i64 i = tile::thread_in_block() % team_lanes; i < work.lines.parts; i += team_lanes) all = all + parts[i];
  all = join_lanes(all, Plus{});
  if (tile::thread_in_block() % team_lanes != 0) return;
  const Scalar type = work.weight.type;
  const double gain = static_cast<double>(work.rstd[c]);
  if (work.dweight) store_as(work.dweight, type, c, all.second * gain);
  if (work.dbias) store_as(work.dbias, type, c, all.first);
  parts[0] = {0, 0};
  if (work.constant) return;
  const double w = work.weight.at(c, 1.0), count = static_cast<double>(work.lines.count),
               slope = -gain * gain * gain * w * all.second / count;
  parts[0] = {slope, -gain * w * all.first / count - slope * static_cast<double>(work.mean[c])};
}

template <class T>
TESSERA_KERNEL(plane_threads)
void line_backward_kernel(const LineBackwardWork work) {
  const LinePart part(work.lines);
  if (!part.inside()) return;
  const LineGradient gradient(work, part.channel);
  float slope[width], rest[width];
  for (int j = 0; j < width; ++j) {
    const Sums<double> line = work.sums[(part.channel + j) * work.lines.parts];
    slope[j] = static_cast<float>(line.first);
    rest[j] = static_cast<float>(line.second);
  }
  part.each([&](i64 at) { return load_gradient<T>(work, at); },
            [&](i64 at, const GradientPacks<T>& packs) {
              Pack<T, width> out;
              gradient.each(packs, work.relu, [&](auto j, float g, float v) {
                out.lane[j] = convert_element<T>(tile::fma(g, gradient.scale[j], tile::fma(v, slope[j], rest[j])));
              });
              store_at_once(static_cast<T*>(work.dx) + at, out);
            });
}

template <class Work>
void launch_lines(const char* what, void (*kernel)(Work), i64 blocks, const Work& work, Executor& executor) {
  launch(what, kernel, blocks, plane_threads, 0, executor, work);
}
template <class Fn>
void with_half(Scalar type, const Fn& fn) {
  type == Scalar::f16 ? fn(Type<f16>{}) : fn(Type<bf16>{});
}

}  // namespace

void line_norm(const BatchNormArgs& a, Executor& executor) {
  LineNormWork work{};
  work.lines = lines_of(a.batch, a.size, a.channels);
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
      launch_lines("batch_norm", line_moments_kernel<T>, work.lines.blocks(), work, executor);
      launch_lines("batch_norm", join_moments_kernel, teams(work.lines), work, executor);
    }
    launch_lines("batch_norm", line_norm_kernel<T>, work.lines.blocks(), work, executor);
  });
}

void line_norm_backward(const BatchNormBackwardArgs& a, Executor& executor) {
  LineBackwardWork work{};
  work.lines = lines_of(a.batch, a.size, a.channels);
  work.dx = a.dx.data;
  work.dy = a.dy.data;
  work.x = a.x.data;
  work.weight = {a.weight, a.weight_type};
  work.bias = {a.bias, a.weight_type};
  work.dweight = a.dweight;
  work.dbias = a.dbias;
  work.mean = static_cast<const float*>(a.mean);
  work.rstd = static_cast<const float*>(a.rstd);
  work.constant = !a.training;
  work.relu = a.relu;
  work.sums = static_cast<Sums<double>*>(a.workspace);
  with_half(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_lines("batch_norm_backward", line_sums_kernel<T>, work.lines.blocks(), work, executor);
    launch_lines("batch_norm_backward", join_sums_kernel, teams(work.lines), work, executor);
    if (work.dx) launch_lines("batch_norm_backward", line_backward_kernel<T>, work.lines.blocks(), work, executor);
  });
}

}  // namespace tessera::gpu_kernels
