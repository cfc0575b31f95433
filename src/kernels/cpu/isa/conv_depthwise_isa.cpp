// Convolutions in which each channel has a filter of its own, of f32 and with channels that lie last.
#include "conv_typed.h"
#include "tile/kernels/conv_depthwise.h"
#include "tile/kernels/conv_depthwise_narrow.h"
#include "tile/kernels/conv_depthwise_points.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

template <class T>
StridedView<T, 3> filters_by_channel(const ConvArgs& a) {
  const auto& s = a.w.strides;
  return strided(static_cast<T*>(a.w.data), {a.channels, a.filter[0], a.filter[1]}, {s[0], s[2], s[3]});
}
/// A single tap's neighbours are a stride apart.
Sweep sliding(Sweep s) {
  if (s.taps <= 1) s.dilation = s.stride;
  return s;
}

template <class Finish>
void convolve(const ExecutorRef& executor, const StridedView<const float, 4>& x, const Sweep& h, const Sweep& w,
              const float* filters, const StridedView<float, 4>& y, const Finish& finish) {
  if (LaneBlocks<float>{x.length(3)}.narrow()) {
    conv2d_depthwise_narrow<float>(executor, x, h, w, filters, y, finish);
  } else {
    conv2d_depthwise<float>(executor, x, h, sliding(w), filters, y, finish);
  }
}

/// Of one tap, and of a vector's channels.
bool is_points(const ConvArgs& a) {
  return a.filter[0] == 1 && a.filter[1] == 1 && !LaneBlocks<float>{a.channels}.narrow();
}
const float* factors(const ConvArgs& a) {
  const auto w = filters_by_channel<const float>(a);
  float* const packed = static_cast<float*>(a.workspace);
  for (i64 c = 0; c < a.channels; ++c) packed[c] = w.data[c * w.stride(0)];
  return packed;
}

}  // namespace

i64 depthwise_workspace(const ConvArgs& args) {
  return LaneBlocks<float>{args.channels}.size(args.filter[0] * args.filter[1]) * static_cast<i64>(sizeof(float));
}
i64 depthwise_filters_workspace(const ConvArgs& args) {
  return depthwise_workspace(args) * depthwise_parts(args.images, sweep(shape_of(args).h), num_threads());
}

void depthwise_forward(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  if (is_points(args)) {
    return depthwise_points<float>(ExecutorRef(executor), images<const float>(args), sweep(s.h), sweep(s.w),
                                   factors(args), y,
                                   [&](i64 image, i64 row) { finish_row(args, y, image, row, 0, args.channels); });
  }
  float* const packed = static_cast<float*>(args.workspace);
  pack_lanes(filters_by_channel<const float>(args), packed);
  convolve(ExecutorRef(executor), images<const float>(args), sweep(s.h), sweep(s.w), packed, y,
           [&](i64 image, i64 row, i64 first, i64 count) { finish_row(args, y, image, row, first, count); });
}

void depthwise_backward_images(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto gx = images<float>(args);
  if (is_points(args)) {
    return depthwise_points_images<float>(ExecutorRef(executor), outputs<const float>(args, s), sweep(s.h), sweep(s.w),
                                          factors(args), gx);
  }
  const auto w = filters_by_channel<const float>(args);
  float* const packed = static_cast<float*>(args.workspace);
  for (i64 first_h = 0; first_h < min(s.h.stride, s.h.length); ++first_h) {
    for (i64 first_w = 0; first_w < min(s.w.stride, s.w.length); ++first_w) {
      const Residue h = residue(s.h, first_h), v = residue(s.w, first_w);
      if (h.count == 0 || v.count == 0) continue;
      const i64 last_h = h.tap + h.tap_step * max<i64>(0, h.taps - 1);
      const i64 last_v = v.tap + v.tap_step * max<i64>(0, v.taps - 1);
      const auto turned = strided(w.data + last_h * w.stride(1) + last_v * w.stride(2), {args.channels, h.taps, v.taps},
                                  {w.stride(0), -h.tap_step * w.stride(1), -v.tap_step * w.stride(2)});
      pack_lanes(turned, packed);
      const auto met = strided(gx.data + h.first * gx.stride(1) + v.first * gx.stride(2),
                               {gx.length(0), h.count, v.count, gx.length(3)},
                               {gx.stride(0), h.stride * gx.stride(1), v.stride * gx.stride(2), gx.stride(3)});
      convolve(ExecutorRef(executor), outputs<const float>(args, s), sweep(h), sweep(v), packed, met,
               [](i64, i64, i64, i64) {});
    }
  }
}

void depthwise_backward_filters(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  if (is_points(args)) {
    const auto gw = filters_by_channel<float>(args);
    return depthwise_points_filters<float>(ExecutorRef(executor), images<const float>(args), sweep(s.h), sweep(s.w),
                                           outputs<const float>(args, s), gw.data, gw.stride(0),
                                           static_cast<float*>(args.workspace));
  }
  const auto run = [&](auto gradient, const Sweep& w) {
    gradient(ExecutorRef(executor), images<const float>(args), sweep(s.h), w, outputs<const float>(args, s),
             filters_by_channel<float>(args), static_cast<float*>(args.workspace));
  };
  if (LaneBlocks<float>{args.channels}.narrow()) return run(depthwise_filters_narrow<float>, sweep(s.w));
  run(depthwise_filters<float>, sliding(sweep(s.w)));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
