// Batched softmax(scale q k^T) v, block by block: the scores never leave the cache.
#include <tessera/parallel.h>
#include <tessera/tile/kernels/evaluate.h>
#include <tessera/tile/kernels/gemm.h>

#include "check.h"

// ---- the operator
using namespace tessera::tile;

template <class Q, class K, class V,
          class Y>  // views of q [batch, m, d], k [batch, n, d], v [batch, n, e], y [batch, m, e]
void gemm_softmax_gemm(tessera::Executor& executor, const Q& q, const K& k, const V& v, const Y& y, float scale) {
  constexpr i64 block = 64;  // rows of scores at a time
  const i64 m = q.length(1), n = k.length(1), blocks = ceil_div(m, block), room = block * (n + 2);
  std::vector<float> memory(executor.threads() * room);
  executor.parallel(q.length(0) * blocks, [&](i64 index, int thread) {
    OneThread here(executor, thread);
    const i64 batch = index / blocks, first = index % blocks * block, rows = min(block, m - first);
    const auto all = [&](auto x) { return transform(x, fix(batch), pass(), pass()); };
    const auto part = [&](auto x) { return transform(x, fix(batch), slice(first, rows), pass()); };
    float* own = &memory[thread * room];
    const auto scores = packed(own, {rows, n});
    const auto largest = strided(own + block * n, {rows, n}, {1, 0});  // one number per row
    const auto sum = strided(own + block * (n + 1), {rows, n}, {1, 0});
    gemm(here, part(q), transform(all(k), pass<1>(), pass<0>()), store(scores, acc * scale));
    fold_rows<MaxFold>(here, load(scores), store(largest, acc));
    fold_rows<SumFold>(here, store(scores, exp(load(scores) - load(largest))), store(sum, acc));
    gemm(here, scores, all(v), store(part(y), acc / load(sum)));
  });
}
// ---- the end of the operator

struct Example {
  i64 batch, m, n, d, e;
  float scale;
  example::Floats q, k, v, result;

  explicit Example(const example::Sizes& s)
      : batch(s[0]),
        m(s[1]),
        n(s[2]),
        d(s[3]),
        e(s[4]),
        scale(1 / std::sqrt(float(d))),
        q(example::random_floats(batch * m * d)),
        k(example::random_floats(batch * n * d)),
        v(example::random_floats(batch * n * e)),
        result(batch * m * e) {}

  void compute() {
    gemm_softmax_gemm(tessera::executor(), packed(q.data(), {batch, m, d}), packed(k.data(), {batch, n, d}),
                      packed(v.data(), {batch, n, e}), packed(result.data(), {batch, m, e}), scale);
  }

  example::Doubles reference() const {
    example::Doubles y(batch * m * e), p(n);
    for (i64 i = 0; i < batch * m; ++i) {
      const i64 b = i / m;
      double total = 0;
      for (i64 j = 0; j < n; ++j) {
        double s = 0;
        for (i64 l = 0; l < d; ++l) s += double(q[i * d + l]) * k[(b * n + j) * d + l];
        total += p[j] = std::exp(s * scale);
      }
      for (i64 j = 0; j < n; ++j) {
        for (i64 l = 0; l < e; ++l) y[i * e + l] += p[j] / total * v[(b * n + j) * e + l];
      }
    }
    return y;
  }
  double flops() const { return 2.0 * batch * m * n * (d + e); }
};

int main(int argc, char** argv) {
  return example::run<Example>(argc, argv, "BATCH M N D E",
                               {{1, 1, 1, 1, 1}, {3, 7, 5, 11, 13}, {2, 131, 1, 17, 3}, {3, 67, 211, 37, 71}},
                               {12, 1024, 1024, 64, 64});
}
