// Layer and RMS norm: a team per row, which it holds in registers where that is short enough.
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

void layer_norm(const LayerNormArgs& a, Executor& executor) {
  if (a.sum.data || a.weight_type != a.type) {
    if (a.type == Scalar::f16) return sum_norm<f16, f16>(a, executor);
    if (a.type == Scalar::bf16) return sum_norm<bf16, bf16>(a, executor);
    if (a.y_type == Scalar::f16) return sum_norm<float, f16>(a, executor);
    return sum_norm<float, bf16>(a, executor);
  }
  if (layer_norm_sm90(a, executor)) return;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int most = sizeof(T) == 2 ? 512 : 1024;
    launch_rows<T, 1, most, most>("layer_norm", RowLayout(sizeof(T), a.x, a.y), layer_norm_of<T>(a), executor);
  });
}

NormTable norm_table = {layer_norm,
                        layer_norm_backward,
                        layer_norm_backward_workspace,
                        group_norm,
                        group_norm_backward,
                        group_norm_backward_workspace,
                        plane_parts_workspace,
                        batch_norm_workspace,
                        batch_norm,
                        batch_norm_backward,
                        move_estimates};

}  // namespace tessera::gpu_kernels
