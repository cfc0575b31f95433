// Convolutions of halves on Hopper's cards, and their gradients by images: products whose operands im2col loads.
#include <numeric>

#include "im2col_sm90.h"
#include "kernels/gpu/device/elementwise/join.h"

namespace tessera::gpu_kernels {
namespace {

using tile::sm90::SumsAround;

// ---- kernels

/// Windows by filters, and their gradients by filters.
struct Im2colProduct : ProductArgs {
  Im2col im2col;
  float*
      sums;  // forward: what SumsAround has, of each filter's results in a group's windows, [part][3][filter], or null
};
/// Tiles of windows and filters: for few filters, for few tiles, and what is best where there are many of both.
using NarrowRows = tile::sm90::ProductTile<256, 64, 4, 4, false>;
using SmallRows = tile::sm90::ProductTile<128, 128, 6, 4, false>;
/// Of whose results the columns are summed up together: those of a group of warps.
template <class C>
constexpr int windows_of_part = C::config.tile_m / 2;
template <class C, class T, bool Backward>
struct RowsResult : SumsAndBias<C, T> {
  using Base = SumsAndBias<C, T>;
  using Operand = T;
  static constexpr bool transposed_a = false, transposed_b = Backward;
  static constexpr int producer_registers = Backward ? 24 : 40;  // as many as columns' sums need
  template <class Gemm>
  using Source = tile::sm90::Im2colRows<Gemm, Backward>;
  using SumsAndBias<C, T>::ProductResult;
  static TESSERA_DEVICE void assist(const TileScheduler& order, const Im2colProduct& args,
                                    const tile::sm90::ResultBoxes& boxes) {
    const int warp = tile::thread_in_block() / 32 - Base::Gemm::consumer_warps - 2;
    if (!Backward && args.sums) return store_and_measure(order, args, boxes, warp);
    if (warp != 0) return;
    Base::store_boxes(order, args, boxes, [&](tile::u32 box, int column, int row, int) {
      if (row < args.m) tile::sm90::store_result(box, args.y, args.im2col, column, row);
    });
  }

 private:
  /// The third and the fourth warp store the boxes of a group each and sum up their columns, as they are stored.
  static TESSERA_DEVICE void store_and_measure(const TileScheduler& order, const Im2colProduct& args,
                                               const tile::sm90::ResultBoxes& boxes, int self) {
    static_assert(Base::tile_warpgroups == 2 && (Base::strips == 1 || Base::wide == 1));
    if (self < 0) return;
    constexpr int part_windows = windows_of_part<C>;
    const int lane = tile::thread_in_block() % 32;
    SumsAround sums;
    Base::each_box(order, [&](int number, const tile::sm90::TileWork&, int row, int column) {
      if (number % 2 != self) return;
      const int slot = number % Base::slots, rows = tile::min(args.m - row, 64), within = row % part_windows;
      const tile::u32 box = Base::box_of(boxes, slot);
      tile::sm90::mbarrier_wait(boxes.ready(slot), number / Base::slots & 1);
      if (rows > 0 && column < args.n) {
        if (tile::sm90::elect_one()) tile::sm90::store_result(box, args.y, args.im2col, column, row);
        tile::sm90::tma_store_commit();
        if (within == 0) sums = tile::sm90::sums_around_first<T>(box);
        tile::sm90::add_columns<T>(sums, box, rows);
      }
      if (within == part_windows - 64 && row - within < args.m && column + lane * 2 < args.n) {
        using Two = Pack<float, 2>;
        Two* const to = reinterpret_cast<Two*>(args.sums + i64{row / part_windows} * 3 * args.n + column) + lane;
        to[0] = sums.first, to[args.n / 2] = sums.sum, to[args.n] = sums.squares;
      }
      tile::sm90::tma_store_wait_read<0>();
      tile::sync_warp();
      if (tile::sm90::elect_one()) tile::sm90::mbarrier_arrive(boxes.empty(slot));
    });
  }
};

constexpr int joined_filters = 8;
/// Threads of a block, and blocks of a cluster, that join the parts of 8 filters: a cluster takes longer to begin.
struct Joining {
  int threads, blocks;
};
constexpr Joining joining_few{512, 1}, joining_many{128, 8};
constexpr int most_joining_warps = 32;

/// Mean and variance of the results of 8 filters by each cluster.
TESSERA_KERNEL(joining_few.threads)
void join_moments_kernel(const float* parts, i64 windows, int part_windows, i64 filters, Joining by, float* mean,
                         float* variance) {
  __shared__ __attribute__((aligned(16))) Sums<double> room[most_joining_warps][joined_filters];
  const int thread = tile::thread_in_block(), self = thread % joined_filters;
  const int rank = static_cast<int>(tile::block_in_grid() % by.blocks), warps = by.threads / 32;
  const i64 filter = tile::block_in_grid() / by.blocks * joined_filters + self,
            count = tile::ceil_div<i64>(windows, part_windows);
  tile::sm90::cluster_sync();  // all blocks are there to be written to
  tile::sm90::wait_on_dependent_grids();
  parts += filter;
  const double centre = static_cast<double>(parts[0]), all = static_cast<double>(windows);
  Sums<double> sums{0, 0};  // of distances from there, and of their squares
  constexpr int ahead = 8;
  const int abreast = by.threads / joined_filters, step = by.blocks * abreast;
  for (i64 first = rank * abreast + thread / joined_filters; first < count; first += ahead * step) {
    float held[ahead][3];
    for (int k = 0; k < ahead; ++k) {  // all asked for before the first is needed
      const i64 part = first + k * step;
      if (part < count)
        for (int j = 0; j < 3; ++j) held[k][j] = parts[(part * 3 + j) * filters];
    }
    for (int k = 0; k < ahead; ++k) {
      const i64 part = first + k * step;
      if (part >= count) break;
      const double n = static_cast<double>(tile::min<i64>(windows - part * part_windows, part_windows)),
                   offset = static_cast<double>(held[k][0]) - centre, sum = static_cast<double>(held[k][1]);
      sums = sums + Sums<double>{n * offset + sum, (n * offset + 2 * sum) * offset + static_cast<double>(held[k][2])};
    }
  }
  for (int mask = joined_filters; mask < 32; mask *= 2) sums = sums + from_lane(sums, mask);
  if (thread % 32 < joined_filters)
    tile::sm90::store_four_cluster(tile::sm90::shared_address(&room[rank * warps + thread / 32][self]), 0,
                                   tile::bit_cast<tile::Array<float, 4>>(sums).items);
  tile::sm90::cluster_sync();
  if (rank != 0 || thread >= joined_filters) return;
  sums = room[0][self];
  for (int i = 1; i < by.blocks * warps; ++i) sums = sums + room[i][self];
  const double offset = sums.first / all;
  mean[filter] = static_cast<float>(centre + offset);
  variance[filter] = static_cast<float>(tile::max(sums.second - sums.first * offset, 0.0) / (all - 1));
}

// ---- maps

/// Those of the output's gradient that give the gradient of the images' elements from (down, across) on, a stride
/// apart: of some of the filters' taps, the last one first; or of none.
Im2colTensor im2col_of_gradient(const ConvArgs& args, const i64 (&from)[2]) {
  Im2colTensor w{args.y, args.type, args.images, args.filters};
  i64 least[2], tap_step[2];
  for (int d = 0; d < 2; ++d) {
    const i64 stride = args.stride[d], dilation = args.dilation[d], common = std::gcd(stride, dilation);
    const i64 at = from[d] + args.padding[d];
    tap_step[d] = stride / common;
    for (least[d] = 0; least[d] < tap_step[d] && (at - least[d] * dilation) % stride != 0;) ++least[d];
    w.taps[d] = least[d] < tap_step[d] ? tile::max<i64>(tile::ceil_div(args.filter[d] - least[d], tap_step[d]), 0) : 0;
    w.apart[d] = w.taps[d] == 1 ? 1 : dilation / common;
    w.size[d] = output(args, d);
    w.places[d] = tile::ceil_div(args.size[d] - from[d], stride);
    w.step[d] = 1;
    w.first[d] = (at - least[d] * dilation) / stride - (w.taps[d] - 1) * w.apart[d];
    w.last[d] = w.first[d] + w.places[d] - w.size[d];
  }
  const i64 last = least[1] + (w.taps[1] - 1) * tap_step[1];
  w.tap = (least[0] + (w.taps[0] - 1) * tap_step[0]) * args.filter[1] + last;
  w.tap_step[0] = -tap_step[1];
  w.tap_step[1] = last - least[1] - tap_step[0] * args.filter[1];
  return w;
}

/// f(im2col_of_gradient, from) for all elements of images.
template <class F>
void each_residue(const ConvArgs& args, const F& f) {
  for (i64 down = 0; down < tile::min(args.stride[0], args.size[0]); ++down)
    for (i64 across = 0; across < tile::min(args.stride[1], args.size[1]); ++across)
      f(im2col_of_gradient(args, {down, across}), down, across);
}

bool in_units(const ConvTensor& t) {
  constexpr i64 most = i64{1} << 38;
  for (int d : {0, 2, 3})
    if (t.strides[d] <= 0 || t.strides[d] % 8 != 0 || t.strides[d] >= most) return false;
  return t.strides[1] == 1 && reinterpret_cast<size_t>(t.data) % 16 == 0;
}

/// Corners have 8 bits, and so have distances from a window's first tap, to the last one and three more, which the last
/// columns of a tile may be.
bool fits(const Im2colTensor& w) {
  const auto is_corner = [](i64 x) { return x >= -128 && x <= 127; };
  for (int d = 0; d < 2; ++d)
    if (!is_corner(w.first[d]) || !is_corner(w.last[d]) || (w.taps[d] + 2) * w.apart[d] > 255) return false;
  return true;
}

// ---- what is asked for

/// Steps between pixels, where pixels of all images are lines of a matrix.
bool is_matrix(const ConvTensor& t, i64 height, i64 width) {
  return t.strides[2] == t.strides[3] * width && t.strides[0] == t.strides[2] * height;
}

Sm90Refusal refuses(ConvPart part, const ConvArgs& given) {
  if (!is_hopper() || !encode_function()) return Sm90Refusal::hardware;
  if (given.type != Scalar::f16 && given.type != Scalar::bf16) return Sm90Refusal::type;
  const bool backward = part == ConvPart::images;
  if (given.stride[0] > 8 || given.stride[1] > 8) return Sm90Refusal::shape;
  if (given.groups != 1 || given.channels % 8 != 0 || given.filters % 8 != 0) return Sm90Refusal::shape;
  const ConvArgs args = arranged(given);
  const i64 windows = args.images * output(args, 0) * output(args, 1), taps = args.filter[0] * args.filter[1];
  constexpr i64 most = (i64{1} << 31) - 1024;
  if (windows < 1 || args.channels < 1 || args.filters < 1) return Sm90Refusal::small;
  for (i64 number : {windows, args.images * args.size[0] * args.size[1], taps * args.channels, taps * args.filters})
    if (number > most) return Sm90Refusal::shape;
  bool all_fit = backward || fits(im2col_of_images(args));
  if (backward)
    each_residue(
        args, [&](const Im2colTensor& w, i64, i64) { all_fit = all_fit && (w.taps[0] * w.taps[1] == 0 || fits(w)); });
  if (!all_fit) return Sm90Refusal::shape;
  if (!in_units(args.x) || !in_units(args.w) || !in_units(args.y) ||
      args.w.strides[2] != args.w.strides[3] * args.filter[1] || !is_matrix(args.y, output(args, 0), output(args, 1)) ||
      (backward && !is_matrix(args.x, args.size[0], args.size[1])) || reinterpret_cast<size_t>(args.bias) % 4 != 0)
    return Sm90Refusal::layout;
  return Sm90Refusal::none;
}

// ---- the run

void zero_lines(const ConvTensor& t, i64 channels, i64 pixels, Executor& executor) {
  constexpr size_t element = 2;
  if (cudaMemset2DAsync(t.data, t.strides[3] * element, 0, channels * element, static_cast<size_t>(pixels),
                        static_cast<Queue>(executor.stream)) != cudaSuccess)
    check_launch("convolution");
}

template <class C, class T>
void launch_rows(const Im2colProduct& product, Executor& executor) {
  const i64 clusters = sm90_clusters(product.order, executor);
  if (product.order.transposed_b) launch_im2col<C, RowsResult<C, T, true>>(product, clusters, executor);
  else launch_im2col<C, RowsResult<C, T, false>>(product, clusters, executor);
}
template <class C>
constexpr Kind<Im2colProduct> rows_kind(double step, double tile) {
  return {C::config, step, tile, {launch_rows<C, tile::f16>, launch_rows<C, tile::bf16>}, false};
}
constexpr Kind<Im2colProduct> rows_kinds[] = {rows_kind<NarrowRows>(0.63, 1.5), rows_kind<SmallRows>(0.44, 2),
                                              rows_kind<Sm90Tile128x256>(0.67, 3)};
/// [windows, filters] = [windows, taps] [taps, filters], or the same of gradients. `y` is a map of 64 lines of results.
/// Returns windows_of_part.
int run_rows(const ConvArgs& args, const Im2colTensor& of, Im2colProduct& product, i64 n, Executor& executor) {
  product.m = static_cast<int>(of.all());
  product.n = product.whole = static_cast<int>(n);
  const auto& best = fastest(rows_kinds, product, of.taps[0] * of.taps[1] * product.im2col.chunks, executor);
  product.a = map_of(of, best.config.tile_m);
  product.b = map_of_filters(args, product.order.transposed_b ? 64 : best.config.tile_n);
  best.launch[args.type == Scalar::bf16](product, executor);
  return best.config.tile_m / 2;
}

void run_forward(const ConvArgs& args, Executor& executor) {
  const Im2colTensor of = im2col_of_images(args);
  Im2colProduct product{};
  product.im2col = im2col_args(of);
  product.y = map_of_pixels(args, args.y, args.filters, of.all());
  product.d[0].data = args.bias;
  if (args.mean) product.sums = static_cast<float*>(args.workspace);
  const int part_windows = run_rows(args, of, product, args.filters, executor);
  if (!args.mean) return;
  const Joining by = of.all() / part_windows > 256 ? joining_many : joining_few;
  launch_early("convolution", join_moments_kernel, args.filters / joined_filters * by.blocks, by.threads, 0, by.blocks,
               executor, product.sums, of.all(), part_windows, args.filters, by, args.mean, args.variance);
}

/// A product for each residue of the strides.
void run_images(const ConvArgs& args, Executor& executor) {
  const bool spread = args.stride[0] > 1 || args.stride[1] > 1;
  const i64 pixels = args.images * args.size[0] * args.size[1];
  bool all_have_taps = true;
  each_residue(args,
               [&](const Im2colTensor& of, i64, i64) { all_have_taps = all_have_taps && of.taps[0] * of.taps[1] > 0; });
  if (!all_have_taps) zero_lines(args.x, args.channels, pixels, executor);
  each_residue(args, [&](const Im2colTensor& of, i64 down, i64 across) {
    if (of.taps[0] * of.taps[1] == 0) return;
    Im2colProduct product{};
    product.im2col = im2col_args(of);
    product.order.transposed_b = true;
    if (spread) {
      Im2colTensor results{args.x, args.type, args.images, args.channels, {args.size[0] - down, args.size[1] - across},
                           {1, 1}};
      results.images.data =
          static_cast<tile::u16*>(args.x.data) + down * args.x.strides[2] + across * args.x.strides[3];
      for (int d = 0; d < 2; ++d)
        results.step[d] = args.stride[d], product.im2col.spread[1 - d] = static_cast<int>(args.stride[d]);
      product.y = map_of(results, 64);
    } else {
      product.y = map_of_pixels(args, args.x, args.channels, pixels);
    }
    run_rows(args, of, product, args.channels, executor);
  });
}

long long workspace(ConvPart part, const ConvArgs& args) {
  if (part == ConvPart::forward && args.mean)
    return tile::ceil_div<i64>(args.images * output(args, 0) * output(args, 1), 64) * args.filters * 3 *
           static_cast<i64>(sizeof(float));
  return part == ConvPart::filters ? filters_workspace_sm90(arranged(args)) : 0;
}

void run(ConvPart part, const ConvArgs& given, Executor& executor) {
  const ConvArgs args = arranged(given);
  if (part == ConvPart::forward) run_forward(args, executor);
  else if (part == ConvPart::images) run_images(args, executor);
  else filters_gradient_sm90(args, executor);
}

}  // namespace

const Sm90ConvTable* sm90_conv_table() {
  static const Sm90ConvTable table{refuses, workspace, run};
  return &table;
}

}  // namespace tessera::gpu_kernels
