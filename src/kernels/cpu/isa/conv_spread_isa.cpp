// Convolutions of few channels and filters a group, of f32 and with channels that lie last: all filters are lanes.
#include "conv_typed.h"
#include "tile/kernels/conv_spread.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

/// What a convolution reads. The inputs of a single tap, which lie a stride apart, are an image of their own.
struct Spread {
  SpreadGroups groups;
  StridedView<const float, 4> x;
  Sweep h, w;

  Spread(const SpreadGroups& groups, const StridedView<const float, 4>& from, const Sweep& rows, const Sweep& columns)
      : groups(groups), x(from), h(rows), w(columns) {
    const i64 down = step_of_alone(h), along = step_of_alone(w);
    x = strided(from.data, {from.length(0), h.length, w.length, from.length(3)},
                {from.stride(0), down * from.stride(1), along * from.stride(2), from.stride(3)});
  }

 private:
  static i64 step_of_alone(Sweep& s) {
    const i64 step = s.taps == 1 && s.before == 0 ? s.stride : 1;
    s.length = ceil_div(s.length, step), s.stride /= step;
    if (s.taps <= 1) s.dilation = s.stride;  // so that neighbours slide
    return step;
  }
};

/// Rows of small planes are one: each that begins takes as long as some pixels.
ConvArgs with_long_rows(const ConvArgs& a) { return a.size[0] * a.size[1] <= 256 ? with_planes_as_rows(a) : a; }

template <class T>
StridedView<T, 5> filters_by_group(const ConvArgs& a, const ConvShape& s) {
  const auto w = filters<T>(a);
  const i64 k = s.group_filters();
  return strided(w.data, {s.groups, k, s.h.filter, s.w.filter, s.group_channels()},
                 {k * w.stride(0), w.stride(0), w.stride(1), w.stride(2), w.stride(3)});
}

}  // namespace

i64 spread_workspace(const ConvArgs& args) {
  const ConvShape s = shape_of(args);
  const i64 taps = s.h.filter * s.w.filter;
  return max(LaneBlocks<float>{s.filters}.size(taps * s.group_channels()),
             LaneBlocks<float>{s.channels}.size(taps * s.group_filters())) *
         static_cast<i64>(sizeof(float));
}

void spread_forward(const ConvArgs& given, Executor& executor) {
  const ConvArgs args = with_long_rows(given);
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  float* const packed = static_cast<float*>(args.workspace);
  const Spread from({s.groups, s.group_channels(), s.group_filters()}, images<const float>(args), sweep(s.h),
                    sweep(s.w));
  pack_spread(filters_by_group<const float>(args, s), packed);
  each_undilated(from.x, from.h, y, [&](const auto& x, const Sweep& h, const auto& to, const auto& row_of) {
    conv2d_spread<float>(ExecutorRef(executor), from.groups, x, h, from.w, packed, to,
                         [&](i64 image, i64 row) { finish_row(args, y, image, row_of(row), 0, s.filters); });
  });
}

void spread_backward_images(const ConvArgs& given, Executor& executor) {
  const ConvArgs args = with_long_rows(given);
  const ConvShape s = shape_of(args);
  const auto gx = images<float>(args);
  const auto w = filters_by_group<const float>(args, s);
  float* const packed = static_cast<float*>(args.workspace);
  for (i64 first_h = 0; first_h < min(s.h.stride, s.h.length); ++first_h) {
    for (i64 first_w = 0; first_w < min(s.w.stride, s.w.length); ++first_w) {
      const Residue h = residue(s.h, first_h), v = residue(s.w, first_w);
      if (h.count == 0 || v.count == 0) continue;
      const Spread from({s.groups, s.group_filters(), s.group_channels()}, outputs<const float>(args, s), sweep(h),
                        sweep(v));
      const i64 last_h = h.tap + h.tap_step * max<i64>(0, h.taps - 1);
      const i64 last_v = v.tap + v.tap_step * max<i64>(0, v.taps - 1);
      // Channels for filters, and taps turned round.
      const auto turned =
          strided(w.data + last_h * w.stride(2) + last_v * w.stride(3),
                  {s.groups, s.group_channels(), h.taps, v.taps, s.group_filters()},
                  {w.stride(0), w.stride(4), -h.tap_step * w.stride(2), -v.tap_step * w.stride(3), w.stride(1)});
      pack_spread(turned, packed);
      const auto met = strided(gx.data + h.first * gx.stride(1) + v.first * gx.stride(2),
                               {gx.length(0), h.count, v.count, gx.length(3)},
                               {gx.stride(0), h.stride * gx.stride(1), v.stride * gx.stride(2), gx.stride(3)});
      each_undilated(from.x, from.h, met, [&](const auto& x, const Sweep& rows, const auto& to, const auto&) {
        conv2d_spread<float>(ExecutorRef(executor), from.groups, x, rows, from.w, packed, to, [](i64, i64) {});
      });
    }
  }
}

namespace {

i64 spread_sums_size(const ConvShape& s) {
  return LaneBlocks<float>{s.filters}.size(s.h.filter * s.w.filter * s.group_channels());
}

}  // namespace

i64 spread_filters_workspace(const ConvArgs& args) {
  const ConvShape s = shape_of(args);
  return spread_sums_size(s) * depthwise_parts(args.images, sweep(s.h), num_threads()) *
         static_cast<i64>(sizeof(float));
}
void spread_backward_filters(const ConvArgs& given, Executor& pool) {
  const ConvArgs args = with_long_rows(given);
  const ConvShape s = shape_of(args);
  const ExecutorRef executor(pool);
  const Spread from({s.groups, s.group_channels(), s.group_filters()}, images<const float>(args), sweep(s.h),
                    sweep(s.w));
  const i64 parts = depthwise_parts(args.images, from.h, executor.threads());
  float* const sums = static_cast<float*>(args.workspace);
  for (i64 i = 0; i < parts * spread_sums_size(s); ++i) sums[i] = 0;
  each_undilated(from.x, from.h, outputs<const float>(args, s),
                 [&](const auto& x, const Sweep& h, const auto& dy, const auto&) {
                   add_spread_sums(executor, from.groups, x, h, from.w, dy, parts, sums);
                 });
  unpack_spread<float>(sums, parts, filters_by_group<float>(args, s));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
