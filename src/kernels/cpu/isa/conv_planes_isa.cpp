// Convolutions of few channels or filters a group, of f32 in any layout: vectors run along rows.
#include "conv_typed.h"
#include "tile/kernels/conv_planes.h"
#include "tile/kernels/conv_planes_filters.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

template <class T>
StridedView<T, 4> one_group(const StridedView<T, 4>& v, i64 group, i64 channels) {
  return strided(v.data + group * channels * v.stride(3), {v.length(0), v.length(1), v.length(2), channels},
                 {v.stride(0), v.stride(1), v.stride(2), v.stride(3)});
}

/// Zeros, along whatever lies one after the other.
void zero(const ExecutorRef& executor, const StridedView<float, 4>& v) {
  const i64 rows = v.length(1), columns = v.length(2), channels = v.length(3);
  const bool planes = v.stride(2) == 1;
  executor.parallel(v.length(0) * (planes ? channels : rows), [&](i64 index, int) {
    if (planes) {
      float* const to = v.data + index / channels * v.stride(0) + index % channels * v.stride(3);
      if (v.stride(1) == columns) return tile::detail::zero_run(to, rows * columns);
      for (i64 i = 0; i < rows; ++i) tile::detail::zero_run(to + i * v.stride(1), columns);
      return;
    }
    float* const to = v.data + index / rows * v.stride(0) + index % rows * v.stride(1);
    const bool pixels = v.stride(3) == 1;
    if (pixels && v.stride(2) == channels) return tile::detail::zero_run(to, columns * channels);
    for (i64 i = 0; i < columns; ++i) {
      float* const pixel = to + i * v.stride(2);
      if (pixels) tile::detail::zero_run(pixel, channels);
      for (i64 c = 0; c < channels && !pixels; ++c) pixel[c * v.stride(3)] = 0;
    }
  });
}

/// What is behind the sums of one group.
struct Finish {
  const float* bias;
  StridedView<const float, 4> residual;
  ConvActivation activation;

  template <class V>
  V operator()(V v, i64 image, i64 filter, i64 row, i64 column, int count) const {
    if (bias) v += V(bias[filter]);
    if (residual.data) {
      const i64 step = residual.stride(2);
      const float* const from = residual.data + image * residual.stride(0) + row * residual.stride(1) + column * step +
                                filter * residual.stride(3);
      float lanes[lanes_v<V>];
      for (int i = 0; i < count && step != 1; ++i) lanes[i] = from[i * step];
      v += load<V>(step == 1 ? from : lanes, count);
    }
    return activation(v);
  }
};

}  // namespace

i64 planes_workspace(const ConvArgs& args) {
  return args.filters * (args.channels / args.groups) * args.filter[0] * args.filter[1] *
         static_cast<i64>(sizeof(float));
}

void planes_forward(const ConvArgs& given, Executor& pool) {
  const ConvArgs args = with_planes_as_rows(given);
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  const auto w = filters<const float>(args);
  const i64 k = s.group_filters(), size = k * s.group_channels() * s.h.filter * s.w.filter;
  float* const packed = static_cast<float*>(args.workspace);
  for (i64 g = 0; g < s.groups; ++g) pack_planes_filters(tile::detail::group_filters(w, g, k), packed + g * size);
  const auto run = [&](const auto& finish_of) {
    conv2d_planes<float>(ExecutorRef(pool), s.groups, images<const float>(args), sweep(s.h), sweep(s.w), k, packed,
                         [&](i64 group) { return PlanesResult(one_group(y, group, k), finish_of(group)); });
  };
  if (!args.bias && args.activation == Activation::none && !args.residual.data) {
    return run([](i64) { return Unchanged{}; });
  }
  const auto residual =
      channels_last<const float>(args.residual, args.images, args.filters, s.h.output(), s.w.output());
  run([&](i64 group) {
    auto added = residual;
    if (added.data) added = one_group(added, group, k);
    return Finish{args.bias ? static_cast<const float*>(args.bias) + group * k : nullptr, added, activation_of(args)};
  });
}

void planes_backward_images(const ConvArgs& given, Executor& pool) {
  const ConvArgs args = with_planes_as_rows(given);
  const ConvShape s = shape_of(args);
  const auto gx = images<float>(args);
  const auto w = filters<const float>(args);
  const i64 k = s.group_filters(), c = s.group_channels();
  float* const packed = static_cast<float*>(args.workspace);
  // Pixels that no tap meets lie a stride apart: zeros of all take less time than writing only those.
  const auto misses = [](const Window& d) {
    for (i64 first = 0; first < min(d.stride, d.length); ++first)
      if (residue(d, first).taps == 0) return true;
    return false;
  };
  if (misses(s.h) || misses(s.w)) zero(ExecutorRef(pool), gx);
  for (i64 first_h = 0; first_h < min(s.h.stride, s.h.length); ++first_h) {
    for (i64 first_w = 0; first_w < min(s.w.stride, s.w.length); ++first_w) {
      const Residue h = residue(s.h, first_h), v = residue(s.w, first_w);
      if (h.count * v.count * h.taps * v.taps == 0) continue;
      const i64 size = c * k * h.taps * v.taps;
      const i64 last_h = h.tap + h.tap_step * max<i64>(0, h.taps - 1);
      const i64 last_v = v.tap + v.tap_step * max<i64>(0, v.taps - 1);
      const float* const last = w.data + last_h * w.stride(1) + last_v * w.stride(2);
      for (i64 g = 0; g < s.groups; ++g) {  // channels for filters, and taps turned round
        pack_planes_filters(strided(last + g * k * w.stride(0), {c, h.taps, v.taps, k},
                                    {w.stride(3), -h.tap_step * w.stride(1), -v.tap_step * w.stride(2), w.stride(0)}),
                            packed + g * size);
      }
      float* const first = gx.data + h.first * gx.stride(1) + v.first * gx.stride(2);
      const auto met = strided(first, {gx.length(0), h.count, v.count, gx.length(3)},
                               {gx.stride(0), h.stride * gx.stride(1), v.stride * gx.stride(2), gx.stride(3)});
      conv2d_planes<float>(ExecutorRef(pool), s.groups, outputs<const float>(args, s), sweep(h), sweep(v), c, packed,
                           [&](i64 group) { return PlanesResult(one_group(met, group, c), Unchanged{}); });
    }
  }
}

namespace {

PlanesFilters<float> planes_gradient(const ConvArgs& given, i64 threads) {
  const ConvArgs args = with_planes_as_rows(given);
  const ConvShape s = shape_of(args);
  return {s.groups,   images<const float>(args),     sweep(s.h),
          sweep(s.w), outputs<const float>(args, s), filters<float>(args),
          threads};
}

}  // namespace

i64 planes_filters_workspace(const ConvArgs& args) {
  return planes_gradient(args, num_threads()).memory_size() * static_cast<i64>(sizeof(float));
}
void planes_backward_filters(const ConvArgs& args, Executor& pool) {
  planes_gradient(args, ExecutorRef(pool).threads()).run(ExecutorRef(pool), static_cast<float*>(args.workspace));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
