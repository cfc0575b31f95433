// Which products go to Hopper's pipeline, in what tiles and clusters, and the maps by which the copy engine finds them.
#include <algorithm>
#include <array>

#include "gemm_sm90_lanes.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "kernels/shared/gemm_transpose.h"
#include "line_copy.h"
#include "tile/arch/sm90/once.h"

namespace tessera::gpu_kernels {
namespace {

using tile::sm90::ProductArgs, tile::sm90::TileOrder;

// ---- operands in boxes

/// A matrix whose contiguous dim is its columns or, transposed, its rows.
Boxes boxes_of(const GemmArgs& args, const MatrixArg& m, i64 rows, i64 columns, bool transposed, int box_length,
               int box_lines) {
  Boxes b{m.data, m.type, columns, rows, m.row, 1, m.batch[max_batch_rank - 1], box_length, box_lines};
  if (transposed) b.length = rows, b.lines = columns, b.pitch = m.column;
  if (b.step != 0) b.count = args.batch[max_batch_rank - 1];
  if (b.count == 1) b.step = b.pitch * b.lines;  // of no account
  return b;
}

// ---- what is asked for

/// Rows of a column-major result are neighbours in memory: it is computed as its transpose. The batch comes last.
/// False: the batch has several dims that cannot be merged.
bool arrange(GemmArgs& args) {
  if (args.c.column != 1 && args.c.row == 1 && args.n > 1) args = transposed(args);
  MatrixArg* const all[] = {&args.a,     &args.b,      &args.c,        &args.addend,     &args.bias,
                            &args.slope, &args.factor, &args.row_sums, &args.column_sums};
  int batched = -1;
  for (int d = 0; d < args.batch_rank; ++d) {
    if (args.batch[d] == 1) continue;
    if (batched >= 0) return false;
    batched = d;
  }
  const i64 count = batched < 0 ? 1 : args.batch[batched];
  for (MatrixArg* m : all) {
    const i64 step = batched < 0 ? 0 : m->batch[batched];
    for (i64& other : m->batch) other = 0;
    m->batch[max_batch_rank - 1] = step;
  }
  for (i64& length : args.batch) length = 1;
  args.batch[max_batch_rank - 1] = count;
  args.batch_rank = max_batch_rank;
  return true;
}

struct Operands {
  Boxes a, b;
};
/// As tiles of rows x width fetch them, in clusters of so many tiles below each other and side by side.
Operands operands_of(const GemmArgs& args, int rows, int width, int down, int across) {
  const bool turned_a = args.a.column != 1, turned_b = args.b.column != 1;
  Operands operands{boxes_of(args, args.a, args.m, args.k, turned_a, 64, (turned_a ? 64 : rows) / across),
                    boxes_of(args, args.b, args.k, args.n, turned_b, 64, (turned_b ? width : 64) / down)};
  // Rows and columns behind the last ones in their 16 bytes are read, too, and not stored: boxes that end within are
  // slow.
  if (turned_a) operands.a.length = tile::ceil_div<i64>(args.m, 8) * 8;
  if (!turned_b) operands.b.length = tile::ceil_div<i64>(args.n, 8) * 8;
  return operands;
}

bool is_contiguous(const MatrixArg& m) { return m.column == 1 || m.row == 1; }

/// Of all columns in whole units of 16 bytes, as the copy engine writes them; those behind are stored by lanes.
Boxes result_boxes(const GemmArgs& args, const MatrixArg& m) {
  Boxes boxes = boxes_of(args, m, args.m, args.n, false, tile::sm90::line_bytes / size_of(m.type), 64);
  boxes.length -= boxes.length % (16 / size_of(m.type));
  return boxes;
}
Boxes input_boxes(const GemmArgs& args, const MatrixArg& m) {
  Boxes boxes = result_boxes(args, m);
  boxes.length = args.n;
  return boxes;
}

/// A matrix of c's shape and type that the copy engine can move.
bool is_like_result(const GemmArgs& args, const MatrixArg& m) {
  return m.column == 1 && m.type == args.c.type && fits(result_boxes(args, m));
}

/// Whether the factor is what GELU is applied to, whose slope there multiplies.
bool times_gelu_slope(const GemmArgs& args) {
  return args.factor.data && args.activation == Activation::gelu_tanh && args.c.type == Scalar::bf16;
}
/// Whether what GELU is applied to is kept, too.
bool keeps_input(const GemmArgs& args) {
  return args.slope.data && args.activation == Activation::gelu_tanh && args.c.type == Scalar::bf16;
}

Sm90Ends ends_of_activation(const GemmArgs& args) {
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

Sm90Ends ends_of(const GemmArgs& args) {
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
bool sums_itself(const GemmArgs& args) {
  const Sm90Ends ends = ends_of(args);
  return !args.row_sums.data && (ends == Sm90Ends::factor || ends == Sm90Ends::gelu_factor);
}
constexpr int rows_of_parts = 16;

/// Whether the copy engine cannot find lines of an operand: they do not begin at whole units of 16 bytes.
bool is_off(const GemmArgs& args, const MatrixArg& m) {
  bool whole = is_contiguous(m) && (m.column == 1 ? m.row : m.column) % 8 == 0;
  for (int d = 0; d < args.batch_rank; ++d) whole = whole && (args.batch[d] == 1 || m.batch[d] % 8 == 0);
  return !whole || reinterpret_cast<size_t>(m.data) % 16 != 0;
}
/// Such operands of large products are copied.
bool copies(const GemmArgs& args) {
  return size_of(args.a.type) == 2 && size_of(args.b.type) == 2 && args.m * args.n * args.k >= i64{1} << 28 &&
         (is_off(args, args.a) || is_off(args, args.b));
}

/// A product as the pipeline reads it, its operands copied before where they must be.
struct Readable {
  GemmArgs args;
  bool is_arranged;
  OperandCopy a = {}, b = {};
  i64 bytes() const { return a.bytes() + b.bytes(); }
};
/// An operand that is transposed stays so.
OperandCopy copy_of(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
  if (!is_off(args, m)) return {};
  const bool turned = m.column != 1 && m.row == 1;
  const auto turn = [&] {
    if (!turned) return;
    const i64 row = m.row;
    m.row = m.column, m.column = row;
  };
  turn();
  const OperandCopy made = turned ? copied(args, m, columns, rows) : copied(args, m, rows, columns);
  turn();
  m.data = nullptr;
  return made;
}
Readable readable(const GemmArgs& given) {
  Readable product{given, false};
  GemmArgs& args = product.args;
  product.is_arranged = arrange(args);
  if (!product.is_arranged || !copies(args)) return product;
  product.a = copy_of(args, args.a, args.m, args.k);
  product.b = copy_of(args, args.b, args.k, args.n);
  return product;
}

Sm90Refusal refuses(const Readable& product) {
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
Sm90Refusal refuses(const GemmArgs& args) { return refuses(readable(args)); }

bool has_odd_lines(const GemmArgs& args) {
  return args.n % 8 != 0 || (args.k % 8 != 0 && (args.a.column == 1 || args.b.row == 1)) || copies(args);
}

// ---- how it is cut

/// Tiles; and nanoseconds of a block: for a step, for a tile besides, and at the end of all.
struct Kind {
  tile::Config config;
  bool alternates;
  double step, tile, end;
};
/// Tiles whose sums the blocks of a cluster share; the square ones of transposed operands, whose sums are the result.
using Sm90Joined = tile::sm90::ProductTile<128, 256, 4, 0, false>;
using Sm90JoinedSquare = tile::sm90::ProductTile<192, 192, 4, 0, false, 16>;
constexpr Kind wide{Sm90Wide::config, Sm90Wide::alternates, 690, 2000, 3000},
    turns{Sm90Turns::config, Sm90Turns::alternates, 530, 250, 5000},
    small{Sm90Small::config, Sm90Small::alternates, 360, 0, 2450},
    narrow{Sm90Narrow::config, Sm90Narrow::alternates, 265, 0, 2000},
    by_lanes{Sm90Small::config, Sm90Small::alternates, 480, 0, 4600},
    joined{Sm90Joined::config, Sm90Joined::alternates, 690, 0, 10000},
    joined_square{Sm90JoinedSquare::config, Sm90JoinedSquare::alternates, 830, 0, 10000};

/// Nanoseconds from a tile's sums to memory, besides.
double time_after(Sm90Ends ends) {
  switch (ends) {
    case Sm90Ends::sums:
    case Sm90Ends::sums_f32:
      return 0;
    case Sm90Ends::lanes:
      return 10000;
    default:
      return 12000;
  }
}

struct Cut {
  const Kind* kind;
  TileOrder order;
  int clusters(int multiprocessors) const { return tile::max(multiprocessors / order.cluster(), 1); }
  int width() const { return kind->config.tile_n; }
};

Cut cut_by(const GemmArgs& args, const Kind& kind, int cluster_down = 1, int cluster_across = 1, int cluster_deep = 1) {
  const i64 down = tile::ceil_div<i64>(args.m, kind.config.tile_m * cluster_down);
  const i64 across = tile::ceil_div<i64>(args.n, kind.config.tile_n * cluster_across),
            count = down * across * batch_count(args);
  return {&kind,
          {.is_bf16 = args.a.type == Scalar::bf16,
           .transposed_a = args.a.column != 1,
           .transposed_b = args.b.column == 1,
           .batch_a = args.a.batch[max_batch_rank - 1] != 0,
           .batch_b = args.b.batch[max_batch_rank - 1] != 0,
           .cluster_down = cluster_down,
           .cluster_across = cluster_across,
           .cluster_deep = cluster_deep,
           .parts = 1,
           .down = static_cast<int>(down),
           .across = static_cast<int>(across),
           .steps = static_cast<int>(tile::ceil_div<i64>(args.k, 64)),
           .group = 16 / cluster_down,
           .count = static_cast<int>(count)}};
}

/// Clusters of so many blocks, at most 8, that the card has room for; the cards of a process are taken to be alike.
i64 resident_clusters(int blocks) {
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

/// The same product's sums in parts of k, one behind the other in the workspace.
GemmArgs in_parts(const GemmArgs& args, int parts) {
  GemmArgs sums = args;
  sums.c = {args.workspace, Scalar::f32, args.n, 1, {}};
  sums.batch[max_batch_rank - 1] = parts;
  sums.c.batch[max_batch_rank - 1] = args.m * args.n;
  return sums;
}
i64 bytes_of_parts(const GemmArgs& args, int parts) { return parts * args.m * args.n * i64{sizeof(float)}; }

/// The length of sums, filled up with zeros: what is made of it holds for lines that are padded, too.
i64 depth_of(const GemmArgs& args) { return tile::ceil_div<i64>(args.k, 8) * 8; }

/// In as many parts as the card has blocks for; 1: it is full anyway.
Cut cut_in_parts(const GemmArgs& args, const Kind& kind, int multiprocessors) {
  const i64 tiles = cut_by(args, kind).order.count;
  const i64 parts = tile::max<i64>(tile::min<i64>(multiprocessors / tiles, depth_of(args) / 256), 1);
  Cut cut = cut_by(in_parts(args, static_cast<int>(parts)), kind);
  cut.order.parts = static_cast<int>(parts);
  return cut;
}

/// Nanoseconds for parts to be stored, read and added up.
double time_of_parts(const GemmArgs& args, int parts) {
  return 1200 + static_cast<double>(bytes_of_parts(args, parts)) / 2500;
}

/// Whether rows or columns of both operands begin at whole 128 bytes, as the cache has them.
bool begin_at_lines(const GemmArgs& args) {
  return (args.a.column == 1 ? args.a.row : args.a.column) % 64 == 0 &&
         (args.b.column == 1 ? args.b.row : args.b.column) % 64 == 0;
}

/// Nanoseconds, as measured: a card that is not full is faster. Joining takes most of what is at the end.
double time_of(const GemmArgs& args, const Cut& cut, Sm90Ends ends, int multiprocessors) {
  const Kind& kind = *cut.kind;
  const TileOrder& order = cut.order;
  const double clusters = cut.clusters(multiprocessors), tiles = order.count;
  const bool in_one_round = tiles <= clusters;
  double step = kind.step, end = kind.end;
  if (in_one_round) step *= 0.8 + 0.125 * (tiles / clusters) * (tiles / clusters);
  if (order.cluster_deep > 1) return step * tile::ceil_div(order.steps, order.cluster_deep) + end;
  if (order.parts > 1)
    return step * tile::ceil_div(order.steps, order.parts) + kind.tile + end + time_of_parts(args, order.parts);
  if (order.cluster() > 1) end += 1200;
  if (order.cluster_down > 1 && order.steps > 24) step *= 0.995;
  if (&kind == &narrow && !begin_at_lines(args)) step *= 1.4;
  // Blocks that are alone with rows of a drift apart in sums as long as this, and do not meet them in the cache.
  if (&kind == &small && order.cluster() == 1 && order.steps > 40) step *= 1.15;
  if (!in_one_round && order.steps > 160 && order.cluster_across == 1) step *= 1.3;
  const double rounds = static_cast<double>(tile::ceil_div<i64>(order.count, cut.clusters(multiprocessors)));
  const double sums = step * order.steps + kind.tile, after = time_after(ends);
  if (!kind.alternates) return rounds * (sums + after) + end;
  return rounds * tile::max(sums, (sums + after) / 2) + end + after;
}

/// Whether results are few and sums long, so that blocks may share those: no more than so many squares have. Sums of
/// columns come from whole tiles.
bool may_share_sums(const GemmArgs& args) {
  return !args.column_sums.data && !keeps_input(args) && depth_of(args) >= 512 &&
         args.m * args.n * batch_count(args) <= resident_clusters(2) * 192 * 192;
}

/// Both, as in gradients of weights.
bool are_transposed(const GemmArgs& args) { return args.a.column != 1 && args.b.column == 1; }

/// The cut that takes least time; parts need a workspace.
Cut best_cut(const GemmArgs& args, int multiprocessors, bool has_workspace) {
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
      if (parts.order.parts > 1) consider(parts);
    }
  }
  for (int deep = 2; deep <= 8; ++deep) {
    consider_joined(joined, JoinedResult<Sm90Joined>::takes(deep), deep);
    consider_joined(joined_square, turned && in_fours && JoinedResult<Sm90JoinedSquare>::takes(deep), deep);
  }
  return best;
}

// ---- the run

GemmArgs without_finish(GemmArgs args) {
  if (args.factor.data) args.activation = Activation::none;
  args.factor = args.row_sums = args.column_sums = {};
  return args;
}

long long workspace(const GemmArgs& given, const Executor& executor) {
  const Readable product = readable(given);
  const GemmArgs& args = product.args;
  if (!product.is_arranged) return 0;
  if (sums_lines(args)) return product.bytes() + tile::max(finish_bytes(args), line_bytes(args, rows_of_parts, 192));
  const int parts = may_share_sums(args) ? best_cut(args, executor.multiprocessors, true).order.parts : 1;
  return product.bytes() + (parts > 1 ? bytes_of_parts(args, parts) : 0);
}

/// By its lanes: Result is LanesResult or JoinedResult.
template <class C, class Result>
void run_lanes(const GemmArgs& args, const Cut& cut, const Operands& operands, Executor& executor) {
  const LanesProduct product{map_of(operands.a), map_of(operands.b), args, cut.order};
  launch_sm90<tile::sm90::Gemm<C>>(lanes_kernel<C, Result>, cut.order, product, executor);
}
void run_by_lanes(const GemmArgs& args, const Cut& cut, const Operands& operands, Executor& executor) {
  run_lanes<Sm90Small, LanesResult<Sm90Small>>(args, cut, operands, executor);
}
void run_joined(const GemmArgs& args, const Cut& cut, const Operands& operands, Executor& executor) {
  if (cut.kind == &joined) run_lanes<Sm90Joined, JoinedResult<Sm90Joined>>(args, cut, operands, executor);
  else run_lanes<Sm90JoinedSquare, JoinedTransposed<Sm90JoinedSquare>>(args, cut, operands, executor);
}

/// For a kernel of its own, whose results leave through boxes.
ProductArgs own_args(const GemmArgs& args, const Cut& cut, const Operands& operands, float* column_parts) {
  const MatrixArg& input = args.addend.data ? args.addend : args.factor;
  ProductArgs product{};
  product.a = map_of(operands.a);
  product.b = map_of(operands.b);
  product.y = map_of(result_boxes(args, args.c));
  if (args.slope.data) product.slope = map_of(result_boxes(args, args.slope));
  if (input.data) product.input = map_of(input_boxes(args, input));
  product.input_batch = input.data && input.batch[max_batch_rank - 1] != 0;
  product.is_f32 = args.c.type == Scalar::f32;
  product.order = cut.order;
  product.d[0].data = args.bias.data;
  product.column_parts = column_parts;
  product.m = static_cast<int>(args.m);
  product.n = static_cast<int>(args.n);
  const i64 whole = result_boxes(args, args.c).length, bytes = size_of(args.c.type);
  product.whole = static_cast<int>(whole);
  product.edge_bytes = static_cast<int>((args.n - whole) * bytes);
  const auto edge = [&](const MatrixArg& m) -> ProductArgs::Place {
    return {static_cast<char*>(m.data) + whole * bytes, m.row * bytes, m.batch[max_batch_rank - 1] * bytes};
  };
  product.edge[0] = edge(args.c);
  if (args.slope.data) product.edge[1] = edge(args.slope);
  return product;
}
void run_own(const GemmArgs& args, const Cut& cut, Sm90Ends ends, const ProductArgs& product, Executor& executor) {
  if (cut.kind == &wide) return run_wide_products(product, executor);
  if (cut.kind == &small || cut.kind == &narrow) return run_small_products(cut.kind == &narrow, product, executor);
  const auto run = args.a.type == Scalar::bf16 ? run_products_bf16 : run_products_f16;
  run(ends, product, executor);
}

Operands operands_of(const GemmArgs& args, const Cut& cut) {
  return operands_of(args, cut.kind->config.tile_m, cut.width(), cut.order.cluster_down, cut.order.cluster_across);
}

/// c = parts, one behind the other in `fours` of floats, added up in their order. The first ones are asked for
/// together.
TESSERA_KERNEL(256)
void add_parts_kernel(const float* parts, int count, int fours, const MatrixArg c, int fours_across) {
  tile::sm90::let_next_kernel_begin();
  tile::sm90::wait_for_kernel_before();
  using Four = Pack<float, 4>;
  const int at = static_cast<int>(tile::block_in_grid()) * 256 + tile::thread_in_block();
  if (at >= fours) return;
  const Four* from = reinterpret_cast<const Four*>(parts) + at;
  const Four second = from[fours], third = from[count > 2 ? 2 * i64{fours} : 0];
  Four sum = *from;
  for (int l = 0; l < 4; ++l) sum.lane[l] += second.lane[l];
  for (int l = 0; l < 4 && count > 2; ++l) sum.lane[l] += third.lane[l];
  from += 2 * i64{fours};
#pragma unroll 8
  for (int part = 3; part < count; ++part) {
    const Four more = *(from += fours);
    for (int l = 0; l < 4; ++l) sum.lane[l] += more.lane[l];
  }
  const int row = at / fours_across;
  store_sums(c, row * c.row + (at - row * fours_across) * 4, sum.lane);
}

void run_parts(const GemmArgs& args, const Cut& cut, Executor& executor) {
  const GemmArgs sums = in_parts(args, cut.order.parts);
  run_own(sums, cut, Sm90Ends::sums_f32, own_args(sums, cut, operands_of(sums, cut), nullptr), executor);
  const int fours = static_cast<int>(args.m * args.n / 4);
  launch_early("gemm", add_parts_kernel, tile::ceil_div(fours, 256), 256, 0, 1, executor,
               static_cast<const float*>(args.workspace), cut.order.parts, fours, args.c, static_cast<int>(args.n / 4));
}

void run_product(const GemmArgs& args, const Cut& cut, Executor& executor) {
  const LineParts parts = line_parts(args, rows_of_parts, cut.width());
  const Sm90Ends ends = ends_of(args);
  const Operands operands = operands_of(args, cut);
  if (cut.order.cluster_deep > 1) return run_joined(args, cut, operands, executor);
  if (cut.order.parts > 1) return run_parts(args, cut, executor);
  if (ends == Sm90Ends::lanes) run_by_lanes(args, cut, operands, executor);
  else run_own(args, cut, ends, own_args(args, cut, operands, static_cast<float*>(parts.columns)), executor);
  add_parts(args, parts, executor);
}

void run(const GemmArgs& given, Executor& executor) {
  Readable found = readable(given);
  GemmArgs& args = found.args;
  run_copies(found.a, found.b, args, executor);
  const bool follows = sums_lines(args) && !sums_itself(args);
  const GemmArgs product = follows ? without_finish(args) : args;
  run_product(product, best_cut(product, executor.multiprocessors, !sums_lines(args)), executor);
  if (!follows) return;
  args.slope = {};
  finish_lines(args, executor);
}

bool by_own_kernel(const GemmArgs& given) {
  const Readable product = readable(given);
  return refuses(product) == Sm90Refusal::none && ends_of(product.args) != Sm90Ends::lanes;
}

// ---- fused products, whose kernels are compiled while the program runs

template <class Tile>
void describe(Sm90FusedPlan& plan, const TileOrder& order, const Executor& executor) {
  using Gemm = tile::sm90::Gemm<Tile>;
  constexpr tile::Config c = Tile::config;
  plan.rows = c.tile_m, plan.width = c.tile_n, plan.stages = c.stages;
  plan.boxes = Tile::boxes;
  plan.alternates = Tile::alternates;
  plan.transposed_a = order.transposed_a, plan.transposed_b = order.transposed_b;
  plan.blocks = sm90_clusters(order, executor);
  plan.threads = Gemm::threads;
  plan.shared_bytes = Gemm::shared_bytes;
}

/// Where all tiles fit the card at once. A step takes 250 ns and not much less where tiles are narrower.
template <int Width>
using OnceTile = tile::sm90::OnceTile<Width, 5>;
constexpr Kind once[] = {{OnceTile<64>::config, false, 230, 0, 3500},
                         {OnceTile<96>::config, false, 250, 0, 3700},
                         {OnceTile<128>::config, false, 290, 0, 3900}};

template <int Width>
void describe_once(Sm90FusedPlan& plan, const TileOrder& order) {
  plan.rows = 128, plan.width = Width, plan.stages = OnceTile<Width>::config.stages;
  plan.once = true;
  plan.transposed_a = order.transposed_a, plan.transposed_b = order.transposed_b;
  plan.blocks = order.count;
  plan.threads = OnceTile<Width>::threads;
  plan.shared_bytes = OnceTile<Width>::shared_bytes;
}
void describe_once(Sm90FusedPlan& plan, const Cut& cut) {
  if (cut.width() == 64) describe_once<64>(plan, cut.order);
  else if (cut.width() == 96) describe_once<96>(plan, cut.order);
  else describe_once<128>(plan, cut.order);
}

bool is_once(const Cut& cut) {
  return std::any_of(std::begin(once), std::end(once), [&](const Kind& kind) { return cut.kind == &kind; });
}

/// Maps with the boxes of tile::sm90::Once.
void use_narrow_boxes(const GemmArgs& args, const Cut& cut, ProductArgs& product) {
  const auto of = [](Boxes boxes, int lines) {
    boxes.box_length = 32, boxes.box_lines = lines;
    return map_of(boxes);
  };
  if (args.b.column == 1) product.b = of(operands_of(args, cut).b, 64);
  product.y = of(result_boxes(args, args.c), 16);
  if (args.addend.data) product.input = of(input_boxes(args, args.addend), 128);
}

Cut cut_of_fused(const GemmArgs& args, int multiprocessors) {
  Cut best{};
  double least = __builtin_inf();
  for (const Kind* kind : {&once[0], &once[1], &once[2], &turns, &wide, &by_lanes}) {
    const Cut cut = cut_by(args, *kind);
    if (is_once(cut) && cut.order.count > multiprocessors) continue;
    const double tiles = static_cast<double>(tile::ceil_div<i64>(cut.order.count, cut.clusters(multiprocessors)));
    const double sums = kind->step * cut.order.steps + kind->tile;
    const double after = kind->alternates ? time_after(Sm90Ends::added) : 20.0 * kind->config.tile_n;
    const double each = kind->alternates ? tile::max(sums, (sums + after) / 2) : sums + after;
    const double time = tiles * each + kind->end + (kind->alternates ? after : 0);
    if (time < least) least = time, best = cut;
  }
  return best;
}

bool plan(const GemmArgs& args, const tile::FusedGemmArgs& fused, const Executor& executor, Sm90FusedPlan& plan) {
  GemmArgs plain = args;
  plain.addend = {};
  const Readable read = readable(plain);
  GemmArgs product = read.args;
  if (refuses(read) != Sm90Refusal::none || read.bytes() > 0 || ends_of(product) != Sm90Ends::sums || args.n % 8 != 0 ||
      (args.addend.data && !fits(result_boxes(args, args.addend))))
    return false;
  Cut cut = cut_of_fused(product, executor.multiprocessors);
  if (args.addend.data) cut.order.group = 8;  // blocks that run at the same time have more of a row of it
  if (is_once(cut)) describe_once(plan, cut);
  else if (cut.kind == &turns && args.addend.data) describe<Sm90TurnsBoxes>(plan, cut.order, executor);
  else if (cut.kind == &turns) describe<Sm90Turns>(plan, cut.order, executor);
  else if (cut.kind == &wide) describe<Sm90Wide>(plan, cut.order, executor);
  else describe<Sm90Small>(plan, cut.order, executor);
  product.addend = args.addend;
  static_assert(sizeof(ProductArgs) <= sizeof plan.args);
  ProductArgs filled = own_args(product, cut, operands_of(product, cut), nullptr);
  if (is_once(cut)) use_narrow_boxes(product, cut, filled);
  for (int i = 0; i < tile::FusedGemmArgs::max_addends; ++i) filled.d[i] = fused.d[i];
  __builtin_memcpy(plan.args, &filled, sizeof filled);
  return true;
}

}  // namespace

const Sm90GemmTable* sm90_gemm_table() {
  static const Sm90FusedTable table{{refuses, run, workspace, has_odd_lines}, plan, by_own_kernel};
  return &table;
}

}  // namespace tessera::gpu_kernels
