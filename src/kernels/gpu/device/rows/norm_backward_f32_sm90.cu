// Gradients of layer and RMS norm of floats on Hopper: in packs, and the longest rows element by element.
#include "norm_backward_sm90.h"

namespace tessera::gpu_kernels {
namespace {

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

}  // namespace

i64 norm_backward_f32_sm90(const LayerNormBackwardArgs& a, int sums, Executor& executor) {
  i64 slices = packed_norm_backward<float, 1, 4, 512>(a, sums, executor);
  if (slices == 0) slices = packed_norm_backward<float, 2, 6, 384>(a, sums, executor);
  if (slices == 0 && a.n <= 36864) slices = packed_norm_backward<float, 8, 5, 384>(a, sums, executor);
  if (slices > 0 || a.n <= 16384) return slices;
  return launch_cluster_rows<float, NormBackward<float>, 1>(
      "layer_norm_backward", a.rows, a.n, {a.dy, a.x}, a.dx,
      {static_cast<int>(a.n), static_cast<const float*>(a.weight), a.rms ? nullptr : static_cast<const float*>(a.mean),
       static_cast<const float*>(a.rstd), static_cast<float*>(a.workspace), sums},
      executor);
}

}  // namespace tessera::gpu_kernels
