// What a call of an operator gives and runs, worked out once for all calls whose tensors lie alike; and which kernel of
// its ordered list that is, and why not the others.
#pragma once
#include <functional>
#include <string>

#include "core/kernel.h"

namespace tessera {

// ---- which kernel

/// The list of an op on a device. Throws Error if the device has none.
KernelList kernels_for(const Op& op, DeviceType device);
/// Whether it has one: some operators have kernels on GPUs alone.
bool has_kernels(const Op& op, DeviceType device);

/// Forces the named kernel for an op on this thread while alive; a call it does not support throws with the reason.
class ForceKernel {
 public:
  /// Throws Error if no device has such a kernel for the op.
  ForceKernel(std::string_view op, std::string kernel);
  ~ForceKernel();
  ForceKernel(const ForceKernel&) = delete;
  ForceKernel& operator=(const ForceKernel&) = delete;
};

/// The name of the kernel that this thread forces for an op; null: none.
const std::string* forced_kernel(const Op& op);

/// The forced kernel; otherwise the measured one, where picks are used (ops/picks.h), or the first of the list that
/// supports the call.
const Kernel& pick_kernel(const Call& call);

/// Throws Error `matmul: input 1 is f32[4, 3] on cpu packed for ..., which it does not read; ...`.
[[noreturn]] void refuse_packed(const Op& op, size_t input, const std::string& what);

/// A line per entry of the list: chosen, or why it was passed over.
std::string explain(const Call& call);
/// What the chosen one runs: a line per launch, one for the workspace, on a card one per step with its grid, and
/// explain_cost().
std::string explain_plan(const Call& call);
/// A line with FLOPs and bytes, as cost_of() counts them.
std::string explain_cost(const Call& call);

// ---- plans

/// Immutable.
struct CallPlan {
  Metas outputs;  ///< with their layouts; absent where hidden and not kept
  Ref<Plan> plan;
};

/// The metas of a call's inputs on `device`; absent ones where they are undefined.
SmallVector<TensorMeta, 4> metas_of(std::span<const Tensor> in, Device device);

/// As kernels see them, with their memory.
SmallVector<Operand, 4> operands_of(std::span<const Tensor> tensors);

/// Output metas with layouts, by `infer` and output_layout(); `count` gives what stands where `infer` names one. Throws
/// what infer throws.
Metas infer_outputs(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, Device device, bool keep_hidden,
                    const std::function<Dim(Dim)>& count = nullptr);

/// The plan of a call whose inputs lie in memory on `device`: this thread's last ones are kept. It stays valid until
/// the thread asks again.
const CallPlan& call_plan(const Op& op, const Tensors& in, const Attrs& attrs, Device device, bool keep_hidden);

/// By the kernel of the op's list that is picked, for tensors that lie like these.
Ref<Plan> make_plan(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, std::span<const TensorMeta> out);
/// The same by one kernel, which must support the call.
Ref<Plan> make_plan(const Kernel& kernel, const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                    std::span<const TensorMeta> out);

/// Throws Error unless a kernel of the op reads those inputs that are packed.
void require_readable(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                      std::span<const TensorMeta> out);

/// Runs a plan. Throws Error `plan of kernel 'gemm': tensor 1 is f32[2, 3] on cpu, not ...` where tensors do not lie as
/// it was made for.
void run_plan(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out);
/// The same of tensors that are known to.
void run_as_planned(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out);

}  // namespace tessera
