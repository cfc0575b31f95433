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

/// gelu_tanh(a b + addend + bias), whose leaves all exist.
void with_add_add_gelu(const GemmProblem& p, const EpilogueUser<float>& use) {
  const auto view = [&](const MatrixArg& m) { return matrix<float>(p.at(m), p.args.m, p.args.n); };
  use(store(view(p.args.c), gelu_tanh(tile::acc + load(view(p.args.addend)) + load(view(p.args.bias)))));
}

}  // namespace

/// The common activations have a loop of their own; the others decide for every vector.
WithEpilogue<float> f32_epilogue(const GemmArgs& args) {
  if (const auto plain = plain_epilogue<float>(args)) return plain;
  if (is_finished(args)) return args.activation == Activation::none ? with_finish : with_any<float, float, true>;
  switch (args.activation) {
    case Activation::none:
      return with_fixed<Activation::none>;
    case Activation::relu:
      return with_fixed<Activation::relu>;
    case Activation::gelu_tanh:
      if (args.addend.data && args.bias.data && !args.slope.data && args.alpha == 1 && args.beta == 1) {
        return with_add_add_gelu;
      }
      return with_fixed<Activation::gelu_tanh>;
    case Activation::gelu_erf:
      return with_fixed<Activation::gelu_erf>;
    default:
      return with_any<float, float>;
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
