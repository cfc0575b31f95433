// Convolutions whose products are computed for all taps of a pixel, then added where they lead; channels of the result
// lie last.
#include "conv_typed.h"
#include "tile/kernels/conv_scatter.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

/// A forward convolution of stride 1 is the gradient of one whose taps are turned round.
Window turned(const Window& w) {
  const i64 last = (w.filter - 1) * w.dilation;
  return {w.output(), w.filter, 1, w.dilation, last - w.pad_low, last - w.pad_high};
}

ScatterConvolution<float> forward_of(const ConvArgs& args, i64 threads) {
  const ConvShape s = shape_of(args);
  return {s.groups, images<const float>(args), turned(s.h), turned(s.w), outputs<float>(args, s), threads};
}
ScatterConvolution<float> gradient_of(const ConvArgs& args, i64 threads) {
  const ConvShape s = shape_of(args);
  return {s.groups, outputs<const float>(args, s), s.h, s.w, images<float>(args), threads};
}

}  // namespace

i64 scatter_workspace(const ConvArgs& args) {
  const i64 threads = num_threads();
  i64 size = gradient_of(args, threads).memory_size();
  if (args.stride[0] == 1 && args.stride[1] == 1) size = max(size, forward_of(args, threads).memory_size());
  return size * static_cast<i64>(sizeof(float));
}

void scatter_forward(const ConvArgs& args, Executor& pool) {
  const ExecutorRef executor(pool);
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  const auto w = filters<const float>(args);
  const i64 k = s.group_filters(), c = s.group_channels();
  const auto turned_filters = [&](i64 group) {
    const float* const last =
        w.data + group * k * w.stride(0) + (s.h.filter - 1) * w.stride(1) + (s.w.filter - 1) * w.stride(2);
    return strided(last, {c, s.h.filter, s.w.filter, k}, {w.stride(3), -w.stride(1), -w.stride(2), w.stride(0)});
  };
  forward_of(args, executor.threads())
      .run(executor, turned_filters, static_cast<float*>(args.workspace),
           [&](i64 group, i64 image, i64 row) { finish_row(args, y, image, row, group * k, k); });
}

void scatter_backward_images(const ConvArgs& args, Executor& pool) {
  const ExecutorRef executor(pool);
  const ConvShape s = shape_of(args);
  const auto w = filters<const float>(args);
  const auto of_group = [&](i64 group) { return tile::detail::group_filters(w, group, s.group_filters()); };
  gradient_of(args, executor.threads()).run(executor, of_group, static_cast<float*>(args.workspace), [](i64, i64, i64) {
  });
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
