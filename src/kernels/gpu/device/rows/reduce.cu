// Reductions: plans, and the join of slices.
#include "reduce.h"

namespace tessera::gpu_kernels {

void cumsum(const CumsumArgs& args, Executor& executor);
i64 cumsum_workspace(const CumsumArgs& args);
void topk(const TopkArgs& args, Executor& executor);
i64 topk_workspace(const TopkArgs& args);

namespace {

bool supports(ReduceOp op, Scalar compute) {
  if (compute == Scalar::i64) return op <= ReduceOp::argmin && op != ReduceOp::mean;
  return (compute == Scalar::f32 || compute == Scalar::f64) && op < ReduceOp::count;
}

i64 magnitude(i64 x) { return x < 0 ? -x : x; }

/// Sorts dims by their steps through the input, largest first.
void sort_dims(int (&dims)[max_rank], int count, const TensorArg& in) {
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && magnitude(in.strides[dims[j - 1]]) < magnitude(in.strides[dims[j]]); --j) {
      const int d = dims[j];
      dims[j] = dims[j - 1];
      dims[j - 1] = d;
    }
}

void add_slices(ReducePlan& plan) {
  const i64 results = plan.results.total, elements = plan.extent;
  i64 blocks, least, most;  // of a slice: blocks, and elements to be worth it; blocks of all
  if (plan.columns) {
    const int bytes = size_of(plan.in_type), width = bytes == 2 || bytes == 4 ? 16 / bytes : 1;
    blocks = tile::ceil_div<i64>(results * plan.ways, 256 * width);
    least = plan.ways * 16;
    most = 2 * 132;  // what an H100 holds at once: what is left for a second round takes as long as the first
  } else {
    blocks = tile::ceil_div<i64>(results * plan.team, 256);
    least = 256 * 16;
    most = 1024;
  }
  plan.slices = 1;
  if (blocks < 512 && plan.ways > 1 && (plan.columns || plan.team == 256))
    plan.slices = tile::max<i64>(1, tile::min<i64>(most / tile::max<i64>(1, blocks), elements / least));
  const i64 grain = plan.columns ? 64 : 16;  // of ways by how many packs a thread has under way
  plan.slice_length = tile::max<i64>(grain, tile::round_up<i64>(tile::ceil_div<i64>(elements, plan.slices), grain));
  plan.slices = tile::max<i64>(1, tile::ceil_div<i64>(elements, plan.slice_length));
}

/// Rows that are padded to whole packs are folded as one piece with gaps.
void find_rows(ReducePlan& plan) {
  const Nest<1>& e = plan.elements;
  plan.extent = e.total;
  if (plan.columns || e.rank != 2 || e.strides[0][1] != 1) return;
  const i64 row = e.lengths[1], gap = e.strides[0][0] - row;
  if (gap < 0 || gap * 8 > row) return;
  plan.row = row;
  plan.pitch = row + gap;
  plan.extent = (e.lengths[0] - 1) * plan.pitch + row;
}

/// Depends on shapes, strides and types alone.
ReducePlan plan_of(const ReduceArgs& args) {
  ReducePlan plan{};
  int kept[max_rank], reduced[max_rank], kept_count = 0, reduced_count = 0;
  for (int d = 0; d < args.rank; ++d) {
    if (args.reduced[d]) reduced[reduced_count++] = d;
    else kept[kept_count++] = d;
  }
  sort_dims(kept, kept_count, args.in);
  if (args.op != ReduceOp::argmax && args.op != ReduceOp::argmin) sort_dims(reduced, reduced_count, args.in);
  for (int i = 0; i < kept_count; ++i)
    plan.results.add(args.lengths[kept[i]], {args.in.strides[kept[i]], args.out.strides[kept[i]]});
  for (int i = 0; i < reduced_count; ++i) plan.elements.add(args.lengths[reduced[i]], {args.in.strides[reduced[i]]});
  plan.in = args.in.data;
  plan.out = args.out.data;
  plan.in_type = args.in.type;
  plan.out_type = args.out.type;
  plan.compute = args.compute == Scalar::f32 && takes_doubles(args.op) ? Scalar::f64 : args.compute;
  plan.op = args.op;
  plan.parameter = args.parameter;

  const auto last_step = [](const auto& nest) { return nest.rank > 0 ? magnitude(nest.strides[0][nest.rank - 1]) : 0; };
  const i64 results = plan.results.total, elements = plan.elements.total;
  const bool neighbours = plan.results.rank > 0 && plan.results.lengths[plan.results.rank - 1] >= 16 &&
                          last_step(plan.results) < last_step(plan.elements);
  plan.columns = neighbours || (elements <= 16 && results >= 256);
  plan.ways = elements <= 16 ? 1 : 8;
  plan.team = elements >= 4096 || (results < 512 && elements > 256) ? 256 : team_lanes;
  find_rows(plan);
  add_slices(plan);
  return plan;
}

long long workspace(const ReduceArgs& args) {
  const ReducePlan plan = plan_of(args);
  return plan.slices > 1 ? plan.results.total * plan.slices * state_bytes : 0;
}

bool reduce_packs(const ReducePlan& plan, Executor& executor) {
  switch (plan.in_type) {
    case Scalar::f32:
      return reduce_packs_f32(plan, executor);
    case Scalar::f16:
      return reduce_packs_f16(plan, executor);
    case Scalar::bf16:
      return reduce_packs_bf16(plan, executor);
    default:
      return false;
  }
}

void reduce(const ReduceArgs& args, Executor& executor) {
  ReducePlan plan = plan_of(args);
  if (plan.slices > 1) {
    plan.states = args.workspace;
    if (!plan.states) {
      plan.slices = 1;
      plan.slice_length = tile::max<i64>(1, plan.extent);
    }
  }
  if (plan.compute == Scalar::f64) reduce_f64(plan, executor);
  else if (plan.compute == Scalar::i64) reduce_i64(plan, executor);
  else if (!reduce_packs(plan, executor)) reduce_f32(plan, executor);
  if (plan.states) join_slices(plan, executor);
}

/// A team for each result.
template <class Fold>
TESSERA_KERNEL(256)
void join_kernel(const ReducePlan plan) {
  using State = typename Fold::State;
  const i64 result = Team<team_lanes>::row();
  if (result >= plan.results.total) return;
  const State* states = static_cast<const State*>(plan.states) + result * plan.slices;
  State state = Fold::begin();
  for (i64 i = Team<team_lanes>::rank(); i < plan.slices; i += team_lanes) state = Fold::join(state, states[i]);
  state = join_lanes(state, [](const State& a, const State& b) { return Fold::join(a, b); });
  if (Team<team_lanes>::rank() != 0) return;
  i64 at[2];
  plan.results.locate(result, 1, at);
  store_result<Fold>(plan, at[1], state);
}

template <class C>
void join_in(const ReducePlan& plan, Executor& executor) {
  with_fold<C>(plan.op, [&](auto fold) {
    using Fold = typename decltype(fold)::type;
    static_assert(sizeof(typename Fold::State) <= state_bytes);
    launch("reduce", join_kernel<Fold>, Team<team_lanes>::blocks(plan.results.total), 256, 0, executor, plan);
  });
}

}  // namespace

void join_slices(const ReducePlan& plan, Executor& executor) {
  if (plan.compute == Scalar::f64) join_in<double>(plan, executor);
  else if (plan.compute == Scalar::i64) join_in<i64>(plan, executor);
  else join_in<float>(plan, executor);
}

ReduceTable reduce_table = {supports, reduce, workspace, cumsum, cumsum_workspace, topk, topk_workspace};

}  // namespace tessera::gpu_kernels
