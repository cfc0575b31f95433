#include "gemm_leaves.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

template <Activation kind>
void with_fixed(const GemmProblem& p, const EpilogueUser<float>& use) {
  with_general<float, float>(p, use, FixedActivation<kind>{});
}

/// What a backward needs.
void with_finish(const GemmProblem& p, const EpilogueUser<float>& use) {
  with_general<float, float, true>(p, use, FixedActivation<Activation::none>{});
}

tile::StridedView<float, 2> view(const GemmProblem& p, const MatrixArg& m) {
  return matrix<float>(p.at(m), p.args.m, p.args.n);
}

// Frequent epilogues, whose leaves all exist: nothing is asked for at every vector.

void with_add_add_gelu(const GemmProblem& p, const EpilogueUser<float>& use) {
  const GemmArgs& args = p.args;
  use(store(view(p, args.c), gelu_tanh(tile::acc + load(view(p, args.addend)) + load(view(p, args.bias)))));
}
void with_add(const GemmProblem& p, const EpilogueUser<float>& use) {
  use(store(view(p, p.args.c), tile::acc + load(view(p, p.args.addend))));
}
void with_factor(const GemmProblem& p, const EpilogueUser<float>& use) {
  use(store(view(p, p.args.c), tile::acc * load(view(p, p.args.factor))));
}
template <Activation gelu>
void with_gelu_and_slope(const GemmProblem& p, const EpilogueUser<float>& use) {
  using Gelu = FixedActivation<gelu>;
  const Activated<float, Gelu, tile::Acc> result{place<float>(p, p.args.slope), {}, tile::acc};
  use(PlacedStore<float, tile::remove_cvref_t<decltype(result)>>{place<float>(p, p.args.c), result});
}

/// One of those, or null.
WithEpilogue<float> frequent_epilogue(const GemmArgs& args) {
  if (args.alpha != 1 || (args.addend.data && args.beta != 1) || sums_lines(args)) return nullptr;
  const bool gelu = args.activation == Activation::gelu_tanh;
  const auto only = [&](const MatrixArg& a, const MatrixArg& b) {
    const MatrixArg* const leaves[] = {&args.addend, &args.bias, &args.slope, &args.factor};
    for (const MatrixArg* m : leaves)
      if ((m->data != nullptr) != (m == &a || m == &b)) return false;
    return true;
  };
  if (gelu && only(args.addend, args.bias)) return with_add_add_gelu;
  if (only(args.slope, args.slope)) {
    if (gelu) return with_gelu_and_slope<Activation::gelu_tanh>;
    if (args.activation == Activation::gelu_erf) return with_gelu_and_slope<Activation::gelu_erf>;
  }
  if (args.activation != Activation::none) return nullptr;
  if (only(args.addend, args.addend)) return with_add;
  if (only(args.factor, args.factor)) return with_factor;
  return nullptr;
}

}  // namespace

/// The common activations have a loop of their own; the others decide for every vector.
WithEpilogue<float> f32_epilogue(const GemmArgs& args) {
  if (const auto plain = plain_epilogue<float>(args)) return plain;
  if (const auto frequent = frequent_epilogue(args)) return frequent;
  if (is_finished(args)) return args.activation == Activation::none ? with_finish : with_any<float, float, true>;
  switch (args.activation) {
    case Activation::none:
      return with_fixed<Activation::none>;
    case Activation::relu:
      return with_fixed<Activation::relu>;
    case Activation::gelu_tanh:
      return with_fixed<Activation::gelu_tanh>;
    case Activation::gelu_erf:
      return with_fixed<Activation::gelu_erf>;
    default:
      return with_any<float, float>;
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
