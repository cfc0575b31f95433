// Products of one type of operands on Hopper's cards, a kernel for each orientation and epilogue: what is known when
// they are compiled is neither asked nor kept in registers.
#pragma once
#include "gemm_sm90.h"

namespace tessera::gpu_kernels {

using tile::sm90::Given, tile::sm90::ProductArgs;
using namespace tile::sm90::quick;

struct SumsOf {
  TESSERA_DEVICE Value operator()(Value acc) const { return acc; }
};
struct WithBias {
  TESSERA_DEVICE Value operator()(Value acc, Given bias) const { return acc + load(bias); }
};
struct WithAddend {
  TESSERA_DEVICE Value operator()(Value acc, Given bias, Given addend) const { return acc + load(bias) + load(addend); }
};
template <Activation A>
struct ActivatedAndSlope {
  TESSERA_DEVICE Both operator()(Value acc, Given bias) const {
    const float x = (acc + load(bias)).x;
    if constexpr (A == Activation::gelu_tanh) return Sigmoidal::gelu_tanh()(x);
    else if constexpr (A == Activation::gelu_erf) return gelu_erf(x);
    else return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
  }
};
template <Activation A>
struct Activated {
  TESSERA_DEVICE Value operator()(Value acc, Given bias) const {
    if constexpr (A == Activation::gelu_tanh) return gelu_tanh(acc + load(bias));
    else return ActivatedAndSlope<A>{}(acc, bias).value;
  }
};
/// Both results: activated, and what the activation is applied to.
struct GeluAndInput {
  TESSERA_DEVICE Both operator()(Value acc, Given bias) const {
    const Value x = acc + load(bias);
    return {gelu_tanh(x).x, x.x};
  }
};
struct TimesGeluSlope {
  TESSERA_DEVICE Value operator()(Value acc, Given input) const {
    return acc * Sigmoidal::gelu_tanh()(load(input).x).slope;
  }
};
struct TimesFactor {
  TESSERA_DEVICE Value operator()(Value acc, Given factor) const { return acc * load(factor); }
};

template <class C, class Operand, bool TransposedA, bool TransposedB, class Result>
TESSERA_KERNEL(C::config.warps * 32, 1)
void product_kernel(const __grid_constant__ ProductArgs args) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::product_block<C, Operand, TransposedA, TransposedB, Result>(args, shared);
}

template <class C, class Operand>
struct ProductsBy {
  static constexpr int wide = C::config.tile_n / 64;
  using Bias = tile::sm90::PerColumn<Operand, wide>;
  using Input = tile::sm90::Boxed<Operand, wide>;
  template <class Element, bool Columns, class Epilogue, class... Inputs>
  using Result = tile::sm90::ProductResult<C, Element, Columns, Epilogue, Inputs...>;

  const ProductArgs& args;
  Executor& executor;

  template <bool TransposedA, bool TransposedB, class Result>
  void run() const {
    launch_sm90<tile::sm90::Gemm<C>>(product_kernel<C, Operand, TransposedA, TransposedB, Result>, args.order, args,
                                     executor);
  }
  template <class Result>
  void run_any() const {
    const tile::sm90::TileScheduler& order = args.order;
    if (order.transposed_a) return order.transposed_b ? run<true, true, Result>() : run<true, false, Result>();
    return order.transposed_b ? run<false, true, Result>() : run<false, false, Result>();
  }
  template <Activation A>
  void run_activated() const {
    run<false, false, Result<Operand, false, Activated<A>, Bias>>();
  }
  template <Activation A>
  void run_slope() const {
    run<false, false, Result<Operand, false, ActivatedAndSlope<A>, Bias>>();
  }
};

/// In the orientations that epilogue_of() gives.
template <class Operand>
void run_products(Sm90Epilogue epilogue, const ProductArgs& args, Executor& executor) {
  using P = ProductsBy<Sm90PingPong, Operand>;
  using Bias = typename P::Bias;
  const P products{args, executor};
  using OfTwo = ProductsBy<Sm90PingPongTwoOutputs, Operand>;
  const OfTwo of_two{args, executor};
  switch (epilogue) {
    case Sm90Epilogue::addend: {
      using Result = typename P::template Result<Operand, false, WithAddend, Bias, typename P::Input>;
      return args.order.transposed_b ? products.template run<false, true, Result>()
                                     : products.template run<false, false, Result>();
    }
    case Sm90Epilogue::relu:
      return products.template run_activated<Activation::relu>();
    case Sm90Epilogue::gelu_tanh:
      return products.template run_activated<Activation::gelu_tanh>();
    case Sm90Epilogue::gelu_erf:
      return products.template run_activated<Activation::gelu_erf>();
    case Sm90Epilogue::relu_slope:
      return of_two.template run_slope<Activation::relu>();
    case Sm90Epilogue::gelu_tanh_slope:  // in bf16 its input
      if constexpr (tile::is_same_v<Operand, tile::bf16>)
        return of_two.template run<false, false, typename OfTwo::template Result<Operand, false, GeluAndInput, Bias>>();
      else return of_two.template run_slope<Activation::gelu_tanh>();
    case Sm90Epilogue::gelu_erf_slope:
      return of_two.template run_slope<Activation::gelu_erf>();
    case Sm90Epilogue::factor:
      return of_two.template run<false, true,
                                 typename OfTwo::template Result<Operand, true, TimesFactor, typename OfTwo::Input>>();
    case Sm90Epilogue::gelu_factor:
      return of_two.template run<
          false, true, typename OfTwo::template Result<Operand, true, TimesGeluSlope, typename OfTwo::Input>>();
    case Sm90Epilogue::f32:
      return products.template run<true, true, typename P::template Result<float, false, SumsOf>>();
    default:
      return products.template run_any<typename P::template Result<Operand, false, WithBias, Bias>>();
  }
}

}  // namespace tessera::gpu_kernels
