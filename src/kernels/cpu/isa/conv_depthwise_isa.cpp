// Convolutions in which each channel has a filter of its own, of f32 and with channels that lie last.
#include "conv_typed.h"
#include "tile/kernels/conv_depthwise.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

template <class T>
StridedView<T, 3> filters_by_channel(const ConvArgs& a) {
  const auto& s = a.w.strides;
  return strided(static_cast<T*>(a.w.data), {a.channels, a.filter[0], a.filter[1]}, {s[0], s[2], s[3]});
}

}  // namespace

i64 depthwise_workspace(const ConvArgs& args) {
  return args.channels * args.filter[0] * args.filter[1] * static_cast<i64>(sizeof(float));
}
i64 depthwise_filters_workspace(const ConvArgs& args) {
  return depthwise_workspace(args) * depthwise_parts(args.images, sweep(shape_of(args).h), num_threads());
}

void depthwise_forward(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  float* const packed = static_cast<float*>(args.workspace);
  tile::detail::pack_lines(filters_by_channel<const float>(args), packed);
  const auto run = [&](const auto& result) {
    conv2d_depthwise<float>(
        ExecutorRef(executor), images<const float>(args), sweep(s.h), sweep(s.w), packed, [&](i64 image, i64 row) {
          float* const to = y.data + image * y.stride(0) + row * y.stride(1);
          const auto line = strided(to, tuple(y.length(2), y.length(3)), tuple(y.stride(2), Int<1>{}));
          return store(line, result);
        });
  };
  const ConvActivation any = activation_of(args);
  if (args.bias == nullptr) return args.activation == Activation::none ? run(acc) : run(apply(any, acc));
  const auto bias =
      strided(static_cast<const float*>(args.bias), tuple(y.length(2), y.length(3)), tuple(i64{0}, Int<1>{}));
  run(apply(any, acc + load(bias)));
}

void depthwise_backward_images(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  const auto gx = images<float>(args);
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
      tile::detail::pack_lines(turned, packed);
      conv2d_depthwise<float>(
          ExecutorRef(executor), outputs<const float>(args, s), sweep(h), sweep(v), packed, [&](i64 image, i64 row) {
            const i64 at = h.first + row * h.stride;
            float* const to = gx.data + image * gx.stride(0) + at * gx.stride(1) + v.first * gx.stride(2);
            return store(strided(to, tuple(v.count, gx.length(3)), tuple(v.stride * gx.stride(2), Int<1>{})), acc);
          });
    }
  }
}

void depthwise_backward_filters(const ConvArgs& args, Executor& executor) {
  const ConvShape s = shape_of(args);
  depthwise_filters<float>(ExecutorRef(executor), images<const float>(args), sweep(s.h), sweep(s.w),
                           outputs<const float>(args, s), filters_by_channel<float>(args),
                           static_cast<float*>(args.workspace));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
