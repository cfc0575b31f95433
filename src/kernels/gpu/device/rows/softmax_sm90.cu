// The gradient of softmax of long rows on Hopper, which clusters of blocks share.
#include "cluster_launch.h"
#include "row_works.h"

namespace tessera::gpu_kernels {

bool softmax_backward_sm90(const SoftmaxBackwardArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  i64 clusters = 0;
  with_narrow(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    clusters = launch_cluster_rows<T, 2 * sizeof(T), 5, 416, 2, 0>("softmax_backward", softmax_backward_of<T>(a),
                                                                   {a.dy, a.y}, a.dx, a.rows, executor);
  });
  return clusters > 0;
}

}  // namespace tessera::gpu_kernels
