// cuDNN behind the convolution's arguments: opened at run time where it is installed, never needed.
#include <cstring>

#include "cudnn_conv.h"
#include "cudnn_planner.h"
#include "kernels/args/gpu/vendor_limits.h"
#include "kernels/gpu/device/runtime/host.h"

namespace tessera::gpu_kernels {
namespace {

struct ConvKey {
  ConvArgs args;
  ConvPart part;
  int device;
};

ConvKey key_of(ConvPart part, const ConvArgs& args) {
  ConvKey key;
  std::memset(static_cast<void*>(&key), 0, sizeof key);
  std::memcpy(static_cast<void*>(&key.args), &args, sizeof args);
  for (ConvTensor* t : {&key.args.x, &key.args.w, &key.args.y}) t->data = alignment_key(t->data);
  key.args.bias = key.args.workspace = nullptr;
  key.part = part;
  key.device = cudnn::current_device();
  return key;
}

cudnn::Entry& entry_of(ConvPart part, const ConvArgs& args) {
  return cudnn::planner().entry(bytes_of(key_of(part, args)), [&](const cudnn::Target& target) {
    return cudnn::plan_convolution(target, part, args, vendor_conv_workspace);
  });
}

long long workspace(ConvPart part, const ConvArgs& args) {
  const std::lock_guard lock(cudnn::planner().mutex);
  return cudnn::Planner::workspace(entry_of(part, args));
}

bool on_matrix_cores(ConvPart part, const ConvArgs& args) {
  const std::lock_guard lock(cudnn::planner().mutex);
  const std::optional<cudnn::Plan>& plan = entry_of(part, args).outcome.plan();
  return plan && plan->on_matrix_cores;
}

void run(ConvPart part, const ConvArgs& args, Executor& executor) {
  const std::lock_guard lock(cudnn::planner().mutex);
  const int64_t ids[] = {cudnn::id_x, cudnn::id_w, cudnn::id_y};
  void* const pointers[] = {args.x.data, args.w.data, args.y.data};
  cudnn::planner().run(entry_of(part, args), ids, pointers, args.workspace, executor, "a convolution");
}

}  // namespace

const VendorConvTable* vendor_conv_table() {
  static const VendorConvTable table{workspace, on_matrix_cores, run, cudnn::library().version};
  return cudnn::library().complete ? &table : nullptr;
}

}  // namespace tessera::gpu_kernels
