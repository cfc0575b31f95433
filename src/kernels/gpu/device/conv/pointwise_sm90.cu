// 1x1 convolutions of halves by Hopper's own instructions: which they are, and how they are launched.
#include "pointwise_sm90.h"

namespace tessera::gpu_kernels {
namespace {

/// Blocks that each take every so many tiles: the same on every card, and so are the results.
constexpr i64 most_blocks = 128;

PlaneTiles tiles_of(i64 images, i64 pixels) {
  const i64 across = tile::ceil_div<i64>(pixels, tile_pixels);
  return {pixels, across, images * across};
}
int in_sixteens(i64 lines, int most = pointwise_most) {
  return static_cast<int>(tile::min<i64>(tile::ceil_div<i64>(lines, 16) * 16, most));
}

TmaMatrix boxes_of(const PlanesArg& planes, Scalar type, i64 images, i64 channels, i64 pixels, int lines) {
  TmaMatrix b{planes.data,         type,        pixels, channels, planes.channel_stride, images,
              planes.batch_stride, tile_pixels, lines};
  if (channels == 1) b.pitch = tile::ceil_div<i64>(pixels, 8) * 8;  // of no account, like the next
  if (images == 1) b.step = b.pitch * channels;
  return b;
}

Sm90Refusal refuses(Scalar type, i64 channels, i64 filters, i64 pixels) {
  if (!is_hopper() || !encode_function()) return Sm90Refusal::hardware;
  if (type != Scalar::f16 && type != Scalar::bf16) return Sm90Refusal::type;
  if (channels < 1 || filters < 1 || pixels < 1) return Sm90Refusal::small;
  if (channels > pointwise_most || filters > pointwise_most) return Sm90Refusal::shape;
  return pixels % 8 == 0 ? Sm90Refusal::none : Sm90Refusal::layout;
}

// ---- y = w norm(x) + bias

/// Channels that are multiplied; zeros fill up.
int depth_of(const PointwiseArgs& a) { return a.channels <= 16 ? 16 : a.channels <= 64 ? 64 : pointwise_most; }

TmaMatrix x_boxes(const PointwiseArgs& a) { return boxes_of(a.x, a.type, a.images, a.channels, a.pixels, depth_of(a)); }
TmaMatrix y_boxes(const PointwiseArgs& a) {
  return boxes_of(a.y, a.type, a.images, a.filters, a.pixels, in_sixteens(a.filters));
}

Sm90Refusal refuses_forward(const PointwiseArgs& a) {
  const Sm90Refusal refusal = refuses(a.type, a.channels, a.filters, a.pixels);
  if (refusal != Sm90Refusal::none) return refusal;
  return fits(x_boxes(a)) && (!a.y.data || fits(y_boxes(a))) ? Sm90Refusal::none : Sm90Refusal::layout;
}

long long blocks_of(const PointwiseArgs& a) { return tile::min(tiles_of(a.images, a.pixels).count, most_blocks); }

long long workspace(const PointwiseArgs& a) {
  return a.mean ? a.filters * blocks_of(a) * static_cast<i64>(sizeof(PartMoments)) : 0;
}

/// A warp for each channel.
TESSERA_KERNEL(team_lanes)
void moments_kernel(const PartMoments* parts, i64 count, float* mean, float* variance) {
  const i64 channel = tile::block_in_grid();
  const PartMoments all = join_moments(parts + channel * count, count);
  if (tile::thread_in_block() != 0) return;
  mean[channel] = static_cast<float>(all.mean);
  variance[channel] = static_cast<float>(all.squares / tile::max(1.0, all.count - 1));
}

template <class Weights>
void launch_pointwise(const PointwiseWork& work, i64 blocks, Executor& executor) {
  constexpr auto kernel = pointwise_kernel<Weights>;
  constexpr int shared = PointwiseBlock<Weights>::shared_bytes;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  launch("pointwise", kernel, blocks, pointwise_threads, shared, executor, work);
}

template <class T>
void run_pointwise(const PointwiseWork& work, int depth, i64 blocks, Executor& executor) {
  if (depth == 16) launch_pointwise<RegisterWeights<T, 1>>(work, blocks, executor);
  else if (depth == 64) launch_pointwise<RegisterWeights<T, 4>>(work, blocks, executor);
  else if (work.w_channel == 1) launch_pointwise<SharedWeights<T, false>>(work, blocks, executor);
  else launch_pointwise<SharedWeights<T, true>>(work, blocks, executor);
}

void run(const PointwiseArgs& a, Executor& executor) {
  PointwiseWork work{};
  work.x = map_of(x_boxes(a));
  work.y = map_of(y_boxes(a));
  work.tiles = tiles_of(a.images, a.pixels);
  work.w = a.w;
  work.w_filter = a.w_filter;
  work.w_channel = a.w_channel;
  work.channels = static_cast<int>(a.channels);
  work.filters = static_cast<int>(a.filters);
  work.bias = a.bias;
  work.norm = a.norm;
  work.moments = a.mean ? static_cast<PartMoments*>(a.workspace) : nullptr;
  const i64 blocks = blocks_of(a);
  if (a.type == Scalar::bf16) run_pointwise<bf16>(work, depth_of(a), blocks, executor);
  else run_pointwise<f16>(work, depth_of(a), blocks, executor);
  if (a.mean)
    launch("pointwise", moments_kernel, a.filters, team_lanes, 0, executor, work.moments, blocks, a.mean, a.variance);
}

// ---- dw = dy norm(x)^T

TmaMatrix x_boxes(const PointwiseGradArgs& a) {
  return boxes_of(a.x, a.type, a.images, a.channels, a.pixels, in_sixteens(a.channels, grad_channels));
}
TmaMatrix dy_boxes(const PointwiseGradArgs& a) {
  return boxes_of(a.dy, a.type, a.images, a.filters, a.pixels, in_sixteens(a.filters));
}

Sm90Refusal refuses_grad(const PointwiseGradArgs& a) {
  const Sm90Refusal refusal = refuses(a.type, a.channels, a.filters, a.pixels);
  if (refusal != Sm90Refusal::none) return refusal;
  return fits(x_boxes(a)) && fits(dy_boxes(a)) ? Sm90Refusal::none : Sm90Refusal::layout;
}

i64 groups_of(const PointwiseGradArgs& a) { return tile::ceil_div<i64>(a.channels, grad_channels); }
i64 parts_of(const PointwiseGradArgs& a) {
  return tile::min(tiles_of(a.images, a.pixels).count, most_blocks / groups_of(a));
}

long long grad_workspace(const PointwiseGradArgs& a) {
  return parts_of(a) * a.filters * (a.channels + 1) * static_cast<i64>(sizeof(float));
}

/// Adds parts up: those of dw, then those of db.
template <class T>
TESSERA_KERNEL(256)
void join_parts_kernel(const PointwiseGradWork work, T* dw, T* db) {
  const i64 products = static_cast<i64>(work.filters) * work.channels, i = first_index();
  const bool is_bias = i >= products;
  const i64 at = is_bias ? i - products : i, length = is_bias ? work.filters : products;
  const float* from = is_bias ? work.bias : work.sums;
  if (at >= length || !from) return;
  float sum = 0;
#pragma unroll 8
  for (int part = 0; part < work.parts; ++part) sum += from[part * length + at];
  (is_bias ? db : dw)[at] = tile::convert_element<T>(sum);
}

template <class T>
void launch_grad(const PointwiseGradArgs& a, const PointwiseGradWork& work, Executor& executor) {
  constexpr auto kernel = pointwise_grad_kernel<T>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GradRing::shared_bytes);
  launch("pointwise", kernel, work.parts * groups_of(a), pointwise_threads, GradRing::shared_bytes, executor, work);
  const i64 elements = a.filters * (a.channels + (a.db ? 1 : 0));
  launch("pointwise", join_parts_kernel<T>, tile::ceil_div<i64>(elements, 256), 256, 0, executor, work,
         static_cast<T*>(a.dw), static_cast<T*>(a.db));
}

void run_grad(const PointwiseGradArgs& a, Executor& executor) {
  PointwiseGradWork work{};
  work.x = map_of(x_boxes(a));
  work.dy = map_of(dy_boxes(a));
  work.tiles = tiles_of(a.images, a.pixels);
  work.channels = static_cast<int>(a.channels);
  work.filters = static_cast<int>(a.filters);
  work.depth = in_sixteens(a.channels, grad_channels);
  work.lines = in_sixteens(a.filters);
  work.norm = a.norm;
  work.parts = static_cast<int>(parts_of(a));
  work.sums = static_cast<float*>(a.workspace);
  work.bias = a.db ? work.sums + work.parts * a.filters * a.channels : nullptr;
  (a.type == Scalar::bf16 ? launch_grad<bf16> : launch_grad<f16>)(a, work, executor);
}

}  // namespace

const Sm90PointwiseTable* sm90_pointwise_table() {
  static const Sm90PointwiseTable table{refuses_forward, run, workspace, refuses_grad, run_grad, grad_workspace};
  return &table;
}

}  // namespace tessera::gpu_kernels
