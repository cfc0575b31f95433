#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/optim.h"
#include "tessera/amp.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera::amp {

GradScaler::GradScaler(const GradScalerOptions& o)
    : options_(o), scale_(full({}, o.init_scale)), growth_tracker_(zeros({}, Int32)) {
  if (!(o.init_scale > 0 && std::isfinite(o.init_scale)) || !(o.growth_factor > 1 && std::isfinite(o.growth_factor)) ||
      !(o.backoff_factor > 0 && o.backoff_factor < 1) || o.growth_interval < 1)
    throw Error(fmt::format("GradScaler: scale {}, growth by {} every {} steps, backoff by {} make no scale",
                            o.init_scale, o.growth_factor, o.growth_interval, o.backoff_factor));
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!enabled()) return loss;
  if (!is_floating(loss.dtype())) throw Error("GradScaler::scale: the loss is " + describe(loss));
  require_device(loss.device());
  scaled_ = true;
  return mul(loss.dtype() == Float64 ? loss : cast(loss, Float32), scale_);
}

void GradScaler::unscale_(optim::Optimizer& optimizer) {
  if (!enabled()) return;
  if (const Use* use = find(optimizer))
    throw Error(use->stage == Stage::Unscaled
                    ? "GradScaler::unscale_: called a second time for this optimizer since update()"
                    : "GradScaler::unscale_: called after step() and before update()");
  if (!scaled_) throw Error("GradScaler::unscale_: no loss was scaled since update()");
  Tensors grads;
  for (const Tensor& p : optimizer.parameters()) {
    Tensor grad = p.grad();
    if (!grad.defined()) continue;
    if (grad.dtype() == Float16)
      throw Error(fmt::format(
          "GradScaler::unscale_: the gradient {} would lose its small values: keep parameters in f32", describe(grad)));
    grads.push_back(std::move(grad));
  }
  if (grads.empty()) throw Error("GradScaler::unscale_: no parameter of the optimizer has a gradient");
  NoGrad guard;
  const Tensor found_inf = zeros({}, Bool, scale_.device());
  tessera::unscale_(grads, found_inf, scale_);
  uses_.push_back({&optimizer, Stage::Unscaled, found_inf});
}

Tensor GradScaler::step(optim::Optimizer& optimizer, const optim::StepOptions& options) {
  if (!enabled()) {
    optimizer.step(options);
    return options.found_inf.defined() ? options.found_inf : zeros({}, Bool, scale_.device());
  }
  Use* use = find(optimizer);
  if (!use) {
    unscale_(optimizer);
    use = &uses_.back();
  }
  if (use->stage == Stage::Stepped)
    throw Error("GradScaler::step: called a second time for this optimizer since update()");
  optim::StepOptions with = options;
  with.found_inf = options.found_inf.defined() ? logical_or(use->found_inf, options.found_inf) : use->found_inf;
  optimizer.step(with);
  use->stage = Stage::Stepped;
  return with.found_inf;
}

void GradScaler::update() {
  if (!enabled()) return;
  if (uses_.empty()) throw Error("GradScaler::update: there was no step since the last update()");
  NoGrad guard;
  Tensor found_inf = uses_[0].found_inf;
  for (size_t i = 1; i < uses_.size(); ++i) found_inf = logical_or(found_inf, uses_[i].found_inf);
  update_scale_(scale_, growth_tracker_, found_inf,
                {options_.growth_factor, options_.backoff_factor, options_.growth_interval});
  uses_.clear();
  scaled_ = false;
}

double GradScaler::current_scale() const { return enabled() ? scale_.item() : 1; }

StateDict GradScaler::state_dict() const {
  if (!enabled()) return {};
  return {{"scale", scale_}, {"growth_tracker", growth_tracker_}};
}

void GradScaler::load_state_dict(const StateDict& dict) {
  const StateDict mine = state_dict();
  if (mine.size() != dict.size())
    throw Error(
        fmt::format("GradScaler::load_state_dict: {} tensors for a scaler that has {}", dict.size(), mine.size()));
  for (const auto& [name, t] : mine) {
    auto it = dict.find(name);
    if (it == dict.end()) throw Error("GradScaler::load_state_dict: missing " + name);
    if (it->second.shape() != t.shape() || it->second.dtype() != t.dtype())
      throw Error(fmt::format("GradScaler::load_state_dict: {} is {} here and {} there", name, describe(t),
                              describe(it->second)));
  }
  if (const double scale = enabled() ? dict.at("scale").item() : 1; !(scale > 0 && std::isfinite(scale)))
    throw Error(fmt::format("GradScaler::load_state_dict: {} is no scale", scale));
  NoGrad guard;
  for (auto [name, t] : mine) t.copy_(dict.find(name)->second);
}

GradScaler::Use* GradScaler::find(const optim::Optimizer& optimizer) {
  auto it = std::find_if(uses_.begin(), uses_.end(), [&](const Use& u) { return u.optimizer == &optimizer; });
  return it == uses_.end() ? nullptr : &*it;
}

// State begins on the CPU, since the device of the losses is not known before the first.
void GradScaler::require_device(Device device) {
  if (scale_.device() == device) return;
  scale_ = scale_.to(device);
  growth_tracker_ = growth_tracker_.to(device);
}

}  // namespace tessera::amp
