// Which products go to Hopper's pipeline, by which epilogue, and in what tiles and clusters.
#pragma once
#include <array>

#include "gemm_sm90_cost.h"

namespace tessera::gpu_kernels::sm90_gemm {

// ---- epilogues

/// Whether the factor is what GELU is applied to, whose slope there multiplies.
inline bool times_gelu_slope(const GemmArgs& args) {
  return args.factor.data && args.activation == Activation::gelu_tanh && args.c.type == Scalar::bf16;
}
/// Whether what GELU is applied to is kept, too.
inline bool keeps_input(const GemmArgs& args) {
  return args.slope.data && args.activation == Activation::gelu_tanh && args.c.type == Scalar::bf16;
}

inline Sm90Epilogue epilogue_of_activation(const GemmArgs& args) {
  const bool slope = args.slope.data;
  switch (args.activation) {
    case Activation::gelu_tanh:
      return slope ? Sm90Epilogue::gelu_tanh_slope : Sm90Epilogue::gelu_tanh;
    case Activation::gelu_erf:
      return slope ? Sm90Epilogue::gelu_erf_slope : Sm90Epilogue::gelu_erf;
    case Activation::relu:
      return slope ? Sm90Epilogue::relu_slope : Sm90Epilogue::relu;
    default:
      return Sm90Epilogue::generic;
  }
}

inline Sm90Epilogue epilogue_of(const GemmArgs& args) {
  const MatrixArg &bias = args.bias, &addend = args.addend, &factor = args.factor;
  const bool activated = args.activation != Activation::none, columns = args.column_sums.data;
  const bool nothing = !addend.data && !factor.data && !args.slope.data && !activated && !columns;
  const bool as_they_are = args.alpha == 1 && args.c.type == args.a.type;
  if (!is_like_result(args, args.c)) return Sm90Epilogue::generic;
  if (nothing && !bias.data) {
    if (as_they_are) return Sm90Epilogue::bias;
    return args.alpha == 1 && args.c.type == Scalar::f32 ? Sm90Epilogue::f32 : Sm90Epilogue::generic;
  }
  const bool in_pairs = bias.row == 0 && bias.column == 1 && bias.batch[max_batch_rank - 1] == 0 &&
                        bias.type == args.c.type && reinterpret_cast<size_t>(bias.data) % 4 == 0;
  if (!as_they_are || (bias.data && !in_pairs)) return Sm90Epilogue::generic;
  if (nothing) return Sm90Epilogue::bias;
  const bool by_rows = args.a.column == 1, alone = !addend.data && !factor.data && !columns;
  if (activated && alone && by_rows && args.b.column != 1 && (!args.slope.data || is_like_result(args, args.slope)))
    return epilogue_of_activation(args);
  if (args.slope.data || !by_rows || (activated && !times_gelu_slope(args))) return Sm90Epilogue::generic;
  if (addend.data && !factor.data && !columns && args.beta == 1 && is_like_result(args, addend))
    return Sm90Epilogue::addend;
  if (factor.data && columns && !addend.data && !bias.data && args.b.column == 1 && is_like_result(args, factor))
    return activated ? Sm90Epilogue::gelu_factor : Sm90Epilogue::factor;
  return Sm90Epilogue::generic;
}

/// Whether the epilogue reduces rows and columns as it should; otherwise a pass follows, which multiplies, too.
inline bool reduces_itself(const GemmArgs& args) {
  const Sm90Epilogue epilogue = epilogue_of(args);
  return !args.row_sums.data && (epilogue == Sm90Epilogue::factor || epilogue == Sm90Epilogue::gelu_factor);
}
constexpr int rows_per_partial = 16;

// ---- what is taken

inline Sm90Refusal refuses(const Prepared& product) {
  if (!is_hopper() || !encode_function()) return Sm90Refusal::hardware;
  const GemmArgs& args = product.args;
  if (!types_fit(args) || args.a.type != args.b.type || (args.a.type != Scalar::f16 && args.a.type != Scalar::bf16))
    return Sm90Refusal::type;
  if (args.m < 128 || args.n < 128 || args.k < 64) return Sm90Refusal::small;
  constexpr i64 most = (i64{1} << 31) - 1024;
  if (!product.is_arranged || args.m > most || args.n > most || args.k > most ||
      batch_count(args) > most / (tile::ceil_div<i64>(args.m, 128) * tile::ceil_div<i64>(args.n, 128)))
    return Sm90Refusal::shape;
  // A product in f16 may be infinite where the factor makes it small, or nothing.
  if (sums_lines(args) && args.factor.data && args.c.type == Scalar::f16 && !reduces_itself(args))
    return Sm90Refusal::layout;
  const Operands operands = operands_of(args, 128, 256, 1, 1);
  const bool contiguous = is_contiguous(args.a) && is_contiguous(args.b);
  return contiguous && fits(operands.a) && fits(operands.b) ? Sm90Refusal::none : Sm90Refusal::layout;
}
inline Sm90Refusal refuses(const GemmArgs& args) { return refuses(prepared(args)); }

inline bool has_odd_lines(const GemmArgs& args) {
  return args.n % 8 != 0 || (args.k % 8 != 0 && (args.a.column == 1 || args.b.row == 1)) || needs_copy(args);
}

inline bool by_own_kernel(const GemmArgs& given) {
  const Prepared product = prepared(given);
  return refuses(product) == Sm90Refusal::none && epilogue_of(product.args) != Sm90Epilogue::generic;
}

// ---- tiles and clusters

/// Clusters of so many blocks, at most 8, that the card has room for; the cards of a process are taken to be alike.
inline i64 resident_clusters(int blocks) {
  static const auto counts = [] {
    using Gemm = tile::sm90::Gemm<Sm90Cluster128x256>;
    std::array<i64, 9> made{};
    for (int size = 1; size <= 8; ++size) {
      cudaLaunchAttribute cluster{};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
      cudaLaunchConfig_t launch{};
      launch.gridDim = dim3(static_cast<unsigned>(size));
      launch.blockDim = dim3(Gemm::threads);
      launch.dynamicSmemBytes = Gemm::shared_bytes;
      launch.attrs = &cluster;
      launch.numAttrs = 1;
      const auto kernel = generic_kernel<Sm90Cluster128x256, ClusterSplitK<Sm90Cluster128x256>>;
      int count = 0;
      (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes);
      if (cudaOccupancyMaxActiveClusters(&count, kernel, &launch) == cudaSuccess) made[size] = count;
    }
    (void)cudaGetLastError();
    return made;
  }();
  return counts[static_cast<size_t>(blocks)];
}

/// Split-K by as many as the card has blocks for; 1: it is full anyway.
inline Tiling split_k_tiling(const GemmArgs& args, const TileShape& shape, int multiprocessors) {
  const i64 tiles = tiling_of(args, shape).order.count;
  const i64 parts = tile::max<i64>(tile::min<i64>(multiprocessors / tiles, padded_k(args) / 256), 1);
  Tiling tiling = tiling_of(split_k_product(args, static_cast<int>(parts)), shape);
  tiling.order.split_k = static_cast<int>(parts);
  return tiling;
}

/// Whether tiles are few and k is long, so that k may be split. Sums of columns come from whole tiles.
inline bool may_split_k(const GemmArgs& args) {
  return !args.column_sums.data && !keeps_input(args) && padded_k(args) >= 512 &&
         args.m * args.n * batch_count(args) <= resident_clusters(2) * 192 * 192;
}

/// As in gradients of weights.
inline bool both_transposed(const GemmArgs& args) { return args.a.column != 1 && args.b.column == 1; }

/// The tiling that takes least time; split-K needs a workspace.
inline Tiling best_tiling(const GemmArgs& args, int multiprocessors, bool has_workspace) {
  const Sm90Epilogue epilogue = epilogue_of(args);
  Tiling best{};
  double least = __builtin_inf();
  const auto consider = [&](const Tiling& tiling) {
    const double time = time_of(args, tiling, epilogue, multiprocessors);
    if (time < least) least = time, best = tiling;
  };
  const auto consider_multicast = [&](const TileShape& shape) {
    for (int way = 0; way < 3; ++way) consider(tiling_of(args, shape, way == 1 ? 2 : 1, way == 2 ? 2 : 1));
  };
  const bool turned = both_transposed(args), f32 = epilogue == Sm90Epilogue::f32;
  const bool alone = f32 || (epilogue == Sm90Epilogue::bias && !args.bias.data), in_fours = alone && args.n % 4 == 0;
  if (epilogue == Sm90Epilogue::generic) consider(tiling_of(args, generic_128x128));
  else if (!f32 || turned) consider_multicast(ping_pong_128x192);
  if (epilogue == Sm90Epilogue::bias) consider_multicast(tile_128x256);
  if (epilogue == Sm90Epilogue::bias || f32) {
    // Where one wave is enough: no wgmma runs while they store.
    const auto consider_one_wave = [&](const Tiling& tiling) {
      if (tiling.order.count <= tiling.clusters(multiprocessors) || !best.shape) consider(tiling);
    };
    for (const TileShape* shape : {&tile_128x128, &tile_128x64}) consider_one_wave(tiling_of(args, *shape));
    if (alone && turned) consider(tiling_of(args, tile_128x128, 1, 2));
    else consider_one_wave(tiling_of(args, tile_128x128, 1, 2));
  }
  if (!may_split_k(args)) return best;
  const auto consider_cluster_split_k = [&](const TileShape& shape, bool takes, int deep) {
    if (!takes || padded_k(args) < i64{256} * deep) return;
    const Tiling tiling = tiling_of(args, shape, 1, 1, deep);
    if (tiling.order.count <= resident_clusters(deep)) consider(tiling);
  };
  if (has_workspace && in_fours && batch_count(args) == 1) {
    for (const TileShape* shape : {&ping_pong_128x192, &tile_128x128, &tile_128x64}) {
      if (shape == &ping_pong_128x192 && !turned) continue;
      const Tiling parts = split_k_tiling(args, *shape, multiprocessors);
      if (parts.order.split_k > 1) consider(parts);
    }
  }
  for (int deep = 2; deep <= 8; ++deep) {
    consider_cluster_split_k(cluster_128x256, ClusterSplitK<Sm90Cluster128x256>::takes(deep), deep);
    consider_cluster_split_k(cluster_192x192, turned && in_fours && ClusterSplitK<Sm90Cluster192x192>::takes(deep),
                             deep);
  }
  return best;
}

inline Tiling fused_tiling(const GemmArgs& args, int multiprocessors) {
  Tiling best{};
  double least = __builtin_inf();
  for (const TileShape* shape : {&one_wave_tiles[0], &one_wave_tiles[1], &one_wave_tiles[2], &ping_pong_128x192,
                                 &tile_128x256, &generic_128x128}) {
    const Tiling tiling = tiling_of(args, *shape);
    if (is_one_wave(tiling) && tiling.order.count > multiprocessors) continue;
    const double time = time_of_fused(tiling, multiprocessors);
    if (time < least) least = time, best = tiling;
  }
  return best;
}

}  // namespace tessera::gpu_kernels::sm90_gemm
