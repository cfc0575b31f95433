// Local SGD in a run of training: ranks that step by themselves, and what makes them one again.
#pragma once
#include <optional>

#include "tessera/amp.h"
#include "tessera/dist.h"
#include "tessera/optim.h"
#include "train/ranks.h"

namespace tessera::train {

/// Off without options, and where there is one rank.
class Averaging {
 public:
  /// Throws Error where the options cannot be with so many ranks.
  Averaging(std::optional<dist::LocalSGDOptions> options, const Ranks& ranks);
  bool is_on() const { return options_.has_value(); }
  /// From that step on. `state` is that of a checkpoint; empty: outer momentum begins anew.
  void begin(const nn::Module& model, int64_t first_step, const StateDict& state);
  /// Whether gradients are still those of all ranks.
  bool is_warming_up() const { return local_ && local_->steps() < options_->warmup; }
  const dist::DataParallel* parallel() const { return local_ ? local_->parallel() : nullptr; }
  /// After a step of the optimizer.
  void step(double lr) {
    if (local_) local_->step(lr);
  }
  /// Whether all ranks exchanged something in the last step; true where it is off.
  bool all_met() const { return !local_ || local_->all_met(); }
  /// Makes parameters, moments of the optimizer and buffers of all ranks their mean, and of what is counted or scales
  /// the loss that of rank 0. False where nothing has changed since the last time.
  bool unite(const nn::Module& model, const optim::Optimizer& optimizer, const amp::GradScaler& scaler);
  StateDict state_dict() const { return local_ ? local_->state_dict() : StateDict(); }

 private:
  std::optional<dist::LocalSGDOptions> options_;
  Ranks ranks_;
  std::optional<dist::LocalSGD> local_;
  int64_t united_at_ = 0;
};

}  // namespace tessera::train
