#include "kernels/args/gpu/indexing.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::gpu_kernels {
namespace {

void full(const Call& call, Plan& plan) { fill(call, plan, call.out[0], call.attrs.as<CreateAttrs>().a); }

void arange(const Call& call, Plan& plan) {
  const auto& attrs = call.attrs.as<CreateAttrs>();
  const Operand& out = call.out[0];
  plan.launch("range", creation_table().range, {out.numel(), out.data_ptr(), scalar_of(out.dtype()), attrs.a, attrs.b});
}

constexpr Kernel full_kernels[] = {{.name = "fill", .plan = full}};
constexpr Kernel arange_kernels[] = {{.name = "loop", .plan = arange}};

}  // namespace

std::span<const KernelTableEntry> creation_kernels() {
  static constexpr KernelTableEntry entries[] = {{"full", full_kernels}, {"arange", arange_kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
