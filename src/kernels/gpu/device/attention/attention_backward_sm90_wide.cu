// Attention's backward by Hopper's pipeline for heads of up to 256 columns.
#include "attention_sm90_backward.h"
#include "tile/arch/sm90/attention_backward_wide.h"

namespace tessera::gpu_kernels {
namespace {

template <class T, class Sizes>
TESSERA_KERNEL(Sizes::threads, 1)
void wide_key_gradients_kernel(const __grid_constant__ Sm90BackwardWork work,
                               const __grid_constant__ tile::AttentionGradients<T> g) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  tile::sm90::WideKeyGradients<T, Sizes>::run(work.problem, work.tiles, work.dropout, work.maps, g, work.dq.taken,
                                              shared);
}
template <class T, class Sizes>
TESSERA_KERNEL(Sizes::threads, 1)
void wide_query_gradients_kernel(const __grid_constant__ Sm90BackwardWork work,
                                 const __grid_constant__ tile::AttentionGradients<T> g) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  tile::sm90::WideQueryGradients<T, Sizes>::run(work.problem, work.tiles, work.dropout, work.maps, g, shared);
}

template <class T, bool Drops>
void launch_both(const AttentionBackwardArgs& args, Executor& executor) {
  using Keys = tile::sm90::WideKeySizes<Drops>;
  using Queries = tile::sm90::WideQuerySizes<Drops>;
  const AttentionShape& s = args.shape;
  const i64 megabytes = s.queries <= 1024 ? 20 : 40;  // as forward
  const AttentionRoom room(s);
  const i64 sharing = s.heads / s.kv_heads, row_bytes = (s.width + s.value_width) * 2;
  Sm90BackwardWork work;
  work.problem = problem_of(s);
  work.dropout = dropout_of(s);
  work.dq = {nullptr, nullptr, reinterpret_cast<int*>(reinterpret_cast<char*>(args.row_sums) + room.counters_at), true};
  const auto g = start_backward<T>(work.problem, args, executor, work.dq.taken, 1);
  const auto run = [&](auto sizes, auto kernel) {
    using Sizes = typename decltype(sizes)::type;
    const i64 blocks = tile::min<i64>(executor.multiprocessors, static_cast<i64>(work.tiles.tiles) * work.tiles.heads);
    launch_attention_kernel("attention_backward", kernel, blocks, Sizes::threads, Sizes::shared_bytes, executor, work,
                            g);
  };
  work.maps = backward_maps(args, Keys::step, Keys::own);
  work.tiles =
      head_tiles(s.batch * s.kv_heads, s.keys, Keys::own, s.queries * sharing * row_bytes, 1, false, megabytes);
  run(Type<Keys>{}, wide_key_gradients_kernel<T, Keys>);
  work.maps = backward_maps(args, Queries::own, Queries::step);
  work.tiles = head_tiles(s.batch * s.heads, s.queries, Queries::own, s.keys * row_bytes, sharing, s.causal, megabytes);
  run(Type<Queries>{}, wide_query_gradients_kernel<T, Queries>);
}

}  // namespace

template <class T>
void launch_wide_sm90_attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  args.shape.dropout > 0 ? launch_both<T, true>(args, executor) : launch_both<T, false>(args, executor);
}
template void launch_wide_sm90_attention_backward<f16>(const AttentionBackwardArgs&, Executor&);
template void launch_wide_sm90_attention_backward<bf16>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::gpu_kernels
