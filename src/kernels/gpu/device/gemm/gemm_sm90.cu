// Matrix products of halves on Hopper's cards: gemm_sm90_select.h chooses tiles by gemm_sm90_cost.h, gemm_sm90_plan.h
// has the arguments, and here kernels are launched.
#include "gemm_sm90_select.h"

namespace tessera::gpu_kernels {
namespace sm90_gemm {
namespace {

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
  const int parts = may_share_sums(args) ? best_cut(args, executor.multiprocessors, true).order.split_k : 1;
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

void run_own(const GemmArgs& args, const Cut& cut, Sm90Ends ends, const ProductArgs& product, Executor& executor) {
  if (cut.kind == &wide) return run_wide_products(product, executor);
  if (cut.kind == &small || cut.kind == &narrow) return run_small_products(cut.kind == &narrow, product, executor);
  const auto run = args.a.type == Scalar::bf16 ? run_products_bf16 : run_products_f16;
  run(ends, product, executor);
}

/// c = parts, one behind the other in `fours` of floats, added up in their order. The first ones are asked for
/// together.
TESSERA_KERNEL(256)
void add_parts_kernel(const float* parts, int count, int fours, const MatrixArg c, int fours_across) {
  tile::sm90::launch_dependent_grids();
  tile::sm90::wait_on_dependent_grids();
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
  const GemmArgs sums = in_parts(args, cut.order.split_k);
  run_own(sums, cut, Sm90Ends::sums_f32, own_args(sums, cut, operands_of(sums, cut), nullptr), executor);
  const int fours = static_cast<int>(args.m * args.n / 4);
  launch_early("gemm", add_parts_kernel, tile::ceil_div(fours, 256), 256, 0, 1, executor,
               static_cast<const float*>(args.workspace), cut.order.split_k, fours, args.c,
               static_cast<int>(args.n / 4));
}

void run_product(const GemmArgs& args, const Cut& cut, Executor& executor) {
  const LineParts parts = line_parts(args, rows_of_parts, cut.width());
  const Sm90Ends ends = ends_of(args);
  const Operands operands = operands_of(args, cut);
  if (cut.order.cluster_k > 1) return run_joined(args, cut, operands, executor);
  if (cut.order.split_k > 1) return run_parts(args, cut, executor);
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
}  // namespace sm90_gemm

const Sm90GemmTable* sm90_gemm_table() {
  using namespace sm90_gemm;
  static const Sm90FusedTable table{{refuses, run, workspace, has_odd_lines}, plan, by_own_kernel};
  return &table;
}

}  // namespace tessera::gpu_kernels