// --attention: which of attention's kernels a subcommand uses.
#pragma once
#include <deque>

#include "command.h"
#include "core/op.h"
#include "ops/call_plan.h"

namespace tessera::app {

/// Forces a kernel for attention, forward and backward, while it lives.
class AttentionChoice {
 public:
  void add_to(Command app);
  /// Begins to force. Throws UsageError if the device has no kernel of that name.
  void apply(Device device);
  const std::string& name() const { return name_; }

 private:
  std::string name_ = "auto";
  std::deque<ForceKernel> forced_;
};

}  // namespace tessera::app
