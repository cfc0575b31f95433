// Windows of planes: the CPU's kernels and those of GPUs have one list.
#include "kernels/args/planes.h"

#include "core/plane_attrs.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

void* read(Workspace& workspace, const Operand& t) { return workspace.read(t, t.dtype(), t.is_contiguous()).data; }
void* write(Workspace& workspace, const Operand& t) { return workspace.write(t, t.dtype(), t.is_contiguous()).data; }

PlaneArgs plane_args(const Call& call, const Operand& planes) {
  const auto& attrs = call.attrs.as<PlaneWindowsAttrs>();
  PlaneArgs args{};
  args.type = scalar_of(planes.dtype());
  args.planes = planes.size(0) * planes.size(1);
  for (int d = 0; d < 3; ++d)
    args.line[d] = {static_cast<int>(attrs.size[d]),     static_cast<int>(attrs.count[d]),
                    static_cast<int>(attrs.window[d]),   static_cast<int>(attrs.stride[d]),
                    static_cast<int>(attrs.dilation[d]), static_cast<int>(attrs.low[d])};
  return args;
}

void largest(const Call& call, Workspace& workspace) {
  PlaneArgs args = plane_args(call, call.in[0]);
  if (call.out[0].numel() == 0) return;
  args.plane = read(workspace, call.in[0]);
  args.windows = write(workspace, call.out[0]);
  args.places = static_cast<long long*>(write(workspace, call.out[1]));
  workspace.launch("max_in_windows", planes_table().largest, args);
}
void largest_backward(const Call& call, Workspace& workspace) {
  PlaneArgs args = plane_args(call, call.out[0]);
  if (call.out[0].numel() == 0) return;
  args.windows = read(workspace, call.in[0]);
  args.places = static_cast<long long*>(read(workspace, call.in[1]));
  args.plane = write(workspace, call.out[0]);
  workspace.launch("max_in_windows_backward", planes_table().largest_backward, args);
}
void fold(const Call& call, Workspace& workspace) {
  PlaneArgs args = plane_args(call, call.out[0]);
  if (call.out[0].numel() == 0) return;
  args.windows = read(workspace, call.in[0]);
  args.plane = write(workspace, call.out[0]);
  workspace.launch("fold", planes_table().fold, args);
}

constexpr Kernel largest_list[] = {staged_kernel<largest>("windows")};
constexpr Kernel largest_backward_list[] = {staged_kernel<largest_backward>("windows")};
constexpr Kernel fold_list[] = {staged_kernel<fold>("windows")};

}  // namespace

std::span<const KernelTableEntry> plane_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"max_in_windows", largest_list}, {"max_in_windows_backward", largest_backward_list}, {"fold", fold_list}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
