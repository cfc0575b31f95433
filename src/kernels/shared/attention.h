// Attention: from problems to what kernels take. What the lists of the CPU and of GPUs share.
#pragma once
#include <algorithm>

#include "kernels/shared/attention_math.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {

inline HeadsArg heads(const Heads& h) {
  HeadsArg arg{h.data, {}};
  std::copy(h.strides, h.strides + 4, arg.strides);
  return arg;
}

inline AttentionShape shape_of(const AttentionProblem& p) {
  using Mask = AttentionShape::Mask;
  AttentionShape s{};
  s.type = scalar_of(p.dtype);
  s.batch = p.batch;
  s.heads = p.heads;
  s.kv_heads = p.kv_heads;
  s.queries = p.queries;
  s.keys = p.keys;
  s.width = p.width;
  s.value_width = p.value_width;
  s.scale = p.scale;
  s.causal = p.causal;
  s.mask_kind = !p.mask.data ? Mask::none : p.mask.type == Scalar::boolean ? Mask::allowed : Mask::added;
  s.mask = p.mask.data;
  std::copy(p.mask.strides, p.mask.strides + 4, s.mask_strides);
  s.alibi = p.alibi;
  s.whole_units = lies_in_units(p) == Reason::Ok;
  s.dropout = p.dropout;
  if (p.dropout > 0) {
    s.seed = static_cast<const long long*>(p.state->data_ptr());
    s.block = s.seed + p.state->strides()[0];
  }
  return s;
}

inline Reason tiles_take(const AttentionProblem& p, long long widest) {
  if (p.width > widest || p.value_width > widest) return Reason::HeadDim;
  bool empty = p.batch == 0 || p.heads == 0 || p.queries == 0 || p.keys == 0 || p.value_width == 0;
  return empty ? Reason::Shape : Reason::Ok;
}

inline AttentionArgs args_of(const AttentionProblem& p) {
  void* lse = p.lse->defined() ? p.lse->data_ptr() : nullptr;
  return {shape_of(p), heads(p.y), heads(p.q), heads(p.k), heads(p.v), lse};
}
inline AttentionBackwardArgs backward_args_of(const AttentionProblem& p, const void* lse, float* row_sums,
                                              bool in_any_order = false) {
  return {shape_of(p), heads(p.dq), heads(p.dk), heads(p.dv), heads(p.dy), heads(p.q),
          heads(p.k),  heads(p.v),  heads(p.y),  lse,         row_sums,    in_any_order};
}

template <Reason (*takes)(const AttentionProblem&)>
Reason attention_supports(const Call& call) {
  return takes(attention_problem(call));
}
template <Reason (*takes)(const AttentionProblem&)>
Reason attention_supports_backward(const Call& call) {
  return takes(attention_backward_problem(call));
}

inline void flash(const Call& call, Plan& plan) {
  plan.launch("flash", attention_table().flash, args_of(attention_problem(call)));
}

}  // namespace tessera::TESSERA_KERNELS
