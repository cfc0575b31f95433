// How a product on Hopper's cards is launched: its operands as TMA finds them, copies of those that it
// cannot find, tiles and clusters, and the arguments of kernels.
#pragma once
#include "gemm_sm90_lanes.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "kernels/shared/gemm_transpose.h"
#include "line_copy.h"
#include "tile/arch/sm90/once.h"

namespace tessera::gpu_kernels::sm90_gemm {

using tile::sm90::ProductArgs, tile::sm90::TileScheduler;

// ---- operands in boxes

/// A matrix whose contiguous dim is its columns or, transposed, its rows.
inline Boxes boxes_of(const GemmArgs& args, const MatrixArg& m, i64 rows, i64 columns, bool transposed, int box_length,
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
  Boxes a, b;
};
/// As tiles of rows x width fetch them, in clusters of so many tiles below each other and side by side.
inline Operands operands_of(const GemmArgs& args, int rows, int width, int down, int across) {
  const bool turned_a = args.a.column != 1, turned_b = args.b.column != 1;
  Operands operands{boxes_of(args, args.a, args.m, args.k, turned_a, 64, (turned_a ? 64 : rows) / across),
                    boxes_of(args, args.b, args.k, args.n, turned_b, 64, (turned_b ? width : 64) / down)};
  // Rows and columns behind the last ones in their 16 bytes are read, too, and not stored: boxes that end within are
  // slow.
  if (turned_a) operands.a.length = tile::ceil_div<i64>(args.m, 8) * 8;
  if (!turned_b) operands.b.length = tile::ceil_div<i64>(args.n, 8) * 8;
  return operands;
}

inline bool is_contiguous(const MatrixArg& m) { return m.column == 1 || m.row == 1; }

/// Of all columns in whole units of 16 bytes, as TMA writes them; those behind are stored by lanes.
inline Boxes result_boxes(const GemmArgs& args, const MatrixArg& m) {
  Boxes boxes = boxes_of(args, m, args.m, args.n, false, tile::sm90::line_bytes / size_of(m.type), 64);
  boxes.length -= boxes.length % (16 / size_of(m.type));
  return boxes;
}
inline Boxes input_boxes(const GemmArgs& args, const MatrixArg& m) {
  Boxes boxes = result_boxes(args, m);
  boxes.length = args.n;
  return boxes;
}

/// A matrix of c's shape and type that TMA can move.
inline bool is_like_result(const GemmArgs& args, const MatrixArg& m) {
  return m.column == 1 && m.type == args.c.type && fits(result_boxes(args, m));
}

/// Whether TMA cannot find lines of an operand: they do not begin at whole units of 16 bytes.
inline bool is_off(const GemmArgs& args, const MatrixArg& m) {
  bool whole = is_contiguous(m) && (m.column == 1 ? m.row : m.column) % 8 == 0;
  for (int d = 0; d < args.batch_rank; ++d) whole = whole && (args.batch[d] == 1 || m.batch[d] % 8 == 0);
  return !whole || reinterpret_cast<size_t>(m.data) % 16 != 0;
}
/// Such operands of large products are copied.
inline bool copies(const GemmArgs& args) {
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
inline OperandCopy copy_of(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
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
inline Readable readable(const GemmArgs& given) {
  Readable product{given, false};
  GemmArgs& args = product.args;
  product.is_arranged = arrange(args);
  if (!product.is_arranged || !copies(args)) return product;
  product.a = copy_of(args, args.a, args.m, args.k);
  product.b = copy_of(args, args.b, args.k, args.n);
  return product;
}

// ---- tiles and clusters

/// Tiles; and nanoseconds of a block: for a step, for a tile besides, and at the end of all.
struct Kind {
  tile::Config config;
  bool ping_pong;
  double step, tile, end;
};
struct Cut {
  const Kind* kind;
  TileScheduler order;
  int clusters(int multiprocessors) const { return tile::max(multiprocessors / order.cluster(), 1); }
  int width() const { return kind->config.tile_n; }
};

inline Cut cut_by(const GemmArgs& args, const Kind& kind, int cluster_m = 1, int cluster_n = 1, int cluster_k = 1) {
  const i64 down = tile::ceil_div<i64>(args.m, kind.config.tile_m * cluster_m);
  const i64 across = tile::ceil_div<i64>(args.n, kind.config.tile_n * cluster_n),
            count = down * across * batch_count(args);
  return {&kind,
          {.is_bf16 = args.a.type == Scalar::bf16,
           .transposed_a = args.a.column != 1,
           .transposed_b = args.b.column == 1,
           .batch_a = args.a.batch[max_batch_rank - 1] != 0,
           .batch_b = args.b.batch[max_batch_rank - 1] != 0,
           .cluster_m = cluster_m,
           .cluster_n = cluster_n,
           .cluster_k = cluster_k,
           .split_k = 1,
           .clusters_m = static_cast<int>(down),
           .clusters_n = static_cast<int>(across),
           .k_tiles = static_cast<int>(tile::ceil_div<i64>(args.k, 64)),
           .group = 16 / cluster_m,
           .count = static_cast<int>(count)}};
}

inline Operands operands_of(const GemmArgs& args, const Cut& cut) {
  return operands_of(args, cut.kind->config.tile_m, cut.width(), cut.order.cluster_m, cut.order.cluster_n);
}

// ---- split-K

/// The same product's sums in parts of k, one behind the other in the workspace.
inline GemmArgs in_parts(const GemmArgs& args, int parts) {
  GemmArgs sums = args;
  sums.c = {args.workspace, Scalar::f32, args.n, 1, {}};
  sums.batch[max_batch_rank - 1] = parts;
  sums.c.batch[max_batch_rank - 1] = args.m * args.n;
  return sums;
}
inline i64 bytes_of_parts(const GemmArgs& args, int parts) { return parts * args.m * args.n * i64{sizeof(float)}; }

/// The length of sums, filled up with zeros: what is made of it holds for lines that are padded, too.
inline i64 depth_of(const GemmArgs& args) { return tile::ceil_div<i64>(args.k, 8) * 8; }

// ---- arguments of kernels

/// For a kernel of its own, whose results leave through boxes.
inline ProductArgs own_args(const GemmArgs& args, const Cut& cut, const Operands& operands, float* column_parts) {
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
using OnceTile = tile::sm90::OnceTile<Width, 5>;

template <int Width>
inline void describe_once(Sm90FusedPlan& plan, const TileScheduler& order) {
  plan.rows = 128, plan.width = Width, plan.stages = OnceTile<Width>::config.stages;
  plan.once = true;
  plan.transposed_a = order.transposed_a, plan.transposed_b = order.transposed_b;
  plan.blocks = order.count;
  plan.threads = OnceTile<Width>::threads;
  plan.shared_bytes = OnceTile<Width>::shared_bytes;
}
inline void describe_once(Sm90FusedPlan& plan, const Cut& cut) {
  if (cut.width() == 64) describe_once<64>(plan, cut.order);
  else if (cut.width() == 96) describe_once<96>(plan, cut.order);
  else describe_once<128>(plan, cut.order);
}

/// Maps with the boxes of tile::sm90::Once.
inline void use_narrow_boxes(const GemmArgs& args, const Cut& cut, ProductArgs& product) {
  const auto of = [](Boxes boxes, int lines) {
    boxes.box_length = 32, boxes.box_lines = lines;
    return map_of(boxes);
  };
  if (args.b.column == 1) product.b = of(operands_of(args, cut).b, 64);
  product.y = of(result_boxes(args, args.c), 16);
  if (args.addend.data) product.input = of(input_boxes(args, args.addend), 128);
}

}  // namespace tessera::gpu_kernels::sm90_gemm
