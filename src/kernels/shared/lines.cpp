// Products with a sparse matrix along a dim.
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

void sparse_lines(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &begins = call.in[1], &places = call.in[2], &weights = call.in[3], &out = call.out[0];
  Workspace workspace(call, plan);
  const auto contiguous = [&](const Operand& t) { return workspace.read(t, t.dtype(), t.is_contiguous()).data; };
  const auto dim = static_cast<size_t>(call.attrs.as<DimAttrs>().dim);
  LinesArgs args{1,
                 x.size(static_cast<int64_t>(dim)),
                 out.size(static_cast<int64_t>(dim)),
                 1,
                 places.numel(),
                 scalar_of(x.dtype()),
                 static_cast<const int*>(contiguous(begins)),
                 static_cast<const int*>(contiguous(places)),
                 contiguous(weights),
                 contiguous(x),
                 out.data_ptr()};
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
    if (d != dim) (d < dim ? args.outer : args.inner) *= x.size(static_cast<int64_t>(d));
  plan.launch("sparse_lines", lines_table().sparse, args);
}

constexpr Kernel sparse_lines_kernels[] = {{.name = "rows", .plan = sparse_lines}};

}  // namespace

std::span<const KernelTableEntry> line_kernels() {
  static constexpr KernelTableEntry entries[] = {{"sparse_lines", sparse_lines_kernels}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
