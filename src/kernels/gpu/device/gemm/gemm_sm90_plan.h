// How a product on Hopper's cards is launched: operands as TMA loads them, copies of those that are misaligned, tiles
// and clusters, and the arguments of kernels.
#pragma once
#include "gemm_sm90_generic.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "kernels/shared/gemm_transpose.h"
#include "line_copy.h"
#include "tile/arch/sm90/one_wave.h"

namespace tessera::gpu_kernels::sm90_gemm {

using tile::sm90::ProductArgs, tile::sm90::TileScheduler;

// ---- tensor maps

/// A matrix whose contiguous dim is its columns or, transposed, its rows.
inline TmaMatrix tma_matrix(const GemmArgs& args, const MatrixArg& m, i64 rows, i64 columns, bool transposed,
                            int box_columns, int box_rows) {
  TmaMatrix b{m.data, m.type, columns, rows, m.row, 1, m.batch[max_batch_rank - 1], box_columns, box_rows};
  if (transposed) b.length = rows, b.lines = columns, b.pitch = m.column;
  if (b.step != 0) b.count = args.batch[max_batch_rank - 1];
  if (b.count == 1) b.step = b.pitch * b.lines;  // of no account
  return b;
}

// ---- operands

/// Rows of a column-major result are neighbours in memory: it is computed as its transpose. The batch comes last.
/// False: the batch has several dims that cannot be merged.
inline bool arrange(GemmArgs& args) {
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
  TmaMatrix a, b;
};
/// As tiles of tile_m x tile_n load them, in clusters of so many tiles.
inline Operands operands_of(const GemmArgs& args, int tile_m, int tile_n, int cluster_m, int cluster_n) {
  const bool m_contiguous = args.a.column != 1, k_contiguous = args.b.column != 1;  // in a, and in b
  Operands operands{
      tma_matrix(args, args.a, args.m, args.k, m_contiguous, 64, (m_contiguous ? 64 : tile_m) / cluster_n),
      tma_matrix(args, args.b, args.k, args.n, k_contiguous, 64, (k_contiguous ? tile_n : 64) / cluster_m)};
  // Rows and columns behind the last ones in their 16 bytes are read, too, and not stored: boxes that end within are
  // slow.
  if (m_contiguous) operands.a.length = tile::ceil_div<i64>(args.m, 8) * 8;
  if (!k_contiguous) operands.b.length = tile::ceil_div<i64>(args.n, 8) * 8;
  return operands;
}

inline bool is_contiguous(const MatrixArg& m) { return m.column == 1 || m.row == 1; }

/// Of the columns in 16-byte vectors, as TMA stores them; those behind are stored by lanes.
inline TmaMatrix output_matrix(const GemmArgs& args, const MatrixArg& m) {
  TmaMatrix boxes = tma_matrix(args, m, args.m, args.n, false, tile::sm90::line_bytes / size_of(m.type), 64);
  boxes.length -= boxes.length % (16 / size_of(m.type));
  return boxes;
}
inline TmaMatrix input_matrix(const GemmArgs& args, const MatrixArg& m) {
  TmaMatrix boxes = output_matrix(args, m);
  boxes.length = args.n;
  return boxes;
}

/// A matrix of c's shape and type that TMA can move.
inline bool is_like_result(const GemmArgs& args, const MatrixArg& m) {
  return m.column == 1 && m.type == args.c.type && fits(output_matrix(args, m));
}

/// Whether TMA cannot load an operand: its rows, or columns, are not 16-byte aligned.
inline bool is_misaligned(const GemmArgs& args, const MatrixArg& m) {
  bool whole = is_contiguous(m) && (m.column == 1 ? m.row : m.column) % 8 == 0;
  for (int d = 0; d < args.batch_rank; ++d) whole = whole && (args.batch[d] == 1 || m.batch[d] % 8 == 0);
  return !whole || reinterpret_cast<size_t>(m.data) % 16 != 0;
}
/// Such operands of large products are copied.
inline bool needs_copy(const GemmArgs& args) {
  return size_of(args.a.type) == 2 && size_of(args.b.type) == 2 && args.m * args.n * args.k >= i64{1} << 28 &&
         (is_misaligned(args, args.a) || is_misaligned(args, args.b));
}

/// A product as the pipeline reads it, its operands copied before where they must be.
struct Prepared {
  GemmArgs args;
  bool is_arranged;
  OperandCopy a = {}, b = {};
  i64 bytes() const { return a.bytes() + b.bytes(); }
};
/// An operand that is transposed stays so.
inline OperandCopy copy_of(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
  if (!is_misaligned(args, m)) return {};
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
inline Prepared prepared(const GemmArgs& given) {
  Prepared product{given, false};
  GemmArgs& args = product.args;
  product.is_arranged = arrange(args);
  if (!product.is_arranged || !needs_copy(args)) return product;
  product.a = copy_of(args, args.a, args.m, args.k);
  product.b = copy_of(args, args.b, args.k, args.n);
  return product;
}

// ---- tiles and clusters

/// Tiles; and what a block takes: for each 64 of k, for a tile besides, and at the end of all.
struct TileShape {
  tile::Config config;
  bool ping_pong;
  double k_tile_ns, tile_ns, end_ns;
};
struct Tiling {
  const TileShape* shape;
  TileScheduler order;
  int clusters(int multiprocessors) const { return tile::max(multiprocessors / order.cluster(), 1); }
  int width() const { return shape->config.tile_n; }
};

inline Tiling tiling_of(const GemmArgs& args, const TileShape& shape, int cluster_m = 1, int cluster_n = 1,
                        int cluster_k = 1) {
  const i64 clusters_m = tile::ceil_div<i64>(args.m, shape.config.tile_m * cluster_m);
  const i64 clusters_n = tile::ceil_div<i64>(args.n, shape.config.tile_n * cluster_n),
            count = clusters_m * clusters_n * batch_count(args);
  return {&shape,
          {.is_bf16 = args.a.type == Scalar::bf16,
           .transposed_a = args.a.column != 1,
           .transposed_b = args.b.column == 1,
           .batch_a = args.a.batch[max_batch_rank - 1] != 0,
           .batch_b = args.b.batch[max_batch_rank - 1] != 0,
           .cluster_m = cluster_m,
           .cluster_n = cluster_n,
           .cluster_k = cluster_k,
           .split_k = 1,
           .clusters_m = static_cast<int>(clusters_m),
           .clusters_n = static_cast<int>(clusters_n),
           .k_tiles = static_cast<int>(tile::ceil_div<i64>(args.k, 64)),
           .group = 16 / cluster_m,
           .count = static_cast<int>(count)}};
}

inline Operands operands_of(const GemmArgs& args, const Tiling& tiling) {
  return operands_of(args, tiling.shape->config.tile_m, tiling.width(), tiling.order.cluster_m, tiling.order.cluster_n);
}

// ---- split-K

/// The product in parts of k, whose results in f32 lie one behind the other in the workspace.
inline GemmArgs split_k_product(const GemmArgs& args, int parts) {
  GemmArgs split = args;
  split.c = {args.workspace, Scalar::f32, args.n, 1, {}};
  split.batch[max_batch_rank - 1] = parts;
  split.c.batch[max_batch_rank - 1] = args.m * args.n;
  return split;
}
inline i64 split_k_bytes(const GemmArgs& args, int parts) { return parts * args.m * args.n * i64{sizeof(float)}; }

/// k up to a multiple of 8: what is made of it holds for padded operands, too.
inline i64 padded_k(const GemmArgs& args) { return tile::ceil_div<i64>(args.k, 8) * 8; }

// ---- arguments of kernels

/// For a kernel with an epilogue of its own, whose results TMA stores.
inline ProductArgs kernel_args(const GemmArgs& args, const Tiling& tiling, const Operands& operands,
                               float* column_parts) {
  const MatrixArg& input = args.addend.data ? args.addend : args.factor;
  ProductArgs product{};
  product.a = map_of(operands.a);
  product.b = map_of(operands.b);
  product.y = map_of(output_matrix(args, args.c));
  if (args.slope.data) product.slope = map_of(output_matrix(args, args.slope));
  if (input.data) product.input = map_of(input_matrix(args, input));
  product.input_batch = input.data && input.batch[max_batch_rank - 1] != 0;
  product.is_f32 = args.c.type == Scalar::f32;
  product.order = tiling.order;
  product.d[0].data = args.bias.data;
  product.column_parts = column_parts;
  product.m = static_cast<int>(args.m);
  product.n = static_cast<int>(args.n);
  const i64 whole = output_matrix(args, args.c).length, bytes = size_of(args.c.type);
  product.whole = static_cast<int>(whole);
  product.edge_bytes = static_cast<int>((args.n - whole) * bytes);
  const auto edge = [&](const MatrixArg& m) -> ProductArgs::Place {
    return {static_cast<char*>(m.data) + whole * bytes, m.row * bytes, m.batch[max_batch_rank - 1] * bytes};
  };
  product.edge[0] = edge(args.c);
  if (args.slope.data) product.edge[1] = edge(args.slope);
  return product;
}

// ---- fused products, whose kernels are compiled while the program runs

template <class Tile>
inline void describe(Sm90FusedPlan& plan, const TileScheduler& order, const Executor& executor) {
  using Gemm = tile::sm90::Gemm<Tile>;
  constexpr tile::Config c = Tile::config;
  plan.rows = c.tile_m, plan.width = c.tile_n, plan.stages = c.stages;
  plan.boxes = Tile::boxes;
  plan.ping_pong = Tile::ping_pong;
  plan.transposed_a = order.transposed_a, plan.transposed_b = order.transposed_b;
  plan.blocks = sm90_clusters(order, executor);
  plan.threads = Gemm::threads;
  plan.shared_bytes = Gemm::shared_bytes;
}

/// Where all tiles fit the card at once.
template <int Width>
using OneWaveTile = tile::sm90::OneWaveTile<Width, 5>;

template <int Width>
inline void describe_one_wave(Sm90FusedPlan& plan, const TileScheduler& order) {
  plan.rows = 128, plan.width = Width, plan.stages = OneWaveTile<Width>::config.stages;
  plan.one_wave = true;
  plan.transposed_a = order.transposed_a, plan.transposed_b = order.transposed_b;
  plan.blocks = order.count;
  plan.threads = OneWaveTile<Width>::threads;
  plan.shared_bytes = OneWaveTile<Width>::shared_bytes;
}
inline void describe_one_wave(Sm90FusedPlan& plan, const Tiling& tiling) {
  if (tiling.width() == 64) describe_one_wave<64>(plan, tiling.order);
  else if (tiling.width() == 96) describe_one_wave<96>(plan, tiling.order);
  else describe_one_wave<128>(plan, tiling.order);
}

/// Maps with the boxes of tile::sm90::OneWave.
inline void use_narrow_boxes(const GemmArgs& args, const Tiling& tiling, ProductArgs& product) {
  const auto of = [](TmaMatrix boxes, int lines) {
    boxes.box_columns = 32, boxes.box_rows = lines;
    return map_of(boxes);
  };
  if (args.b.column == 1) product.b = of(operands_of(args, tiling).b, 64);
  product.y = of(output_matrix(args, args.c), 16);
  if (args.addend.data) product.input = of(input_matrix(args, args.addend), 128);
}

}  // namespace tessera::gpu_kernels::sm90_gemm
