// Which products go to Hopper's pipeline, in what tiles and parts, and the maps by which the copy engine finds them.
#include "gemm_sm90.h"
#include "kernels/cpu/isa/gemm_transpose.h"
#include "tensor_map.h"

namespace tessera::gpu_kernels {
namespace {

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
  MatrixArg* const all[] = {&args.a, &args.b, &args.c, &args.addend, &args.bias, &args.slope};
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
  bool transposed_a, transposed_b;  // as in TileOrder
};
Operands operands_of(const GemmArgs& args, int width) {
  constexpr int cluster = sm90_cluster;
  const bool turned_a = args.a.column != 1, turned_b = args.b.column != 1;
  return {boxes_of(args, args.a, args.m, args.k, turned_a, 64, turned_a ? 64 : 128),
          boxes_of(args, args.b, args.k, args.n, turned_b, 64, turned_b ? width / cluster : 64 / cluster), turned_a,
          !turned_b};
}

bool is_contiguous(const MatrixArg& m) { return m.column == 1 || m.row == 1; }

Boxes result_boxes(const GemmArgs& args, const MatrixArg& m) {
  const int line = tile::sm90::line_bytes / size_of(m.type);
  return boxes_of(args, m, args.m, args.n, false, line, 16);
}

/// Whether results can leave through the copy engine, which writes whole units of 16 bytes, and all else is read in
/// pairs.
bool stores_boxes(const GemmArgs& args) {
  const auto is_result = [&](const MatrixArg& m) {
    return m.column == 1 && m.type == args.c.type && args.n * size_of(m.type) % 16 == 0 && fits(result_boxes(args, m));
  };
  const auto in_pairs = [&](const MatrixArg& m) {
    return m.column == 1 && m.row % 2 == 0 && m.batch[max_batch_rank - 1] % 2 == 0 &&
           reinterpret_cast<size_t>(m.data) % (2 * size_of(m.type)) == 0;
  };
  const bool slope = !args.slope.data || (args.activation != Activation::none && is_result(args.slope));
  return is_result(args.c) && slope && (!args.addend.data || in_pairs(args.addend)) &&
         (!args.bias.data || in_pairs(args.bias));
}

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
  const Operands operands = operands_of(args, 256);
  const bool contiguous = is_contiguous(args.a) && is_contiguous(args.b);
  return contiguous && fits(operands.a) && fits(operands.b) ? Sm90Refusal::none : Sm90Refusal::layout;
}

// ---- how it is cut

struct Cut {
  int width, parts, steps;  // columns of a tile; parts of the sums, steps of 64 in each
};

/// Fewest cycles for the clusters that take most tiles. A step of 64 takes as many as the tensor cores need, and
/// narrower tiles keep them less busy; parts are worth writing and adding up where there are few tiles.
Cut best_cut(const GemmArgs& args, bool may_split, int multiprocessors) {
  const i64 steps = tile::ceil_div<i64>(args.k, 64), clusters = tile::max(multiprocessors / sm90_cluster, 1);
  const double results =
      static_cast<double>(args.m) * static_cast<double>(args.n) * static_cast<double>(batch_count(args));
  Cut best{256, 1, static_cast<int>(steps)};
  double least = __builtin_inf();
  for (const int width : {256, 192}) {
    const double step = width == 256 ? 1070 : 820, rest = 2 * width + 900;
    const i64 tiles =
        tile::ceil_div<i64>(args.m, 128 * sm90_cluster) * tile::ceil_div<i64>(args.n, width) * batch_count(args);
    for (int parts = 1; parts <= (may_split ? 16 : 1); ++parts) {
      const i64 each = tile::ceil_div<i64>(steps, parts);
      if (parts > 1 && (each < 8 || tile::ceil_div(steps, each) != parts)) continue;
      const double join = parts > 1 ? 6000 + parts * results * 8 / 1500 : 0;
      const double time =
          static_cast<double>(tile::ceil_div(tiles * parts, clusters)) * (step * static_cast<double>(each) + rest) +
          join;
      if (time < least) {
        least = time;
        best = {width, parts, static_cast<int>(each)};
      }
    }
  }
  return best;
}

i64 sums_pitch(const GemmArgs& args) { return tile::ceil_div<i64>(args.n, 4) * 4; }
i64 sums_size(const GemmArgs& args) { return batch_count(args) * args.m * sums_pitch(args); }

/// The sums of the parts, in f32, as a result of a product that is nothing else.
GemmArgs sums_of(const GemmArgs& args) {
  GemmArgs sums = args;
  sums.c = {args.workspace, Scalar::f32, sums_pitch(args), 1, {}};
  sums.c.batch[max_batch_rank - 1] = args.m * sums_pitch(args);
  sums.addend = sums.bias = sums.slope = {};
  sums.alpha = 1;
  sums.activation = Activation::none;
  return sums;
}

long long workspace(const GemmArgs& given, const Executor& executor) {
  GemmArgs args = given;
  if (!arrange(args)) return 0;
  const Cut cut = best_cut(args, true, executor.multiprocessors);
  return cut.parts > 1 ? cut.parts * sums_size(args) * static_cast<i64>(sizeof(float)) : 0;
}

void run_product(const GemmArgs& args, const Cut& cut, Executor& executor) {
  const Operands operands = operands_of(args, cut.width);
  Sm90Product product{};
  product.a = map_of(operands.a);
  product.b = map_of(operands.b);
  product.args = args;
  product.boxes = stores_boxes(args);
  if (product.boxes) {
    Boxes results = result_boxes(args, args.c);
    results.count *= cut.parts;  // whose parts follow each other
    product.c = map_of(results);
    if (args.slope.data) product.slope = map_of(result_boxes(args, args.slope));
  }
  product.part_stride = sums_size(args);
  const i64 down = tile::ceil_div<i64>(args.m, 128 * sm90_cluster), across = tile::ceil_div<i64>(args.n, cut.width);
  product.order = {.is_bf16 = args.a.type == Scalar::bf16,
                   .transposed_a = operands.transposed_a,
                   .transposed_b = operands.transposed_b,
                   .batch_a = operands.a.count > 1,
                   .batch_b = operands.b.count > 1,
                   .down = static_cast<int>(down),
                   .across = static_cast<int>(across),
                   .parts = cut.parts,
                   .steps = cut.steps,
                   .total_steps = static_cast<int>(tile::ceil_div<i64>(args.k, 64)),
                   .group = 16 / sm90_cluster,
                   .count = down * across * cut.parts * batch_count(args)};
  (cut.width == 256 ? sm90_gemm_256 : sm90_gemm_192)(product, executor);
}

void run(const GemmArgs& given, Executor& executor) {
  GemmArgs args = given;
  (void)arrange(args);
  const Cut cut = best_cut(args, args.workspace != nullptr, executor.multiprocessors);
  if (cut.parts == 1) return run_product(args, cut, executor);
  run_product(sums_of(args), cut, executor);
  join_parts(args, cut.parts, sums_size(args), executor);
}

}  // namespace

const Sm90GemmTable* sm90_gemm_table() {
  static const Sm90GemmTable table{refuses, run, workspace};
  return &table;
}

}  // namespace tessera::gpu_kernels
