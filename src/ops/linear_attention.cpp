// Attention whose keys and values are one matrix.
#include <cmath>

#include "ops/attention_heads.h"
#include "tessera/ops_attention.h"

namespace tessera {

LinearAttention linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionOptions& o) {
  constexpr std::string_view op = "linear_attention";
  require_heads(op, q, k, v);
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), kv_heads = k.size(1), d = k.size(3),
                dv = v.size(3);
  if (k.size(2) != tokens) fail(op, "{} and {} have not as many tokens", describe(q), describe(k));
  const auto require = [&](const char* what, const Tensor& t, std::initializer_list<int64_t> wanted) {
    bool fits = !t.defined() || t.dim() == 4;
    size_t i = 0;
    for (const int64_t n : wanted) {
      fits = fits &&
             (!t.defined() || t.size(static_cast<int64_t>(i)) == n || (i % 2 && t.size(static_cast<int64_t>(i)) == 1));
      ++i;
    }
    if (!fits) fail(op, "{} is {} for {} and {}", what, describe(t), describe(k), describe(v));
  };
  require("the decay", o.decay, {batch, kv_heads, tokens, d});
  require("beta", o.beta, {batch, kv_heads, tokens, 1});
  if (o.state.defined() && !(o.state.shape() == Shape{batch, kv_heads, d, dv}))
    fail(op, "the state is {} for {} and {}", describe(o.state), describe(k), describe(v));
  const auto wide = [](const Tensor& t) { return t.defined() ? cast(t, Float32) : t; };
  const Tensor queries = wide(q), keys = wide(k), values = wide(v), beta = wide(o.beta),
               decay = o.decay.defined() ? exp(wide(o.decay)) : Tensor();
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(d));
  Tensor state = o.state.defined() ? wide(o.state) : zeros({batch, kv_heads, d, dv}, Float32, q.device());
  Tensors out;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = [&](const Tensor& x) { return slice(x, 2, t, t + 1); };
    if (decay.defined()) state = mul(state, transpose(at(decay), 2, 3));
    Tensor value = at(values);
    if (beta.defined()) value = mul(at(beta), sub(value, matmul(at(keys), state)));
    state = add(state, mul(transpose(at(keys), 2, 3), value));
    out.push_back(matmul(at(queries), repeat_heads(state, heads / kv_heads)) * scale);
  }
  const Tensor y = tokens ? concat(out, 2) : zeros({batch, heads, 0, dv}, Float32, q.device());
  return {cast(y, q.dtype()), state};
}

}  // namespace tessera
