// Gradients of convolutions of halves by their filters, on Hopper's cards: long sums over windows that im2col loads.
#include "im2col_sm90.h"
#include "kernels/gpu/device/gemm/gemm_sm90_generic.h"

namespace tessera::gpu_kernels {
namespace {

// ---- kernels

/// Gradients by windows.
struct Im2colGrad : GenericProduct {
  Im2col im2col;
};

/// Of filters and taps, whose sums the blocks of a cluster share; of taps and filters where these are few.
using NarrowGrad = tile::sm90::ProductTile<128, 64, 8, 0, false>;
using SmallGrad = tile::sm90::ProductTile<128, 128, 6, 0, false>;
using WideGrad = tile::sm90::ProductTile<128, 256, 4, 0, false>;

template <class C, bool TapsDown>
struct GradResult : ClusterSplitK<C> {
  using BothTransposed = void;
  template <class Gemm>
  using Source = tile::sm90::Im2colColumns<Gemm, TapsDown>;
  using ClusterSplitK<C>::ClusterSplitK;
};

constexpr int join_threads = 64;
/// Fours of neighbouring columns.
TESSERA_KERNEL(join_threads)
void join_parts_kernel(const float* parts, const MatrixArg to, int count, i64 fours, int rows, int across) {
  tile::sm90::wait_on_dependent_grids();
  const i64 at = first_index();
  if (at >= fours) return;
  using Four = Pack<float, 4>;
  const Four* from = reinterpret_cast<const Four*>(parts) + at;
  float sums[4] = {};
#pragma unroll 16
  for (int part = 0; part < count; ++part, from += fours) {
    const Four more = *from;
    for (int i = 0; i < 4; ++i) sums[i] += more.lane[i];
  }
  const i64 line = at / across, product = line / rows;
  const i64 first =
      product * to.batch[max_batch_rank - 1] + (line - product * rows) * to.row + (at - line * across) * 4 * to.column;
  if (to.column == 1) store_four(to.data, to.type, first, sums);
  else
    for (int i = 0; i < 4; ++i) store_as(to.data, to.type, first + i * to.column, sums[i]);
}

template <class C, bool TapsDown>
void launch_grad(const Im2colGrad& grad, Executor& executor) {
  launch_im2col<C, GradResult<C, TapsDown>>(grad, grad.order.count, executor);
}

template <class C, bool TapsDown>
constexpr Kind<Im2colGrad> grad_kind(double step, double tile) {
  return {C::config, step, tile, {launch_grad<C, TapsDown>, launch_grad<C, TapsDown>}, TapsDown};
}
constexpr Kind<Im2colGrad> grad_kinds[] = {grad_kind<NarrowGrad, true>(0.4, 5), grad_kind<SmallGrad, false>(0.41, 6.5),
                                           grad_kind<WideGrad, false>(0.62, 11)};

// ---- how it is cut

/// Whether chunks of 64 channels follow each other from tap to tap.
bool has_whole_chunks(const ConvArgs& args) { return args.channels % 64 == 0 && args.w.strides[3] == args.channels; }

/// How long sums are cut: into parts, added up by a kernel of their own, and among the blocks of a cluster.
struct GradCut {
  const Kind<Im2colGrad>* kind;
  TileScheduler order;
  i64 m, n, batch, parts;  // products of so many rows and columns; parts of each

  i64 count() const { return batch * parts; }
  i64 size() const { return count() * m * n; }
};

/// The one that takes least time on a card of 132 multiprocessors: the same on every card.
GradCut cut_of(const ConvArgs& args) {
  constexpr i64 clusters[] = {132, 66, 40, 32, 24, 16, 16, 16};  // of 1 to 8 blocks, that it has room for
  constexpr i64 most_parts = 32, least_steps = 8;
  const i64 taps = args.filter[0] * args.filter[1], batch = has_whole_chunks(args) ? 1 : taps;
  const i64 lines = taps / batch * args.channels, pixels = args.images * output(args, 0) * output(args, 1);
  const i64 steps = tile::ceil_div<i64>(pixels, 64);
  GradCut best{};
  double least = __builtin_inf();
  const auto consider = [&](const Kind<Im2colGrad>& kind, int deep, i64 parts) {
    GradCut cut{&kind, {}, args.filters, lines, batch, parts};
    if (kind.taps_down) cut.m = lines, cut.n = args.filters;
    cut.order = kind.order({}, cut.m, cut.n, cut.count(), tile::ceil_div(steps, parts));
    cut.order.cluster_k = deep;
    const double rounds = static_cast<double>(tile::ceil_div<i64>(cut.order.count, clusters[deep - 1])),
                 each = tile::ceil_div(cut.order.k_tiles, deep) * kind.step + (deep > 1 ? kind.tile : 2.5),
                 joins = parts > 1 ? 2 + 3e-6 * static_cast<double>(cut.size()) : 0;
    if (rounds * each + joins < least) least = rounds * each + joins, best = cut;
  };
  for (const auto& kind : grad_kinds) {
    const i64 tiles =
        kind.order({}, kind.taps_down ? lines : args.filters, kind.taps_down ? args.filters : lines, batch, 1).count;
    for (int deep = 1; deep <= tile::min<i64>(steps, 8); ++deep) {
      consider(kind, deep, 1);
      const i64 parts = tile::min(clusters[deep - 1] / tiles, tile::min(most_parts, steps / (least_steps * deep)));
      if (parts > 1) consider(kind, deep, parts);
    }
  }
  return best;
}

/// result = parts, [part][product][row][column], added up in their order.
void join(const GradCut& cut, const MatrixArg& result, const float* parts, Executor& executor) {
  if (cut.parts == 1) return;
  const i64 fours = cut.batch * cut.m * cut.n / 4;
  launch_early("convolution", join_parts_kernel, tile::ceil_div<i64>(fours, join_threads), join_threads, 0, 1, executor,
               parts, result, static_cast<int>(cut.parts), fours, static_cast<int>(cut.m), static_cast<int>(cut.n / 4));
}

}  // namespace

long long filters_workspace_sm90(const ConvArgs& args) {
  const GradCut cut = cut_of(args);
  return cut.parts == 1 ? 0 : cut.size() * static_cast<i64>(sizeof(float));
}

/// [filters, taps] = [filters, windows] [windows, taps]
void filters_gradient_sm90(const ConvArgs& args, Executor& executor) {
  const Im2colTensor of = im2col_of_images(args);
  const GradCut cut = cut_of(args);
  Im2colGrad grad{};
  grad.order = cut.order;
  grad.order.is_bf16 = args.type == Scalar::bf16;
  grad.im2col = im2col_args(of);
  grad.im2col.batch = static_cast<int>(cut.batch);
  const bool down = cut.kind->taps_down;
  (down ? grad.b : grad.a) = map_of_pixels(args, args.y, args.filters, of.all());
  (down ? grad.a : grad.b) = map_of(of, 64);
  GemmArgs& product = grad.args;
  product.m = cut.m;
  product.n = cut.n;
  product.k = of.all();
  product.alpha = 1;
  product.batch_rank = max_batch_rank;
  for (i64& length : product.batch) length = 1;
  product.batch[max_batch_rank - 1] = cut.count();
  MatrixArg result{args.w.data, args.type, down ? 1 : args.w.strides[0], down ? args.w.strides[0] : 1, {}};
  result.batch[max_batch_rank - 1] = args.w.strides[3];
  product.c = result;
  if (cut.parts > 1) {
    product.c = {args.workspace, Scalar::f32, cut.n, 1, {}};
    product.c.batch[max_batch_rank - 1] = cut.m * cut.n;
  }
  cut.kind->launch[0](grad, executor);
  join(cut, result, static_cast<const float*>(args.workspace), executor);
}

}  // namespace tessera::gpu_kernels
