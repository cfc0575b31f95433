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
  const Prepared product = prepared(given);
  const GemmArgs& args = product.args;
  if (!product.is_arranged) return 0;
  if (sums_lines(args)) return product.bytes() + tile::max(finish_bytes(args), line_bytes(args, rows_per_partial, 192));
  const int parts = may_split_k(args) ? best_tiling(args, executor.multiprocessors, true).order.split_k : 1;
  return product.bytes() + (parts > 1 ? split_k_bytes(args, parts) : 0);
}

/// With the generic epilogue: Result is GenericResult or ClusterSplitK.
template <class C, class Result>
void launch_generic(const GemmArgs& args, const Tiling& tiling, const Operands& operands, Executor& executor) {
  const GenericProduct product{map_of(operands.a), map_of(operands.b), args, tiling.order};
  launch_sm90<tile::sm90::Gemm<C>>(generic_kernel<C, Result>, tiling.order, product, executor);
}
void run_generic(const GemmArgs& args, const Tiling& tiling, const Operands& operands, Executor& executor) {
  launch_generic<Sm90Tile128x128, GenericResult<Sm90Tile128x128>>(args, tiling, operands, executor);
}
void run_cluster_split_k(const GemmArgs& args, const Tiling& tiling, const Operands& operands, Executor& executor) {
  if (tiling.shape == &cluster_128x256)
    launch_generic<Sm90Cluster128x256, ClusterSplitK<Sm90Cluster128x256>>(args, tiling, operands, executor);
  else
    launch_generic<Sm90Cluster192x192, ClusterSplitKTransposed<Sm90Cluster192x192>>(args, tiling, operands, executor);
}

void run_kernel(const GemmArgs& args, const Tiling& tiling, Sm90Epilogue epilogue, const ProductArgs& product,
                Executor& executor) {
  if (tiling.shape == &tile_128x256) return run_wide_products(product, executor);
  if (tiling.shape == &tile_128x128 || tiling.shape == &tile_128x64)
    return run_small_products(tiling.shape == &tile_128x64, product, executor);
  const auto run = args.a.type == Scalar::bf16 ? run_products_bf16 : run_products_f16;
  run(epilogue, product, executor);
}

/// c = the results of split-K, one behind the other in `fours` of floats, added up in their order. The first ones are
/// loaded together.
TESSERA_KERNEL(256)
void reduce_split_k_kernel(const float* parts, int count, int fours, const MatrixArg c, int fours_across) {
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

void run_split_k(const GemmArgs& args, const Tiling& tiling, Executor& executor) {
  const GemmArgs sums = split_k_product(args, tiling.order.split_k);
  run_kernel(sums, tiling, Sm90Epilogue::f32, kernel_args(sums, tiling, operands_of(sums, tiling), nullptr), executor);
  const int fours = static_cast<int>(args.m * args.n / 4);
  launch_early("gemm", reduce_split_k_kernel, tile::ceil_div(fours, 256), 256, 0, 1, executor,
               static_cast<const float*>(args.workspace), tiling.order.split_k, fours, args.c,
               static_cast<int>(args.n / 4));
}

void run_product(const GemmArgs& args, const Tiling& tiling, Executor& executor) {
  const LineParts parts = line_parts(args, rows_per_partial, tiling.width());
  const Sm90Epilogue epilogue = epilogue_of(args);
  const Operands operands = operands_of(args, tiling);
  if (tiling.order.cluster_k > 1) return run_cluster_split_k(args, tiling, operands, executor);
  if (tiling.order.split_k > 1) return run_split_k(args, tiling, executor);
  if (epilogue == Sm90Epilogue::generic) run_generic(args, tiling, operands, executor);
  else
    run_kernel(args, tiling, epilogue, kernel_args(args, tiling, operands, static_cast<float*>(parts.columns)),
               executor);
  add_parts(args, parts, executor);
}

void run(const GemmArgs& given, Executor& executor) {
  Prepared found = prepared(given);
  GemmArgs& args = found.args;
  run_copies(found.a, found.b, args, executor);
  const bool follows = sums_lines(args) && !reduces_itself(args);
  const GemmArgs product = follows ? without_finish(args) : args;
  run_product(product, best_tiling(product, executor.multiprocessors, !sums_lines(args)), executor);
  if (!follows) return;
  args.slope = {};
  finish_lines(args, executor);
}

bool plan(const GemmArgs& args, const tile::FusedGemmArgs& fused, const Executor& executor, Sm90FusedPlan& plan) {
  GemmArgs plain = args;
  plain.addend = {};
  const Prepared read = prepared(plain);
  GemmArgs product = read.args;
  if (refuses(read) != Sm90Refusal::none || read.bytes() > 0 || epilogue_of(product) != Sm90Epilogue::bias ||
      args.n % 8 != 0 || (args.addend.data && !fits(output_matrix(args, args.addend))))
    return false;
  Tiling tiling = fused_tiling(product, executor.multiprocessors);
  if (args.addend.data) tiling.order.group = 8;  // blocks that run at the same time have more of a row of it
  if (is_one_wave(tiling)) describe_one_wave(plan, tiling);
  else if (tiling.shape == &ping_pong_128x192 && args.addend.data)
    describe<Sm90PingPongTwoOutputs>(plan, tiling.order, executor);
  else if (tiling.shape == &ping_pong_128x192) describe<Sm90PingPong>(plan, tiling.order, executor);
  else if (tiling.shape == &tile_128x256) describe<Sm90Tile128x256>(plan, tiling.order, executor);
  else describe<Sm90Tile128x128>(plan, tiling.order, executor);
  product.addend = args.addend;
  static_assert(sizeof(ProductArgs) <= sizeof plan.args);
  ProductArgs filled = kernel_args(product, tiling, operands_of(product, tiling), nullptr);
  if (is_one_wave(tiling)) use_narrow_boxes(product, tiling, filled);
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