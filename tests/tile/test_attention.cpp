// Attention and its gradients against the plain formula in float64.
#include "tile/kernels/attention.h"

#include "rows_check.h"
#include "tile/kernels/attention_backward.h"

namespace tessera::tile {
namespace {

using Numbers = std::vector<double>;

struct Case {
  const char* name;
  i64 batch, heads, kv_heads, queries, keys, width, value_width;
  bool causal;
  AttentionMask::Kind mask = AttentionMask::Kind::none;
};

using Kind = AttentionMask::Kind;
const Case cases[] = {
    {"one", 1, 1, 1, 1, 1, 1, 1, false},
    {"odd", 2, 3, 3, 7, 13, 5, 3, false},
    {"causal", 2, 2, 2, 67, 67, 32, 32, true},
    {"causal, several blocks", 1, 3, 3, 300, 300, 64, 64, true},
    {"more queries than keys", 1, 2, 2, 131, 50, 20, 20, true},
    {"more keys than queries", 1, 2, 2, 33, 257, 48, 48, true},
    {"grouped queries", 2, 6, 2, 65, 65, 16, 16, true},
    {"wide heads", 1, 1, 1, 40, 70, 256, 256, false},
    {"boolean mask", 2, 2, 2, 70, 130, 24, 40, false, Kind::allowed},
    {"added mask", 2, 2, 1, 45, 121, 33, 17, true, Kind::added},
};

/// q, k and v are slices of one matrix [batch, rows, 3 parts], as in a projection; y is packed.
template <class T>
struct Tensors {
  explicit Tensors(const Case& c) : c(c) {
    q = make(c.heads, c.queries, c.width, 1);
    k = make(c.kv_heads, c.keys, c.width, 2);
    v = make(c.kv_heads, c.keys, c.value_width, 3);
    dy = make(c.heads, c.queries, c.value_width, 4);
    mask = converted<T>(random_values(c.queries * c.keys * c.heads, 5));
    for (size_t i = 0; i < mask.size(); ++i) allowed.push_back(convert_element<double>(mask[i]) > 0);
    // one query sees nothing
    for (i64 i = 0; i < c.keys && c.queries > 3; ++i) allowed[3 * c.keys + i] = false;
  }
  std::vector<T> make(i64 heads, i64 rows, i64 width, unsigned seed) {
    return converted<T>(random_values(c.batch * heads * rows * (width + 3), seed, -1.5, 1.5));
  }
  /// [batch, rows, heads, width] with gaps, seen as [batch, heads, rows, width].
  template <class U>
  static HeadsView<U> view(U* data, i64 heads, i64 rows, i64 width) {
    return {data, {heads * rows * (width + 3), width + 3, heads * (width + 3), 1}};
  }
  AttentionProblem problem() const {
    AttentionProblem p{c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.width, c.value_width, 0.3, c.causal, {}};
    const void* data = c.mask == Kind::allowed ? static_cast<const void*>(allowed.data()) : mask.data();
    p.mask = {c.mask, data, {0, c.queries * c.keys, c.keys, 1}};
    return p;
  }

  const Case& c;
  std::vector<T> q, k, v, dy, mask;
  std::vector<char> allowed;
};

struct Reference {
  Numbers y, lse, dq, dk, dv;
};

template <class T>
Reference reference(const Tensors<T>& t) {
  const Case& c = t.c;
  const auto at = [](const std::vector<T>& x, i64 heads, i64 rows, i64 width, i64 b, i64 h, i64 r, i64 d) {
    return convert_element<double>(x[((b * rows + r) * heads + h) * (width + 3) + d]);
  };
  Reference r;
  r.dk.resize(c.batch * c.kv_heads * c.keys * c.width);
  r.dv.resize(c.batch * c.kv_heads * c.keys * c.value_width);
  for (i64 b = 0; b < c.batch; ++b)
    for (i64 h = 0; h < c.heads; ++h)
      for (i64 i = 0; i < c.queries; ++i) {
        const i64 g = h / (c.heads / c.kv_heads);
        Numbers s(c.keys), dp(c.keys);
        double sum = 0, delta = 0;
        for (i64 j = 0; j < c.keys; ++j) {
          for (i64 d = 0; d < c.width; ++d) {
            s[j] += 0.3 * at(t.q, c.heads, c.queries, c.width, b, h, i, d) *
                    at(t.k, c.kv_heads, c.keys, c.width, b, g, j, d);
          }
          const i64 m = (h * c.queries + i) * c.keys + j;
          if (c.mask == Kind::added) s[j] += convert_element<double>(t.mask[m]);
          if ((c.causal && j > i) || (c.mask == Kind::allowed && !t.allowed[m])) s[j] = -INFINITY;
          sum += std::exp(s[j]);
        }
        r.lse.push_back(std::log(sum));
        for (double& x : s) x = sum > 0 ? std::exp(x) / sum : 0;
        for (i64 d = 0; d < c.value_width; ++d) {
          double y = 0;
          const double dy = at(t.dy, c.heads, c.queries, c.value_width, b, h, i, d);
          for (i64 j = 0; j < c.keys; ++j) {
            const double v = at(t.v, c.kv_heads, c.keys, c.value_width, b, g, j, d);
            y += s[j] * v;
            dp[j] += dy * v;
            r.dv[((b * c.kv_heads + g) * c.keys + j) * c.value_width + d] += s[j] * dy;
          }
          r.y.push_back(y);
          delta += y * dy;
        }
        for (i64 d = 0; d < c.width; ++d) {
          double dq = 0;
          for (i64 j = 0; j < c.keys; ++j) {
            const double ds = 0.3 * s[j] * (dp[j] - delta);
            dq += ds * at(t.k, c.kv_heads, c.keys, c.width, b, g, j, d);
            r.dk[((b * c.kv_heads + g) * c.keys + j) * c.width + d] +=
                ds * at(t.q, c.heads, c.queries, c.width, b, h, i, d);
          }
          r.dq.push_back(dq);
        }
      }
  return r;
}

template <class T>
HeadsView<T> packed_heads(T* data, i64 heads, i64 rows, i64 width) {
  return {data, {heads * rows * width, rows * width, width, 1}};
}

template <class T>
void check(const Case& c, double allowed) {
  SCOPED_TRACE(c.name);
  using C = compute_t<T>;
  const Tensors<T> t(c);
  const AttentionProblem p = t.problem();
  const Reference want = reference(t);
  std::vector<T> y(want.y.size()), dq(want.dq.size()), dk(want.dk.size()), dv(want.dv.size());
  std::vector<C> lse(want.lse.size());
  const auto q = t.view(t.q.data(), c.heads, c.queries, c.width), k = t.view(t.k.data(), c.kv_heads, c.keys, c.width),
             v = t.view(t.v.data(), c.kv_heads, c.keys, c.value_width),
             dy = t.view(t.dy.data(), c.heads, c.queries, c.value_width);
  const auto yv = packed_heads(y.data(), c.heads, c.queries, c.value_width);
  attention<T>(executor(), p, yv, q, k, v, lse.data());
  EXPECT_LT(relative_l2(widened(y), want.y), allowed);
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(lse[i], -INFINITY);
    } else {
      EXPECT_NEAR(lse[i], want.lse[i], 10 * allowed);
    }
  }
  const HeadsView<const T> result{yv.data, {yv.strides[0], yv.strides[1], yv.strides[2], yv.strides[3]}};
  attention_backward<T>(executor(), p, packed_heads(dq.data(), c.heads, c.queries, c.width),
                        packed_heads(dk.data(), c.kv_heads, c.keys, c.width),
                        packed_heads(dv.data(), c.kv_heads, c.keys, c.value_width), dy, q, k, v, result, lse.data());
  EXPECT_LT(relative_l2(widened(dv), want.dv), 2 * allowed);
  if (c.keys > 1) {
    EXPECT_LT(relative_l2(widened(dq), want.dq), 4 * allowed);
    EXPECT_LT(relative_l2(widened(dk), want.dk), 4 * allowed);
  }
}

TEST(Attention, MatchesTheFormulaInFloat32) {
  for (const Case& c : cases) check<float>(c, 2e-6);
}
TEST(Attention, MatchesTheFormulaInFloat64) {
  for (const Case& c : cases) check<double>(c, 1e-13);
}
TEST(Attention, MatchesTheFormulaInBfloat16) {
  for (const Case& c : cases) check<bf16>(c, 8e-3);
}

TEST(Attention, SameBitsForAnyNumberOfThreads) {
  const Case c{"threads", 1, 2, 2, 500, 500, 32, 32, true};
  const Tensors<float> t(c);
  std::vector<std::vector<float>> results;
  const int before = num_threads();
  for (int threads : {1, 2, 5}) {
    set_num_threads(threads);
    std::vector<float> y(c.heads * c.queries * c.value_width);
    attention<float>(executor(), t.problem(), packed_heads(y.data(), c.heads, c.queries, c.value_width),
                     t.view(t.q.data(), c.heads, c.queries, c.width), t.view(t.k.data(), c.kv_heads, c.keys, c.width),
                     t.view(t.v.data(), c.kv_heads, c.keys, c.value_width), nullptr);
    results.push_back(y);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace tessera::tile
