// Convolutions as implicit products by TMA's im2col: what their units share.
#pragma once
#include "conv.h"
#include "kernels/args/gpu/tables.h"
#include "kernels/gpu/device/gemm/gemm_sm90_products.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "tile/arch/sm90/im2col.h"
#include "tile/convolution.h"

namespace tessera::gpu_kernels {

using tile::sm90::TensorMap, tile::sm90::TileScheduler, tile::sm90::Im2col;

// ---- kernels

template <class C, class T>
using SumsAndBias = typename ProductsBy<C, T>::template Result<T, false, WithBias, typename ProductsBy<C, T>::Bias>;

template <class C, class Args, class Result>
TESSERA_KERNEL(C::config.warps * 32, 1)
void im2col_kernel(const __grid_constant__ Args args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::Gemm<C>::template run<Result>(args.a, args.b, args.order, shared, args);
}

// ---- maps

inline i64 output(const ConvArgs& args, int d) {
  return tile::Window{args.size[d], args.filter[d], args.stride[d], args.dilation[d], args.padding[d], args.padding[d]}
      .output();
}

/// A tensor map in im2col mode: dims are down and across, as in ConvArgs.
struct Im2colTensor {
  ConvTensor images;
  Scalar type;
  i64 count, channels, size[2] = {}, taps[2] = {}, step[2] = {}, apart[2] = {}, places[2] = {};
  i64 first[2] = {}, last[2] = {};    // corners of the box of first elements
  i64 tap = 0, tap_step[2] = {1, 1};  // of the filters: the first one, and to the next, see Im2col

  i64 all() const { return count * places[0] * places[1]; }
};

inline Im2colTensor im2col_of_images(const ConvArgs& args) {
  Im2colTensor w{args.x, args.type, args.images, args.channels};
  for (int d = 0; d < 2; ++d) {
    w.taps[d] = args.filter[d];
    w.apart[d] = args.filter[d] == 1 ? 1 : args.dilation[d];
    w.size[d] = args.size[d];
    w.places[d] = output(args, d);
    w.step[d] = args.stride[d];
    w.first[d] = -args.padding[d];
    w.last[d] = args.padding[d] - (args.filter[d] - 1) * args.dilation[d];
  }
  return w;
}

/// Steps of dims of one element are of no account, but are looked at.
inline void set_steps(ConvTensor& t, const i64 (&lengths)[4]) {
  i64 step = lengths[1];
  for (int d : {3, 2, 0}) {
    if (lengths[d] == 1) t.strides[d] = step;
    step = t.strides[d] * lengths[d];
  }
}

inline ConvArgs arranged(const ConvArgs& given) {
  ConvArgs args = given;
  set_steps(args.x, {args.images, args.channels, args.size[0], args.size[1]});
  set_steps(args.w, {args.filters, args.channels, args.filter[0], args.filter[1]});
  set_steps(args.y, {args.images, args.filters, output(args, 0), output(args, 1)});
  return args;
}

/// Of images or, with windows of one tap, of results.
inline TensorMap map_of(const Im2colTensor& w, int windows) {
  using Encode = decltype(&::cuTensorMapEncodeIm2col);
  static const auto encode = driver_function<Encode>("cuTensorMapEncodeIm2col");
  TensorMap map;
  const auto word = [](i64 x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t lengths[] = {word(w.channels), word(w.size[1]), word(w.size[0]), word(w.count)},
                   pitches[] = {word(w.images.strides[3] * 2), word(w.images.strides[2] * 2),
                                word(w.images.strides[0] * 2)};
  const int first[] = {static_cast<int>(w.first[1]), static_cast<int>(w.first[0])},
            last[] = {static_cast<int>(w.last[1]), static_cast<int>(w.last[0])};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(w.step[1]), static_cast<cuuint32_t>(w.step[0]), 1};
  const CUresult status = encode(
      reinterpret_cast<CUtensorMap*>(&map),
      w.type == Scalar::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, w.images.data,
      lengths, pitches, first, last, 64, static_cast<cuuint32_t>(windows), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError("cuTensorMapEncodeIm2col failed with status " + std::to_string(static_cast<int>(status)));
  return map;
}

inline Im2col im2col_args(const Im2colTensor& w) {
  const auto small = [](i64 x) { return static_cast<int>(x); };
  return {
      .across = small(w.places[1]),
      .down = small(w.places[0]),
      .left = small(w.first[1]),
      .top = small(w.first[0]),
      .step = {small(w.step[1]), small(w.step[0])},
      .apart = {small(w.apart[1]), small(w.apart[0])},
      .taps_across = small(w.taps[1]),
      .chunks = small(tile::ceil_div<i64>(w.channels, 64)),
      .tap = small(w.tap),
      .tap_step = {small(w.tap_step[0]), small(w.tap_step[1])},
      .spread = {},
      .skip = {small(64 % w.places[1]), small(64 / w.places[1] % w.places[0]), small(64 / w.places[1] / w.places[0])},
      .batch = 1};
}

/// Filters, [filter, tap, channel], in boxes of so many filters.
inline TensorMap map_of_filters(const ConvArgs& args, int filters) {
  return encode_map<3>(args.type, args.w.data, {args.channels, args.filter[0] * args.filter[1], args.filters},
                       {args.w.strides[3], args.w.strides[0]}, {64, 1, filters});
}
/// Pixels of all images as lines, in boxes of 64.
inline TensorMap map_of_pixels(const ConvArgs& args, const ConvTensor& t, i64 channels, i64 pixels) {
  return map_of(TmaMatrix{t.data, args.type, channels, pixels, t.strides[3], 1, t.strides[3] * pixels, 64, 64});
}

// ---- tiles

/// Tiles; and microseconds of a block, as measured: for a step, and for a tile besides (of gradients, one that is
/// shared).
template <class Args>
struct Kind {
  tile::Config config;
  double step, tile;
  void (*launch[2])(const Args&, Executor&);  // of f16, bf16
  bool taps_down;                             // gradients: taps are rows

  TileScheduler order(const Args& args, i64 m, i64 n, i64 batch, i64 steps) const {
    TileScheduler order = args.order;
    order.cluster_m = order.cluster_n = order.cluster_k = 1;
    order.clusters_m = static_cast<int>(tile::ceil_div<i64>(m, config.tile_m));
    order.clusters_n = static_cast<int>(tile::ceil_div<i64>(n, config.tile_n));
    order.k_tiles = static_cast<int>(steps);
    order.group = 16;
    order.count = static_cast<int>(order.clusters_m * order.clusters_n * batch);
    return order;
  }
};

/// The kind that takes least time for a product of so many steps; it is given its order.
template <class Args, size_t N>
const Kind<Args>& fastest(const Kind<Args> (&kinds)[N], Args& product, i64 steps, const Executor& executor) {
  const Kind<Args>* best = nullptr;
  double least = __builtin_inf();
  for (const auto& kind : kinds) {
    const TileScheduler order = kind.order(product, product.m, product.n, 1, steps);
    const double time = static_cast<double>(tile::ceil_div<i64>(order.count, executor.multiprocessors)) *
                        (order.k_tiles * kind.step + kind.tile);
    if (time < least) least = time, best = &kind, product.order = order;
  }
  return *best;
}

const Sm90ConvTable* sm90_conv_table();

template <class C, class Result, class Args>
void launch_im2col(const Args& args, i64 clusters, Executor& executor) {
  constexpr auto kernel = im2col_kernel<C, Args, Result>;
  constexpr int shared = tile::sm90::Gemm<C>::shared_bytes;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) != cudaSuccess)
    check_launch("convolution");
  const int cluster = args.order.cluster();
  launch_early("convolution", kernel, clusters * cluster, C::config.warps * 32, shared, cluster, executor, args);
}

/// Of arranged arguments: bytes that the gradient of the filters asks for, and that gradient.
long long filters_workspace_sm90(const ConvArgs& args);
void filters_gradient_sm90(const ConvArgs& args, Executor& executor);

}  // namespace tessera::gpu_kernels
