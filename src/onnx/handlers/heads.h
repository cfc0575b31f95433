// Rows of heads, as attention's operators have them.
#pragma once
#include "onnx/handler.h"
#include "tessera/ops.h"

namespace tessera::onnx {

/// [batch, tokens, heads * d] -> [batch, heads, tokens, d].
inline Tensor by_heads(const Call& c, const Tensor& x, int64_t heads) {
  if (x.dim() != 3 || heads <= 0 || x.size(2) % heads) c.fail("{} has no {} heads", describe(x), heads);
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}
inline Tensor from_heads(const Tensor& x) {
  const Tensor turned = transpose(x, 1, 2);
  return reshape(turned, {turned.size(0), turned.size(1), turned.size(2) * turned.size(3)});
}

}  // namespace tessera::onnx
