// Products with a sparse matrix along a dim, or two along neighbouring ones.
#include "core/plane_attrs.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

/// Inputs from `first` on: rows of a matrix.
struct Matrix {
  const int *begins, *places;
  const void* weights;
  long long entries;
  Matrix(const Call& call, Workspace& workspace, size_t first)
      : begins(static_cast<const int*>(contiguous(workspace, call.in[first]))),
        places(static_cast<const int*>(contiguous(workspace, call.in[first + 1]))),
        weights(contiguous(workspace, call.in[first + 2])),
        entries(call.in[first + 1].numel()) {}
  static void* contiguous(Workspace& workspace, const Operand& t) {
    return workspace.read(t, t.dtype(), t.is_contiguous()).data;
  }
};

void sparse_lines(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &out = call.out[0];
  Workspace workspace(call, plan);
  const Matrix matrix(call, workspace, 1);
  const auto dim = static_cast<size_t>(call.attrs.as<DimAttrs>().dim);
  LinesArgs args{1,
                 x.size(static_cast<int64_t>(dim)),
                 out.size(static_cast<int64_t>(dim)),
                 1,
                 matrix.entries,
                 scalar_of(x.dtype()),
                 matrix.begins,
                 matrix.places,
                 matrix.weights,
                 Matrix::contiguous(workspace, x),
                 out.data_ptr()};
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
    if (d != dim) (d < dim ? args.outer : args.inner) *= x.size(static_cast<int64_t>(d));
  plan.launch("sparse_lines", lines_table().sparse, args);
}

void sparse_planes(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &out = call.out[0];
  Workspace workspace(call, plan);
  const Matrix rows(call, workspace, 1), columns(call, workspace, 4);
  LinePlanesArgs args{1,
                      {x.size(-2), x.size(-1)},
                      {out.size(-2), out.size(-1)},
                      {rows.entries, columns.entries},
                      scalar_of(x.dtype()),
                      call.attrs.as<SparsePlanesAttrs>().selects,
                      {rows.begins, columns.begins},
                      {rows.places, columns.places},
                      {rows.weights, columns.weights},
                      Matrix::contiguous(workspace, x),
                      out.data_ptr()};
  for (int64_t d = 0; d < x.dim() - 2; ++d) args.outer *= x.size(d);
#ifdef TESSERA_GPU_KERNELS
  plan.launch("sparse_planes", lines_table().planes, args);
#else
  void* const between = workspace.take(args.outer * args.count[0] * args.length[1] * size_of(x.dtype()));
  plan.launch("sparse_lines", lines_table().sparse,
              LinesArgs{args.outer, args.length[0], args.count[0], args.length[1], rows.entries, args.type, rows.begins,
                        rows.places, rows.weights, args.x, between});
  plan.launch("sparse_lines", lines_table().sparse,
              LinesArgs{args.outer * args.count[0], args.length[1], args.count[1], 1, columns.entries, args.type,
                        columns.begins, columns.places, columns.weights, between, args.out});
#endif
}

constexpr Kernel sparse_lines_kernels[] = {{.name = "rows", .plan = sparse_lines}};
constexpr Kernel sparse_planes_kernels[] = {{.name = "rows", .plan = sparse_planes}};

}  // namespace

std::span<const KernelTableEntry> line_kernels() {
  static constexpr KernelTableEntry entries[] = {{"sparse_lines", sparse_lines_kernels},
                                                 {"sparse_planes", sparse_planes_kernels}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
