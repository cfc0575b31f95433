// Optimizer steps over many tensors at once. All state, step count and learning rate included, lives on the device, so
// that a captured step can be replayed.
#pragma once
#include "core/attrs.h"
#include "tessera/tensor.h"

namespace tessera {

/// What a step reads besides the gradients; 0-d f32 tensors.
struct StepInputs {
  Tensor lr;
  Tensor grad_scale;  ///< gradients are multiplied by it (clipping, loss scaling); may be undefined
  Tensor found_inf;   ///< bool: nothing changes where true; may be undefined
};

/// Adam (Kingma & Ba 2015), and AdamW (Loshchilov & Hutter 2019) where `attrs.decoupled`. Updates parameters, moments
/// and `step` (0-d f32, completed steps). Moments have the shapes of their parameters, in f32 (f64 for f64). `copies`:
/// none, or for each parameter an undefined tensor or its copy in f16 or bf16, which gets what the parameter becomes
/// and stays as it is where the step is skipped.
void adam_(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq, const Tensor& step,
           const Tensors& grads, const StepInputs& inputs, const OptimAttrs& attrs, const Tensors& copies = {});

/// Stochastic gradient descent; with `attrs.momentum` the buffers hold the velocity, otherwise they are empty. `copies`
/// as in adam_.
void sgd_(const Tensors& params, const Tensors& momentum, const Tensor& step, const Tensors& grads,
          const StepInputs& inputs, const OptimAttrs& attrs, const Tensors& copies = {});

/// Divides gradients by `scale` (0-d f32), and sets `found_inf` (0-d bool) if a result is inf or NaN.
void unscale_(const Tensors& grads, const Tensor& found_inf, const Tensor& scale);

/// Multiplies `scale` by `attrs.backoff` where `found_inf`, otherwise by `attrs.growth` (unless that overflows) each
/// time that `growth_tracker` (0-d i32), which counts the calls in between, reaches `attrs.interval`.
void update_scale_(const Tensor& scale, const Tensor& growth_tracker, const Tensor& found_inf, const ScaleAttrs& attrs);

/// sqrt of the sum of squares over all tensors: 0-d f32 (f64 for f64).
Tensor global_norm(const Tensors& tensors);

}  // namespace tessera
