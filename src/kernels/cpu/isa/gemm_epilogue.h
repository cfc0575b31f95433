// What becomes of a product's result. Each kind is a translation unit of its own, so that they compile side by side.
#pragma once

#include "kernels/args/gemm.h"
#include "tile/arch/cpu/multiply.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using tile::i64;

inline i64 batch_count(const GemmArgs& args) {
  i64 count = 1;
  for (int d = 0; d < args.batch_rank; ++d) count *= args.batch[d];
  return count;
}

/// The sums of rows and columns as tasks leave them in the workspace, [batch][part][m or n]: those of a row of the
/// grid of tasks add up columns, those of a column of it rows. Null: not wanted.
template <class T>
struct LineParts {
  T *rows, *columns;
  i64 parts;

  LineParts(const GemmArgs& args, i64 parts) : rows(nullptr), columns(nullptr), parts(parts) {
    T* memory = static_cast<T*>(args.workspace);
    if (args.row_sums.data) rows = memory, memory += batch_count(args) * parts * args.m;
    if (args.column_sums.data) columns = memory;
  }
  static i64 elements(const GemmArgs& args, i64 parts) {
    return batch_count(args) * parts * ((args.row_sums.data ? args.m : 0) + (args.column_sums.data ? args.n : 0));
  }
};

/// The matrices of one index of the batch, as one task sees them.
struct GemmProblem {
  const GemmArgs& args;
  i64 index;
  i64 parts = 1;                  // of the sums of rows and columns
  tile::cpu::Cell cell = {0, 0};  // of the task

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

/// Where the task adds to the sums of rows or columns; null where those are not wanted.
template <class T>
T* row_sums(const GemmProblem& p) {
  T* rows = LineParts<T>(p.args, p.parts).rows;
  return rows ? rows + (p.index * p.parts + p.cell.column) * p.args.m : nullptr;
}
template <class T>
T* column_sums(const GemmProblem& p) {
  T* columns = LineParts<T>(p.args, p.parts).columns;
  return columns ? columns + (p.index * p.parts + p.cell.row) * p.args.n : nullptr;
}

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
