// Kernels whose blocks share long rows in clusters on Hopper: tile/arch/sm90/cluster_rows.h.
#pragma once
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "norm.h"
#include "row_kernels.h"
#include "tile/arch/sm90/cluster_rows.h"

namespace tessera::gpu_kernels {

/// Whether rows are so long that clusters are faster than blocks, and fit into one.
inline constexpr i64 most_cluster_columns = 65536;
inline bool cluster_takes(Scalar type, i64 n) {
  return n > 24576 && type != Scalar::f64 && n <= most_cluster_columns && is_hopper();
}

/// Clusters of a kernel that run at once: how a card's multiprocessors are grouped differs from card to card, 15 of 8
/// blocks were seen. The runtime takes long to answer, so each thread keeps the last answer.
template <auto kernel>
i64 clusters_at_once(int cluster, int threads, int shared) {
  thread_local int device_asked = -1, threads_asked = 0, shared_asked = 0, count = 0;
  int device = 0;
  (void)cudaGetDevice(&device);
  if (device == device_asked && threads == threads_asked && shared == shared_asked) return count;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(most_shared_bytes()));  // whatever another thread's rows need
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(256 * cluster);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = &size;
  config.numAttrs = 1;
  count = 0;
  (void)cudaOccupancyMaxActiveClusters(&count, kernel, &config);
  device_asked = device, threads_asked = threads, shared_asked = shared;
  return count = tile::max(1, count);
}

template <class Work, class Holder, int cluster, int most_threads>
TESSERA_KERNEL(most_threads, 1)
__cluster_dims__(cluster, 1, 1) void cluster_kernel(const __grid_constant__ tile::sm90::ClusterShape shape,
                                                    const __grid_constant__ Work work) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::launch_dependent_grids();
  Holder rows(shape, work.to, shared);
  work.run(rows);
}

/// Launches clusters for rows of type T, of which a thread has `packs`, `height` at a time, with some arrays over the
/// columns in shared memory; at most `most` clusters. Returns how many took rows; 0: rows do not fit.
template <class T, int cluster, int packs, int most_threads, int height, int shared_columns, int inputs, class Work>
i64 launch_cluster_rows(const char* what, const Work& work, const RowArg (&in)[inputs], const RowArg& out, i64 most,
                        Executor& executor) {
  using Holder = tile::sm90::ClusterRows<T, cluster, packs, inputs, height, shared_columns>;
  const i64 rows = work.count, n = work.n;
  tile::sm90::ClusterShape shape{static_cast<int>(rows), static_cast<int>(n), 0, 4};
  const i64 whole = n / Holder::width / cluster - cluster - 2;  // packs that each block has at least, and at most:
  const i64 slice = RowLayout(sizeof(T), out).aligned
                        ? tile::ceil_div<i64>(tile::ceil_div<i64>(n, Holder::width), cluster)
                        : Holder::slice_packs(shape.n);
  constexpr int sure = Holder::sure_packs();
  const i64 threads =
      packs - sure == 1 ? whole / sure : tile::ceil_div<i64>(slice, tile::max(sure + 1, 2)) + team_lanes - 1;
  shape.threads = static_cast<int>(tile::min<i64>(most_threads, threads / team_lanes * team_lanes));
  if (shape.threads * packs < slice || shape.threads * sure > whole || rows > 0x7fffffff - 4096) return 0;
  while (Holder::shared_bytes(shape.n, shape.stages) > most_shared_bytes()) shape.stages -= height;
  if (shape.stages <= 0) return 0;
  const int shared = Holder::shared_bytes(shape.n, shape.stages);
  constexpr auto kernel = cluster_kernel<Work, Holder, cluster, most_threads>;
  const i64 room = clusters_at_once<kernel>(cluster, shape.threads, shared);
  i64 pitches = out.pitch, period = 1;  // after so many rows one lies as the first
  for (const RowArg& arg : in) pitches |= arg.pitch;
  while (period * pitches * static_cast<i64>(sizeof(T)) % 16 != 0) period *= 2;
  const i64 wanted = tile::ceil_div<i64>(tile::min(rows, most), period) * period;
  const i64 clusters = tile::min(room, wanted) / period * period;
  if (clusters == 0) return 0;  // a card, or a part of one, without room for as many as a period has rows
  launch_early(what, kernel, clusters * cluster, shape.threads, static_cast<size_t>(shared), 1, executor, shape, work);
  return tile::min(clusters, rows);
}

/// fn(Type<T>) for floats and halves.
template <class Fn>
void with_narrow(Scalar type, const Fn& fn) {
  if (type == Scalar::f32) return fn(Type<float>{});
  if (type == Scalar::f16) return fn(Type<f16>{});
  fn(Type<bf16>{});
}

}  // namespace tessera::gpu_kernels
