// Streams, events, copies and captured graphs: thin owners of what the runtime hands out.
#include "tessera/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/gpu/backend.h"
#include "core/gpu/foreign.h"
#include "core/util/bytes.h"
#include "core/util/observers.h"
#include "core/util/waiting.h"
#include "tessera/random.h"

namespace tessera {

// ---- streams

Stream::State::~State() {
  if (!on || !handle) return;
  try {
    gpu::enter(*on);
    on->runtime.synchronize(handle);  // its blocks may go to a later stream that gets the same handle
  } catch (const Error&) {
  }
  on->allocator.end(handle);
  on->runtime.destroy_stream(handle);
}

Stream::Stream(Device device) : state_(std::make_shared<State>()) {
  if (!device.is_card()) return;
  auto& on = gpu::state(device);
  gpu::enter(on);
  state_->handle = on.runtime.create_stream();
  on.allocator.begin(state_->handle);
  state_->on = &on;
}
Device Stream::device() const { return state_->on ? state_->on->device : cpu(); }
void Stream::synchronize() const {
  if (state_->on) gpu::synchronize(*state_->on, state_->handle);
}
bool Stream::is_idle() const {
  settle();
  if (!state_->on) return true;
  gpu::enter(*state_->on);
  return state_->on->runtime.is_idle(state_->handle);
}

Stream current_stream(Device device) {
  settle();
  if (!device.is_card()) return Stream(device);
  auto& on = gpu::state(device);
  return Stream(gpu::stream_of(on).shared_from_this());
}

StreamGuard::StreamGuard(const Stream& stream) : stream_(stream.state()) {
  settle();
  if (!stream.state()->on) return;
  auto& on = *stream.state()->on;
  before_ = current_stream(on.device).state();
  gpu::set_stream(on, stream.state().get());
}
StreamGuard::~StreamGuard() {
  settle();
  if (before_) gpu::set_stream(*before_->on, before_.get());
}

// ---- events

struct Event::State {
  gpu::DeviceState* on = nullptr;
  gpu::EventHandle handle = nullptr;
  ~State() {
    if (on) on->runtime.destroy_event(handle);
  }
};

Event::Event(Device device, bool timed) : state_(std::make_shared<State>()) {
  if (!device.is_card()) return;
  auto& on = gpu::state(device);
  gpu::enter(on);
  state_->handle = on.runtime.create_event(timed);
  state_->on = &on;
}
void Event::record(const Stream& stream) {
  settle();
  if (!state_->on) return;
  if (stream.state()->on != state_->on) throw Error("event: recorded on a stream of another device");
  gpu::enter(*state_->on);
  state_->on->runtime.record(state_->handle, stream.state()->handle);
}
void Event::wait(const Stream& stream) const {
  settle();
  if (!state_->on || !stream.state()->on) return;
  if (stream.device().type != state_->on->device.type) throw Error("event: waited for on a stream of another vendor");
  gpu::enter(*stream.state()->on);
  stream.state()->on->runtime.wait(stream.state()->handle, state_->handle);
}
void Event::synchronize() const {
  if (!state_->on) return;
  gpu::enter(*state_->on);
  state_->on->runtime.synchronize_event(state_->handle);
}
bool Event::has_happened() const {
  if (!state_->on) return true;
  gpu::enter(*state_->on);
  return state_->on->runtime.has_happened(state_->handle);
}
float Event::milliseconds_since(const Event& start) const {
  if (!state_->on || state_->on != start.state_->on) throw Error("event: no time between events of different devices");
  gpu::enter(*state_->on);
  return state_->on->runtime.milliseconds(start.state_->handle, state_->handle);
}

// ---- memory across devices

namespace {

// Page-locked memory: copies from it run while the host goes on, so that giving it back waits for the last of them.
struct Pinned {
  gpu::DeviceState* on;
  gpu::EventHandle last_use;
};
void release_pinned(Storage& storage) {
  auto* pinned = static_cast<Pinned*>(storage.owner);
  try {
    gpu::enter(*pinned->on);
    pinned->on->runtime.synchronize_event(pinned->last_use);
  } catch (const Error&) {
  }
  pinned->on->runtime.destroy_event(pinned->last_use);
  pinned->on->runtime.release_host(storage.data);
  delete pinned;
}
bool is_pinned(const Storage& storage) { return storage.release == release_pinned; }

// A copy from it was queued. The event stands for all of them: the later one waits for those of other streams.
void note_use(const Pinned& pinned, gpu::DeviceState& on, gpu::StreamHandle stream) {
  if (&on != pinned.on) return gpu::synchronize(on, stream);
  on.runtime.wait(stream, pinned.last_use);
  on.runtime.record(pinned.last_use, stream);
}

void refuse_capture(const gpu::DeviceState& state) {
  if (gpu::capture_on(state)) throw Error("a graph is being captured: data cannot move between host and device");
}

}  // namespace

Tensor empty_pinned(const Shape& shape, DType dtype, Device device) {
  if (!device.is_card()) return empty(shape, dtype, cpu());
  auto& on = gpu::state(device);
  gpu::enter(on);
  auto storage = make_ref<Storage>();
  storage->bytes = static_cast<size_t>(shape.numel().value()) * size_of(dtype);
  storage->data = on.runtime.allocate_host(std::max<size_t>(storage->bytes, 1));
  if (!storage->data)
    throw OutOfMemoryError(fmt::format("out of page-locked memory: {} asked for", describe_bytes(storage->bytes)));
  storage->owner = new Pinned{&on, on.runtime.create_event(false)};
  storage->release = release_pinned;
  return as_strided(storage, shape, contiguous_strides(shape), 0, dtype);
}

void record_stream(const Tensor& tensor, const Stream& stream) {
  if (!tensor.device().is_card() || !stream.state()->on) return;
  auto& on = gpu::state(tensor.device());
  if (stream.state()->on != &on)
    throw Error(fmt::format("record_stream: a tensor of {}, but a stream of {}", to_string(tensor.device()),
                            to_string(stream.device())));
  if (gpu::note_foreign_use(*tensor.storage(), stream.state())) return;
  on.allocator.use(static_cast<gpu::Block*>(tensor.storage()->owner), stream.state()->handle);
}

namespace gpu {
namespace {

// By dense pieces within the device: rows from the host take twice the time.
void copy_to_rows(DeviceState& on, const Tensor& to, const std::byte* from, StreamHandle stream) {
  constexpr size_t most = size_t{64} << 20;
  const size_t size = size_of(to.dtype()), length = static_cast<size_t>(to.size(-1)) * size,
               pitch = static_cast<size_t>(to.stride(-2)) * size,
               rows = static_cast<size_t>(to.numel()) * size / length,
               each = std::clamp<size_t>(most / length, 1, rows);
  const Ref<Storage> piece = allocate(each * length, to.device());
  auto* target = static_cast<std::byte*>(to.data_ptr());
  for (size_t row = 0; row < rows; row += each) {
    const size_t count = std::min(each, rows - row);
    on.runtime.copy(piece->data, from + row * length, count * length, stream);
    on.runtime.copy_rows(target + row * pitch, pitch, piece->data, length, count, stream);
  }
}

}  // namespace

void copy(const Tensor& to, const void* from, const Storage& from_storage) {
  const size_t bytes = static_cast<size_t>(to.numel()) * size_of(to.dtype());
  const Device source = from_storage.device, target = to.device();
  DeviceState& on = state(target.is_gpu() ? target : source);
  const StreamHandle stream = stream_of(on).handle;
  const bool between_cards = source.is_gpu() && target.is_gpu();
  if (!between_cards) refuse_capture(on);
  if (between_cards) {
    Event ready(source);
    ready.record(current_stream(source));
    ready.wait(current_stream(target));
  }
  enter(on);
  if (to.is_contiguous()) {
    on.runtime.copy(to.data_ptr(), from, bytes, stream);
  } else {
    copy_to_rows(on, to, static_cast<const std::byte*>(from), stream);
  }
  if (between_cards) {  // the source's memory must not be reused before
    Event done(target);
    done.record(current_stream(target));
    done.wait(current_stream(source));
  }
  if (!target.is_gpu()) synchronize(on, stream);
  if (is_pinned(from_storage)) note_use(*static_cast<Pinned*>(from_storage.owner), on, stream);
}

bool is_page_locked(const Tensor& t, Device device) {
  return is_pinned(*t.storage()) && static_cast<Pinned*>(t.storage()->owner)->on->device == device;
}

void queue_copy(const Tensor& to, const Tensor& from) {
  const Pinned& pinned = *static_cast<Pinned*>(to.storage()->owner);
  DeviceState& on = *pinned.on;
  refuse_capture(on);
  enter(on);
  const StreamHandle stream = stream_of(on).handle;
  on.runtime.wait(stream, pinned.last_use);  // copies on other streams
  on.runtime.copy(to.data_ptr(), from.data_ptr(), static_cast<size_t>(to.numel()) * size_of(to.dtype()), stream);
  on.runtime.record(pinned.last_use, stream);
  ++to.storage()->version;
}

void read(void* to, const Tensor& from) {
  DeviceState& on = state(from.device());
  const StreamHandle stream = stream_of(on).handle;
  refuse_capture(on);
  enter(on);
  on.runtime.copy(to, from.data_ptr(), size_of(from.dtype()), stream);
  synchronize(on, stream);
}

// ---- graphs

struct Capture {
  DeviceState* on = nullptr;
  int pool = 0;
  GraphHandle handle = nullptr;
  struct Draw {  // random numbers that each replay must renew
    Generator* generator;
    Tensor state;
    int64_t elements;
  };
  std::vector<Draw> draws;
  std::vector<CapturedCall> calls;
  ~Capture() {
    if (!on) return;
    draws.clear();
    if (handle) on->runtime.destroy_graph(handle);
    on->allocator.drop_pool(pool);
  }
};

namespace {
thread_local Capture* capturing = nullptr;
std::atomic<int> next_pool{1};
std::atomic<uint64_t> replay_count{0};
}  // namespace

uint64_t replays() { return replay_count.load(std::memory_order_relaxed); }

Capture* capture_on(const DeviceState& state) { return capturing && capturing->on == &state ? capturing : nullptr; }

int graph_being_captured(Device device) { return capturing && capturing->on->device == device ? capturing->pool : 0; }

void note_captured(Device device, CapturedCall call) {
  if (!graph_being_captured(device)) return;
  DeviceState& on = *capturing->on;
  call.end = on.runtime.captured_nodes(stream_of(on).handle);
  capturing->calls.push_back(std::move(call));
}

Tensor capture_draw(Capture& capture, Generator& generator, int64_t elements) {
  // A replay writes it before the graph runs: memory of the graph's own may be what an earlier call there works in.
  struct Outside {
    Capture* const inside = std::exchange(capturing, nullptr);
    ~Outside() { capturing = inside; }
  };
  Tensor state;
  {
    const Outside outside;
    state = empty({2}, Int64, capture.on->device);
  }
  capture.draws.push_back({&generator, state, elements});
  return state;
}

}  // namespace gpu

DeviceGraph::DeviceGraph() = default;

// Has `fn` queue its work, and end(state, stream) take it off the stream.
static std::shared_ptr<gpu::Capture> captured(Device device, const std::function<void()>& fn,
                                              const std::function<void(gpu::Capture&, gpu::StreamHandle)>& end) {
  settle();
  if (!device.is_card()) throw Error("graph: only a GPU's work can be captured, not the cpu's");
  auto& on = gpu::state(device);
  if (gpu::capturing) throw Error("graph: another graph is being captured");
  auto state = std::make_shared<gpu::Capture>();
  state->on = &on;
  state->pool = gpu::next_pool++;
  const gpu::StreamHandle stream = gpu::stream_of(on).handle;
  gpu::synchronize(on, stream);
  on.runtime.begin_capture(stream);
  on.allocator.begin_capture();
  gpu::capturing = state.get();
  std::exception_ptr failure;
  try {
    fn();
    settle();
  } catch (...) {
    failure = std::current_exception();
  }
  gpu::capturing = nullptr;
  try {
    end(*state, stream);
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  on.allocator.end_capture();
  if (failure) std::rethrow_exception(failure);
  return state;
}

void DeviceGraph::capture(Device device, const std::function<void()>& fn) {
  state_ = captured(device, fn, [](gpu::Capture& state, gpu::StreamHandle stream) {
    state.handle = state.on->runtime.end_capture(stream);
  });
}

std::vector<gpu::GraphNode> gpu::steps_of(Device device, const std::function<void()>& fn) {
  std::vector<GraphNode> steps;
  captured(device, fn,
           [&](Capture& state, StreamHandle stream) { steps = state.on->runtime.end_capture_nodes(stream); });
  return steps;
}

void DeviceGraph::replay() {
  settle();
  if (!state_) throw Error("graph: nothing was captured");
  gpu::enter(*state_->on);
  const gpu::StreamHandle stream = gpu::stream_of(*state_->on).handle;
  for (auto& draw : state_->draws) {
    Tensor now = draw.generator->reserve(draw.elements, cpu());
    state_->on->runtime.copy(draw.state.data_ptr(), now.data_ptr(), 16, stream);
  }
  if (observers::exist())
    observers::launched({{}, "graph", state_->on->device, stream, static_cast<uint64_t>(state_->pool), state_->calls});
  state_->on->runtime.launch(state_->handle, stream);
  ++gpu::replay_count;
}

}  // namespace tessera
