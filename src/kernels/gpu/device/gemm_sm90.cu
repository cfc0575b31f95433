// Which products go to Hopper's pipeline, in what tiles and parts, and the maps by which the copy engine finds them.
#include "gemm_sm90.h"
#include "kernels/cpu/isa/gemm_transpose.h"
#include "tensor_map.h"

namespace tessera::gpu_kernels {
namespace {

using tile::sm90::TileOrder;

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
/// As tiles of rows x width fetch them, in clusters that share columns of b.
Operands operands_of(const GemmArgs& args, int rows, int width, int cluster) {
  const bool turned_a = args.a.column != 1, turned_b = args.b.column != 1;
  return {boxes_of(args, args.a, args.m, args.k, turned_a, 64, turned_a ? 64 : rows),
          boxes_of(args, args.b, args.k, args.n, turned_b, 64, (turned_b ? width : 64) / cluster)};
}

bool is_contiguous(const MatrixArg& m) { return m.column == 1 || m.row == 1; }

/// Columns of whole units of 16 bytes.
i64 whole_columns(const GemmArgs& args) {
  const i64 unit = 16 / size_of(args.c.type);
  return args.n / unit * unit;
}

Boxes result_boxes(const GemmArgs& args, const MatrixArg& m) {
  Boxes boxes = boxes_of(args, m, args.m, args.n, false, tile::sm90::line_bytes / size_of(m.type), 16);
  boxes.length = whole_columns(args);  // the copy engine writes whole units
  return boxes;
}

/// A matrix of c's shape and type that the copy engine can move.
bool is_like_result(const GemmArgs& args, const MatrixArg& m) {
  return m.column == 1 && m.type == args.c.type && fits(result_boxes(args, m));
}

/// What is added or multiplied; null: neither.
const MatrixArg* input_of(const GemmArgs& args) {
  if (args.addend.data) return &args.addend;
  return args.factor.data ? &args.factor : nullptr;
}

Sm90Ends ends_of(const GemmArgs& args) {
  const auto in_pairs = [&](const MatrixArg& m) {
    return m.row == 0 && m.column == 1 && m.batch[max_batch_rank - 1] % 2 == 0 &&
           reinterpret_cast<size_t>(m.data) % (2 * size_of(m.type)) == 0;
  };
  const MatrixArg* const input = input_of(args);
  const bool both = args.addend.data && args.factor.data, slope = args.slope.data;
  if (!is_like_result(args, args.c) || both || (input && (slope || !is_like_result(args, *input))))
    return Sm90Ends::lanes;
  if (slope && (args.activation == Activation::none || !is_like_result(args, args.slope))) return Sm90Ends::lanes;
  if (args.bias.data && (args.bias.type == Scalar::f32 || !in_pairs(args.bias))) return Sm90Ends::lanes;
  if (!input && !args.bias.data && args.activation == Activation::none && !args.column_sums.data)
    return Sm90Ends::plain;
  return whole_columns(args) == args.n && args.c.type != Scalar::f32 ? Sm90Ends::boxes : Sm90Ends::lanes;
}

/// Whether the kernel sums up rows and columns as it should; otherwise a pass follows, which multiplies, too.
bool sums_itself(const GemmArgs& args) { return !args.row_sums.data && ends_of(args) == Sm90Ends::boxes; }
constexpr int rows_of_parts = 16;

Sm90Refusal refuses(const GemmArgs& given) {
  if (!is_hopper() || !encode_function()) return Sm90Refusal::hardware;
  GemmArgs args = given;
  if (!types_fit(args) || args.a.type != args.b.type || (args.a.type != Scalar::f16 && args.a.type != Scalar::bf16))
    return Sm90Refusal::type;
  if (args.m < 128 || args.n < 128 || args.k < 64) return Sm90Refusal::small;
  constexpr i64 most = (i64{1} << 31) - 1024;
  if (!arrange(args) || args.m > most || args.n > most || args.k > most ||
      batch_count(args) > most / (tile::ceil_div<i64>(args.m, 128) * tile::ceil_div<i64>(args.n, 128)))
    return Sm90Refusal::shape;
  // A product in f16 may be infinite where the factor makes it small, or nothing.
  if (sums_lines(args) && args.factor.data && args.c.type == Scalar::f16 && !sums_itself(args))
    return Sm90Refusal::layout;
  const Operands operands = operands_of(args, 128, 256, 1);
  const bool contiguous = is_contiguous(args.a) && is_contiguous(args.b);
  return contiguous && fits(operands.a) && fits(operands.b) ? Sm90Refusal::none : Sm90Refusal::layout;
}

// ---- how it is cut

/// A kernel; and nanoseconds of a block: for a step, for a tile besides, for what else becomes of its sums, and at the
/// end of all.
struct Kind {
  tile::Config config;
  bool alternates;
  void (*run)(const Sm90Product& product, Executor& executor);
  double step, tile, boxes, activated, end;

  int cluster_rows() const { return config.tile_m * config.cluster; }
  int clusters(int multiprocessors) const { return tile::max(multiprocessors / config.cluster, 1); }
};
constexpr Kind kinds[] = {{Sm90Wide::config, Sm90Wide::alternates, sm90_gemm_wide, 712, 2300, 2000, 7000, 0},
                          {Sm90Turns::config, Sm90Turns::alternates, sm90_gemm_turns, 515, 1100, 9000, 22000, 5500}};

struct Cut {
  const Kind* kind;
  TileOrder order;
  int shared_tiles() const { return order.shared(); }
  int width() const { return kind->config.tile_n; }
};

/// All tiles taken whole.
Cut whole_cut(const GemmArgs& args, const Kind& kind) {
  const i64 down = tile::ceil_div<i64>(args.m, kind.cluster_rows());
  const i64 across = tile::ceil_div<i64>(args.n, kind.config.tile_n), count = down * across * batch_count(args);
  return {&kind,
          {.is_bf16 = args.a.type == Scalar::bf16,
           .transposed_a = args.a.column != 1,
           .transposed_b = args.b.column == 1,
           .batch_a = args.a.batch[max_batch_rank - 1] != 0,
           .batch_b = args.b.batch[max_batch_rank - 1] != 0,
           .down = static_cast<int>(down),
           .across = static_cast<int>(across),
           .steps = static_cast<int>(tile::ceil_div<i64>(args.k, 64)),
           .group = 16 / kind.config.cluster,
           .count = static_cast<int>(count),
           .whole = static_cast<int>(count),
           .share = 0,
           .parts = 0,
           .tail = 0}};
}

/// Tiles that leave half of the card idle or more are shared out; false: they do not.
bool share_out(Cut& cut, int multiprocessors) {
  const i64 clusters = cut.kind->clusters(multiprocessors), rest = cut.order.count;
  if (rest * 2 > clusters) return false;
  const i64 steps = cut.order.steps, share = tile::ceil_div(rest * steps, clusters);
  if (share < 4 || share == steps || share * clusters >= i64{1} << 30) return false;
  const i64 parts = tile::min(clusters / rest, tile::ceil_div(steps, share));
  cut.order.whole = 0;
  cut.order.share = static_cast<int>(share);
  cut.order.parts = static_cast<int>(parts);
  cut.order.tail = static_cast<int>(tile::max<i64>(steps - parts * share, 0));
  return true;
}

/// The cut that takes fewest cycles. Tiles that would leave most of the card idle are shared out, as far as that is
/// worth writing and adding up the pieces.
Cut best_cut(const GemmArgs& args, bool may_share, int multiprocessors) {
  const Sm90Ends ends = ends_of(args);
  Cut best{};
  double least = __builtin_inf();
  const auto consider = [&](const Cut& cut, double time) {
    if (time >= least) return;
    least = time;
    best = cut;
  };
  for (const Kind& kind : kinds) {
    Cut cut = whole_cut(args, kind);
    const i64 clusters = kind.clusters(multiprocessors);
    const double more = ends == Sm90Ends::plain ? 0 : args.activation == Activation::none ? kind.boxes : kind.activated;
    const double sums = kind.step * cut.order.steps + kind.tile;
    const double each = kind.alternates ? tile::max(sums, (sums + more) / 2) : sums + more;
    const double end = kind.end + (kind.alternates ? more : 0);
    consider(cut, static_cast<double>(tile::ceil_div<i64>(cut.order.count, clusters)) * each + end);
    if (!may_share || !kind.alternates || !share_out(cut, multiprocessors)) continue;
    const double pieces = static_cast<double>(clusters + cut.shared_tiles()) * kind.cluster_rows() * cut.width();
    consider(cut, kind.step * cut.order.share + kind.tile + kind.end + 5000 + pieces * 4 / 1500);
  }
  return best;
}

i64 piece_rows(const Cut& cut, int multiprocessors) {
  return static_cast<i64>(cut.kind->clusters(multiprocessors) + cut.shared_tiles()) * cut.kind->cluster_rows();
}

/// Adds up the pieces of shared tiles, in their order, and does what is to be done with the sums.
TESSERA_KERNEL(256)
void join_kernel(const GemmArgs args, const TileOrder order, int cluster_rows, int width) {
  const auto* const pieces = static_cast<const float*>(args.workspace);
  const int quads = width / 4;
  const i64 count = static_cast<i64>(order.shared()) * cluster_rows * quads;
  for (i64 i = first_index(); i < count; i += index_step()) {
    const i64 line = i / quads;
    const int tile = static_cast<int>(line / cluster_rows), quad = static_cast<int>(i - line * quads) * 4;
    const int within = static_cast<int>(line - static_cast<i64>(tile) * cluster_rows);
    const TileOrder::Place place = order.place(order.whole + tile);
    const i64 row = static_cast<i64>(place.down) * cluster_rows + within, column = place.across * width + quad;
    if (row >= args.m || column >= args.n) continue;
    Lanes total(0.0f);
    const auto add = [&](int piece) {
      const i64 at = static_cast<i64>(piece) * cluster_rows + within;
      const auto four = *reinterpret_cast<const Pack<float, 4>*>(pieces + at * width + quad);
      for (int l = 0; l < 4; ++l) total.v[l] += four.lane[l];
    };
#pragma unroll 4
    for (int part = 0; part < order.parts; ++part) add(part * order.shared() + tile);
    if (order.tail > 0) {
      const int last = order.last_cluster(tile);
      for (int cluster = order.first_cluster(tile); cluster <= last; ++cluster) add(order.tail_piece(cluster, tile));
    }
    const LaneEpilogue epilogue(args, BatchPlace(args, place.batch));
    epilogue(total, row, column, static_cast<int>(tile::min<i64>(args.n - column, 4)));
  }
}

// ---- the run

/// Sums of columns come from whole tiles.
Cut cut_of(const GemmArgs& args, bool may_share, const Executor& executor) {
  return best_cut(args, may_share && !args.column_sums.data, executor.multiprocessors);
}

GemmArgs without_finish(GemmArgs args) {
  args.factor = args.row_sums = args.column_sums = {};
  return args;
}

long long workspace(const GemmArgs& given, const Executor& executor) {
  GemmArgs args = given;
  if (!arrange(args)) return 0;
  i64 bytes = 0;
  for (const GemmArgs& product : {args, without_finish(args)}) {
    const Cut cut = cut_of(product, true, executor);
    if (cut.shared_tiles() > 0)
      bytes = tile::max<i64>(bytes, piece_rows(cut, executor.multiprocessors) * cut.width() * 4);
  }
  if (sums_lines(args)) bytes = tile::max(bytes, tile::max(finish_bytes(args), line_bytes(args, rows_of_parts, 192)));
  return bytes;
}

void run_product(const GemmArgs& args, const Cut& cut, Executor& executor) {
  const Operands operands = operands_of(args, cut.kind->config.tile_m, cut.width(), cut.kind->config.cluster);
  Sm90Product product{};
  product.a = map_of(operands.a);
  product.b = map_of(operands.b);
  product.args = args;
  product.order = cut.order;
  product.ends = ends_of(args);
  product.whole_n = product.ends == Sm90Ends::plain ? whole_columns(args) : args.n;
  const MatrixArg* const input = input_of(args);
  if (product.ends != Sm90Ends::lanes) {
    product.c = map_of(result_boxes(args, args.c));
    if (args.slope.data) product.slope = map_of(result_boxes(args, args.slope));
    if (input) product.input = map_of(result_boxes(args, *input));
    product.has_input = input != nullptr;
    product.input_batch = input && input->batch[max_batch_rank - 1] != 0;
  }
  if (cut.shared_tiles() > 0) {
    const i64 rows = piece_rows(cut, executor.multiprocessors);
    product.pieces =
        map_of({args.workspace, Scalar::f32, cut.width(), rows, cut.width(), 1, rows * cut.width(), 32, 16});
  }
  const LineParts parts = line_parts(args, rows_of_parts, cut.width());
  product.column_parts = static_cast<float*>(parts.columns);
  cut.kind->run(product, executor);
  add_parts(args, parts, executor);
  if (cut.shared_tiles() > 0) {
    const int rows = cut.kind->cluster_rows();
    launch("gemm", join_kernel, grid_for(i64{cut.shared_tiles()} * rows * cut.width() / 4, 256, executor), 256, 0,
           executor, args, cut.order, rows, cut.width());
  }
}

void run(const GemmArgs& given, Executor& executor) {
  GemmArgs args = given;
  (void)arrange(args);
  const bool follows = sums_lines(args) && !sums_itself(args);
  const GemmArgs product = follows ? without_finish(args) : args;
  run_product(product, cut_of(product, args.workspace != nullptr, executor), executor);
  if (!follows) return;
  args.slope = {};
  finish_lines(args, executor);
}

}  // namespace

const Sm90GemmTable* sm90_gemm_table() {
  static const Sm90GemmTable table{refuses, run, workspace};
  return &table;
}

}  // namespace tessera::gpu_kernels
