// What optimizer kernels of a GPU take. All that changes from step to step is read, and written, on the device: nothing
// waits, and a captured step can be replayed.
#pragma once

#include "kernels/args/optim.h"

namespace tessera::gpu_kernels {

/// A 0-d tensor; null data: absent.
struct ScalarArg {
  void* data;
  Scalar type;
};

struct DeviceStepArgs {
  bool adam;  // otherwise SGD
  int states;
  long long tensors;
  const StepTensor* tensor;
  ScalarArg lr, grad_scale, found_inf, step;  // step: completed before this one; counted up
  double beta1, beta2, eps, weight_decay, momentum, dampening;
  bool decoupled, nesterov;
};

/// out = sqrt of the sum of squares; reads grad, grad_type and count.
struct GlobalNormArgs {
  long long tensors;
  const StepTensor* tensor;
  ScalarArg out;
  void* workspace;  // as large as `norm_bytes` says
};

/// Divides param by the scale; found_inf becomes true where a quotient is not finite.
struct DeviceUnscaleArgs {
  long long tensors;
  const StepTensor* tensor;
  ScalarArg scale, found_inf;
};

struct UpdateScaleArgs {
  ScalarArg scale;
  int* count;
  const bool* found_inf;
  double growth, backoff;
  long long interval;
};

struct StepTable {
  void (*step)(const DeviceStepArgs& args, Executor& executor);
  long long (*norm_bytes)(long long tensors, const StepTensor* tensor);
  void (*norm)(const GlobalNormArgs& args, Executor& executor);
  void (*unscale)(const DeviceUnscaleArgs& args, Executor& executor);
  void (*update_scale)(const UpdateScaleArgs& args, Executor& executor);
};
const StepTable& step_table();

}  // namespace tessera::gpu_kernels
