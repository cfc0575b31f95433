// What becomes of a product's result. Each kind is a translation unit of its own, so that they compile side by side.
#pragma once

#include "gemm.h"
#include "tile/arch/cpu/pipeline.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using tile::i64;

/// The matrices of one index of the batch.
struct GemmProblem {
  const GemmArgs& args;
  i64 index;

  MatrixArg at(const MatrixArg& m) const {
    MatrixArg r = m;
    const i64 size = m.type == Scalar::f64 ? 8 : m.type == Scalar::f32 ? 4 : 2;
    if (r.data) r.data = static_cast<char*>(r.data) + offset(m) * size;
    return r;
  }

 private:
  i64 offset(const MatrixArg& m) const {
    i64 offset = 0, rest = index;
    for (int d = args.batch_rank - 1; d >= 0; --d) {
      offset += rest % args.batch[d] * m.batch[d];
      rest /= args.batch[d];
    }
    return offset;
  }
};

/// A matrix as a view of elements of type T.
template <class T>
TESSERA_HD tile::StridedView<T, 2> matrix(const MatrixArg& arg, i64 rows, i64 columns) {
  return tile::strided(static_cast<T*>(arg.data), {rows, columns}, {arg.row, arg.column});
}

/// Who works with an epilogue, which lives until the call returns.
template <class T>
class EpilogueUser {
 public:
  template <class F>
  explicit EpilogueUser(const F& f)
      : self_(&f), call_([](const void* self, const Epilogue& e) { (*static_cast<const F*>(self))(e); }) {}

  template <tile::Expression Sink>
  void operator()(const Sink& sink) const {
    call_(self_, tile::cpu::epilogue_of<T>(sink));
  }

 private:
  using Epilogue = tile::cpu::Epilogue<T>;
  const void* self_;
  void (*call_)(const void* self, const Epilogue& epilogue);
};

/// Hands the epilogue of a problem to its user.
template <class T>
using WithEpilogue = void (*)(const GemmProblem& problem, const EpilogueUser<T>& user);

/// The epilogue that the arguments ask for, where all but a and b are in f64, in f32, or each in any of f32, f16 and
/// bf16.
WithEpilogue<double> f64_epilogue(const GemmArgs& args);
WithEpilogue<float> f32_epilogue(const GemmArgs& args);
WithEpilogue<float> mixed_epilogue(const GemmArgs& args);

}  // namespace tessera::cpu_kernels::TESSERA_ISA
