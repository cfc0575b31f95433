// A matrix product with two additions and an activation in its epilogue: y = gelu(x w + residual + bias).
#include <tessera/parallel.h>
#include <tessera/tile/kernels/gemm.h>

#include "check.h"

// ---- the operator
using namespace tessera::tile;

void gemm_add_add_gelu(i64 m, i64 n, i64 k, const float* x, const float* w, const float* residual, const float* bias,
                       float* y) {
  const auto d0 = packed(residual, {m, n});
  const auto d1 = strided(bias, {m, n}, {0, 1});  // one row, seen by all
  gemm(tessera::executor(), packed(x, {m, k}), packed(w, {k, n}),
       store(packed(y, {m, n}), gelu_tanh(acc + load(d0) + load(d1))));
}
// ---- the end of the operator

struct Example {
  i64 m, n, k;
  example::Floats x, w, residual, bias, result;

  explicit Example(const example::Sizes& s)
      : m(s[0]),
        n(s[1]),
        k(s[2]),
        x(example::random_floats(m * k)),
        w(example::random_floats(k * n)),
        residual(example::random_floats(m * n)),
        bias(example::random_floats(n)),
        result(m * n) {}

  void compute() { gemm_add_add_gelu(m, n, k, x.data(), w.data(), residual.data(), bias.data(), result.data()); }

  example::Doubles reference() const {
    example::Doubles y(m * n);
    for (i64 i = 0; i < m; ++i) {
      for (i64 j = 0; j < n; ++j) {
        double t = double(residual[i * n + j]) + bias[j];
        for (i64 l = 0; l < k; ++l) t += double(x[i * k + l]) * w[l * n + j];
        y[i * n + j] = 0.5 * t * (1 + std::tanh(std::sqrt(2 / M_PI) * (t + 0.044715 * t * t * t)));
      }
    }
    return y;
  }
  double flops() const { return 2.0 * m * n * k; }
};

int main(int argc, char** argv) {
  return example::run<Example>(argc, argv, "M N K", {{1, 1, 1}, {7, 13, 29}, {37, 61, 53}, {131, 257, 401}},
                               {768, 3072, 768});
}
