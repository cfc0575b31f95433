// Layer and RMS norm: a team per row, which it holds in registers where that is short enough.
#include "any_columns.h"
#include "row_works.h"

namespace tessera::gpu_kernels {

void layer_norm(const LayerNormArgs& a, Executor& executor) {
  if (a.sum.data || a.weight_type != a.type) return layer_norm_of_sum(a, executor);
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
