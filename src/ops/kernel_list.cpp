#include "ops/kernel_list.h"

#include <fmt/format.h>

#include "kernels/kernel_lists.h"
#include "ops/op_table.h"
#include "ops/picks.h"

namespace tessera {
namespace {

struct Forced {
  std::string_view op;
  std::string kernel;
};
thread_local SmallVector<Forced, 2> forced;

std::span<const KernelTableEntry> table_of(DeviceType device) {
  return device == DeviceType::CPU ? cpu_kernel_table() : gpu_kernel_table();
}

// Joins ops with the tables of the backends, once.
void link_tables() {
  for (int d = 0; d < kDeviceTypeCount; ++d)
    for (const KernelTableEntry& entry : table_of(static_cast<DeviceType>(d)))
      find_op(entry.op).kernels[d] = entry.kernels;
}

Reason support(const Kernel& kernel, const Call& call) {
  if (const std::string* name = forced_kernel(call.op); name && *name != kernel.name) return Reason::NotForced;
  return supports(kernel, call);
}

std::string describe_inputs(const Call& call) {
  std::string text;
  for (const Operand& t : call.in) text += (text.empty() ? "" : ", ") + describe(t);
  return text;
}

}  // namespace

const std::string* forced_kernel(const Op& op) {
  for (size_t i = forced.size(); i-- > 0;)
    if (forced[i].op == op.name) return &forced[i].kernel;
  return nullptr;
}

static KernelList list_of(const Op& op, DeviceType device) {
  static const bool linked = (link_tables(), true);
  (void)linked;
  return op.kernels[static_cast<size_t>(device)];
}
bool has_kernels(const Op& op, DeviceType device) { return !list_of(op, device).empty(); }
KernelList kernels_for(const Op& op, DeviceType device) {
  const KernelList list = list_of(op, device);
  if (list.empty()) throw Error(fmt::format("{}: no kernel on {}", op.name, to_string(Device{device, 0})));
  return list;
}

// One line for a kernel that was forced, else all the reasons.
[[noreturn]] static void refuse(const Call& call) {
  const std::string* name = forced_kernel(call.op);
  if (!name) throw Error(fmt::format("{}: no kernel takes {}\n{}", call.op.name, describe_inputs(call), explain(call)));
  std::string there;
  for (const Kernel& kernel : kernels_for(call.op, call_device(call).type)) {
    if (*name == kernel.name)
      throw Error(fmt::format("{}: kernel '{}', which is forced, {}: {}", call.op.name, *name,
                              sentence(supports(kernel, call)), describe_inputs(call)));
    there += (there.empty() ? "" : ", ") + std::string(kernel.name);
  }
  throw Error(fmt::format("{}: {} has no kernel '{}', which is forced, but {}", call.op.name,
                          to_string(call_device(call)), *name, there));
}

const Kernel& pick_kernel(const Call& call) {
  KernelList list = kernels_for(call.op, call_device(call).type);
  if (!forced.empty() && forced_kernel(call.op)) {
    for (const Kernel& kernel : list)
      if (support(kernel, call) == Reason::Ok) return kernel;
  } else {
    if (list.size() > 1 && picks_are_used())
      if (const Kernel* kernel = picked_kernel(call, list)) return *kernel;
    for (const Kernel& kernel : list)
      if (supports(kernel, call) == Reason::Ok) return kernel;
  }
  refuse(call);
}

std::string explain(const Call& call) {
  if (call.op.compute) return "   made of other operators, or by the host: there is no kernel to choose\n";
  KernelList list = kernels_for(call.op, call_device(call).type);
  Pick pick;
  const Kernel* chosen = nullptr;
  if (list.size() > 1 && picks_are_used() && !forced_kernel(call.op)) chosen = picked_kernel(call, list, &pick);
  const bool by_pick = chosen;
  std::string text;
  for (const Kernel& kernel : list) {
    const Reason reason = support(kernel, call);
    if (!chosen && reason == Reason::Ok) chosen = &kernel;
    text += fmt::format("{} {:<16} {}", &kernel == chosen ? "->" : "  ", kernel.name,
                        &kernel == chosen      ? (by_pick ? "chosen by measurement" : "chosen")
                        : reason != Reason::Ok ? sentence(reason)
                        : by_pick              ? "supported, but not what was picked"
                                               : "supported, but listed after the chosen one");
    for (const auto& [name, time] : pick.microseconds)
      if (name == kernel.name) text += fmt::format(", {:.1f} us", time);
    text += '\n';
  }
  if (!pick.when.empty()) text += fmt::format("measured {}\n", pick.when);
  if (!pick.kernel.empty() && !by_pick)
    text += fmt::format("ignored: a pick of '{}', which cannot run this\n", pick.kernel);
  return text;
}

std::string explain_plan(const Call& call) {
  if (call.op.compute) return "";
  Plan plan;
  plan_call(call.op, call.in, call.attrs, call.out, plan);
  return fmt::format("   listed in {}\n{}", text_of(pick_kernel(call).where), plan.describe());
}

void plan_call(const Op& op, std::span<const Operand> in, const Attrs& attrs, std::span<const Operand> out,
               Plan& plan) {
  Call call{op, in, attrs, out};
  const Kernel& kernel = pick_kernel(call);
  call.state = kernel.state;
  kernel.plan(call, plan);
}

ForceKernel::ForceKernel(std::string_view op, std::string kernel) {
  const Op& found = find_op(op);
  bool known = false;
  for (int d = 0; d < kDeviceTypeCount; ++d)
    for (const KernelTableEntry& entry : table_of(static_cast<DeviceType>(d)))
      if (entry.op == op)
        for (const Kernel& k : entry.kernels) known |= kernel == k.name;
  if (found.registered)
    for (const KernelList& list : found.kernels)
      for (const Kernel& k : list) known |= kernel == k.name;
  if (!known) throw Error(fmt::format("{}: no device has a kernel named '{}'", op, kernel));
  forced.push_back({found.name, std::move(kernel)});
}
ForceKernel::~ForceKernel() { forced.pop_back(); }

}  // namespace tessera
