#include "tessera/foreign.h"

#include <mutex>
#include <utility>

#include "core/gpu/backend.h"
#include "core/gpu/foreign.h"
#include "core/util/spin_lock.h"
#include "core/util/waiting.h"

namespace tessera {
namespace {

struct Foreign {
  std::function<void()> release;
  SpinLock lock;
  std::vector<std::shared_ptr<Stream::State>> users = {};
};

void release_foreign(Storage& storage) {
  const std::unique_ptr<Foreign> foreign(static_cast<Foreign*>(storage.owner));
  for (const auto& user : foreign->users) {
    if (!user->on || gpu::capture_on(*user->on)) continue;
    try {
      gpu::enter(*user->on);
      user->on->runtime.synchronize(user->handle);
    } catch (const Error&) {  // a lost device, which works on nothing
    }
  }
  foreign->release();
}

}  // namespace

bool gpu::note_foreign_use(Storage& storage, const std::shared_ptr<Stream::State>& stream) {
  if (storage.release != release_foreign) return false;
  auto& foreign = *static_cast<Foreign*>(storage.owner);
  const std::lock_guard lock(foreign.lock);
  foreign.users.push_back(stream);
  return true;
}

namespace foreign {

StreamHandle handle_of(const Stream& stream) { return stream.state()->handle; }

StreamHandle default_stream(Device device) {
  const uintptr_t legacy = device.type == DeviceType::CUDA ? 1 : 0;  // cudaStreamLegacy
  return reinterpret_cast<StreamHandle>(legacy);
}

void wait(StreamHandle theirs, const Stream& ours) {
  settle();
  gpu::DeviceState* on = ours.state()->on;
  if (!on) return;
  gpu::enter(*on);
  const gpu::EventHandle done = on->runtime.create_event(false);
  try {
    on->runtime.record(done, ours.state()->handle);
    on->runtime.wait(theirs, done);
  } catch (...) {
    on->runtime.destroy_event(done);
    throw;
  }
  on->runtime.destroy_event(done);  // who waits for it goes on to
}

Ref<Storage> adopt(void* data, size_t bytes, Device device, std::function<void()> release) {
  auto owner = std::make_unique<Foreign>(std::move(release));
  if (device.is_card()) owner->users.push_back(current_stream(device).state());
  auto storage = make_ref<Storage>();
  storage->data = data;
  storage->bytes = bytes;
  storage->device = device;
  storage->owner = owner.release();
  storage->release = release_foreign;
  storage->shown = true;
  return storage;
}

Loan::Loan(Ref<Storage> storage, std::optional<StreamHandle> theirs) : storage_(std::move(storage)) {
  if (!storage_->device.is_card()) return;
  auto& on = gpu::state(storage_->device);
  const bool lives = theirs == default_stream(on.device) || theirs == gpu::stream_of(on).handle;
  wait_ = !lives || storage_->release == release_foreign;
  if (!wait_) on.allocator.use(static_cast<gpu::Block*>(storage_->owner), *theirs);
}

Loan::~Loan() {
  if (!wait_) return;
  try {
    auto& on = gpu::state(storage_->device);
    if (gpu::capture_on(on)) return;
    gpu::enter(on);
    on.runtime.synchronize_device();
  } catch (const Error&) {  // a lost device, which works on nothing
  }
}

}  // namespace foreign
}  // namespace tessera
