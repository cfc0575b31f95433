// Distances, and losses of pairs and triplets. Under autocast distances are f32, as PyTorch's.
#include "ops/losses.h"

#include <cmath>
#include <vector>

#include "tessera/ops_loss.h"

namespace tessera {
namespace {

// base^exponent, and 0 with gradient 0 where base is 0.
Tensor power_of(const Tensor& base, double exponent) {
  const Tensor zero = number_like(base, 0), none = eq(base, zero), some = where(none, number_like(base, 1), base);
  return where(none, zero, exponent == 0.5 ? sqrt(some) : pow(some, exponent));
}

// (sum of |v|^p)^(1/p) along `dim`.
Tensor length_of(const Tensor& v, double p, int64_t dim, bool keepdim) {
  if (p == 0) return sum(cast(ne(v, number_like(v, 0)), v.dtype()), {dim}, keepdim);
  if (p == 2) return power_of(sum(square(v), {dim}, keepdim), 0.5);
  const Tensor a = abs(v);
  if (p == 1) return sum(a, {dim}, keepdim);
  if (std::isinf(p)) return p > 0 ? amax(a, {dim}, keepdim) : amin(a, {dim}, keepdim);
  if (p < 0) return pow(sum(pow(a, p), {dim}, keepdim), 1 / p);
  return power_of(sum(power_of(a, p), {dim}, keepdim), 1 / p);
}

void require_p(std::string_view op, double p) {
  if (!(p >= 0)) fail(op, "p is {}, negative", p);
}
void require_float_pair(std::string_view op, const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&a, &b})
    if (!is_floating(t->dtype())) fail(op, "takes floating-point tensors, not {}", describe(*t));
}

// f(x1, x2) in f32 at least, under autocast, too.
template <class F>
Tensor distance_of(const Tensor& x1, const Tensor& x2, const F& f) {
  return in_single(amp::autocast_to_float32(x1), amp::autocast_to_float32(x2), f);
}

// All pairs by one product, which autocast must not lower. Its roundings may fall below 0.
Tensor distances_by_product(const Tensor& a, const Tensor& b) {
  const amp::Autocast off(BFloat16, {.enabled = false});
  const Tensor squares = sum(square(a), {-1}, true) + transpose(sum(square(b), {-1}, true), -2, -1);
  return power_of(clamp(squares - matmul(a, transpose(b, -2, -1)) * 2.0, 0, INFINITY), 0.5);
}

}  // namespace

Tensor pairwise_distance(const Tensor& x1, const Tensor& x2, double p, double eps, bool keepdim) {
  constexpr std::string_view op = "pairwise_distance";
  require_float_pair(op, x1, x2);
  broadcast_shapes(op, x1.shape(), x2.shape());
  return distance_of(x1, x2, [&](const Tensor& a, const Tensor& b) { return length_of(a - b + eps, p, -1, keepdim); });
}

Tensor cdist(const Tensor& x1, const Tensor& x2, double p) {
  constexpr std::string_view op = "cdist";
  require_p(op, p);
  require_float_pair(op, x1, x2);
  if (x1.dim() < 2 || x2.dim() < 2 || !(x1.shape().back() == x2.shape().back()))
    fail(op, "{} and {} are not rows of one width", to_string(x1.shape()), to_string(x2.shape()));
  constexpr int64_t few = 25;  // PyTorch's limit
  const auto is_large = [](const Tensor& x) {
    return x.shape()[static_cast<size_t>(x.dim() - 2)].high() > Dim(few).low();
  };
  return distance_of(x1, x2, [&](const Tensor& a, const Tensor& b) {
    if (p == 2 && (is_large(a) || is_large(b))) return distances_by_product(a, b);
    return length_of(unsqueeze(a, a.dim() - 1) - unsqueeze(b, b.dim() - 2), p, -1, false);
  });
}

Tensor pdist(const Tensor& x, double p) {
  require_p("pdist", p);
  require_float_pair("pdist", x, x);
  if (x.dim() != 2) fail("pdist", "x must have 2 dims, not shape {}", to_string(x.shape()));
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = i + 1; j < x.size(0); ++j) {
      first.push_back(i);
      second.push_back(j);
    }
  const auto rows = [&](const std::vector<int64_t>& at, const Tensor& v) {
    return index_select(v, 0, tensor(at, {static_cast<int64_t>(at.size())}).to(x.device()));
  };
  return distance_of(
      x, x, [&](const Tensor& v, const Tensor&) { return length_of(rows(first, v) - rows(second, v), p, -1, false); });
}

Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int64_t dim, double eps) {
  constexpr std::string_view op = "cosine_similarity";
  require_float_pair(op, x1, x2);
  const Shape shape = broadcast_shapes(op, x1.shape(), x2.shape());
  if (shape.empty()) return reshape(cosine_similarity(reshape(x1, {1}), reshape(x2, {1}), dim, eps), {});
  normalize_dim(op, dim, shape);
  const auto unit = [&](const Tensor& v) { return v / clamp(length_of(v, 2, dim, true), eps, INFINITY); };
  return distance_of(x1, x2, [&](const Tensor& a, const Tensor& b) {
    return sum(unit(expand(a, shape)) * unit(expand(b, shape)), {dim});
  });
}

Tensor normalize(const Tensor& x, double p, int64_t dim, double eps) {
  if (!is_floating(x.dtype())) fail("normalize", "takes floating-point tensors, not {}", describe(x));
  if (x.dim() == 0) return reshape(normalize(reshape(x, {1}), p, dim, eps), {});
  normalize_dim("normalize", dim, x.shape());
  return in_single(x, [&](const Tensor& v) { return v / clamp(length_of(v, p, dim, true), eps, INFINITY); });
}

Tensor margin_ranking_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin,
                           Reduction reduction) {
  constexpr std::string_view op = "margin_ranking_loss";
  broadcast_shapes(op, broadcast_shapes(op, x1.shape(), x2.shape()), target.shape());
  const Tensor a = loss_input(op, x1), b = loss_input(op, x2);
  const DType dtype = promote(a.dtype(), b.dtype()), wide = statistics_dtype(dtype);
  const auto over = [](const auto& v, const auto& w, const auto& t, double apart) { return relu(apart - t * (v - w)); };
  return cast(reduced(map_elements({a, b, target}, wide, wide, over, margin), reduction), dtype);
}

// PyTorch's lengths, which are not 0.
Tensor cosine_embedding_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin,
                             Reduction reduction) {
  constexpr std::string_view op = "cosine_embedding_loss";
  constexpr double eps = 1e-12;
  const Tensor in = loss_input(op, x1);
  if (!(x1.shape() == x2.shape()) || x1.dim() < 1 || x1.dim() > 2)
    fail(op, "shapes {} and {} are not one of 1 or 2 dims", to_string(x1.shape()), to_string(x2.shape()));
  require_shape(op, "target", target.meta(), Shape(x1.shape().begin(), x1.shape().end() - 1));
  const Tensor a = in_loss_dtype(in), b = cast(x2, a.dtype());
  const auto squares = [&](const Tensor& v) { return sum(square(v), {-1}) + eps; };
  const Tensor cosine = sum(a * b, {-1}) / sqrt(squares(a) * squares(b)), zero = number_like(a, 0);
  const auto is = [&](double value) { return eq(target, number_like(target, value)); };
  const Tensor each = where(is(1), 1.0 - cosine, where(is(-1), relu(cosine + -margin), zero));
  return cast(reduced(each, reduction), in.dtype());
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& o) {
  constexpr std::string_view op = "triplet_margin_loss";
  if (!(anchor.shape() == positive.shape()) || !(anchor.shape() == negative.shape()))
    fail(op, "shapes differ: {}, {} and {}", to_string(anchor.shape()), to_string(positive.shape()),
         to_string(negative.shape()));
  const Tensor in = loss_input(op, anchor);
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    return o.distance ? o.distance(a, b) : pairwise_distance(a, b, o.p, o.eps);
  };
  const Tensor a = in_loss_dtype(in), p = cast(positive, a.dtype()), n = cast(negative, a.dtype());
  Tensor apart = distance(a, n);
  if (o.swap) apart = minimum(apart, distance(p, n));
  return cast(reduced(relu(distance(a, p) - apart + o.margin), o.reduction), in.dtype());
}

}  // namespace tessera
