#include "gemm.h"

#include "gemm_epilogue.h"
#include "gemm_transpose.h"
#include "tile/arch/cpu/multiply.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

/// The left (0) or right (1) matrix of a product, of any type that is computed in T.
template <int side, class T>
class Factor {
 public:
  Factor(const MatrixArg& m, i64 rows, i64 columns)
      : type_(m.type),
        f16_(matrix<const f16>(m, rows, columns)),
        bf16_(matrix<const bf16>(m, rows, columns)),
        own_(matrix<const T>(m, rows, columns)) {}

  cpu::Operand<T> operand() const {
    if constexpr (is_same_v<T, float>) {
      if (type_ == Scalar::f16) return cpu::operand<side, T>(f16_);
      if (type_ == Scalar::bf16) return cpu::operand<side, T>(bf16_);
    }
    return cpu::operand<side, T>(own_);
  }

 private:
  Scalar type_;
  StridedView<const f16, 2> f16_;
  StridedView<const bf16, 2> bf16_;
  StridedView<const T, 2> own_;
};

/// Runs the batch in compute type T.
template <class T>
void run_with(const GemmArgs& args, Executor& executor, WithEpilogue<T> with_epilogue) {
  i64 count = 1;
  for (int d = 0; d < args.batch_rank; ++d) count *= args.batch[d];
  const cpu::Extent extent{args.m, args.n, args.k};
  cpu::multiply_all<T>(ExecutorRef(executor), extent, count, [&](i64 index, const auto& multiply) {
    const GemmProblem problem{args, index};
    const Factor<0, T> a(problem.at(args.a), args.m, args.k);
    const Factor<1, T> b(problem.at(args.b), args.k, args.n);
    const auto run = [&](const cpu::Epilogue<T>& e) { multiply(cpu::Product<T>{extent, a.operand(), b.operand(), e}); };
    with_epilogue(problem, EpilogueUser<T>(run));
  });
}

void run(const GemmArgs& args, Executor& executor) {
  // The epilogue works along rows: a column-major result is computed as its transpose.
  if (args.c.column != 1 && args.c.row == 1 && args.n > 1) return run(transposed(args), executor);
  if (args.a.type == Scalar::f64) return run_with<double>(args, executor, f64_epilogue(args));
  const auto is_f32 = [](const MatrixArg& m) { return !m.data || m.type == Scalar::f32; };
  const bool all = is_f32(args.c) && is_f32(args.addend) && is_f32(args.bias) && is_f32(args.slope);
  run_with<float>(args, executor, all ? f32_epilogue(args) : mixed_epilogue(args));
}

}  // namespace

const GemmTable gemm_table{types_fit, run, nullptr};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
