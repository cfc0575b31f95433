// Memory and streams of other libraries, by the handles of the vendor's run-time library. On the CPU, where work is
// done when a call returns, streams have no handle and nothing waits.
#pragma once
#include <functional>
#include <optional>

#include "tessera/stream.h"

namespace tessera::foreign {

/// A cudaStream_t or a hipStream_t.
using StreamHandle = void*;
/// Null on the CPU.
StreamHandle handle_of(const Stream& stream);
/// The vendor's default stream, which lives for good.
StreamHandle default_stream(Device device);

/// Work that `theirs`, a stream on the device of `ours`, gets from now on waits for what `ours` has been given.
void wait(StreamHandle theirs, const Stream& ours);

/// Memory of another library. `release` gives it back, once and in any thread: after the work of this thread's current
/// stream, and of those that record_stream() names. A graph that uses it does not keep it. Throws Error where the
/// device cannot be used.
Ref<Storage> adopt(void* data, size_t bytes, Device device, std::function<void()> release);

/// What another library holds of a storage while a stream of its works on it, which may be unknown. Once it is
/// let go, the memory is not handed out before that work is done: later work of ours waits for the vendor's default
/// stream, and the host for the whole device where it is another one, which may be gone by then.
class Loan {
 public:
  Loan(Ref<Storage> storage, std::optional<StreamHandle> theirs);
  ~Loan();
  Loan(const Loan&) = delete;

 private:
  Ref<Storage> storage_;
  bool wait_ = false;
};

}  // namespace tessera::foreign
