// Positions as rotations of queries and keys.
#include <cmath>

#include "ops/check.h"
#include "tessera/ops.h"
#include "tessera/ops_attention.h"
#include "tessera/ops_math.h"

namespace tessera {

RotaryAngles rotary_angles(const Tensor& positions, int64_t d, double base) {
  constexpr std::string_view op = "rotary_angles";
  if (is_floating(positions.dtype())) fail(op, "positions are integers, not {}", describe(positions));
  if (d < 2 || d % 2 || !(base > 0)) fail(op, "{} elements and a base of {}", d, base);
  const Tensor steps = arange(0, static_cast<double>(d / 2), 1, Float32, positions.device());
  const Tensor angles =
      mul(unsqueeze(cast(positions, Float32), -1), exp(steps * (-2 * std::log(base) / static_cast<double>(d))));
  return {cos(angles), sin(angles)};
}

Tensor rotary_embedding(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool interleaved) {
  constexpr std::string_view op = "rotary_embedding";
  if (x.dim() != 4) fail(op, "takes [batch, heads, tokens, d], not {}", describe(x));
  if ((cosine.dim() != 2 && cosine.dim() != 3) || !(cosine.shape() == sine.shape()))
    fail(op, "angles are [tokens, r] or [batch, tokens, r], not {} and {}", describe(cosine), describe(sine));
  const int64_t d = x.size(3), turned = 2 * cosine.size(-1);
  if (turned > d) fail(op, "{} of {} elements turn", turned, d);
  const auto angles = [&](const Tensor& t) { return cast(t.dim() == 3 ? unsqueeze(t, 1) : t, x.dtype()); };
  const Tensor c = angles(cosine), s = angles(sine), part = slice(x, 3, 0, turned);
  const Tensor a = interleaved ? slice(part, 3, 0, turned, 2) : slice(part, 3, 0, turned / 2),
               b = interleaved ? slice(part, 3, 1, turned, 2) : slice(part, 3, turned / 2, turned);
  const Tensor first = sub(mul(c, a), mul(s, b)), second = add(mul(s, a), mul(c, b));
  const Tensor y = interleaved ? reshape(stack({first, second}, 4), part.shape()) : concat({first, second}, 3);
  return turned < d ? concat({y, slice(x, 3, turned, d)}, 3) : y;
}

}  // namespace tessera
