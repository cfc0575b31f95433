#include "gemm_sm90_products.h"

namespace tessera::gpu_kernels {
namespace {

/// Halves with a bias or none, or f32, by what the product says.
template <class C, class Half>
class EitherResult {
  using Halves = tile::sm90::ProductResult<C, Half, false, WithBias, typename ProductsBy<C, Half>::Bias>;
  using Floats = tile::sm90::ProductResult<C, float, false, SumsOf>;

 public:
  static constexpr int producer_registers = 32;  // for both
  TESSERA_DEVICE EitherResult(const ProductArgs& args, const tile::sm90::ResultBoxes& boxes)
      : is_f32_(args.is_f32), halves_(args, boxes), floats_(args, boxes) {}
  TESSERA_DEVICE void prepare(const tile::sm90::TileWork& work) {
    if (!is_f32_) halves_.prepare(work);
  }
  TESSERA_DEVICE void store(typename Halves::Accumulators& acc, const tile::sm90::TileWork& work) {
    if (is_f32_) floats_.store(acc, work);
    else halves_.store(acc, work);
  }
  static TESSERA_DEVICE void assist(const tile::sm90::TileScheduler& order, const ProductArgs& args,
                                    const tile::sm90::ResultBoxes& boxes) {
    if (args.is_f32) Floats::assist(order, args, boxes);
    else Halves::assist(order, args, boxes);
  }

 private:
  bool is_f32_;
  Halves halves_;
  Floats floats_;
};

template <class C>
void run_by(const ProductArgs& args, Executor& executor) {
  if (args.order.is_bf16) ProductsBy<C, tile::bf16>{args, executor}.template run_any<EitherResult<C, tile::bf16>>();
  else ProductsBy<C, tile::f16>{args, executor}.template run_any<EitherResult<C, tile::f16>>();
}

}  // namespace

void run_small_products(bool narrow, const ProductArgs& args, Executor& executor) {
  narrow ? run_by<Sm90Tile128x64>(args, executor) : run_by<Sm90Tile128x128>(args, executor);
}

}  // namespace tessera::gpu_kernels
