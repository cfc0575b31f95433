// Convolutions of what batch norm and ReLU make of images of halves, on Hopper's cards: windows are normalised in
// registers, on their way to the tensor cores.
#include "im2col_sm90.h"
#include "kernels/gpu/device/rows/channel_line.h"
#include "tile/arch/sm90/bulk.h"
#include "tile/arch/sm90/norm_im2col.h"

namespace tessera::gpu_kernels {
namespace {

namespace sm90 = tile::sm90;

struct NormIm2colProduct : ProductArgs {
  Im2col im2col;
  PlanesNorm norm;
  int taps, height, width, channels;
};

constexpr int most_channels = 1024;
constexpr int pairs_bytes = most_channels / 2 * static_cast<int>(sm90::pair_bytes);

template <class C, class T>
class NormRowsResult : public SumsAndBias<C, T> {
 public:
  using Base = SumsAndBias<C, T>;
  using Operand = T;
  static constexpr bool transposed_b = false;
  template <class Gemm>
  using Source = sm90::Im2colRowsByChunk<Gemm>;

  TESSERA_DEVICE NormRowsResult(const NormIm2colProduct& args, const sm90::ResultBoxes& boxes)
      : Base(args, boxes), left(pairs_of(boxes)), args_(args) {
    constexpr int threads = Base::Gemm::consumer_warps * 32;
    sm90::wait_on_dependent_grids();
    for (int pair = tile::thread_in_block(); pair < args.im2col.chunks * 32; pair += threads) {
      const ScaleShift<float> lines[2] = {line_of(pair * 2), line_of(pair * 2 + 1)};
      const float four[4] = {lines[0].scale, lines[1].scale, lines[0].shift, lines[1].shift};
      sm90::store_four(pairs_of(boxes) + static_cast<tile::u32>(pair) * sm90::pair_bytes, four);
    }
    sm90::named_barrier_sync(1, threads);
  }

  TESSERA_DEVICE void prepare(const sm90::TileWork& work) {
    Base::prepare(work);
    left.prepare(args_, work);
  }
  static TESSERA_DEVICE void assist(const TileScheduler& order, const NormIm2colProduct& args,
                                    const sm90::ResultBoxes& boxes) {
    if (tile::thread_in_block() / 32 != Base::Gemm::consumer_warps + 2) return;
    Base::store_boxes(order, args, boxes, [&](tile::u32 box, int column, int row, int) {
      if (row < args.m) sm90::store_result(box, args.y, args.im2col, column, row);
    });
  }

  sm90::NormalisedRows<typename Base::Gemm, T> left;

 private:
  /// Behind the barriers.
  static TESSERA_DEVICE tile::u32 pairs_of(const sm90::ResultBoxes& boxes) {
    return (boxes.order_barrier(2) + 15) / 16 * 16;
  }
  TESSERA_DEVICE ScaleShift<float> line_of(int channel) const {
    if (channel >= args_.channels) return {0, 0, 0, 0};
    const PlanesNorm& norm = args_.norm;
    const float rstd = 1 / tile::sqrt(tile::fma(norm.variance[channel], static_cast<float>(norm.correction),
                                                static_cast<float>(norm.eps)));
    if (norm.rstd && tile::block_in_grid() == 0) norm.rstd[channel] = rstd;
    return {norm.mean[channel], rstd, ChannelWeights{norm.weight, norm.weight_type}.at(channel, 1.f),
            ChannelWeights{norm.bias, norm.weight_type}.at(channel, 0.f)};
  }

  const NormIm2colProduct& args_;
};

template <class C, class T>
void launch_rows(const NormIm2colProduct& product, Executor& executor) {
  constexpr auto kernel = im2col_kernel<C, NormIm2colProduct, NormRowsResult<C, T>>;
  constexpr int shared = sm90::Gemm<C>::shared_bytes + 16 + pairs_bytes;
  static_assert(shared <= 227 * 1024, "normalised windows: more than a block has");
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) != cudaSuccess)
    check_launch("convolution");
  launch_early("convolution", kernel, sm90_clusters(product.order, executor), C::config.warps * 32, shared, 1, executor,
               product);
}

template <int Rows, int Filters, int Stages, int TmaMatrix>
constexpr Kind<NormIm2colProduct> kind(double step, double tile) {
  using C = sm90::ProductTile<Rows, Filters, Stages, TmaMatrix, false>;
  return {C::config, step, tile, {launch_rows<C, tile::f16>, launch_rows<C, tile::bf16>}, false};
}
constexpr Kind<NormIm2colProduct> kinds[] = {kind<128, 64, 7, 4>(0.38, 2.5), kind<256, 64, 4, 4>(0.64, 3.5),
                                             kind<128, 128, 5, 4>(0.53, 1.9), kind<128, 256, 4, 2>(0.77, 1.5)};

Sm90Refusal refuses(const ConvArgs& args) {
  const Sm90Refusal refusal = sm90_conv_table()->refuses(ConvPart::forward, args);
  if (refusal != Sm90Refusal::none) return refusal;
  const bool fits = args.filter[0] * args.filter[1] <= 32 && args.channels <= most_channels;
  return fits ? Sm90Refusal::none : Sm90Refusal::shape;
}

void run(const ConvArgs& given, const PlanesNorm& norm, Executor& executor) {
  const ConvArgs args = arranged(given);
  const Im2colTensor of = im2col_of_images(args);
  NormIm2colProduct product{};
  product.im2col = im2col_args(of);
  product.norm = norm;
  product.taps = static_cast<int>(of.taps[0] * of.taps[1]);
  product.height = static_cast<int>(args.size[0]);
  product.width = static_cast<int>(args.size[1]);
  product.channels = static_cast<int>(args.channels);
  product.d[0].data = args.bias;
  product.m = static_cast<int>(of.all());
  product.n = product.whole = static_cast<int>(args.filters);
  const auto& best = fastest(kinds, product, product.taps * product.im2col.chunks, executor);
  product.a = map_of(of, best.config.tile_m);
  product.b = map_of_filters(args, best.config.tile_n);
  product.y = map_of_pixels(args, args.y, args.filters, of.all());
  best.launch[args.type == Scalar::bf16](product, executor);
}

}  // namespace

const Sm90NormConvTable* sm90_norm_conv_table() {
  static const Sm90NormConvTable table{refuses, run};
  return &table;
}

}  // namespace tessera::gpu_kernels
