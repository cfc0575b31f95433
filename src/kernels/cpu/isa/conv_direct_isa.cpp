// Convolutions over channels that lie last, one after the other in memory.
#include "conv_typed.h"
#include "tile/arch/cpu/stream.h"
#include "tile/kernels/conv_direct.h"
#include "tile/kernels/conv_direct_filters.h"

namespace tessera::cpu_kernels::TESSERA_ISA::conv {
namespace {

/// A dense 1x1 convolution is one over a single row of all pixels.
bool is_one_row(const ConvArgs& a, const ConvShape& s) {
  const auto dense = [](const ConvTensor& t, i64 h, i64 w) {
    return t.strides[2] == w * t.strides[3] && t.strides[0] == h * t.strides[2];
  };
  const auto point = [](const Window& d) { return d.filter == 1 && d.stride == 1 && d.pad_low + d.pad_high == 0; };
  return point(s.h) && point(s.w) && dense(a.x, s.h.length, s.w.length) && dense(a.y, s.h.output(), s.w.output()) &&
         (!a.residual.data || dense(a.residual, s.h.output(), s.w.output()));
}
ConvArgs as_one_row(ConvArgs a) {
  a.size[1] *= a.images * a.size[0];
  a.images = a.size[0] = 1;
  return a;
}

/// What a product of groups packs: of so many filters and steps each.
i64 packed_size(i64 groups, i64 filters, i64 depth) { return groups * packed_filters_size<float>(filters, depth); }

/// Whether results are too many for the caches, and pixels follow one another. The next layer reads results soon, so
/// that more of them than cpu::streamed_bytes stay in a cache.
bool passes_caches(const StridedView<float, 4>& y) {
  constexpr i64 least = 16 << 20;
  const i64 elements = y.length(0) * y.length(1) * y.length(2) * y.length(3);
  return y.stride(2) == y.length(3) && elements * i64{sizeof(float)} >= least;
}
/// Whether a pixel's results in a group are whole lines of memory.
bool are_lines(const StridedView<float, 4>& y, i64 filters) {
  constexpr i64 line = 64;
  const i64 places = y.stride(0) | y.stride(1) | y.stride(2) | filters;
  return places * i64{sizeof(float)} % line == 0 && reinterpret_cast<i64>(y.data) % line == 0;
}

/// To `y`, all groups' results beside each other; finish(group, image, row) is what becomes of sums. `panels`: filters
/// lie in these however few.
template <class Finish>
void convolve_to(const StridedView<float, 4>& y, const ExecutorRef& executor, i64 groups,
                 const StridedView<const float, 4>& x, const Sweep& h, const Sweep& w, const float* packed, bool panels,
                 const Finish& finish) {
  const i64 k = y.length(3) / groups;
  const auto convolve = [&](const auto& sink) {
    conv2d_direct<float>(executor, groups, x, h, w, k, packed, sink, panels);
  };
  const auto place = [&](i64 group, i64 image, i64 row) {
    return y.data + image * y.stride(0) + row * y.stride(1) + group * k;
  };
  const bool passes = passes_caches(y);
  if (passes && are_lines(y, k))
    return convolve([&](i64 group, i64 image, i64 row) {
      return cpu::stream_rows(place(group, image, row), y.stride(2), finish(group, image, row));
    });
  if (passes && conv2d_direct_past_caches<float>(executor, groups, x, h, w, packed, y, finish, panels)) return;
  convolve([&](i64 group, i64 image, i64 row) {
    return store(strided(place(group, image, row), {y.length(2), k}, {y.stride(2), 1}), finish(group, image, row));
  });
}

}  // namespace

i64 direct_workspace(const ConvArgs& args) {
  if (args.packed_filters) return 0;
  const ConvShape s = shape_of(args);
  const i64 taps = s.h.filter * s.w.filter, k = s.group_filters(), c = s.group_channels();
  return max(packed_size(s.groups, k, c * taps), packed_size(s.groups, c, k * taps)) * static_cast<i64>(sizeof(float));
}

void direct_forward(const ConvArgs& given, Executor& pool) {
  const ConvArgs args = is_one_row(given, shape_of(given)) ? as_one_row(given) : given;
  const ExecutorRef executor(pool);
  const ConvShape s = shape_of(args);
  const auto y = outputs<float>(args, s);
  const auto w = filters<const float>(args);
  const i64 k = s.group_filters(), size = packed_size(1, k, s.group_channels() * s.h.filter * s.w.filter);
  float* const packed = static_cast<float*>(args.packed_filters ? args.w.data : args.workspace);
  for (i64 g = 0; g < s.groups && !args.packed_filters; ++g)
    pack_filters(executor, tile::detail::group_filters(w, g, k), packed + g * size);
  const auto run = [&](const auto& finish) {
    convolve_to(y, executor, s.groups, images<const float>(args), sweep(s.h), sweep(s.w), packed, args.packed_filters,
                finish);
  };
  const bool plain = args.bias == nullptr && args.activation == Activation::none && !args.residual.data;
  if (plain) return run([](i64, i64, i64) { return acc; });
  const float zero = 0;
  const auto of_bias = [&](i64 group) {
    const float* const bias = args.bias ? static_cast<const float*>(args.bias) + group * k : &zero;
    return load(strided(bias, {y.length(2), k}, {0, args.bias ? 1 : 0}));
  };
  const ConvActivation any = activation_of(args);
  if (!args.residual.data) return run([&](i64 group, i64, i64) { return apply(any, acc + of_bias(group)); });
  const auto residual =
      channels_last<const float>(args.residual, args.images, args.filters, s.h.output(), s.w.output());
  run([&](i64 group, i64 image, i64 row) {
    const float* const from = residual.data + image * residual.stride(0) + row * residual.stride(1) + group * k;
    return apply(any, acc + of_bias(group) + load(strided(from, {y.length(2), k}, {residual.stride(2), 1})));
  });
}

void direct_backward_images(const ConvArgs& given, Executor& pool) {
  const ConvArgs args = is_one_row(given, shape_of(given)) ? as_one_row(given) : given;
  const ExecutorRef executor(pool);
  const ConvShape s = shape_of(args);
  const auto gx = images<float>(args);
  const auto w = filters<const float>(args);
  const i64 k = s.group_filters(), c = s.group_channels();
  float* const packed = static_cast<float*>(args.workspace);
  for (i64 first_h = 0; first_h < min(s.h.stride, s.h.length); ++first_h) {
    for (i64 first_w = 0; first_w < min(s.w.stride, s.w.length); ++first_w) {
      const Residue h = residue(s.h, first_h), v = residue(s.w, first_w);
      if (h.count == 0 || v.count == 0) continue;
      const i64 size = packed_size(1, c, k * h.taps * v.taps);
      const i64 last_h = h.tap + h.tap_step * max<i64>(0, h.taps - 1);
      const i64 last_v = v.tap + v.tap_step * max<i64>(0, v.taps - 1);
      const float* const last = w.data + last_h * w.stride(1) + last_v * w.stride(2);
      for (i64 g = 0; g < s.groups; ++g) {  // channels for filters, and taps turned round
        pack_filters(executor,
                     strided(last + g * k * w.stride(0), {c, h.taps, v.taps, k},
                             {w.stride(3), -h.tap_step * w.stride(1), -v.tap_step * w.stride(2), w.stride(0)}),
                     packed + g * size);
      }
      const auto met = strided(gx.data + h.first * gx.stride(1) + v.first * gx.stride(2),
                               {gx.length(0), h.count, v.count, gx.length(3)},
                               {gx.stride(0), h.stride * gx.stride(1), v.stride * gx.stride(2), gx.stride(3)});
      convolve_to(met, executor, s.groups, outputs<const float>(args, s), sweep(h), sweep(v), packed, false,
                  [](i64, i64, i64) { return acc; });
    }
  }
}

namespace {

FiltersGradient<float> filters_gradient(ConvArgs args, i64 threads) {
  const ConvShape s = shape_of(args);
  const i64 pixels = s.h.length * s.w.length;
  // A dense 1x1 convolution of small images is one whose rows are images.
  if (is_one_row(args, s) && pixels * (s.channels + s.filters) <= 128 * 1024 / static_cast<i64>(sizeof(float))) {
    args.size[0] = args.images, args.size[1] = pixels, args.images = 1;
    args.x.strides[2] = args.x.strides[0], args.y.strides[2] = args.y.strides[0];
  }
  const ConvShape cut = shape_of(args);
  return {s.groups,     images<const float>(args),       sweep(cut.h),
          sweep(cut.w), outputs<const float>(args, cut), filters<float>(args),
          threads};
}

}  // namespace

i64 direct_filters_workspace(const ConvArgs& args) {
  return filters_gradient(args, num_threads()).memory_size() * static_cast<i64>(sizeof(float));
}
void direct_backward_filters(const ConvArgs& args, Executor& pool) {
  filters_gradient(args, ExecutorRef(pool).threads()).run(ExecutorRef(pool), static_cast<float*>(args.workspace));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA::conv
