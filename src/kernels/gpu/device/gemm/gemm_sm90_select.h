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

inline Sm90Ends ends_of_activation(const GemmArgs& args) {
  const bool slope = args.slope.data;
  switch (args.activation) {
    case Activation::gelu_tanh:
      return slope ? Sm90Ends::gelu_tanh_slope : Sm90Ends::gelu_tanh;
    case Activation::gelu_erf:
      return slope ? Sm90Ends::gelu_erf_slope : Sm90Ends::gelu_erf;
    case Activation::relu:
      return slope ? Sm90Ends::relu_slope : Sm90Ends::relu;
    default:
      return Sm90Ends::lanes;
  }
}

inline Sm90Ends ends_of(const GemmArgs& args) {
  const MatrixArg &bias = args.bias, &addend = args.addend, &factor = args.factor;
  const bool activated = args.activation != Activation::none, columns = args.column_sums.data;
  const bool nothing = !addend.data && !factor.data && !args.slope.data && !activated && !columns;
  const bool as_they_are = args.alpha == 1 && args.c.type == args.a.type;
  if (!is_like_result(args, args.c)) return Sm90Ends::lanes;
  if (nothing && !bias.data) {
    if (as_they_are) return Sm90Ends::sums;
    return args.alpha == 1 && args.c.type == Scalar::f32 ? Sm90Ends::sums_f32 : Sm90Ends::lanes;
  }
  const bool in_pairs = bias.row == 0 && bias.column == 1 && bias.batch[max_batch_rank - 1] == 0 &&
                        bias.type == args.c.type && reinterpret_cast<size_t>(bias.data) % 4 == 0;
  if (!as_they_are || (bias.data && !in_pairs)) return Sm90Ends::lanes;
  if (nothing) return Sm90Ends::sums;
  const bool by_rows = args.a.column == 1, alone = !addend.data && !factor.data && !columns;
  if (activated && alone && by_rows && args.b.column != 1 && (!args.slope.data || is_like_result(args, args.slope)))
    return ends_of_activation(args);
  if (args.slope.data || !by_rows || (activated && !times_gelu_slope(args))) return Sm90Ends::lanes;
  if (addend.data && !factor.data && !columns && args.beta == 1 && is_like_result(args, addend)) return Sm90Ends::added;
  if (factor.data && columns && !addend.data && !bias.data && args.b.column == 1 && is_like_result(args, factor))
    return activated ? Sm90Ends::gelu_factor : Sm90Ends::factor;
  return Sm90Ends::lanes;
}

/// Whether the kernel sums up rows and columns as it should; otherwise a pass follows, which multiplies, too.
inline bool sums_itself(const GemmArgs& args) {
  const Sm90Ends ends = ends_of(args);
  return !args.row_sums.data && (ends == Sm90Ends::factor || ends == Sm90Ends::gelu_factor);
}
constexpr int rows_of_parts = 16;

// ---- what is taken

inline Sm90Refusal refuses(const Readable& product) {
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
  if (sums_lines(args) && args.factor.data && args.c.type == Scalar::f16 && !sums_itself(args))
    return Sm90Refusal::layout;
  const Operands operands = operands_of(args, 128, 256, 1, 1);
  const bool contiguous = is_contiguous(args.a) && is_contiguous(args.b);
  return contiguous && fits(operands.a) && fits(operands.b) ? Sm90Refusal::none : Sm90Refusal::layout;
}
inline Sm90Refusal refuses(const GemmArgs& args) { return refuses(readable(args)); }

inline bool has_odd_lines(const GemmArgs& args) {
  return args.n % 8 != 0 || (args.k % 8 != 0 && (args.a.column == 1 || args.b.row == 1)) || copies(args);
}

inline bool by_own_kernel(const GemmArgs& given) {
  const Readable product = readable(given);
  return refuses(product) == Sm90Refusal::none && ends_of(product.args) != Sm90Ends::lanes;
}

// ---- tiles and clusters

/// Clusters of so many blocks, at most 8, that the card has room for; the cards of a process are taken to be alike.
inline i64 resident_clusters(int blocks) {
  static const auto counts = [] {
    using Gemm = tile::sm90::Gemm<Sm90Joined>;
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
      const auto kernel = lanes_kernel<Sm90Joined, JoinedResult<Sm90Joined>>;
      int count = 0;
      (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes);
      if (cudaOccupancyMaxActiveClusters(&count, kernel, &launch) == cudaSuccess) made[size] = count;
    }
    (void)cudaGetLastError();
    return made;
  }();
  return counts[static_cast<size_t>(blocks)];
}

/// In as many parts as the card has blocks for; 1: it is full anyway.
inline Cut cut_in_parts(const GemmArgs& args, const Kind& kind, int multiprocessors) {
  const i64 tiles = cut_by(args, kind).order.count;
  const i64 parts = tile::max<i64>(tile::min<i64>(multiprocessors / tiles, depth_of(args) / 256), 1);
  Cut cut = cut_by(in_parts(args, static_cast<int>(parts)), kind);
  cut.order.split_k = static_cast<int>(parts);
  return cut;
}

/// Whether results are few and sums long, so that blocks may share those: no more than so many squares have. Sums of
/// columns come from whole tiles.
inline bool may_share_sums(const GemmArgs& args) {
  return !args.column_sums.data && !keeps_input(args) && depth_of(args) >= 512 &&
         args.m * args.n * batch_count(args) <= resident_clusters(2) * 192 * 192;
}

/// Both, as in gradients of weights.
inline bool are_transposed(const GemmArgs& args) { return args.a.column != 1 && args.b.column == 1; }

/// The cut that takes least time; parts need a workspace.
inline Cut best_cut(const GemmArgs& args, int multiprocessors, bool has_workspace) {
  const Sm90Ends ends = ends_of(args);
  Cut best{};
  double least = __builtin_inf();
  const auto consider = [&](const Cut& cut) {
    const double time = time_of(args, cut, ends, multiprocessors);
    if (time < least) least = time, best = cut;
  };
  const auto consider_pairs = [&](const Kind& kind) {
    for (int way = 0; way < 3; ++way) consider(cut_by(args, kind, way == 1 ? 2 : 1, way == 2 ? 2 : 1));
  };
  const bool turned = are_transposed(args), f32 = ends == Sm90Ends::sums_f32;
  const bool alone = f32 || (ends == Sm90Ends::sums && !args.bias.data), in_fours = alone && args.n % 4 == 0;
  if (ends == Sm90Ends::lanes) consider(cut_by(args, by_lanes));
  else if (!f32 || turned) consider_pairs(turns);
  if (ends == Sm90Ends::sums) consider_pairs(wide);
  if (ends == Sm90Ends::sums || f32) {
    // Where they fill the card once: nothing goes on while they store.
    const auto consider_once = [&](const Cut& cut) {
      if (cut.order.count <= cut.clusters(multiprocessors) || !best.kind) consider(cut);
    };
    for (const Kind* kind : {&small, &narrow}) consider_once(cut_by(args, *kind));
    if (alone && turned) consider(cut_by(args, small, 1, 2));
    else consider_once(cut_by(args, small, 1, 2));
  }
  if (!may_share_sums(args)) return best;
  const auto consider_joined = [&](const Kind& kind, bool takes, int deep) {
    if (!takes || depth_of(args) < i64{256} * deep) return;
    const Cut cut = cut_by(args, kind, 1, 1, deep);
    if (cut.order.count <= resident_clusters(deep)) consider(cut);
  };
  if (has_workspace && in_fours && batch_count(args) == 1) {
    for (const Kind* kind : {&turns, &small, &narrow}) {
      if (kind == &turns && !turned) continue;
      const Cut parts = cut_in_parts(args, *kind, multiprocessors);
      if (parts.order.split_k > 1) consider(parts);
    }
  }
  for (int deep = 2; deep <= 8; ++deep) {
    consider_joined(joined, JoinedResult<Sm90Joined>::takes(deep), deep);
    consider_joined(joined_square, turned && in_fours && JoinedResult<Sm90JoinedSquare>::takes(deep), deep);
  }
  return best;
}

inline Cut cut_of_fused(const GemmArgs& args, int multiprocessors) {
  Cut best{};
  double least = __builtin_inf();
  for (const Kind* kind : {&once[0], &once[1], &once[2], &turns, &wide, &by_lanes}) {
    const Cut cut = cut_by(args, *kind);
    if (is_once(cut) && cut.order.count > multiprocessors) continue;
    const double time = time_of_fused(cut, multiprocessors);
    if (time < least) least = time, best = cut;
  }
  return best;
}

}  // namespace tessera::gpu_kernels::sm90_gemm
