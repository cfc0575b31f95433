// What the attention kernels see: heads at any strides, of separate tensors or of one packed matrix.
#pragma once
#include <cmath>

#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {

/// [batch, heads, tokens, width] at any strides.
struct Heads {
  void* data = nullptr;
  Scalar type = Scalar::f32;
  long long strides[4] = {};
};

struct AttentionProblem {
  long long batch, heads, kv_heads, queries, keys, width, value_width;
  double scale;
  bool causal;
  DType dtype;  // of q, k and v
  Heads q, k, v;
  Heads y;                       // the result
  Heads dy, dq, dk, dv;          // of the backward
  Heads mask;                    // broadcast dims have stride 0; data is null without one
  const Operand* lse = nullptr;  // [batch, heads, queries]; undefined where nobody needs it
  double dropout = 0;
  const Operand* state = nullptr;  // of the random stream, where there is dropout
  double alibi = 0;                // the largest exponent of the slopes; 0: none

  DType compute() const { return dtype == Float64 ? Float64 : Float32; }
};

inline Heads heads_arg(const Operand& t) {
  return {t.data_ptr(), scalar_of(t.dtype()), {t.strides()[0], t.strides()[1], t.strides()[2], t.strides()[3]}};
}
inline Heads mask_arg(const Operand& mask) {
  if (!mask.defined()) return {};
  TensorArg t = operand(mask, 4);
  return {t.data, t.type, {t.strides[0], t.strides[1], t.strides[2], t.strides[3]}};
}
/// Part `index` of [batch, tokens, parts * heads * width].
inline Heads packed_arg(const Operand& t, long long heads, long long parts, long long index) {
  long long column = t.strides()[2], width = t.size(2) / (parts * heads);
  auto* data = static_cast<std::byte*>(t.data_ptr()) +
               index * heads * width * column * static_cast<long long>(size_of(t.dtype()));
  return {data, scalar_of(t.dtype()), {t.strides()[0], width * column, t.strides()[1], column}};
}

/// q, k, v, mask?, state?
inline AttentionProblem separate_heads(const Attrs& attrs, std::span<const Operand> in) {
  auto& a = attrs.as<AttentionAttrs>();
  const Operand &q = in[0], &k = in[1], &v = in[2];
  AttentionProblem p{};
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.kv_heads = k.size(1);
  p.queries = q.size(2);
  p.keys = k.size(2);
  p.width = q.size(3);
  p.value_width = v.size(3);
  p.scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(p.width));
  p.causal = a.causal;
  p.dtype = q.dtype();
  p.q = heads_arg(q);
  p.k = heads_arg(k);
  p.v = heads_arg(v);
  p.mask = mask_arg(in[3]);
  p.dropout = a.dropout;
  p.state = &in[4];
  p.alibi = a.alibi;
  return p;
}

/// qkv, mask?, state?
inline AttentionProblem packed_heads(const Attrs& attrs, std::span<const Operand> in) {
  auto& a = attrs.as<AttentionAttrs>();
  const Operand& qkv = in[0];
  AttentionProblem p{};
  p.batch = qkv.size(0);
  p.heads = p.kv_heads = a.heads;
  p.queries = p.keys = qkv.size(1);
  p.width = p.value_width = qkv.size(2) / (3 * a.heads);
  p.scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(p.width));
  p.causal = a.causal;
  p.dtype = qkv.dtype();
  p.q = packed_arg(qkv, a.heads, 3, 0);
  p.k = packed_arg(qkv, a.heads, 3, 1);
  p.v = packed_arg(qkv, a.heads, 3, 2);
  p.mask = mask_arg(in[1]);
  p.dropout = a.dropout;
  p.state = &in[2];
  p.alibi = a.alibi;
  return p;
}

/// The four ops as problems: inputs and outputs as in ops/attention.cpp.
inline AttentionProblem attention_problem(const Call& call) {
  bool packed = call.op.name == "attention_qkv";
  AttentionProblem p = packed ? packed_heads(call.attrs, call.in) : separate_heads(call.attrs, call.in);
  p.y = packed ? packed_arg(call.out[0], p.heads, 1, 0) : heads_arg(call.out[0]);
  p.lse = &call.out[1];
  return p;
}
inline AttentionProblem attention_backward_problem(const Call& call) {
  bool packed = call.op.name == "attention_qkv_backward";
  const auto in = call.in.subspan(3);
  AttentionProblem p = packed ? packed_heads(call.attrs, in) : separate_heads(call.attrs, in);
  auto whole = [&](const Operand& t) { return packed ? packed_arg(t, p.heads, 1, 0) : heads_arg(t); };
  auto part = [&](int i) { return packed ? packed_arg(call.out[0], p.heads, 3, i) : heads_arg(call.out[i]); };
  p.dy = whole(call.in[0]);
  p.y = whole(call.in[1]);
  p.lse = &call.in[2];
  p.dq = part(0);
  p.dk = part(1);
  p.dv = part(2);
  return p;
}

// ---- rows of heads as NVIDIA's matrix cores move them: halves in 16-byte vectors

inline constexpr long long kUnit = 8;  // elements

inline bool lies_in_units(const Heads& h) {
  bool whole = h.strides[3] == 1 && reinterpret_cast<uintptr_t>(h.data) % 16 == 0;
  for (int d = 0; d < 3; ++d) whole = whole && h.strides[d] % kUnit == 0;
  return whole || !h.data;
}

/// Whether all rows do; else why not.
inline Reason lies_in_units(const AttentionProblem& p) {
  if (p.dtype != Float16 && p.dtype != BFloat16) return Reason::DType;
  if (p.width % kUnit != 0 || p.value_width % kUnit != 0) return Reason::HeadDim;
  for (const Heads& h : {p.q, p.k, p.v, p.y, p.dy, p.dq, p.dk, p.dv})
    if (!lies_in_units(h)) return Reason::Layout;
  return Reason::Ok;
}

}  // namespace tessera::TESSERA_KERNELS
