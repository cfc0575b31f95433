#include "attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ops/op_table.h"

namespace tessera::app {

void AttentionChoice::add_to(Command app) {
  app.option("--attention", name_,
             "kernel of attention: auto, flash, mem-efficient, cudnn, or math, which keeps the scores")
      .one_of({"auto", "math", "flash", "mem-efficient", "cudnn"})
      .with_default();
}

void AttentionChoice::apply(Device device) {
  if (name_ == "auto") return;
  std::vector<std::string> there;
  for (const Kernel& kernel : kernels_for(find_op("scaled_dot_product_attention"), device.type))
    there.push_back(kernel.name);
  if (std::find(there.begin(), there.end(), name_) == there.end())
    throw UsageError(fmt::format("--attention {}: {} has {}", name_, to_string(device), fmt::join(there, " and ")));
  for (const char* op : {"scaled_dot_product_attention", "scaled_dot_product_attention_backward", "attention_qkv",
                         "attention_qkv_backward"})
    forced_.emplace_back(op, name_);
}

}  // namespace tessera::app
