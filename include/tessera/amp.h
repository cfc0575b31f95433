// Automatic mixed precision: autocast, and losses scaled so that small gradients survive in f16.
//
//   amp::GradScaler scaler;
//   {
//     amp::Autocast guard(Float16);
//     loss = cross_entropy(model(x), target);
//   }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);
//   scaler.update();
#pragma once
#include <vector>

#include "tessera/autocast.h"
#include "tessera/optim.h"

namespace tessera::amp {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;  ///< of the scale, after so many steps without inf or NaN:
  int64_t growth_interval = 2000;
  double backoff_factor = 0.5;  ///< of the scale, after a step that was skipped
  bool enabled = true;          ///< false: losses, gradients and steps are left alone
};

/// Scales losses by the largest factor with which gradients do not overflow, as PyTorch's. All state lives on the
/// device of the losses, and a step is skipped there: nothing waits for the device. Micikevicius et al. 2018.
class GradScaler {
 public:
  /// Throws Error unless init_scale is positive, growth_factor above 1, backoff_factor in (0, 1), growth_interval
  /// positive.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// The loss, in f32 or f64, times the scale.
  Tensor scale(const Tensor& loss);
  /// Divides the gradients by the scale, to clip or look at them before `step`, which otherwise does it. Throws Error
  /// the second time since `update`, after `step`, for f16 gradients, without any gradient, and if no loss was scaled.
  void unscale_(optim::Optimizer& optimizer);
  /// The optimizer's step, which changes nothing if a gradient is inf or NaN. Returns whether it was so, 0-d bool, on
  /// the device. Throws Error the second time since `update`, and as unscale_.
  Tensor step(optim::Optimizer& optimizer, const optim::StepOptions& options = {});
  /// Ends an iteration: adapts the scale. Throws Error if there was no step.
  void update();

  bool enabled() const { return options_.enabled; }
  /// The scale now; waits for the device. 1 if not enabled.
  double current_scale() const;
  /// "scale" and "growth_tracker" (steps since the scale changed); nothing if not enabled. As with optimizers, options
  /// are not part of it.
  StateDict state_dict() const;
  /// Throws Error unless `dict` is the state of a scaler that is enabled as this one; then nothing has been changed.
  void load_state_dict(const StateDict& dict);

 private:
  enum class Stage { Unscaled, Stepped };
  struct Use {
    const optim::Optimizer* optimizer;
    Stage stage;
    Tensor found_inf;
  };
  Use* find(const optim::Optimizer& optimizer);
  void require_device(Device device);

  GradScalerOptions options_;
  Tensor scale_, growth_tracker_;  // 0-d f32, i32
  bool scaled_ = false;            // a loss, since the last update
  std::vector<Use> uses_;          // since the last update
};

}  // namespace tessera::amp
