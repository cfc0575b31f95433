// Collectives on their way: a thread of the group makes them one after another.
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "core/capture_state.h"
#include "dist/group.h"
#include "tessera/autograd.h"

namespace tessera::dist {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Tensor result;
  std::exception_ptr failure;
};

Tensor Work::wait() {
  if (!state_) throw Error("Work: nothing was started");
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->failure) std::rethrow_exception(state_->failure);
  return state_->result;
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

Work start(const Group& group, std::function<Tensor()> collective) {
  if (is_capturing()) throw Error("start: a captured function cannot hold a collective on its way");
  Work work;
  work.state_ = std::make_shared<Work::State>();
  group.state().later([state = work.state_, collective = std::move(collective)] {
    const NoGrad no_grad;
    Tensor result;
    std::exception_ptr failure;
    try {
      result = collective();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(state->mutex);
    state->result = std::move(result);
    state->failure = failure;
    state->done = true;
    state->changed.notify_all();
  });
  return work;
}

}  // namespace tessera::dist
