// Optimizer steps per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

struct StepTensor {
  long long count;
  void* param;       // contiguous, `param_type`
  const void* grad;  // contiguous, `grad_type`
  void* state[2];    // contiguous, f32 (f64 for f64 parameters)
  Scalar param_type, grad_type;
  Scalar lower_type = Scalar::bf16;
  unsigned char param_gap = 0, grad_gap = 0, lower_gap = 0;  // elements between rows, on GPUs
  void* lower = nullptr;                                     // gets what param becomes; null: nothing does
  int length = 0, width = 0;  // of rows with gaps: in elements, and in places, which `count` counts, as states lie
};

struct StepArgs {
  bool adam;  // otherwise SGD
  int states;
  long long tensors;
  const StepTensor* tensor;
  double lr, grad_scale, step;  // step: completed before this one
  double beta1, beta2, eps, weight_decay, momentum, dampening;
  bool decoupled, nesterov;
};

struct SquaresArgs {
  long long tensors;
  const StepTensor* tensor;  // grad, grad_type and count are read
};

struct UnscaleArgs {
  long long tensors;
  const StepTensor* tensor;  // param, param_type and count are read
  double factor;
};

struct OptimTable {
  void (*step)(const StepArgs& args, Executor& executor);
  /// The sum of squares over all tensors; the same for any number of threads.
  double (*squares)(const SquaresArgs& args, Executor& executor);
  /// Multiplies by the factor; whether a product is inf or NaN.
  bool (*unscale)(const UnscaleArgs& args, Executor& executor);
  void (*update_scale)(double& scale, int& count, bool found_inf, double growth, double backoff, long long interval);
};

#define TESSERA_OPTIM_TABLE(isa)       \
  namespace isa {                      \
  extern const OptimTable optim_table; \
  }
TESSERA_OPTIM_TABLE(baseline)
TESSERA_OPTIM_TABLE(avx2)
TESSERA_OPTIM_TABLE(avx512)
#undef TESSERA_OPTIM_TABLE

}  // namespace tessera::TESSERA_KERNELS
