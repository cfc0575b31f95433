// Gradients of layer and RMS norm on Hopper: blocks, alone or in clusters that share rows, keep what their columns of
// all rows give the weights.
#pragma once
#include "cluster_launch.h"

namespace tessera::gpu_kernels {

/// In packs; also sums what rows give the weights.
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

/// How many slices of the workspace it filled; 0: rows do not fit.
template <class T, int cluster, int packs, int most_threads>
i64 packed_norm_backward(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  return launch_long_rows<T, PackedNormBackward<T, cluster, packs>, cluster, packs, most_threads>(
      "layer_norm_backward", a.rows, a.n, {a.dy, a.x}, a.dx,
      {static_cast<const T*>(a.weight), a.rms ? nullptr : static_cast<const float*>(a.mean),
       static_cast<const float*>(a.rstd), static_cast<float*>(a.workspace), sums},
      most_row_slices(a.n), executor);
}

/// The same of floats, of which `sums` are wanted.
i64 norm_backward_f32_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor);

}  // namespace tessera::gpu_kernels
