// Long rows on Hopper. Layer and RMS norm and the gradient of softmax: clusters of blocks share them, rows of floats
// element by element, those of halves in packs. Cross-entropy: a ring streams them.
#include "cluster_launch.h"
#include "losses_by_ring.h"

namespace tessera::gpu_kernels {
namespace {

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

// ---- the same of halves, in packs

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

template <class T>
TESSERA_KERNEL(LossesByRing<T>::threads + 32, LossesByRing<T>::blocks)
void losses_kernel(const __grid_constant__ LossesWork<T> work) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::launch_dependent_grids();
  LossesByRing<T>(work, shared).run();
}

/// Launched before the losses are there, for which it waits.
TESSERA_KERNEL(256)
void losses_total_kernel(float* to, const Sums<float>* parts, int count, bool mean) {
  tile::sm90::wait_on_dependent_grids();
  Sums<double> sum{0, 0};
  for (int i = tile::thread_in_block(); i < count; i += 256)
    sum = sum + Sums<double>{static_cast<double>(parts[i].first), static_cast<double>(parts[i].second)};
  sum = join_block<256>(sum, Plus{});
  if (tile::thread_in_block() == 0) *to = static_cast<float>(mean ? sum.first / sum.second : sum.first);
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
  if (!is_hopper() || a.type == Scalar::f64 || a.label_smoothing > 0 || a.rows == 0 || a.classes <= 4096 ||
      a.classes >= 1 << 30)
    return false;
  const i64 blocks = tile::min<i64>(a.rows, executor.multiprocessors * i64{LossesByRing<float>::blocks});
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
