// Which kernel computes a product, in which tiles, and in how many parts of its sums.
#include "gemm.h"
#include "kernels/shared/gemm_transpose.h"
#include "operand_copy.h"

namespace tessera::gpu_kernels {
namespace {

// ---- products in tiles

/// How an operand lies: contiguous along its rows, or transposed along its columns; and whether kernels can read it so.
struct Lie {
  bool fits, transposed;
};

i64 chunk_of(const MatrixArg& m) { return m.type == Scalar::f32 ? 4 : 8; }  // elements in 16 bytes

bool is_aligned(const GemmArgs& args, const MatrixArg& m, i64 contiguous, i64 pitch) {
  const i64 chunk = chunk_of(m);
#if defined(__HIP__)
  const bool whole = contiguous % chunk == 0;
#else
  const bool whole = contiguous >= chunk;  // the end of a line is copied element by element
#endif
  bool all = whole && pitch % chunk == 0 && reinterpret_cast<size_t>(m.data) % 16 == 0;
  for (int d = 0; d < max_batch_rank; ++d) all = all && (args.batch[d] == 1 || m.batch[d] % chunk == 0);
  return all;
}

/// The pitch of a single row is of no account, and becomes 0.
Lie lie_of(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
  if (rows == 1) m.row = m.column == 1 ? 0 : 1;
  if (columns == 1) m.column = m.row == 1 ? 0 : 1;
  if (m.column == 1) return {is_aligned(args, m, columns, m.row), false};
  return {m.row == 1 && is_aligned(args, m, rows, m.column), true};
}

}  // namespace

OperandCopy copied(const GemmArgs& args, MatrixArg& m, i64 rows, i64 columns) {
  OperandCopy copy{m, rows, columns, tile::ceil_div(columns, chunk_of(m)) * chunk_of(m), {}};
  i64 step = rows * copy.pitch;
  m.row = copy.pitch, m.column = 1;
  for (int d = max_batch_rank - 1; d >= 0; --d) {
    copy.batch[d] = m.batch[d] == 0 ? 1 : args.batch[d];
    if (m.batch[d] == 0) continue;
    m.batch[d] = step;
    step *= copy.batch[d];
  }
  return copy;
}

namespace {

constexpr int copied_edge = 64;

/// By squares, read along whichever dim is contiguous, all of a thread's elements before it writes the first.
template <class Word>
TESSERA_KERNEL(256)
void copy_operand_kernel(const OperandCopy copy, Word* to) {
  constexpr int edge = copied_edge, lines = 256 / edge, each = edge / lines;
  __shared__ Word square[edge][edge + 4 / sizeof(Word)];  // lines begin in other banks
  const i64 down = tile::ceil_div<i64>(copy.rows, edge), across = tile::ceil_div<i64>(copy.pitch, edge);
  const int x = tile::thread_in_block() % edge, y = tile::thread_in_block() / edge;
  const bool along_rows = copy.from.column == 1;
  for (i64 n = tile::block_in_grid(); n < copy.count() * down * across; n += gridDim.x) {
    const i64 batch = n / (down * across), row = n % down * edge, column = n / down % across * edge;
    i64 offset = 0, index = batch;
    for (int d = max_batch_rank - 1; d >= 0; --d) {
      offset += index % copy.batch[d] * copy.from.batch[d];
      index /= copy.batch[d];
    }
    const Word* const from = static_cast<const Word*>(copy.from.data) + offset;
    Word held[each];
    tile::unroll<each>([&](auto l) {
      const int line = y + l * lines, i = along_rows ? line : x, j = along_rows ? x : line;
      const bool inside = row + i < copy.rows && column + j < copy.columns;
      held[l] = inside ? from[(row + i) * copy.from.row + (column + j) * copy.from.column] : Word(0);
    });
    tile::unroll<each>([&](auto l) {
      const int line = y + l * lines;
      square[along_rows ? line : x][along_rows ? x : line] = held[l];
    });
    tile::sync_block();
    for (int line = y; line < edge; line += lines)
      if (row + line < copy.rows && column + x < copy.pitch)
        to[(batch * copy.rows + row + line) * copy.pitch + column + x] = square[line][x];
    tile::sync_block();
  }
}

}  // namespace

void* run_copy(const OperandCopy& copy, MatrixArg& m, void* to, Executor& executor) {
  if (!copy.from.data) return to;
  m.data = to;
  const i64 squares =
      copy.count() * tile::ceil_div<i64>(copy.rows, copied_edge) * tile::ceil_div<i64>(copy.pitch, copied_edge);
  const i64 blocks = tile::min<i64>(squares, executor.multiprocessors * i64{32});
  if (size_of(m.type) == 2)
    launch("gemm", copy_operand_kernel<tile::u16>, blocks, 256, 0, executor, copy, static_cast<tile::u16*>(to));
  else launch("gemm", copy_operand_kernel<u32>, blocks, 256, 0, executor, copy, static_cast<u32*>(to));
  return static_cast<char*>(to) + copy.bytes();
}

void widen_batch(GemmArgs& args) {
  for (int d = args.batch_rank; d < max_batch_rank; ++d) {
    args.batch[d] = 1;
    for (MatrixArg* m : {&args.a, &args.b, &args.c, &args.addend, &args.bias, &args.slope, &args.factor, &args.row_sums,
                         &args.column_sums})
      m->batch[d] = 0;
  }
  args.batch_rank = max_batch_rank;
}

namespace {

using TiledGemm = void (*)(const GemmArgs& args, const GemmCut& cut, Executor& executor);
/// `rate`: multiply-adds that a multiprocessor with enough blocks makes in a nanosecond.
struct TiledKind {
  TiledGemm gemm[3];  // none is transposed, b is, a is
  double rate;
};
#define TESSERA_TILED(type) \
  { tiled_gemm_##type##_nn, tiled_gemm_##type##_nt, tiled_gemm_##type##_tn }

/// Null: no such kernels.
const TiledKind* kind_of(const GemmArgs& args) {
  static const TiledKind f16 = {TESSERA_TILED(f16), 1500}, bf16 = {TESSERA_TILED(bf16), 1500};
  if (args.a.type != args.b.type || !has_matrix_cores()) return nullptr;
  if (args.a.type == Scalar::f16) return &f16;
  if (args.a.type == Scalar::bf16) return &bf16;
#if defined(__HIP__)
  static const TiledKind f32 = {TESSERA_TILED(f32), 220};
  return args.a.type == Scalar::f32 && !args.tf32 ? &f32 : nullptr;
#else
  static const TiledKind f32 = {TESSERA_TILED(f32), 170}, tf32 = {TESSERA_TILED(tf32), 700};
  if (args.a.type == Scalar::f32) return args.tf32 ? &tf32 : &f32;
  return nullptr;
#endif
}
#undef TESSERA_TILED

/// Nanoseconds for `blocks` blocks of edge x edge x depth, of which 2 x 2 (big) or 4 (small) share a multiprocessor:
/// a block alone cannot keep it busy. Only meant to compare ways to cut a product.
double time_of(i64 edge, double blocks, double depth, double rate, int multiprocessors) {
  const bool big = edge == 128;
  const double together = big ? 2 : 4, alone = big ? 0.6 : 0.25, all = big ? 1 : 0.75;
  const auto wave = [&](double each) {
    const double steps = static_cast<double>(edge * edge) * depth / rate;
    return tile::max(steps / alone, steps * each / all) + 1500;
  };
  const double waves = __builtin_floor(blocks / (together * multiprocessors));
  const double rest = __builtin_ceil(blocks / multiprocessors - waves * together);
  return waves * wave(together) + (rest > 0 ? wave(rest) : 0);
}

/// A result of few tiles is summed up in parts of k, which are added afterwards: enough to fill every multiprocessor,
/// as long as that is worth writing and reading the sums of the parts.
GemmCut best_cut(const GemmArgs& args, bool may_split, double rate, int multiprocessors) {
  const double results =
      static_cast<double>(args.m) * static_cast<double>(args.n) * static_cast<double>(batch_count(args));
  const i64 pitch = tile::ceil_div<i64>(args.n, 4) * 4;
  const i64 chunk = chunk_of(args.a), depth = tile::ceil_div(args.k, chunk) * chunk;  // as if filled up with zeros
  GemmCut best{true, 1, args.k, 0, {}};
  double least = __builtin_inf();
  for (const i64 edge : {128, 64}) {
    const i64 tiles = tile::ceil_div<i64>(args.m, edge) * tile::ceil_div<i64>(args.n, edge) * batch_count(args);
    for (int each = 0; each <= (may_split ? 4 : 0); ++each) {  // blocks for each multiprocessor; 0: one part
      const i64 parts = tile::min<i64>(each * multiprocessors / tile::max<i64>(tiles, 1), depth / 256);
      if (each > 0 && parts < 2) continue;
      GemmCut cut{edge == 128, 1, args.k, 0, {}};
      double more = 0;
      if (each > 0) {
        cut.part_depth = tile::ceil_div<i64>(tile::ceil_div<i64>(depth, parts), 64) * 64;
        cut.parts = static_cast<int>(tile::ceil_div<i64>(args.k, cut.part_depth));
        cut.part_stride = batch_count(args) * args.m * pitch;
        more = 4000 + cut.parts * results * 8 / 2500;  // bytes in a nanosecond
      }
      const double time = more + time_of(edge, static_cast<double>(tiles * cut.parts),
                                         static_cast<double>(cut.part_depth), rate, multiprocessors);
      if (time < least) {
        least = time;
        best = cut;
      }
    }
  }
  return best;
}

/// A product as the kernels take it; `gemm` is null where none of those in tiles does.
struct Plan {
  GemmArgs args;
  TiledGemm gemm = nullptr;
  GemmCut cut = {};
  OperandCopy a = {}, b = {};
  i64 copy_bytes() const { return a.bytes() + b.bytes(); }
  bool needs_workspace() const { return cut.parts > 1 || copy_bytes() > 0; }
};

GemmArgs with_whole_batch(GemmArgs args) {
  widen_batch(args);
  return args;
}

/// Sums of rows and columns are those of whole tiles: such a product is not split. Without workspace it is not, either,
/// nor are operands copied.
Plan make_plan(const GemmArgs& given, const Executor& executor, bool has_workspace) {
  // Neighbouring threads write neighbouring columns: a column-major result is computed as its transpose.
  const bool turn = given.c.column != 1 && given.c.row == 1 && given.n > 1;
  Plan plan{turn ? transposed(given) : given};
  GemmArgs& args = plan.args;
  widen_batch(args);
  const TiledKind* kind = kind_of(args);
  constexpr i64 most = (i64{1} << 31) - 1024;
  if (!kind || args.m > most || args.n > most || args.k > most) return plan;
  if (tile::ceil_div<i64>(args.m, 64) * tile::ceil_div<i64>(args.n, 64) > most / tile::max<i64>(batch_count(args), 1))
    return plan;
  MatrixArg left = args.a, right = args.b;
  Lie a = lie_of(args, left, args.m, args.k), b = lie_of(args, right, args.k, args.n);
  if (a.fits && a.transposed && b.fits && b.transposed)
    (args.m < args.n ? a : b).fits = false;  // the smaller is turned
  if (!(a.fits && b.fits) && !has_workspace) return plan;
  args.a = left, args.b = right;
  if (!a.fits) plan.a = copied(args, args.a, args.m, args.k), a.transposed = false;
  if (!b.fits) plan.b = copied(args, args.b, args.k, args.n), b.transposed = false;
  plan.gemm = kind->gemm[a.transposed ? 2 : b.transposed];
  plan.cut = best_cut(args, has_workspace && !sums_lines(args), kind->rate, executor.multiprocessors);
  return plan;
}

/// With workspace. Kept for this thread's next question, since a call first asks for its workspace and then runs.
const Plan& plan_of(const GemmArgs& given, const Executor& executor) {
  constexpr size_t bytes = __builtin_offsetof(GemmArgs, workspace);  // what decides
  static thread_local Plan plan;
  static thread_local GemmArgs of;
  static thread_local int multiprocessors = -1;
  static thread_local bool on_cores = false;
  if (executor.multiprocessors != multiprocessors || on_cores != has_matrix_cores() ||
      __builtin_memcmp(&given, &of, bytes) != 0) {
    plan = make_plan(given, executor, true);
    __builtin_memcpy(static_cast<void*>(&of), &given, sizeof of);  // padding, too
    multiprocessors = executor.multiprocessors;
    on_cores = has_matrix_cores();
  }
  return plan;
}

// ---- sums in parts

TESSERA_KERNEL(256)
void join_kernel(const GemmArgs args, int parts, i64 part_stride, i64 pitch) {
  const auto* sums = static_cast<const float*>(args.workspace);
  for (i64 i = first_index(); i < part_stride / 4; i += index_step()) {
    const i64 line = i * 4 / pitch, column = i * 4 - line * pitch, row = line % args.m;
    Lanes total(0.0f);
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
      const auto four = *reinterpret_cast<const Pack<float, 4>*>(sums + part * part_stride + i * 4);
      for (int l = 0; l < 4; ++l) total.v[l] += four.lane[l];
    }
    const LaneEpilogue epilogue(args, BatchPlace(args, line / args.m));
    epilogue(total, row, column, static_cast<int>(tile::min<i64>(args.n - column, 4)));
  }
}

void run_parts(const Plan& plan, Executor& executor) {
  const i64 pitch = tile::ceil_div<i64>(plan.args.n, 4) * 4;
  GemmArgs sums = plan.args;
  sums.c = {plan.args.workspace, Scalar::f32, pitch, 1, {}};
  sums.addend = sums.bias = sums.slope = sums.factor = {};
  sums.alpha = 1;
  sums.activation = Activation::none;
  i64 step = plan.args.m * pitch;
  for (int d = max_batch_rank - 1; d >= 0; --d) {
    sums.c.batch[d] = step;
    step *= sums.batch[d];
  }
  plan.gemm(sums, plan.cut, executor);
  join_parts(plan.args, plan.cut.parts, plan.cut.part_stride, executor);
}

void run_simt(const GemmArgs& args, Executor& executor) {
  if (args.a.type == Scalar::f64) simt_gemm_f64(args, executor);
  else if (args.a.type == Scalar::f32 && args.b.type == Scalar::f32) simt_gemm_f32(args, executor);
  else simt_gemm_mixed(args, executor);
  if (!sums_lines(args)) return;
  GemmArgs rest = args;
  rest.factor = {};
  finish_lines(rest, executor);
}

i64 edge_of(const GemmCut& cut) { return cut.big ? 128 : 64; }

void run(const GemmArgs& args, Executor& executor) {
  const Plan& planned = plan_of(args, executor);
  Plan plan = args.workspace || !planned.needs_workspace() ? planned : make_plan(args, executor, false);
  plan.args.workspace = run_copy(plan.a, plan.args.a, args.workspace, executor);
  plan.args.workspace = run_copy(plan.b, plan.args.b, plan.args.workspace, executor);
  if (plan.cut.parts > 1) return run_parts(plan, executor);
  if (!plan.gemm) return run_simt(plan.args, executor);
  plan.cut.lines = line_parts(plan.args, edge_of(plan.cut), edge_of(plan.cut));
  plan.gemm(plan.args, plan.cut, executor);
  add_parts(plan.args, plan.cut.lines, executor);
}

long long workspace(const GemmArgs& args, const Executor& executor) {
  const Plan& plan = plan_of(args, executor);
  const GemmCut& cut = plan.cut;
  const i64 copies = plan.copy_bytes();
  if (cut.parts > 1) return copies + cut.parts * cut.part_stride * static_cast<i64>(sizeof(float));
  return plan.gemm ? copies + line_bytes(plan.args, edge_of(cut), edge_of(cut)) : finish_bytes(plan.args);
}

bool supports(const GemmArgs& args) {
  return types_fit(args) && (!args.tf32 || (args.a.type == Scalar::f32 && plan_of(args, {}).gemm));
}

}  // namespace

void join_parts(const GemmArgs& args, int parts, i64 part_stride, Executor& executor) {
  launch("gemm", join_kernel, grid_for(part_stride / 4, 256, executor), 256, 0, executor, args, parts, part_stride,
         tile::ceil_div<i64>(args.n, 4) * 4);
}

GemmTable gemm_table = {
    supports, run, workspace,
    [](const GemmArgs& args, Executor& executor) { finish_lines(with_whole_batch(args), executor); },
    [](const GemmArgs& args) -> long long { return finish_bytes(with_whole_batch(args)); }};

}  // namespace tessera::gpu_kernels
