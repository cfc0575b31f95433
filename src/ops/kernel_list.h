// Which kernel of its ordered list runs a call, and why not the others.
#pragma once
#include <string>

#include "core/kernel.h"

namespace tessera {

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

/// A line per entry of the list: chosen, or why it was passed over.
std::string explain(const Call& call);
/// What the chosen one runs: a line per launch, and one for the workspace.
std::string explain_plan(const Call& call);

}  // namespace tessera
