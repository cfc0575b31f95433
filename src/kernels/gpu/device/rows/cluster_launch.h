// Launches of kernels whose blocks share rows in clusters on Hopper: of rows by elements, tile/arch/sm90/rows.h, and in
// packs, cluster_rows.h.
#pragma once
#include "cluster_rows.h"
#include "kernels/gpu/device/runtime/launch_early.h"
#include "norm.h"
#include "tile/arch/sm90/rows.h"

namespace tessera::gpu_kernels {

using tile::sm90::BlockSums, tile::sm90::ClusterRows, tile::sm90::ColumnSlice, tile::sm90::PitchedRows,
    tile::sm90::RowPart, tile::sm90::RowsByCluster;

inline constexpr int slice_columns = 16, most_slice_threads = 512;  // columns of a thread, and threads

template <class T>
PitchedRows<T> pitched(const RowArg& arg) {
  return {static_cast<T*>(arg.data), arg.pitch};
}

/// This thread's elements of an array over the columns; `otherwise` where that is missing.
template <class T>
TESSERA_DEVICE void load_columns(const T* values, const ColumnSlice& slice, float otherwise,
                                 float (&to)[slice_columns]) {
  tile::unroll<slice_columns>(
      [&](auto k) { to[k] = slice.has(k) ? entry(values, slice.first + slice.column(k), otherwise) : 0.0f; });
}

/// Sums over a block, in its first warp.
template <int count>
TESSERA_DEVICE void sum_in_first_warp(float (&v)[count], float* room, int warps) {
  static_assert(count <= 4);
  const int thread = tile::thread_in_block(), lane = thread % 32;
  tile::unroll<count>([&](auto i) {
    v[i] = join_lanes(v[i], Plus{});
    if (lane == 0) room[thread / 32 * count + i] = v[i];
  });
  tile::sync_block();
  if (thread >= 32) return;
  tile::unroll<count>([&](auto i) { v[i] = join_lanes(lane < warps ? room[lane * count + i] : 0.0f, Plus{}); });
}

template <class T, class Op, int height>
TESSERA_KERNEL(most_slice_threads, 1)
__cluster_dims__(tile::sm90::row_cluster, 1,
                 1) void cluster_rows_kernel(const __grid_constant__ ClusterRows<T, Op::inputs> rows,
                                             const __grid_constant__ typename Op::Args args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::launch_dependent_grids();
  Op op{args};
  RowsByCluster<T, Op, slice_columns, height>(rows, op, shared).run();
}

inline constexpr i64 most_cluster_columns = tile::sm90::row_cluster * slice_columns * most_slice_threads;

/// Whether rows are so long that clusters are faster than blocks, and fit into one.
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

/// Returns how many clusters take rows in turns.
template <class T, class Op, int height>
i64 launch_cluster_rows(const char* what, i64 rows, i64 n, const RowArg (&in)[Op::inputs], const RowArg& out,
                        const typename Op::Args& args, Executor& executor) {
  using Kernel = RowsByCluster<T, Op, slice_columns, height>;
  ClusterRows<T, Op::inputs> work{rows, static_cast<int>(n), 0, 4, {}, pitched<T>(out)};
  for (int i = 0; i < Op::inputs; ++i) work.in[i] = pitched<const T>(in[i]);
  const int slice = tile::sm90::columns_of_slice(work.n);
  work.threads = tile::ceil_div(slice, slice_columns * team_lanes) * team_lanes;
  while (Kernel::shared_bytes(work.threads, work.stages) > most_shared_bytes()) --work.stages;
  const int shared = Kernel::shared_bytes(work.threads, work.stages);
  constexpr auto kernel = cluster_rows_kernel<T, Op, height>;
  const i64 room = clusters_at_once<kernel>(tile::sm90::row_cluster, work.threads, shared);
  const i64 clusters = tile::min(tile::ceil_div<i64>(rows, height), tile::min<i64>(room, most_row_slices(n)));
  launch_early(what, kernel, clusters * tile::sm90::row_cluster, work.threads, static_cast<size_t>(shared), 1, executor,
               work, args);
  return clusters;
}

template <class T, class Op, int cluster, int packs, int most_threads>
TESSERA_KERNEL(most_threads, 1)
__cluster_dims__(cluster, 1, 1) void long_rows_kernel(const __grid_constant__ LongRows<T, Op::inputs> rows,
                                                      const __grid_constant__ typename Op::Args args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::launch_dependent_grids();
  Op op{args};
  PackedRows<T, Op, cluster, packs>(rows, op, shared).run();
}

/// How many clusters took rows; 0: rows do not fit.
template <class T, class Op, int cluster, int packs, int most_threads>
i64 launch_long_rows(const char* what, i64 rows, i64 n, const RowArg (&in)[Op::inputs], const RowArg& out,
                     const typename Op::Args& args, i64 most, Executor& executor) {
  using Kernel = PackedRows<T, Op, cluster, packs>;
  LongRows<T, Op::inputs> work{static_cast<int>(rows), static_cast<int>(n), 0, 4, {}, rows_of<T>(out)};
  for (int i = 0; i < Op::inputs; ++i) work.in[i] = rows_of<const T>(in[i]);
  const i64 whole = n / Kernel::width / cluster - cluster - 2;  // packs that each block has at least, and at most:
  const i64 slice = RowLayout(sizeof(T), out).aligned
                        ? tile::ceil_div<i64>(tile::ceil_div<i64>(n, Kernel::width), cluster)
                        : Kernel::slice_packs(work.n);
  constexpr int sure = Kernel::Slice::sure(packs);
  const i64 threads =
      packs - sure == 1 ? whole / sure : tile::ceil_div<i64>(slice, tile::max(sure + 1, 2)) + team_lanes - 1;
  work.threads = static_cast<int>(tile::min<i64>(most_threads, threads / team_lanes * team_lanes));
  if (work.threads * packs < slice || work.threads * sure > whole || rows > 0x7fffffff - 4096) return 0;
  while (Kernel::shared_bytes(work.n, work.stages) > most_shared_bytes()) work.stages -= Op::height;
  if (work.stages <= 0) return 0;
  const int shared = Kernel::shared_bytes(work.n, work.stages);
  constexpr auto kernel = long_rows_kernel<T, Op, cluster, packs, most_threads>;
  const i64 room = clusters_at_once<kernel>(cluster, work.threads, shared);
  i64 pitches = out.pitch, period = 1;  // after so many rows one lies as the first
  for (const RowArg& arg : in) pitches |= arg.pitch;
  while (period * pitches * static_cast<i64>(sizeof(T)) % 16 != 0) period *= 2;
  const i64 wanted = tile::ceil_div<i64>(tile::min(rows, most), period) * period;
  const i64 clusters = tile::min(room, wanted) / period * period;
  if (clusters == 0) return 0;  // a card, or a part of one, without room for as many as a period has rows
  launch_early(what, kernel, clusters * cluster, work.threads, static_cast<size_t>(shared), 1, executor, work, args);
  return tile::min(clusters, rows);
}

/// fn(Type<T>) for floats and halves.
template <class Fn>
void with_narrow(Scalar type, const Fn& fn) {
  if (type == Scalar::f32) return fn(Type<float>{});
  if (type == Scalar::f16) return fn(Type<f16>{});
  fn(Type<bf16>{});
}

/// The same for halves.
template <class Fn>
void with_half(Scalar type, const Fn& fn) {
  if (type == Scalar::f16) fn(Type<f16>{});
  else fn(Type<bf16>{});
}

}  // namespace tessera::gpu_kernels
