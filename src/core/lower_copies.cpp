#include "core/lower_copies.h"

#include <mutex>
#include <unordered_map>

#include "core/capture_state.h"
#include "core/gpu/backend.h"

namespace tessera {
namespace {

gpu::StreamHandle stream_of(const Tensor& t) { return gpu::stream_of(gpu::state(t.device())).handle; }

struct Entry {
  int owners = 0;
  Tensor copy;
  Ref<Storage> storage;  // of the parameter
  uint32_t version = 0;
  uint64_t replays = 0;
  gpu::StreamHandle stream = nullptr;  // which it was written on: others do not wait for that

  bool is_fresh(const Tensor& parameter) const {
    return copy.defined() && storage == parameter.storage() && version == parameter.storage()->version.load() &&
           replays == gpu::replays() && stream == stream_of(parameter);
  }
};

struct Table {
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, Entry> entries;
  Entry* find(const Tensor& parameter) {
    const auto found = entries.find(parameter.ref().get());
    return found == entries.end() ? nullptr : &found->second;
  }
};
Table& table() {
  static auto* table = new Table;
  return *table;
}

bool may_have_copy(const Tensor& t) {
  return t.device().is_card() && !is_capturing() && !gpu::capture_on(gpu::state(t.device()));
}

}  // namespace

void allow_lower_copy(const Tensor& parameter) {
  const std::lock_guard lock(table().mutex);
  ++table().entries[parameter.ref().get()].owners;
}

void drop_lower_copy(const Tensor& parameter) {
  const std::lock_guard lock(table().mutex);
  Entry* const entry = table().find(parameter);
  if (entry && --entry->owners == 0) table().entries.erase(parameter.ref().get());
}

void keep_lower_copy(const Tensor& parameter, const Tensor& copy) {
  if (!may_have_copy(parameter)) return;
  const std::lock_guard lock(table().mutex);
  Entry* const entry = table().find(parameter);
  if (!entry) return;
  *entry = {entry->owners,  copy.detach(),       parameter.storage(), parameter.storage()->version.load(),
            gpu::replays(), stream_of(parameter)};
}

Tensor lower_copy(const Tensor& parameter, DType dtype) {
  if (!may_have_copy(parameter)) return {};
  const std::lock_guard lock(table().mutex);
  const Entry* const entry = table().find(parameter);
  return entry && entry->is_fresh(parameter) && entry->copy.dtype() == dtype ? entry->copy.detach() : Tensor();
}

Tensor writable_lower_copy(const Tensor& parameter) {
  if (!may_have_copy(parameter)) return {};
  const std::lock_guard lock(table().mutex);
  const Entry* const entry = table().find(parameter);
  return entry && entry->is_fresh(parameter) && entry->copy.storage().unique() ? entry->copy.detach() : Tensor();
}

void wrote_lower_copy(const Tensor& parameter, const void* copy) {
  const std::lock_guard lock(table().mutex);
  Entry* const entry = table().find(parameter);
  if (!entry || !entry->copy.defined() || entry->copy.data_ptr() != copy) return;
  entry->version = parameter.storage()->version.load() + 1;  // as the call will leave it
  entry->copy.storage()->version.fetch_add(1);
}

void forget_lower_copy(const Tensor& parameter) {
  const std::lock_guard lock(table().mutex);
  Entry* const entry = table().find(parameter);
  if (!entry) return;
  const int owners = entry->owners;
  *entry = {};
  entry->owners = owners;
}

}  // namespace tessera
