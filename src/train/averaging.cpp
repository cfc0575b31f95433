#include "train/averaging.h"

#include <map>
#include <utility>

#include "tessera/autograd.h"

namespace tessera::train {
namespace {

void make_one(const StateDict& dict, const dist::Group& group) {
  std::map<DType, Tensors> means;
  for (const auto& [name, t] : dict) {
    if (is_floating(t.dtype()) && t.dim() > 0) means[t.dtype()].push_back(t);
    else Tensor(t).copy_(dist::broadcast(t, 0, group));
  }
  for (const auto& [dtype, tensors] : means) dist::all_reduce_(tensors, group, dist::Mean);
}

}  // namespace

Averaging::Averaging(std::optional<dist::LocalSGDOptions> options, const Ranks& ranks) : ranks_(ranks) {
  if (options) options->check(ranks.size());
  if (ranks.size() > 1) options_ = std::move(options);
}

void Averaging::begin(const nn::Module& model, int64_t first_step, const StateDict& state) {
  if (!is_on()) return;
  options_->first_step = first_step;
  local_.emplace(model, *ranks_.group, *options_);
  if (!state.empty() && options_->outer_momentum > 0) local_->load_state_dict(state);
  united_at_ = first_step;
}

bool Averaging::unite(const nn::Module& model, const optim::Optimizer& optimizer, const amp::GradScaler& scaler) {
  if (!local_ || std::exchange(united_at_, local_->steps()) == local_->steps()) return false;
  const NoGrad no_grad;
  local_->average();
  StateDict buffers;
  for (const auto& [name, t] : model.named_buffers()) buffers.emplace(name, t);
  for (const StateDict& dict : {buffers, optimizer.state_dict(), scaler.state_dict()}) make_one(dict, *ranks_.group);
  return true;
}

}  // namespace tessera::train
