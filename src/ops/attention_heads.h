// Heads of queries that share keys.
#pragma once
#include "ops/check.h"
#include "tessera/ops.h"

namespace tessera {

/// Throws where these are no heads: q [batch, heads, queries, d], k and v [batch, kv_heads, keys, d and dv].
inline void require_heads(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4)
    fail(op, "takes [batch, heads, tokens, d], not {}, {} and {}", describe(q), describe(k), describe(v));
  if (!is_floating(q.dtype()) || k.dtype() != q.dtype() || v.dtype() != q.dtype())
    fail(op, "takes floats of one dtype, not {}, {} and {}", describe(q), describe(k), describe(v));
  if (k.size(1) == 0 || q.size(1) % k.size(1) || k.size(1) != v.size(1))
    fail(op, "{} heads on {} of keys and {} of values", q.size(1), k.size(1), v.size(1));
  if (k.size(0) != q.size(0) || v.size(0) != q.size(0) || k.size(2) != v.size(2) || k.size(3) != q.size(3))
    fail(op, "{}, {} and {} do not belong together", describe(q), describe(k), describe(v));
}

/// Each head of x so many times in a row.
inline Tensor repeat_heads(const Tensor& x, int64_t times) {
  if (times == 1) return x;
  const Shape wide{x.size(0), x.size(1), times, x.size(2), x.size(3)};
  return reshape(expand(unsqueeze(x, 2), wide), {x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}

}  // namespace tessera
