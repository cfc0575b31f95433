// What a call of an operator gives and runs, worked out once for all calls whose tensors lie alike.
#pragma once
#include <functional>

#include "core/kernel.h"

namespace tessera {

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
                    const std::function<Dim(Dim)>& count);

/// The plan of a call whose inputs lie in memory on `device`: this thread's last ones are kept. It stays valid until
/// the thread asks again.
const CallPlan& call_plan(const Op& op, const Tensors& in, const Attrs& attrs, Device device, bool keep_hidden);

/// By the kernel of the op's list that is picked, for tensors that lie like these.
Ref<Plan> make_plan(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, std::span<const TensorMeta> out);
/// The same by one kernel, which must support the call.
Ref<Plan> make_plan(const Kernel& kernel, const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                    std::span<const TensorMeta> out);

/// Runs a plan. Throws Error `plan of kernel 'gemm': tensor 1 is f32[2, 3] on cpu, not ...` where tensors do not lie as
/// it was made for.
void run_plan(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out);
/// The same of tensors that are known to.
void run_as_planned(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out);

/// Plans and runs a call on tensors that are there; hidden outputs may be undefined.
void run_op(const Op& op, std::span<const Tensor> in, const Attrs& attrs, std::span<const Tensor> out);

}  // namespace tessera
