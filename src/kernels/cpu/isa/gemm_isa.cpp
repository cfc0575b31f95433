#include "kernels/args/gemm.h"

#include "gemm_leaves.h"
#include "kernels/shared/gemm_transpose.h"
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

  cpu::Operand<T> operand(bool packed = false) const {
    if constexpr (is_same_v<T, float>) {
      if (packed) return {.view = nullptr, .pack = nullptr, .panels = own_.data};
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

/// Adds up what the tasks left of the sums of rows or columns, in the order of the tasks' places.
template <class T>
void add_parts(const GemmProblem& p, const MatrixArg& sums, const T* part, i64 length, i64 step) {
  if (!part) return;
  part += p.index * p.parts * length;
  place<conditional_t<is_same_v<T, float>, void, T>>(p, sums).with_row(
      [&](auto* to) { cpu::add_lines(part, p.parts, length, to, step); });
}

/// Runs the batch in compute type T.
template <class T>
void run_with(const GemmArgs& args, Executor& executor, WithEpilogue<T> with_epilogue) {
  const cpu::Extent extent{args.m, args.n, args.k};
  const i64 parts = executor.threads();
  const LineParts<T> sums(args, parts);
  if (sums_lines(args)) __builtin_memset(args.workspace, 0, sums.elements(args, parts) * sizeof(T));
  cpu::multiply_all<T>(
      ExecutorRef(executor), extent, batch_count(args), [&](i64 i, cpu::Cell cell, const auto& multiply) {
        const GemmProblem problem{args, i, parts, cell};
        const Factor<0, T> a(problem.at(args.a), args.m, args.k);
        const Factor<1, T> b(problem.at(args.b), args.k, args.n);
        const auto run = [&](const cpu::Epilogue<T>& e) {
          multiply(cpu::Product<T>{extent, a.operand(), b.operand(args.packed), e, !args.column_sums.data});
        };
        with_epilogue(problem, EpilogueUser<T>(run));
      });
  for (i64 i = 0; sums_lines(args) && i < batch_count(args); ++i) {
    add_parts({args, i, parts}, args.row_sums, sums.rows, args.m, args.row_sums.row);
    add_parts({args, i, parts}, args.column_sums, sums.columns, args.n, args.column_sums.column);
  }
}

void run(const GemmArgs& args, Executor& executor) {
  // The epilogue works along rows: a column-major result is computed as its transpose.
  if (args.c.column != 1 && args.c.row == 1 && args.n > 1) return run(transposed(args), executor);
  if (args.a.type == Scalar::f64) return run_with<double>(args, executor, f64_epilogue(args));
  const auto is_f32 = [](const MatrixArg& m) { return !m.data || m.type == Scalar::f32; };
  const bool all =
      is_f32(args.c) && is_f32(args.addend) && is_f32(args.bias) && is_f32(args.slope) && is_f32(args.factor);
  run_with<float>(args, executor, all ? f32_epilogue(args) : mixed_epilogue(args));
}

long long workspace(const GemmArgs& args, const Executor& executor) {
  const i64 size = args.a.type == Scalar::f64 ? sizeof(double) : sizeof(float);
  return LineParts<float>::elements(args, executor.threads()) * size;
}

// ---- right sides that are packed once

// Without wide vectors a broadcast element is worth so little that dot products are quicker up to eight rows.
constexpr bool gains_by_panels = NativeVec<float>::lanes >= 8;

long long panel_bytes(long long n, long long k) { return cpu::panels_size<float>(n, k) * sizeof(float); }

/// f(first column) for every panel, by all threads.
template <class F>
void each_panel(long long n, Executor& executor, const F& f) {
  constexpr i64 columns = cpu::block_columns<float>;
  ExecutorRef(executor).parallel(ceil_div(n, columns), [&](i64 index, int) { f(index * columns); });
}
void pack(const PanelArgs& args, Executor& executor) {
  const auto view = matrix<const float>(args.matrix, args.k, args.n);
  each_panel(args.n, executor,
             [&](i64 first) { cpu::pack_panel_of(view, args.n, args.k, first, static_cast<float*>(args.panels)); });
}
void unpack(const PanelArgs& args, Executor& executor) {
  const auto view = matrix<float>(args.matrix, args.k, args.n);
  each_panel(args.n, executor, [&](i64 first) {
    cpu::unpack_panel_of(view, args.n, args.k, first, static_cast<const float*>(args.panels));
  });
}

}  // namespace

const GemmTable gemm_table{.supports = types_fit,
                           .run = run,
                           .workspace = workspace,
                           .finish = nullptr,
                           .finish_workspace = nullptr,
                           .panel_columns = gains_by_panels ? cpu::block_columns<float> : 0,
                           .panel_bytes = panel_bytes,
                           .pack = pack,
                           .unpack = unpack};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
