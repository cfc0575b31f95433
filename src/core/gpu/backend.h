// The GPUs of this process: plugins found at run time, and what the core keeps for each of their devices.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/gpu/allocator.h"
#include "core/gpu/runtime.h"
#include "tessera/observer.h"
#include "tessera/stream.h"

namespace tessera {
class Generator;
namespace gpu {
struct DeviceState;
}
}  // namespace tessera

namespace tessera {

struct Stream::State : std::enable_shared_from_this<Stream::State> {
  gpu::DeviceState* on = nullptr;  // null: the CPU, where nothing is queued
  gpu::StreamHandle handle = nullptr;
  ~State();
};

namespace gpu {

struct DeviceState {
  Device device;
  Runtime& runtime;
  const void* kernels;  // the plugin's tables
  DeviceProperties properties;
  Allocator allocator;
  std::shared_ptr<Stream::State> stream;  // the one that calls go to unless a StreamGuard says otherwise
  Fault* fault;

  DeviceState(Device device, const Plugin& plugin);
};

/// Throws Error with the reason where the device cannot be used. Initialises it at first use.
DeviceState& state(Device device);

/// Makes the device the one that this thread's runtime calls are for.
void enter(const DeviceState& state);
/// The stream of this thread's calls.
Stream::State& stream_of(DeviceState& state);
/// Null: the device's own.
void set_stream(DeviceState& state, Stream::State* stream);

/// Waits for the stream, then throws what kernels found wrong, once.
void synchronize(DeviceState& state, StreamHandle stream);
/// The same for all streams of the device.
void synchronize(DeviceState& state);

/// Fills `to` with bytes of another device, which may be the host, in the order of their streams. Returns when the
/// source may be changed and, where the destination is the host, the copy is there.
void copy(const Tensor& to, const void* from, const Storage& from_storage);

bool is_page_locked(const Tensor& t, Device device);  // for copies from and to `device`
/// Queues a copy to such a tensor of the elements of one of its device, both contiguous and of one shape and type.
void queue_copy(const Tensor& to, const Tensor& from);

/// Waits for a tensor of one element and brings it to the host.
void read(void* to, const Tensor& from);

/// The device of the call that this thread is dispatching.
DeviceState& calling();
void begin_call(Device device);

/// While this thread captures on the device, the graph that does; otherwise null.
struct Capture;
Capture* capture_on(const DeviceState& state);
/// A number of that graph alone; 0: none.
int graph_being_captured(Device device);
/// The steps in which the device would do what `fn` queues on this thread's stream; nothing is done.
std::vector<GraphNode> steps_of(Device device, const std::function<void()>& fn);
/// The state of random numbers that every replay of the graph renews.
Tensor capture_draw(Capture& capture, Generator& generator, int64_t elements);

/// Notes an operator of the graph that this thread captures on the device; call.end is filled in.
void note_captured(Device device, CapturedCall call);

/// How often graphs were replayed so far: what they write has no version.
uint64_t replays();

/// For tests: `plugin` serves a device type from now on; null: nothing does.
void install(DeviceType type, const Plugin* plugin);

}  // namespace gpu
}  // namespace tessera
