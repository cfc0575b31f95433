// Layer and RMS norm of sums, and by weights of another type: of rows that registers hold.
#include "any_columns.h"
#include "row_works.h"

namespace tessera::gpu_kernels {
namespace {

template <class T, class Y>
void sum_norm(const LayerNormArgs& a, Executor& executor) {
  const AnyColumns weight{a.weight, a.weight_type}, bias{a.bias, a.weight_type};
  const SumNorm<T, Y, AnyColumns> work{layer_norm_of<T, Y>(a, weight, bias),
                                       rows_of<T>(a.sum),
                                       rows_of<const Y>(a.branch),
                                       {a.branch_bias, a.branch_bias_type}};
  with_blocks<T>(a.n, [&](auto block, auto width, auto held, int threads) {
    launch("layer_norm", row_kernel<SumNorm<T, Y, AnyColumns>, decltype(block), width, held, Turns::one_whole>, a.rows,
           threads, 0, executor, work, 0);
  });
}

}  // namespace

void layer_norm_of_sum(const LayerNormArgs& a, Executor& executor) {
  if (a.type == Scalar::f16) return sum_norm<f16, f16>(a, executor);
  if (a.type == Scalar::bf16) return sum_norm<bf16, bf16>(a, executor);
  if (a.y_type == Scalar::f16) return sum_norm<float, f16>(a, executor);
  return sum_norm<float, bf16>(a, executor);
}

}  // namespace tessera::gpu_kernels
