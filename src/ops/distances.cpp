// Distances, and losses of pairs and triplets. Under autocast distances are f32, as PyTorch's.
#include "ops/losses.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/on_card.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"
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
  if (p == 2) return norm(v, {dim}, keepdim);
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

// All distances by one product of rows that hold their squared lengths, too, which autocast must not lower. Roundings
// may take squares below 0, and the slope at 0 is 0.
Tensor distances_by_product(const Tensor& a, const Tensor& b) {
  const amp::Autocast off(BFloat16, {.enabled = false});
  const auto lengths = [](const Tensor& t) { return sum(square(t), {-1}, true); };
  const auto one = [](const Tensor& length) { return ones(length.shape(), length.dtype(), length.device()); };
  const Tensor u = lengths(a), v = lengths(b);
  const Tensor squares = matmul(concat({a * -2.0, u, one(u)}, -1), transpose(concat({b, one(v), v}, -1), -2, -1));
  const auto distance = [](const Tensor& square) { return power_of(clamp(square, 0, INFINITY), 0.5); };
  return map_elements({squares}, a.dtype(), a.dtype(), distance);
}

// ---- pairs of one tensor's rows, on the host: in strips of `strip` lanes

constexpr int64_t strip = 8;

// x [n, width] -> the distances of rows i < j.
template <class T>
void distances_of_rows(const Tensor& x, const Tensor& across, const Tensor& out) {
  const int64_t n = x.size(0), width = x.size(1), pitch = across.size(1);
  const T *const rows = x.data<T>(), *const columns = across.data<T>();
  T* const all = out.data<T>();
  each_part(n, n * width / 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* const row = rows + i * width;
      T* const to = all + i * n - i * (i + 1) / 2 - i - 1;
      for (int64_t j = (i + 1) / strip * strip; j < n; j += strip) {
        T sum[strip] = {};
        for (int64_t k = 0; k < width; ++k) {
          const T* const column = columns + k * pitch + j;
          for (int64_t l = 0; l < strip; ++l) sum[l] += (row[k] - column[l]) * (row[k] - column[l]);
        }
        for (int64_t l = std::max<int64_t>(0, i + 1 - j); l < std::min(strip, n - j); ++l)
          to[j + l] = std::sqrt(sum[l]);
      }
    }
  });
}

// x [n, pitch] with zeros behind its width: each row's sum over the others of g / d times what lies between them.
template <class T>
void gradients_of_rows(const Tensor& x, const Tensor& distances, const Tensor& g, const Tensor& dx) {
  const int64_t n = x.size(0), pitch = x.size(1);
  const T *const rows = x.data<T>(), *const d = distances.data<T>(), *const slopes = g.data<T>();
  T* const to = dx.data<T>();
  each_part(n, n * pitch, [&](int64_t begin, int64_t end) {
    std::vector<T> shares(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t low = std::min(i, j), high = std::max(i, j);
        const int64_t pair = low * n - low * (low + 1) / 2 + high - low - 1;
        shares[static_cast<size_t>(j)] = i == j || d[pair] == T(0) ? T(0) : slopes[pair] / d[pair];
      }
      for (int64_t k = i * pitch; k < (i + 1) * pitch; k += strip) {
        T own[strip], sum[strip] = {};
        std::copy_n(rows + k, strip, own);
        const T* other = rows + k - i * pitch;
        for (int64_t j = 0; j < n; ++j, other += pitch)
          for (int64_t l = 0; l < strip; ++l) sum[l] += shares[static_cast<size_t>(j)] * (own[l] - other[l]);
        std::copy_n(sum, strip, to + k);
      }
    }
  });
}

template <class Fn>
void of_float_type(const Tensor& x, const Fn& fn) {
  if (x.dtype() == Float64) fn(double());
  else fn(float());
}

// ---- the same on a GPU: a thread has a pair, and for the gradient a block has a row

CardKernel pairs_kernel("distances_of_pairs", R"(
// across [width, n]: x, so that threads of neighbouring columns read neighbours.
extern "C" TESSERA_KERNEL(256) void distances_of_pairs(const T* x, const T* across, T* out, i64 n, i64 width,
                                                       i64 parts) {
  const i64 i = block_in_grid() / parts, j = (block_in_grid() - i * parts) * 256 + thread_in_block();
  if (j <= i || j >= n) return;
  T sum(0);
  for (i64 k = 0; k < width; ++k) {
    const T apart = x[i * width + k] - across[k * n + j];
    sum += apart * apart;
  }
  out[i * n - i * (i + 1) / 2 + j - i - 1] = tessera::tile::sqrt(sum);
}
)");
CardKernel row_slopes_kernel("slopes_of_pairs", R"(
// The sum over others of g / d times what lies between them: 8 teams of 32 columns share a row's others.
extern "C" TESSERA_KERNEL(256) void slopes_of_pairs(const T* x, const T* d, const T* g, T* dx, i64 n, i64 width) {
  TESSERA_SHARED T room[256];
  const int thread = thread_in_block(), lane = thread % 32, team = thread / 32;
  const i64 i = block_in_grid();
  for (i64 first = 0; first < width; first += 32) {
    const i64 k = first + lane;
    const T own = k < width ? x[i * width + k] : T(0);
    T sum(0);
    for (i64 begin = 0; begin < n; begin += 256) {
      const i64 j = begin + thread;
      T share(0);
      if (j < n && j != i) {
        const i64 low = min(i, j), pair = low * n - low * (low + 1) / 2 + max(i, j) - low - 1;
        if (d[pair] != T(0)) share = g[pair] / d[pair];
      }
      sync_block();
      room[thread] = share;
      sync_block();
      for (int l = team; k < width && l < 256 && begin + l < n; l += 8)
        sum += room[l] * (own - x[(begin + l) * width + k]);
    }
    sync_block();
    room[thread] = sum;
    sync_block();
    if (team != 0 || k >= width) continue;
    for (int t = 1; t < 8; ++t) sum += room[t * 32 + lane];
    dx[i * width + k] = sum;
  }
}
)");

Tensor card_distances(const Tensor& given) {
  const Tensor x = contiguous(given), across = contiguous(transpose(x, 0, 1));
  const int64_t n = x.size(0), parts = (n + 255) / 256;
  const Tensor out = empty({n * (n - 1) / 2}, x.dtype(), x.device());
  if (out.numel() == 0) return out;
  const void *from = x.data_ptr(), *columns = across.data_ptr();
  pairs_kernel.launch(x, (n - 1) * parts, from, columns, out.data_ptr(), n, x.size(1), parts);
  return out;
}
Tensor card_slopes(const Tensors& in) {
  const Tensor x = contiguous(in[0]), d = contiguous(in[1]), g = contiguous(in[2]);
  const Tensor dx = empty(x.shape(), x.dtype(), x.device());
  if (dx.numel() == 0) return dx;
  const void *from = x.data_ptr(), *distances = d.data_ptr(), *grads = g.data_ptr();
  row_slopes_kernel.launch(x, x.size(0), from, distances, grads, dx.data_ptr(), x.size(0), x.size(1));
  return dx;
}

Tensor composed_pdist(const Tensor& x, double p);

Tensor pdist_by_loops(const Tensor& given) {
  const int64_t n = given.size(0), more = (strip - n % strip) % strip, wider = (strip - given.size(1) % strip) % strip;
  const auto forward = [=](const Tensors& in) {
    if (on_card(in[0])) return Tensors{card_distances(in[0])};
    const Tensor x = contiguous(in[0]), across = contiguous(pad(transpose(x, 0, 1), {0}, {more}));
    const Tensor out = empty({n * (n - 1) / 2}, x.dtype());
    of_float_type(x, [&]<class T>(T) { distances_of_rows<T>(x, across, out); });
    return Tensors{out};
  };
  const auto slope = [=](const Tensors& in) {
    if (on_card(in[0])) return Tensors{card_slopes(in)};
    const Tensor x = contiguous(pad(in[0], {0}, {wider})), dx = zeros(x.shape(), x.dtype());
    of_float_type(x, [&]<class T>(T) { gradients_of_rows<T>(x, contiguous(in[1]), contiguous(in[2]), dx); });
    return Tensors{contiguous(slice(dx, 1, Dim(0), in[0].shape()[1]))};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_pdist(in[0], 2)}, {in[0]}, grads, false, true);
    return custom_function("pdist_backward", {in[0], out[0], grads[0]}, slope, {});
  };
  return custom_function("pdist", {given}, forward, backward)[0];
}

Tensor composed_pdist(const Tensor& x, double p) {
  std::vector<int64_t> first, second;
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = i + 1; j < x.size(0); ++j) {
      first.push_back(i);
      second.push_back(j);
    }
  const auto rows = [&](const std::vector<int64_t>& at) {
    return index_select(x, 0, tensor(at, {static_cast<int64_t>(at.size())}).to(x.device()));
  };
  return length_of(rows(first) - rows(second), p, -1, false);
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
  return distance_of(x, x, [&](const Tensor& v, const Tensor&) {
    return p == 2 && (on_host(v) || on_card(v)) ? pdist_by_loops(v) : composed_pdist(v, p);
  });
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
