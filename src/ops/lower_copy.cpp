#include "ops/lower_copy.h"

#include "core/capture_state.h"
#include "core/gpu/backend.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

uint32_t version_of(const Tensor& t) { return t.storage()->version.load(std::memory_order_relaxed); }

}  // namespace

CopyOrigin::CopyOrigin(const Tensor& source) : storage(source.storage()) {
  if (!source.device().is_card()) return;
  graph = gpu::graph_being_captured(source.device());
  replays = gpu::replays();
  stream = gpu::stream_of(gpu::state(source.device())).handle;
}

void LowerCopy::keep(const Tensor& parameter, const Tensor& copy) {
  if (!parameter.device().is_card() || is_capturing()) return;
  CopyOrigin origin(parameter);
  if (origin.graph) return;
  const std::lock_guard lock(mutex_);
  copy_ = copy.detach();
  origin_ = std::move(origin);
  lead_ = version_of(parameter) - version_of(copy);
}

bool LowerCopy::is_fresh(const Tensor& parameter) const {
  return copy_.defined() && lead_ == version_of(parameter) - version_of(copy_) && origin_ == CopyOrigin(parameter);
}

Tensor LowerCopy::fresh(const Tensor& parameter) const {
  if (is_capturing()) return {};
  const std::lock_guard lock(mutex_);
  return is_fresh(parameter) ? copy_.detach() : Tensor();
}

Tensor LowerCopy::writable(const Tensor& parameter) const {
  if (!parameter.device().is_card()) return {};
  const std::lock_guard lock(mutex_);
  return is_fresh(parameter) && copy_.storage().unique() ? copy_.detach() : Tensor();
}

void LowerCopy::drop() {
  const std::lock_guard lock(mutex_);
  copy_ = {};
  origin_ = {};
}

std::shared_ptr<LowerCopy> share_lower_copy(const Tensor& parameter) {
  auto known = find_lower_copy(parameter);
  if (known) return known;
  known = std::make_shared<LowerCopy>();
  parameter.impl().autograd->derived = known;
  return known;
}

std::shared_ptr<LowerCopy> find_lower_copy(const Tensor& parameter) {
  const AutogradMeta* meta = parameter.impl().autograd.get();
  return meta ? std::static_pointer_cast<LowerCopy>(meta->derived.lock()) : nullptr;
}

}  // namespace tessera
