// Long rows on Hopper. Layer and RMS norm, their gradients and those of softmax: clusters of blocks share them, rows of
// floats element by element, those of halves in packs. Cross-entropy: a ring streams them.
#include "tile/arch/sm90/rows.h"

#include "cluster_rows.h"
#include "launch_early.h"
#include "losses_by_ring.h"
#include "slice_sums.h"
#include "tensor_map.h"

namespace tessera::gpu_kernels {
namespace {

using tile::sm90::BlockSums, tile::sm90::ClusterRows, tile::sm90::ColumnSlice, tile::sm90::PitchedRows,
    tile::sm90::RowPart, tile::sm90::RowsByCluster;

constexpr int slice_columns = 16, most_slice_threads = 512;  // columns of a thread, and threads

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

// ---- layer and RMS norm of floats

struct NormForward {
  static constexpr int inputs = 1;
  struct Args {
    int n;
    bool rms;
    const float *weights, *biases;
    float *mean, *rstd, eps;
  };
  const Args& a;
  float weight[slice_columns], bias[slice_columns];

  struct Total {
    float mean, rstd;
  };

  TESSERA_DEVICE void begin(const ColumnSlice& slice) {
    load_columns(a.weights, slice, 1.0f, weight);
    load_columns(a.biases, slice, 0.0f, bias);
  }
  /// The mean of the slice and the squares of what elements differ from it, so that nothing cancels.
  template <int height>
  TESSERA_DEVICE void gather(const ColumnSlice& slice, i64, int, const float (&x)[height][1][slice_columns],
                             RowPart (&part)[height], const BlockSums& sums) const {
    float middle[height] = {}, squares[height] = {};
    if (!a.rms) {
      tile::unroll<height>([&](auto h) { tile::unroll<slice_columns>([&](auto k) { middle[h] += x[h][0][k]; }); });
      sums(middle, 0);
      tile::unroll<height>([&](auto h) { middle[h] /= static_cast<float>(slice.length); });
    }
    tile::unroll<height>([&](auto h) {
      tile::unroll<slice_columns>([&](auto k) {
        const float d = slice.has(k) ? x[h][0][k] - middle[h] : 0.0f;
        squares[h] = tile::fma(d, d, squares[h]);
      });
    });
    sums(squares, 1);
    tile::unroll<height>([&](auto h) { part[h] = {middle[h], squares[h]}; });
  }
  TESSERA_DEVICE Total total(const ColumnSlice& slice, i64 row, const RowPart* parts) const {
    const auto length = [&](int b) {
      const int most = tile::sm90::columns_of_slice(a.n);
      return static_cast<float>(tile::min(most, a.n - b * most));
    };
    float middle = 0, squares = 0;
    if (!a.rms) {
      for (int b = 0; b < tile::sm90::row_cluster; ++b) middle = tile::fma(parts[b].first, length(b), middle);
      middle /= static_cast<float>(a.n);
    }
    for (int b = 0; b < tile::sm90::row_cluster; ++b) {
      const float d = parts[b].first - middle;
      squares += tile::fma(d * d, length(b), parts[b].second);
    }
    const float scale = 1.0f / tile::sqrt(squares / static_cast<float>(a.n) + a.eps);
    if (slice.first == 0 && slice.thread == 0) {
      if (!a.rms) a.mean[row] = middle;
      a.rstd[row] = scale;
    }
    return {middle, scale};
  }
  TESSERA_DEVICE float result(int k, int, const float (&x)[1][slice_columns], const Total& t) const {
    return tile::fma((x[0][k] - t.mean) * t.rstd, weight[k], bias[k]);
  }
  TESSERA_DEVICE void end(const ColumnSlice&, int) const {}
};

/// Also sums what rows give the weights, in `partial`: [clusters][sums][n].
template <class T>
struct NormBackward {
  static constexpr int inputs = 2;  // dy, x
  struct Args {
    int n;
    const T* weights;
    const float *mean, *rstd;  // no mean: RMS norm
    float* partial;
    int sums;  // that are wanted: none; of the weights; and of the biases
  };
  const Args& a;
  float weight[slice_columns], sum[2][slice_columns];

  struct Total {
    float first, second, rstd;
  };

  TESSERA_DEVICE void begin(const ColumnSlice& slice) {
    load_columns(a.weights, slice, 1.0f, weight);
    tile::unroll<2 * slice_columns>([&](auto i) { sum[i / slice_columns][i % slice_columns] = 0; });
  }
  /// x becomes the normal values and their gradients.
  template <int height>
  TESSERA_DEVICE void gather(const ColumnSlice&, i64 row, int here, float (&x)[height][2][slice_columns],
                             RowPart (&part)[height], const BlockSums& sums) {
    float total[2 * height] = {};
    tile::unroll<height>([&](auto h) {
      if (height > 1 && h >= here) return;
      const float middle = a.mean ? a.mean[row + h] : 0.0f, scale = a.rstd[row + h];
      tile::unroll<slice_columns>([&](auto k) {
        const float d = x[h][0][k], v = (x[h][1][k] - middle) * scale, g = d * weight[k];
        total[2 * h] += g;
        total[2 * h + 1] = tile::fma(g, v, total[2 * h + 1]);
        sum[0][k] = tile::fma(d, v, sum[0][k]);
        sum[1][k] += d;
        x[h][0][k] = g;
        x[h][1][k] = v;
      });
    });
    sums(total, 0);
    tile::unroll<height>([&](auto h) { part[h] = {total[2 * h], total[2 * h + 1]}; });
  }
  TESSERA_DEVICE Total total(const ColumnSlice&, i64 row, const RowPart* parts) const {
    float first = 0, second = 0;
    tile::unroll<tile::sm90::row_cluster>([&](auto b) {
      first += parts[b].first;
      second += parts[b].second;
    });
    const float share = 1.0f / static_cast<float>(a.n);
    return {a.mean ? first * share : 0.0f, second * share, a.rstd[row]};
  }
  TESSERA_DEVICE float result(int k, int, const float (&x)[2][slice_columns], const Total& t) const {
    return (x[0][k] - t.first - x[1][k] * t.second) * t.rstd;
  }
  TESSERA_DEVICE void end(const ColumnSlice& slice, int cluster) const {
    tile::unroll<2>([&](auto s) {
      if (s >= a.sums) return;
      float* const to = a.partial + (static_cast<i64>(cluster) * a.sums + s) * a.n + slice.first;
      tile::unroll<slice_columns>([&](auto k) {
        if (slice.has(k)) to[slice.column(k)] = sum[s][k];
      });
    });
  }
};

// ---- the same of halves, in packs

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

template <class T, int cluster, int packs>
struct PackedNorm {
  static constexpr int inputs = 1, width = 16 / sizeof(T), height = 1, shared_columns = 0;
  using Slice = PackSlice<width>;
  using Rows = SharedRows<T, height * inputs>;
  struct Known {};
  struct Total {
    float scale, shift;
  };
  struct Args {
    bool rms;
    const T *weights, *biases;
    float *mean, *rstd, eps;
  };
  const Args& a;
  Columns<T, packs> weight, bias;
  float count, share, of_warp, per_warp, per_row;

  TESSERA_DEVICE Known know(int) const { return {}; }
  TESSERA_DEVICE void begin(const Slice& slice, Pack<T, width>*) {
    weight.load(a.weights, slice, 1.0f);
    bias.load(a.biases, slice, 0.0f);
    count = static_cast<float>(slice.template elements<packs>());
    share = 1.0f / count;
    of_warp = join_lanes(count, Plus{});
    per_warp = 1.0f / of_warp;
    per_row = 1.0f / static_cast<float>(slice.n);
  }
  /// The mean of the slice and the squares of what elements differ from it. A thread's are of its elements less the
  /// mean of its first ones, from which the mean of all is at most so far that 1 + packs times the rounding cancel.
  TESSERA_DEVICE void gather(const Slice& slice, const Known (&)[1], const Rows& x, RowPart (&part)[1],
                             float* room) const {
    float squares[1] = {};
    if (a.rms) {
      slice.template each<packs>([&](auto k) {
        for (const float v : x(0, k).x) squares[0] = tile::fma(v, v, squares[0]);
      });
      sum_in_first_warp(squares, room, slice.threads / 32);
      part[0] = {0.0f, squares[0]};
      return;
    }
    float shift = 0, sum = 0;
    for (const float v : x(0, 0).x) shift += v;
    shift /= width;
    slice.template each<packs>([&](auto k) {
      for (const float v : x(0, k).x) {
        const float d = v - shift;
        sum += d;
        squares[0] = tile::fma(d, d, squares[0]);
      }
    });
    float middle = sum * share;
    squares[0] = tile::fma(-sum, middle, squares[0]);
    middle += shift;
    const float warp = join_lanes(middle * count, Plus{}) * per_warp, d = middle - warp;
    squares[0] = join_lanes(tile::fma(d * d, count, squares[0]), Plus{});
    auto* const warps = reinterpret_cast<tile::Array<float, 4>*>(room);
    const int thread = slice.thread;
    if (thread % 32 == 0) warps[thread / 32] = {{warp, squares[0], of_warp, 0.0f}};
    tile::sync_block();
    if (thread >= 32) return;
    const auto own = thread < slice.threads / 32 ? warps[thread] : tile::Array<float, 4>{};
    const float mean = join_lanes(own[0] * own[2], Plus{}) / static_cast<float>(slice.length(slice.rank));
    const float off = own[0] - mean;
    part[0] = {mean, join_lanes(tile::fma(off * off, own[2], own[1]), Plus{})};
  }
  TESSERA_DEVICE Total total(const Slice& slice, int row, const Known&, const RowPart* parts) const {
    float middle = 0, squares = 0;
    tile::unroll<cluster>(
        [&](auto b) { middle = tile::fma(parts[b].first, static_cast<float>(slice.length(b)), middle); });
    middle *= per_row;
    tile::unroll<cluster>([&](auto b) {
      const float d = parts[b].first - middle;
      squares += tile::fma(d * d, static_cast<float>(slice.length(b)), parts[b].second);
    });
    const float scale = 1.0f / tile::sqrt(tile::fma(squares, per_row, a.eps));
    if (slice.rank == 0 && slice.thread == 0) {
      if (!a.rms) a.mean[row] = middle;
      a.rstd[row] = scale;
    }
    return {scale, -middle * scale};
  }
  template <class K>
  TESSERA_DEVICE auto result(K k, int from, const Rows& x, const Total& t) const {
    auto v = x(from, k);
    const auto w = weight[k], b = bias[k];
    tile::unroll<sizeof(v) / 4>([&](auto j) { v.x[j] = tile::fma(tile::fma(v[j], t.scale, t.shift), w[j], b[j]); });
    return v;
  }
  TESSERA_DEVICE void end(const Slice&, int, void*) const {}
};

template <class T, int cluster, int packs>
struct PackedNormBackward {
  static constexpr int inputs = 2, width = 16 / sizeof(T), height = 2, shared_columns = 1;  // dy, x
  using Slice = PackSlice<width>;
  using Rows = SharedRows<T, height * inputs>;
  struct Args {
    const T* weights;
    const float *mean, *rstd;  // no mean: RMS norm
    float* partial;            // [clusters][sums][n]
    int sums;                  // that are wanted: none; of the weights; and of the biases
  };
  const Args& a;
  SharedColumns<T, packs> weight;
  ColumnSums<width, packs> sum[2];
  float per_row;

  struct Known {
    float mean, rstd;
  };
  struct Total {
    float scale, by, shift;
  };

  TESSERA_DEVICE Known know(int row) const { return {a.mean ? a.mean[row] : 0.0f, a.rstd[row]}; }
  TESSERA_DEVICE void begin(const Slice& slice, Pack<T, width>* room) {
    weight.load(a.weights, slice, 1.0f, room);
    per_row = 1.0f / static_cast<float>(slice.n);
  }
  TESSERA_DEVICE void gather(const Slice& slice, const Known (&known)[height], const Rows& x, RowPart (&part)[height],
                             float* room) {
    float total[2 * height] = {};
    slice.template each<packs>([&](auto k) {
      const auto w = weight[k];
      float *const weights = sum[0][k], *const biases = sum[1][k];
      tile::unroll<height>([&](auto h) {
        const float rstd = known[h].rstd, shift = -known[h].mean * rstd;
        const auto d = x(2 * h, k), v = x(2 * h + 1, k);
        tile::unroll<sizeof(v) / 4>([&](auto j) {
          const float normal = tile::fma(v[j], rstd, shift), g = d[j] * w[j];
          total[2 * h] += g;
          total[2 * h + 1] = tile::fma(g, normal, total[2 * h + 1]);
          weights[j] = tile::fma(d[j], normal, weights[j]);
          biases[j] += d[j];
        });
      });
    });
    sum_in_first_warp(total, room, slice.threads / 32);
    tile::unroll<height>([&](auto h) { part[h] = {total[2 * h], total[2 * h + 1]}; });
  }
  TESSERA_DEVICE Total total(const Slice&, int, const Known& row, const RowPart* parts) const {
    float first = 0, second = 0;
    tile::unroll<cluster>([&](auto b) {
      first += parts[b].first;
      second += parts[b].second;
    });
    const float share = row.rstd * per_row, by = -second * share * row.rstd;
    return {row.rstd, by, a.mean ? -row.mean * by - first * share : 0.0f};
  }
  template <class K>
  TESSERA_DEVICE auto result(K k, int from, const Rows& x, const Total& t) const {
    auto d = x(from, k);
    const auto v = x(from + 1, k), w = weight[k];
    tile::unroll<sizeof(v) / 4>(
        [&](auto j) { d.x[j] = tile::fma(d[j] * w[j], t.scale, tile::fma(v[j], t.by, t.shift)); });
    return d;
  }
  /// By way of shared memory, so that warps write whole lines.
  TESSERA_DEVICE void end(const Slice& slice, int index, void* room) const {
    float* const columns = static_cast<float*>(room);  // from slice.begin on
    const int from = tile::max(0, slice.begin), length = tile::min(slice.n, slice.end) - from;
    tile::unroll<2>([&](auto s) {
      if (s >= a.sums) return;
      tile::sync_block();
      slice.template each<packs>([&](auto k) {
        constexpr int count = tile::is_same_v<decltype(k), Edge> ? 1 : 4;
        float* const to = columns + slice.column(k) - slice.begin;
        tile::unroll<count == 1 ? 1 : width / 4>([&](auto i) {
          Pack<float, count> four;
          tile::unroll<count>([&](auto j) { four.lane[j] = sum[s][k][i * 4 + j]; });
          *reinterpret_cast<Pack<float, count>*>(to + i * 4) = four;
        });
      });
      tile::sync_block();
      float* const to = a.partial + (static_cast<i64>(index) * a.sums + s) * slice.n + from;
      for (int i = slice.thread; i < length; i += slice.threads) to[i] = columns[from - slice.begin + i];
    });
  }
};

// ---- softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy)

struct SoftmaxBackward {
  static constexpr int inputs = 2;  // dy, y
  struct Args {
    bool log;
  };
  const Args& a;

  TESSERA_DEVICE void begin(const ColumnSlice&) const {}
  template <int height>
  TESSERA_DEVICE void gather(const ColumnSlice&, i64, int, const float (&x)[height][2][slice_columns],
                             RowPart (&part)[height], const BlockSums& sums) const {
    float total[height] = {};
    tile::unroll<height>([&](auto h) {
      tile::unroll<slice_columns>(
          [&](auto k) { total[h] = a.log ? total[h] + x[h][0][k] : tile::fma(x[h][0][k], x[h][1][k], total[h]); });
    });
    sums(total, 0);
    tile::unroll<height>([&](auto h) { part[h] = {total[h], 0.0f}; });
  }
  TESSERA_DEVICE float total(const ColumnSlice&, i64, const RowPart* parts) const {
    float sum = 0;
    for (int b = 0; b < tile::sm90::row_cluster; ++b) sum += parts[b].first;
    return sum;
  }
  TESSERA_DEVICE float result(int k, int, const float (&x)[2][slice_columns], float sum) const {
    return a.log ? x[0][k] - fast_exp(x[1][k]) * sum : x[1][k] * (x[0][k] - sum);
  }
  TESSERA_DEVICE void end(const ColumnSlice&, int) const {}
};

// ---- launches

template <class T, class Op, int height>
TESSERA_KERNEL(most_slice_threads, 1)
__cluster_dims__(tile::sm90::row_cluster, 1,
                 1) void cluster_rows_kernel(const __grid_constant__ ClusterRows<T, Op::inputs> rows,
                                             const __grid_constant__ typename Op::Args args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::let_next_kernel_begin();
  Op op{args};
  RowsByCluster<T, Op, slice_columns, height>(rows, op, shared).run();
}

template <class T>
TESSERA_KERNEL(LossesByRing<T>::threads + 32, 2)
void losses_kernel(const __grid_constant__ LossesWork<T> work) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::let_next_kernel_begin();
  LossesByRing<T>(work, shared).run();
}

/// Launched before slices are there, for which it waits.
TESSERA_KERNEL(sum_threads)
void weights_sum_early_kernel(const SliceSums<float> work) {
  tile::sm90::let_next_kernel_begin();
  tile::sm90::wait_for_kernel_before();
  work.run();
}

/// Launched before the losses are there, for which it waits.
TESSERA_KERNEL(256)
void losses_total_kernel(float* to, const Sums<float>* parts, int count, bool mean) {
  tile::sm90::wait_for_kernel_before();
  Sums<double> sum{0, 0};
  for (int i = tile::thread_in_block(); i < count; i += 256)
    sum = sum + Sums<double>{static_cast<double>(parts[i].first), static_cast<double>(parts[i].second)};
  sum = join_block<256>(sum, Plus{});
  if (tile::thread_in_block() == 0) *to = static_cast<float>(mean ? sum.first / sum.second : sum.first);
}

/// Whether rows are so long that clusters are faster than blocks, and fit into one. An H100 gives them 32000 f32 at
/// 0.74 to 1.04 of the speed of a copy, and 12288 at 0.37 to 0.74.
bool cluster_takes(Scalar type, i64 n) {
  return n > 24576 && type != Scalar::f64 && n <= tile::sm90::row_cluster * slice_columns * most_slice_threads &&
         is_hopper();
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
  const i64 clusters = tile::min(tile::ceil_div<i64>(rows, height), tile::min(room, most_row_clusters));
  launch_early(what, kernel, clusters * tile::sm90::row_cluster, work.threads, static_cast<size_t>(shared), 1, executor,
               work, args);
  return clusters;
}

template <class T, class Op, int cluster, int packs, int most_threads>
TESSERA_KERNEL(most_threads, 1)
__cluster_dims__(cluster, 1, 1) void long_rows_kernel(const __grid_constant__ LongRows<T, Op::inputs> rows,
                                                      const __grid_constant__ typename Op::Args args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::let_next_kernel_begin();
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
  const i64 whole = n / Kernel::width / cluster - cluster - 2;  // packs that each block has at least
  work.threads = static_cast<int>(tile::min<i64>(most_threads, whole / (packs - 1) / team_lanes * team_lanes));
  if (work.threads * packs < Kernel::slice_packs(work.n) || rows > 0x7fffffff - 4096) return 0;
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

}  // namespace

bool layer_norm_sm90(const LayerNormArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  if (a.type != Scalar::f32) {
    i64 clusters = 0;
    with_half(a.type, [&](auto type) {
      using T = typename decltype(type)::type;
      constexpr int cluster = 2, packs = 7;
      clusters = launch_long_rows<T, PackedNorm<T, cluster, packs>, cluster, packs, 512>(
          "layer_norm", a.rows, a.n, {a.x}, a.y,
          {a.rms, static_cast<const T*>(a.weight), static_cast<const T*>(a.bias), static_cast<float*>(a.mean),
           static_cast<float*>(a.rstd), static_cast<float>(a.eps)},
          a.rows, executor);
    });
    return clusters > 0;
  }
  launch_cluster_rows<float, NormForward, 1>(
      "layer_norm", a.rows, a.n, {a.x}, a.y,
      {static_cast<int>(a.n), a.rms, static_cast<const float*>(a.weight), static_cast<const float*>(a.bias),
       static_cast<float*>(a.mean), static_cast<float*>(a.rstd), static_cast<float>(a.eps)},
      executor);
  return true;
}

bool layer_norm_backward_sm90(const LayerNormBackwardArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n) || a.addend.data || !a.dx.data) return false;
  const float* const mean = a.rms ? nullptr : static_cast<const float*>(a.mean);
  const float* const rstd = static_cast<const float*>(a.rstd);
  float* const partial = static_cast<float*>(a.workspace);
  const int sums = a.dbias ? 2 : a.dweight ? 1 : 0;
  i64 clusters = 0;
  if (a.type == Scalar::f32) {
    clusters = launch_cluster_rows<float, NormBackward<float>, 1>(
        "layer_norm_backward", a.rows, a.n, {a.dy, a.x}, a.dx,
        {static_cast<int>(a.n), static_cast<const float*>(a.weight), mean, rstd, partial, sums}, executor);
  } else {
    with_half(a.type, [&](auto type) {
      using T = typename decltype(type)::type;
      constexpr int cluster = 4, packs = 5;
      clusters = launch_long_rows<T, PackedNormBackward<T, cluster, packs>, cluster, packs, 384>(
          "layer_norm_backward", a.rows, a.n, {a.dy, a.x}, a.dx,
          {static_cast<const T*>(a.weight), mean, rstd, partial, sums}, most_row_clusters, executor);
    });
  }
  if (clusters > 0 && sums > 0) sum_slices_sm90(SliceSums<float>(a, clusters, sums), executor);
  return clusters > 0;
}

bool sum_slices_sm90(const SliceSums<float>& work, Executor& executor) {
  if (!is_hopper()) return false;
  launch_early("layer_norm_backward", weights_sum_early_kernel, work.blocks(), sum_threads, 0, 1, executor, work);
  return true;
}

bool softmax_backward_sm90(const SoftmaxBackwardArgs& a, Executor& executor) {
  if (!cluster_takes(a.type, a.n)) return false;
  with_narrow(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_cluster_rows<T, SoftmaxBackward, sizeof(T) == 2 ? 2 : 1>("softmax_backward", a.rows, a.n, {a.dy, a.y}, a.dx,
                                                                    {a.log}, executor);
  });
  return true;
}

bool cross_entropy_sm90(const CrossEntropyArgs& a, Executor& executor) {
  if (!is_hopper() || a.type == Scalar::f64 || a.label_smoothing > 0 || a.rows == 0 || a.classes < 16384 ||
      a.classes >= 1 << 30)
    return false;
  const i64 blocks = tile::min<i64>(a.rows, executor.multiprocessors * 2LL);
  Sums<float>* const parts = static_cast<Sums<float>*>(a.parts);
  with_narrow(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using Losses = LossesByRing<T>;
    const LossesWork<T> work{a.rows,
                             a.ignore_index,
                             static_cast<int>(a.classes),
                             rows_of<const T>(a.logits),
                             a.targets,
                             static_cast<float*>(a.losses),
                             static_cast<float*>(a.lse),
                             parts,
                             executor.fault,
                             a.op};
    (void)cudaFuncSetAttribute(losses_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, Losses::shared_bytes);
    launch("cross_entropy", losses_kernel<T>, blocks, Losses::threads + 32, Losses::shared_bytes, executor, work);
  });
  if (a.total)
    launch_early("cross_entropy", losses_total_kernel, 1, 256, 0, 1, executor, static_cast<float*>(a.total), parts,
                 static_cast<int>(blocks), static_cast<bool>(a.mean));
  return true;
}

}  // namespace tessera::gpu_kernels
