// Softmax over any dim: rows are contiguous, or copied.
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

Operand with_last(const Operand& t, int64_t dim) {
  if (dim < 0) dim += t.dim();
  if (dim == t.dim() - 1) return t;
  Shape shape = t.shape();
  Strides strides = t.strides();
  std::rotate(shape.begin() + dim, shape.begin() + dim + 1, shape.end());
  std::rotate(strides.begin() + dim, strides.begin() + dim + 1, strides.end());
  return t.as_strided(shape, strides);
}

template <class Args>
Args softmax_args(const Operand& x, bool log) {
  Args args{};
  args.type = scalar_of(x.dtype());
  args.log = log;
  args.n = x.shape().back().value();
  args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  return args;
}

template <bool log>
void softmax(const Call& call, Workspace& workspace) {
  int64_t dim = call.attrs.as<DimAttrs>().dim;
  const Operand x = with_last(call.in[0], dim), y = with_last(call.out[0], dim);
  auto args = softmax_args<SoftmaxArgs>(x, log);
  args.x = read_rows(workspace, x, 1, x.dtype());
  args.y = write_rows(workspace, y, 1, x.dtype());
  workspace.launch("softmax", softmax_table().softmax, args);
}

template <bool log>
void softmax_backward(const Call& call, Workspace& workspace) {
  int64_t dim = call.attrs.as<DimAttrs>().dim;
  const Operand dy = with_last(call.in[0], dim), y = with_last(call.in[1], dim), dx = with_last(call.out[0], dim);
  auto args = softmax_args<SoftmaxBackwardArgs>(y, log);
  args.dy = read_rows(workspace, dy, 1, y.dtype());
  args.y = read_rows(workspace, y, 1, y.dtype());
  args.dx = write_rows(workspace, dx, 1, y.dtype());
  workspace.launch("softmax_backward", softmax_table().softmax_backward, args);
}
template <auto body>
constexpr Kernel softmax_list[] = {staged_kernel<body>("rows")};

}  // namespace

std::span<const KernelTableEntry> softmax_kernels() {
  static constexpr KernelTableEntry entries[] = {{"softmax", softmax_list<softmax<false>>},
                                                 {"softmax_backward", softmax_list<softmax_backward<false>>},
                                                 {"log_softmax", softmax_list<softmax<true>>},
                                                 {"log_softmax_backward", softmax_list<softmax_backward<true>>}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
