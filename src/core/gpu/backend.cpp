#include "core/gpu/backend.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <utility>

#include "core/gpu/plugin_version.h"
#include "core/util/plans_epoch.h"
#include "core/util/plugin_path.h"
#include "core/util/waiting.h"

namespace tessera {
namespace gpu {
namespace {

constexpr int kMostDevices = 16;  // of a type

struct Backend {
  std::string why_not = "not looked for";
  const Plugin* plugin = nullptr;
  int devices = 0;
  std::vector<DeviceState*> retired;  // of a plugin that was taken away
  std::mutex mutex;
};

const char* plugin_name(DeviceType type) {
  return type == DeviceType::CUDA ? "libtessera_cuda.so" : "libtessera_hip.so";
}

// HIP's runtime, of whichever version is there: the plugin is linked with none, and calls what all of them have. One
// that the program has already comes first, then the newest.
bool open_hip_runtime(std::string& why_not) {
  std::vector<std::string> names = {"libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so",
                                    "libamdhip64.so.5"};
  if (const char* file = std::getenv("TESSERA_HIP_RUNTIME"); file && *file) names = {file};
  for (const int already : {RTLD_NOLOAD, 0})
    for (const std::string& name : names)
      if (dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL | already)) return true;
  why_not = fmt::format(
      "HIP's runtime was not found: install ROCm 5 to 7, or let TESSERA_HIP_RUNTIME name libamdhip64 ({})", dlerror());
  return false;
}

// Without NVIDIA's driver the plugin, which brings some hundred megabytes of libraries, is not opened.
bool open_cuda_driver(std::string& why_not) {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return true;
  why_not = fmt::format("NVIDIA's driver was not found ({})", dlerror());
  return false;
}

const Plugin* load(DeviceType type, std::string& why_not) {
  const std::filesystem::path path = find_plugin(plugin_name(type));
  if (path.empty()) {
    why_not = fmt::format("{} was not found beside the program or in TESSERA_PLUGIN_DIR; CMake's target {} makes it",
                          plugin_name(type), type == DeviceType::CUDA ? "tessera_cuda" : "tessera_hip");
    return nullptr;
  }
  if (!(type == DeviceType::HIP ? open_hip_runtime(why_not) : open_cuda_driver(why_not))) return nullptr;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    why_not = dlerror();
    return nullptr;
  }
  auto entry = reinterpret_cast<const Plugin* (*)()>(dlsym(library, "tessera_plugin"));
  const Plugin* plugin = entry ? entry() : nullptr;
  if (!plugin || plugin->version != plugin_version) {
    why_not = path.string() + " belongs to another version of tessera, or to another build of it";
    return nullptr;
  }
  return plugin;
}

void connect(Backend& backend, const Plugin* plugin) {
  backend.plugin = plugin;
  backend.devices = 0;
  if (!plugin) {
    backend.why_not = "it was taken away";
    return;
  }
  try {
    backend.devices = std::min(plugin->runtime->device_count(), kMostDevices);
    backend.why_not = backend.devices ? "" : "no such card was found";
  } catch (const Error& error) {
    backend.devices = 0;
    backend.why_not = error.what();
  }
}

// Made at first use, never destroyed: tensors may outlive everything. Written with the backend's lock, read without.
constinit std::array<std::array<std::atomic<DeviceState*>, kMostDevices>, kDeviceTypeCount> states{};
std::atomic<DeviceState*>& state_at(Device device) {
  return states[static_cast<size_t>(device.type)][static_cast<size_t>(device.index)];
}

// Why a card that is there cannot be used, such as that it is too old; nothing where it can.
std::string refusal(const Backend& backend, Device device) {
  if (state_at(device)) return "";
  try {
    backend.plugin->runtime->properties(device.index);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::array<Backend, kDeviceTypeCount>& all() {
  static auto* backends = new std::array<Backend, kDeviceTypeCount>;
  return *backends;
}

Backend& backend_of(DeviceType type) {
  Backend& backend = all()[static_cast<int>(type)];
  std::lock_guard lock(backend.mutex);
  if (!backend.plugin && backend.why_not == "not looked for")
    if (const Plugin* plugin = load(type, backend.why_not)) connect(backend, plugin);
  return backend;
}

thread_local const DeviceState* entered[kDeviceTypeCount] = {};
thread_local Stream::State* current[kDeviceTypeCount][kMostDevices] = {};  // null: the device's own
thread_local Device default_for_thread;
thread_local DeviceState* called = nullptr;

}  // namespace

void install(DeviceType type, const Plugin* plugin) {
  Backend& backend = all()[static_cast<int>(type)];
  std::lock_guard lock(backend.mutex);
  for (auto& state : states[static_cast<size_t>(type)])
    if (DeviceState* old = state.exchange(nullptr)) backend.retired.push_back(old);
  entered[static_cast<int>(type)] = nullptr;
  for (auto& chosen : current[static_cast<int>(type)]) chosen = nullptr;
  connect(backend, plugin);
  forget_plans();
}

DeviceState::DeviceState(Device device, const Plugin& plugin)
    : device(device), runtime(*plugin.runtime), kernels(plugin.kernels), allocator(runtime, to_string(device)) {
  runtime.set_device(device.index);
  properties = runtime.properties(device.index);
  stream = std::make_shared<Stream::State>();
  stream->on = this;
  stream->handle = runtime.create_stream();
  fault = static_cast<Fault*>(runtime.allocate_host(sizeof(Fault)));
  if (!fault) throw OutOfMemoryError("out of page-locked memory");
  *fault = {};
}

namespace {
[[gnu::noinline]] DeviceState& first_state(Device device) {
  const int index = device.index;
  if (!device.is_card()) throw Error(to_string(device) + " has no streams or kernels of a GPU");
  Backend& backend = backend_of(device.type);
  if (index < 0 || index >= backend.devices)
    throw Error(fmt::format("device {} is not available: {}", to_string(device), why_unavailable(device)));
  std::lock_guard lock(backend.mutex);
  std::atomic<DeviceState*>& state = state_at(device);
  if (!state) {
    if (const std::string why_not = refusal(backend, device); !why_not.empty())
      throw DeviceError(fmt::format("device {} is not available: {}", to_string(device), why_not));
    entered[static_cast<int>(device.type)] = nullptr;  // it may be left with another device chosen
    state = new DeviceState(device, *backend.plugin);
    entered[static_cast<int>(device.type)] = state;
  }
  return *state;
}
}  // namespace

DeviceState& state(Device device) {
  if (device.is_card() && device.index >= 0 && device.index < kMostDevices)
    if (DeviceState* known = state_at(device).load(std::memory_order_acquire)) return *known;
  return first_state(device);
}

void enter(const DeviceState& state) {
  const DeviceState*& now = entered[static_cast<int>(state.device.type)];
  if (now == &state) return;
  state.runtime.set_device(state.device.index);
  now = &state;
}

Stream::State& stream_of(DeviceState& state) {
  Stream::State* chosen = current[static_cast<int>(state.device.type)][state.device.index];
  return chosen ? *chosen : *state.stream;
}

DeviceState& calling() { return *called; }
void begin_call(Device device) {
  called = &state(device);
  enter(*called);
}

void set_stream(DeviceState& state, Stream::State* stream) {
  current[static_cast<int>(state.device.type)][state.device.index] = stream;
}

namespace {
std::string describe(const Fault& fault) {
  auto weights = [&](const char* what) {
    return fmt::format("{}: the weights of row {} {}", fault.op, fault.index, what);
  };
  switch (fault.kind) {
    case FaultKind::NegativeWeight:
      return weights("are not all numbers of at least 0");
    case FaultKind::WeightSum:
      return weights("do not have a positive finite sum");
    case FaultKind::FewWeights:
      return weights("are positive in too few places to draw from without replacement");
    case FaultKind::Index:
      break;
  }
  return fmt::format("{}: index {} is out of range for size {}", fault.op, fault.index, fault.bound);
}
}  // namespace

namespace {

// Waits by `wait`, then throws what kernels found wrong.
template <class Wait>
void wait_for(DeviceState& state, const Wait& wait) {
  enter(state);
  if (capture_on(state)) throw Error("a graph is being captured: nothing has run that could be waited for or read");
  wait();
  if (state.fault->raised) {
    const Fault fault = *state.fault;
    *state.fault = {};
    throw Error(describe(fault));
  }
}

}  // namespace

void synchronize(DeviceState& state, StreamHandle stream) {
  settle();
  wait_for(state, [&] { state.runtime.synchronize(stream); });
}

void synchronize(DeviceState& state) {
  settle();
  wait_for(state, [&] { state.runtime.synchronize_device(); });
}

}  // namespace gpu

int device_count(DeviceType type) { return type == DeviceType::CPU ? 1 : gpu::backend_of(type).devices; }

std::string why_unavailable(Device device) {
  if (!device.is_card()) return "";
  gpu::Backend& backend = gpu::backend_of(device.type);
  if (device.index >= 0 && device.index < backend.devices) {
    std::lock_guard lock(backend.mutex);
    return gpu::refusal(backend, device);
  }
  if (!backend.why_not.empty()) return backend.why_not;
  const auto named = [&](int index) { return to_string(Device{device.type, static_cast<int8_t>(index)}); };
  if (backend.devices == 1) return "there is only " + named(0);
  return fmt::format("there are only {} to {}", named(0), named(backend.devices - 1));
}

DeviceProperties properties(Device device) { return gpu::state(device).properties; }

void synchronize(Device device) {
  if (device.is_card()) gpu::synchronize(gpu::state(device));
}

namespace {
std::atomic<bool> tf32{false}, nondeterministic{false};
}
void allow_tf32(bool allowed) { tf32.store(allowed, std::memory_order_relaxed); }
bool tf32_allowed() { return tf32.load(std::memory_order_relaxed); }
void allow_nondeterministic(bool allowed) { nondeterministic.store(allowed, std::memory_order_relaxed); }
bool nondeterministic_allowed() { return nondeterministic.load(std::memory_order_relaxed); }

Device default_device() { return gpu::default_for_thread; }
DeviceGuard::DeviceGuard(Device device) : before_(gpu::default_for_thread) {
  if (device.is_card()) gpu::state(device);
  gpu::default_for_thread = device;
}
DeviceGuard::~DeviceGuard() { gpu::default_for_thread = before_; }

}  // namespace tessera
