// A GPU that is made up: memory of the host with a limit, work done at once, every call recorded, any call made to
// fail.
#pragma once
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/gpu/runtime.h"
#include "tessera/error.h"

namespace tessera {

class FakeRuntime : public gpu::Runtime {
 public:
  size_t limit = size_t(64) << 20;  // bytes of the device
  size_t used = 0;
  std::function<void()> while_waiting;                        // what happens until the whole device is done
  std::function<void(const gpu::Grid&, void**)> kernel_body;  // of what is loaded
  std::string failing;                                        // the call that fails from now on
  std::string unsupported;                                    // why the card cannot be used
  bool events_happen = true;                                  // or wait for somebody to synchronise with them
  int devices = 1, current = 0;
  std::vector<std::string> calls;     // in order
  std::map<void*, size_t> allocated;  // by the device
  std::set<void*> pinned;
  std::list<std::string> modules;           // loaded
  int streams = 0, events = 0, graphs = 0;  // alive

  int count(const std::string& call) const { return static_cast<int>(std::count(calls.begin(), calls.end(), call)); }

  int device_count() override { return note("device_count"), devices; }
  std::string versions() override { return "made up 1.0"; }
  DeviceProperties properties(int) override {
    note("properties");
    if (!unsupported.empty()) throw DeviceError(unsupported);
    return {"made up", "gfx90a", limit, 104, 64, 65536};
  }
  void set_device(int device) override { note("set_device"), current = device; }
  void* allocate(size_t bytes) override {
    note("allocate");
    if (used + bytes > limit) return nullptr;
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    allocated[memory] = bytes;
    used += bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    calls.push_back("release");
    used -= allocated.at(memory);
    allocated.erase(memory);
    std::free(memory);
  }
  void* allocate_host(size_t bytes) override {
    note("allocate_host");
    void* memory = std::calloc(1, bytes);
    pinned.insert(memory);
    return memory;
  }
  void release_host(void* memory) noexcept override {
    pinned.erase(memory);
    std::free(memory);
  }
  gpu::FreeMemory memory() override { return {limit - used, limit}; }
  void copy(void* to, const void* from, size_t bytes, gpu::StreamHandle) override {
    note("copy");
    std::memcpy(to, from, bytes);
  }
  void copy_rows(void* to, size_t pitch, const void* from, size_t bytes, size_t rows, gpu::StreamHandle) override {
    note("copy_rows");
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * pitch, static_cast<const char*>(from) + r * bytes, bytes);
  }
  void fill(void* memory, int byte, size_t bytes, gpu::StreamHandle) override {
    note("fill");
    std::memset(memory, byte, bytes);
  }
  gpu::StreamHandle create_stream() override { return note("create_stream"), ++streams, handle(); }
  void destroy_stream(gpu::StreamHandle) noexcept override { --streams; }
  void synchronize(gpu::StreamHandle) override { note("synchronize"); }
  bool is_idle(gpu::StreamHandle) override { return note("is_idle"), true; }
  void wait(gpu::StreamHandle, gpu::EventHandle event) override {
    note("wait");
    if (!own_events_.contains(event)) throw DeviceError("waiting for an event of another vendor");
  }
  void synchronize_device() override {
    note("synchronize_device");
    if (while_waiting) while_waiting();
  }
  gpu::EventHandle create_event(bool) override {
    note("create_event");
    ++events;
    return *own_events_.insert(handle()).first;
  }
  void destroy_event(gpu::EventHandle event) noexcept override { --events, own_events_.erase(event); }
  void record(gpu::EventHandle event, gpu::StreamHandle stream) override {
    note("record");
    if (!own_events_.contains(event)) throw DeviceError("recording an event of another card");
    if (captured_.contains(stream)) captured_events_.insert(event);
    else captured_events_.erase(event);
  }
  bool has_happened(gpu::EventHandle event) override {
    if (captured_events_.contains(event)) throw DeviceError("asking for an event of a captured stream");
    return events_happen;
  }
  void synchronize_event(gpu::EventHandle) override {
    note("synchronize_event");
    events_happen = true;
  }
  float milliseconds(gpu::EventHandle, gpu::EventHandle) override { return 1.5f; }
  void begin_capture(gpu::StreamHandle stream) override { note("begin_capture"), captured_.insert(stream); }
  gpu::GraphHandle end_capture(gpu::StreamHandle stream) override {
    captured_.erase(stream);
    return note("end_capture"), ++graphs, handle();
  }
  std::vector<gpu::GraphNode> end_capture_nodes(gpu::StreamHandle stream) override {
    captured_.erase(stream);
    return note("end_capture_nodes"), std::vector<gpu::GraphNode>{{"made_up", {3, 1, 1}, {64, 1, 1}}, {"memset"}};
  }
  void launch(gpu::GraphHandle, gpu::StreamHandle) override { note("launch"); }
  void destroy_graph(gpu::GraphHandle) noexcept override { --graphs; }
  // A module's code holds the names of its kernels.
  gpu::ModuleHandle load_module(const void* code) override {
    note("load_module");
    return &modules.emplace_back(static_cast<const char*>(code));
  }
  gpu::KernelHandle find_kernel(gpu::ModuleHandle module, const char* name) override {
    note("find_kernel");
    return static_cast<std::string*>(module)->find(name) == std::string::npos ? nullptr : module;
  }
  void launch(gpu::KernelHandle, const gpu::Grid& grid, void** arguments, gpu::StreamHandle) override {
    note("launch_kernel");
    if (kernel_body) kernel_body(grid, arguments);
  }

 private:
  void note(const char* call) {
    calls.push_back(call);
    if (call == failing) throw DeviceError(std::string(call) + " failed: as told");
  }
  void* handle() { return reinterpret_cast<void*>(++next_); }
  inline static uintptr_t next_ = 0;                         // no two runtimes share one
  std::set<void*> own_events_, captured_events_, captured_;  // the last: streams
};

/// A plugin of a runtime. Both stay until the process ends: blocks, streams and modules of a test may outlive it.
inline const gpu::Plugin* plugin_of(FakeRuntime& runtime) {
  static auto* plugins = new std::list<gpu::Plugin>;
  return &plugins->emplace_back(gpu::Plugin{0, &runtime, nullptr});
}

}  // namespace tessera
