// Order of work on GPUs: streams, events, captured graphs, page-locked memory. On the CPU streams and events
// are empty, since work is done when a call returns; there is nothing to capture or to time, which is an error.
#pragma once
#include <functional>
#include <memory>

#include "tessera/tensor.h"

namespace tessera {

namespace gpu {
struct Capture;
}

/// A queue of work on one device; copies are the same queue.
class Stream {
 public:
  /// A queue of its own, which waits for no other. Throws Error where the device cannot be used.
  explicit Stream(Device device);
  Device device() const;
  /// Waits until all that was queued is done. Throws what its kernels found wrong.
  void synchronize() const;
  bool is_idle() const;

  struct State;
  const std::shared_ptr<State>& state() const { return state_; }
  explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// The stream that this thread's calls on `device` go to.
Stream current_stream(Device device);

/// Sends this thread's calls on the stream's device to it while alive. What forward keeps for backward belongs to
/// forward's stream: a backward on another one must end, or be waited for there, before forward's goes on.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;

 private:
  std::shared_ptr<Stream::State> before_, stream_;
};

/// A point in a stream's work.
class Event {
 public:
  explicit Event(Device device, bool timed = false);
  /// Marks what has been queued so far. Throws Error for a stream of another GPU.
  void record(const Stream& stream);
  /// Later work of `stream` waits for it, on whichever GPU of the same vendor; of another one it throws Error.
  void wait(const Stream& stream) const;
  void synchronize() const;
  bool has_happened() const;
  /// From `start` to here; both were made with `timed`.
  float milliseconds_since(const Event& start) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Says that work queued on `stream` uses `tensor`: its memory is not handed out again before that work is done. Throws
/// Error where they are of different GPUs; on the CPU, where work is done at once, there is nothing to wait for.
void record_stream(const Tensor& tensor, const Stream& stream);

/// Page-locked host memory, from which copies to `device` run while the host goes on. On the CPU: `empty`.
Tensor empty_pinned(const Shape& shape, DType dtype, Device device);
/// to.copy_(from), of which the host sees the end only by synchronising with the current stream, or with an Event
/// recorded there: where `to` is contiguous, of the same shape, and page-locked for the device of `from`. All else is
/// copied at once, as is what gradients flow through. Throws as copy_ does.
void copy_async(Tensor& to, const Tensor& from);

/// Work that was queued once and is replayed with one call: the same kernels on the same memory.
class DeviceGraph {
 public:
  DeviceGraph();
  /// Captures what `fn` queues on the device's current stream of this thread; nothing runs. Tensors made inside keep
  /// their memory as long as the graph. Reading a value or moving data from the host inside throws Error.
  void capture(Device device, const std::function<void()>& fn);
  /// Queues it on the device's current stream. Random numbers are fresh each time, and those of the generators used
  /// inside, which must still be there. Versions of what it overwrites do not change. Throws Error if nothing was
  /// captured.
  void replay();

 private:
  std::shared_ptr<gpu::Capture> state_;
};

}  // namespace tessera
