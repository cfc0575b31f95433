// Layer and RMS norm of long rows on Hopper, which clusters of blocks share.
#include "cluster_launch.h"
#include "row_works.h"

namespace tessera::gpu_kernels {

bool layer_norm_sm90(const LayerNormArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  i64 clusters = 0;
  with_narrow(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    clusters = launch_cluster_rows<T, sizeof(T), 7, 512, 1, 0>("layer_norm", layer_norm_of<T>(a), {a.x}, a.y, a.rows,
                                                               executor);
  });
  return clusters > 0;
}

}  // namespace tessera::gpu_kernels
