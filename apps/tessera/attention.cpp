#include "attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/gpu/backend.h"
#include "ops/call_plan.h"
#include "ops/op_table.h"
#include "tessera/ops.h"

namespace tessera::app {
namespace {

// What a small call on halves meets for each kernel of an operator: Hardware, Library and Order hold for any call.
std::map<std::string, Reason> reasons(const Op& op, const Tensors& in, const Tensors& out) {
  std::map<std::string, Reason> found;
  const Attrs attrs = AttentionAttrs{};
  const auto ins = operands_of({in.data(), in.size()}), outs = operands_of({out.data(), out.size()});
  const Call call{op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()}};
  if (call_device(call).is_gpu()) gpu::begin_call(call_device(call));
  for (const Kernel& kernel : kernels_for(op, call_device(call).type)) found[kernel.name] = supports(kernel, call);
  return found;
}
bool is_there(Reason reason) {
  return reason != Reason::Hardware && reason != Reason::Library && reason != Reason::Order;
}

}  // namespace

void AttentionChoice::add_to(Command app) {
  app.option("--attention", name_,
             "kernel of attention: auto, math, which keeps the scores, or another that `tessera explain sdpa` lists; "
             "one that adds up in any order is for the backward alone")
      .with_default();
}

void AttentionChoice::apply(Device device) {
  if (name_ == "auto") return;
  const Tensor x = empty({1, 1, 128, 64}, Float16, device), rows = empty({1, 1, 128}, Float32, device);
  const auto forward = reasons(find_op("scaled_dot_product_attention"), {x, x, x, {}, {}}, {x, rows}),
             backward =
                 reasons(find_op("scaled_dot_product_attention_backward"), {x, x, rows, x, x, x, {}, {}}, {x, x, x});
  const std::string once = name_.substr(0, name_.find("-any-order"));
  const auto check = [&](const std::map<std::string, Reason>& kernels, const std::string& name) {
    const auto found = kernels.find(name);
    if (found != kernels.end() && is_there(found->second)) return;
    std::vector<std::string> there;
    for (const auto& [kernel, reason] : kernels)
      if (is_there(reason)) there.push_back(kernel);
    const std::string why = found == kernels.end() ? "" : fmt::format("it {}; ", sentence(found->second));
    throw UsageError(
        fmt::format("--attention {}: {}{} has {}", name_, why, to_string(device), fmt::join(there, " and ")));
  };
  check(forward, once);
  check(backward, name_);
  for (const char* op : {"scaled_dot_product_attention", "attention_qkv"}) {
    forced_.emplace_back(op, once);
    forced_.emplace_back(op + std::string("_backward"), name_);
  }
}

}  // namespace tessera::app
