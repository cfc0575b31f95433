// A call that waits for the one that follows it, since both may be one pass: relu(batch_norm(x)). At most one waits in
// a process. Whatever could tell that it has not run, runs it first: other calls, streams and events, and whoever looks
// at a tensor's memory or at its place in the graph.
#pragma once
#include <memory>

#include "tessera/tensor.h"

namespace tessera {

class WaitingCall {
 public:
  virtual ~WaitingCall() = default;
  /// Gives the tensor that it has promised what it lacks. Once, in whichever thread needs it.
  virtual void run() = 0;
};

/// Runs the call that waits, if there is one.
inline void settle() {
  if (detail::call_waits.load(std::memory_order_acquire)) [[unlikely]]
    detail::run_waiting_call();
}
/// Lets `call` wait; one that waits already is run.
void let_wait(std::unique_ptr<WaitingCall> call);
/// The call that this thread has left waiting, which waits no more; null: there is none.
std::unique_ptr<WaitingCall> take_waiting();

}  // namespace tessera
