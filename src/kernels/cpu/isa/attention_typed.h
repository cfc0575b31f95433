// The attention kernels in one type, each instantiated in a translation unit of its own so that they compile side by
// side.
#pragma once

#include "internal.h"
#include "kernels/args/attention.h"
#include "tile/kernels/attention.h"
#include "tile/kernels/attention_backward.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

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

template <class T>
void attention_of(const AttentionArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  tile::attention<T>(executor, problem_of(a.shape), heads_of<T>(a.y), heads_of<const T>(a.q), heads_of<const T>(a.k),
                     heads_of<const T>(a.v), static_cast<tile::compute_t<T>*>(a.lse));
}

template <class T>
void attention_backward_of(const AttentionBackwardArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  tile::attention_backward<T>(executor, problem_of(a.shape), heads_of<T>(a.dq), heads_of<T>(a.dk), heads_of<T>(a.dv),
                              heads_of<const T>(a.dy), heads_of<const T>(a.q), heads_of<const T>(a.k),
                              heads_of<const T>(a.v), heads_of<const T>(a.y),
                              static_cast<const tile::compute_t<T>*>(a.lse));
}

#define TESSERA_ATTENTION_OF(prefix, T)                                  \
  prefix template void attention_of<T>(const AttentionArgs&, Executor&); \
  prefix template void attention_backward_of<T>(const AttentionBackwardArgs&, Executor&);

}  // namespace tessera::cpu_kernels::TESSERA_ISA
