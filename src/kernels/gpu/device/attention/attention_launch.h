// What all kernels of attention share: structs of the tile library from those of the table.
#pragma once
#include "attention.h"
#include "tile/arch/gpu/attention.h"

namespace tessera::gpu_kernels {

template <class T>
tile::HeadsView<T> heads_of(const HeadsArg& a) {
  return {static_cast<T*>(a.data), {a.strides[0], a.strides[1], a.strides[2], a.strides[3]}};
}

inline tile::AttentionProblem problem_of(const AttentionShape& s) {
  tile::AttentionProblem p{s.batch, s.heads,       s.kv_heads, s.queries, s.keys,
                           s.width, s.value_width, s.scale,    s.causal,  {}};
  p.mask.kind = static_cast<tile::AttentionMask::Kind>(s.mask_kind);
  p.mask.data = s.mask;
  for (int d = 0; d < 4; ++d) p.mask.strides[d] = s.mask_strides[d];
  p.alibi = s.alibi;
  return p;
}

/// fn(Int<Width>{}) for the width that kernels are compiled for and both kinds of rows fit.
template <class Fn>
void with_width(const AttentionShape& s, const Fn& fn) {
  const long long widest = tile::max(s.width, s.value_width);
  if (widest <= 64) return fn(tile::Int<64>{});
  if (widest <= 128) return fn(tile::Int<128>{});
  throw_unsupported("attention with heads wider than 128");
}

/// launch, where a block may need more shared memory than kernels get unasked.
template <class... P, class... A>
void launch_attention_kernel(const char* what, void (*kernel)(P...), i64 blocks, int threads, int bytes,
                             Executor& executor, const A&... args) {
  (void)TESSERA_RT(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                     TESSERA_RT(FuncAttributeMaxDynamicSharedMemorySize), bytes);
  launch(what, kernel, blocks, threads, static_cast<size_t>(bytes), executor, args...);
}

template <class T>
TESSERA_KERNEL(256)
void attention_row_sums_kernel(const tile::AttentionProblem p, const tile::HeadsView<const T> dy,
                               const tile::HeadsView<const T> y, float* sums, int* counters, i64 count) {
  const i64 i = tile::block_in_grid() * 256 + tile::thread_in_block();
  if (i < count) counters[i] = 0;
  tile::attention_row_sums<T>(p, dy, y, sums);
}

/// The tensors of the backward, whose row sums are on their way, as are zeros of as many counters as there are threads
/// for that.
template <class T>
tile::AttentionGradients<T> start_backward(const tile::AttentionProblem& p, const AttentionBackwardArgs& args,
                                           Executor& executor, int* counters = nullptr, i64 count = 0) {
  const tile::AttentionGradients<T> g{heads_of<T>(args.dq),
                                      heads_of<T>(args.dk),
                                      heads_of<T>(args.dv),
                                      heads_of<const T>(args.dy),
                                      heads_of<const T>(args.q),
                                      heads_of<const T>(args.k),
                                      heads_of<const T>(args.v),
                                      static_cast<const float*>(args.lse),
                                      args.row_sums};
  launch("attention_row_sums", attention_row_sums_kernel<T>, tile::row_sum_blocks(p), 256, 0, executor, p, g.dy,
         heads_of<const T>(args.y), args.row_sums, counters, count);
  return g;
}

}  // namespace tessera::gpu_kernels
