// Images read at points: the CPU's kernels and those of GPUs have one list.
#include "kernels/args/sample.h"

#include <limits>

#include "core/sample_attrs.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"
#include "tessera/device.h"

namespace tessera::TESSERA_KERNELS {
namespace {

const void* contiguous(Workspace& workspace, const Operand& t, DType dtype) {
  return workspace.read(t, dtype, t.is_contiguous()).data;
}
void* result(Workspace& workspace, const Operand& t, DType dtype) {
  return workspace.write(t, dtype, t.is_contiguous()).data;
}

/// Sizes of x from dim 2 on, at the end of `size`. Planes count in 32 bits.
template <int N>
void set_size(const Call& call, const Operand& x, int (&size)[N]) {
  std::fill(size, size + N, 1);
  int64_t plane = 1;
  for (int64_t d = 2; d < x.dim(); ++d) {
    plane *= x.size(d);
    if (plane > std::numeric_limits<int>::max())
      throw Error(std::string(call.op.name) + ": images of " + describe(x) + " have 2^31 elements or more");
    size[N - x.dim() + d] = static_cast<int>(x.size(d));
  }
}

GridSampleArgs grid_sample_args(const Call& call, const Operand& x, const Operand& grid) {
  const auto& attrs = call.attrs.as<GridSampleAttrs>();
  GridSampleArgs a{};
  a.type = scalar_of(x.dtype());
  a.spatial = static_cast<int>(x.dim()) - 2;
  a.interpolation = static_cast<int>(attrs.interpolation);
  a.beyond = static_cast<int>(attrs.beyond);
  a.align_corners = attrs.align_corners;
  a.elements = attrs.elements;
  a.images = x.size(0);
  a.channels = x.size(1);
  a.points = 1;
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) a.points *= grid.size(d);
  set_size(call, x, a.size);
  return a;
}

RoiAlignArgs roi_align_args(const Call& call, Workspace& workspace, const Operand& x, const Operand& bounds,
                            const Operand& batch) {
  const auto& attrs = call.attrs.as<RoiAlignAttrs>();
  RoiAlignArgs a{};
  a.type = scalar_of(x.dtype());
  a.images = x.size(0);
  a.channels = x.size(1);
  a.regions = bounds.size(0);
  set_size(call, x, a.size);
  a.bins[0] = static_cast<int>(attrs.rows);
  a.bins[1] = static_cast<int>(attrs.columns);
  a.scale = attrs.spatial_scale;
  a.samples = static_cast<int>(attrs.sampling_ratio);
  a.aligned = attrs.aligned;
  a.bounds = contiguous(workspace, bounds, statistics_dtype(x));
  a.batch = static_cast<const long long*>(contiguous(workspace, batch, Int64));
  return a;
}

/// Where the gradient of x goes, and how it is added up.
template <class Args>
void set_gradient(Workspace& workspace, const Operand& dx, long long results, bool bounded, Args& a) {
#ifdef TESSERA_GPU_KERNELS
  const double entries = gathered_entries(a);
  constexpr long long most = most_gathered;
  const bool fits = bounded && entries <= static_cast<double>(most) && results <= most && gathered_places(a) < most;
  a.adding = nondeterministic_allowed() ? Adding::any_order : fits ? Adding::lists : Adding::in_order;
  if (a.adding == Adding::lists)
    a.room = workspace.take(GatherRoom(gathered_places(a), static_cast<long long>(entries), a.type).bytes);
  a.dx = result(workspace, dx, a.adding == Adding::lists ? dx.dtype() : statistics_dtype(dx));
#else
  (void)results, (void)bounded;
  a.dx = result(workspace, dx, dx.dtype());
#endif
}

void grid_sample(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &grid = call.in[1], &y = call.out[0];
  GridSampleArgs a = grid_sample_args(call, x, grid);
  a.x = contiguous(workspace, x, x.dtype());
  a.grid = contiguous(workspace, grid, statistics_dtype(x));
  a.y = result(workspace, y, y.dtype());
  workspace.launch("grid_sample", sample_table().grid_sample, a);
}

void grid_sample_input_grad(const Call& call, Workspace& workspace) {
  const Operand &dy = call.in[0], &x = call.in[1], &grid = call.in[2];
  GridSampleArgs a = grid_sample_args(call, x, grid);
  a.dy = contiguous(workspace, dy, x.dtype());
  a.grid = contiguous(workspace, grid, statistics_dtype(x));
  set_gradient(workspace, call.out[0], dy.numel(), true, a);
  workspace.launch("grid_sample_input_grad", sample_table().grid_sample_input_grad, a);
}

void grid_sample_grid_grad(const Call& call, Workspace& workspace) {
  const Operand &dy = call.in[0], &x = call.in[1], &grid = call.in[2];
  GridSampleArgs a = grid_sample_args(call, x, grid);
  a.dy = contiguous(workspace, dy, x.dtype());
  a.x = contiguous(workspace, x, x.dtype());
  a.grid = contiguous(workspace, grid, statistics_dtype(x));
  a.dgrid = result(workspace, call.out[0], statistics_dtype(x));
  workspace.launch("grid_sample_grid_grad", sample_table().grid_sample_grid_grad, a);
}

void roi_align(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &y = call.out[0];
  RoiAlignArgs a = roi_align_args(call, workspace, x, call.in[1], call.in[2]);
  a.x = contiguous(workspace, x, x.dtype());
  a.y = result(workspace, y, y.dtype());
  workspace.launch("roi_align", sample_table().roi_align, a);
}

void roi_align_input_grad(const Call& call, Workspace& workspace) {
  const Operand &dy = call.in[0], &x = call.in[1];
  RoiAlignArgs a = roi_align_args(call, workspace, x, call.in[2], call.in[3]);
  a.dy = contiguous(workspace, dy, x.dtype());
  set_gradient(workspace, call.out[0], dy.numel(), a.samples > 0, a);
  workspace.launch("roi_align_input_grad", sample_table().roi_align_input_grad, a);
}

constexpr Kernel grid_sample_list[] = {staged_kernel<grid_sample>("points")};
constexpr Kernel grid_sample_input_grad_list[] = {staged_kernel<grid_sample_input_grad>("points")};
constexpr Kernel grid_sample_grid_grad_list[] = {staged_kernel<grid_sample_grid_grad>("points")};
constexpr Kernel roi_align_list[] = {staged_kernel<roi_align>("regions")};
constexpr Kernel roi_align_input_grad_list[] = {staged_kernel<roi_align_input_grad>("regions")};

}  // namespace

std::span<const KernelTableEntry> sample_kernels() {
  static constexpr KernelTableEntry entries[] = {{"grid_sample", grid_sample_list},
                                                 {"grid_sample_input_grad", grid_sample_input_grad_list},
                                                 {"grid_sample_grid_grad", grid_sample_grid_grad_list},
                                                 {"roi_align", roi_align_list},
                                                 {"roi_align_input_grad", roi_align_input_grad_list}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
