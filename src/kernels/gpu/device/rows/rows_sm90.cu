// Layer and RMS norm of long rows on Hopper, and the gradient of their softmax: clusters of blocks share them.
#include "cluster_launch.h"
#include "row_works.h"

namespace tessera::gpu_kernels {
namespace {

/// Whether clusters took the rows.
template <class Launch>
bool launch_long(Scalar type, const Launch& launch) {
  i64 clusters = 0;
  with_narrow(type, [&](auto type) { clusters = launch(type); });
  return clusters > 0;
}

}  // namespace

bool layer_norm_sm90(const LayerNormArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  return launch_long(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return launch_cluster_rows<T, sizeof(T), 7, 512, 1, 0>("layer_norm", layer_norm_of<T>(a), {a.x}, a.y, a.rows,
                                                           executor);
  });
}

bool softmax_backward_sm90(const SoftmaxBackwardArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  return launch_long(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return launch_cluster_rows<T, 2 * sizeof(T), 5, 416, 2, 0>("softmax_backward", softmax_backward_of<T>(a),
                                                               {a.dy, a.y}, a.dx, a.rows, executor);
  });
}

}  // namespace tessera::gpu_kernels
