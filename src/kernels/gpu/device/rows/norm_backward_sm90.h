// Gradients of layer and RMS norm on Hopper: blocks, alone or in clusters that share rows, keep what their columns of
// all rows give the weights.
#pragma once
#include "cluster_launch.h"
#include "row_works.h"

namespace tessera::gpu_kernels {

/// How many slices of the workspace it filled; 0: rows do not fit.
template <class T, int cluster, int packs, int most_threads>
i64 cluster_norm_backward(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  return launch_cluster_rows<T, cluster, packs, most_threads, 2, 1>("layer_norm_backward",
                                                                    norm_backward_of<NormBackward<T>>(a, sums),
                                                                    {a.dy, a.x}, a.dx, most_row_slices(a.n), executor);
}

/// The same of one type, by as few blocks as hold a row, of which `sums` are wanted.
i64 norm_backward_f32_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor);
i64 norm_backward_f16_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor);
i64 norm_backward_bf16_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor);
template <class T>
i64 norm_backward_of_halves(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  i64 slices = cluster_norm_backward<T, 1, 2, 512>(a, sums, executor);
  if (slices == 0) slices = cluster_norm_backward<T, 2, 3, 384>(a, sums, executor);
  if (slices == 0) slices = cluster_norm_backward<T, 4, 5, 384>(a, sums, executor);
  return slices;
}

}  // namespace tessera::gpu_kernels
