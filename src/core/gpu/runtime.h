// What the core asks of a GPU backend: raw resources of one vendor's run-time library. Caching, ordering and ownership
// are the core's (allocator.h, stream.cpp), so that they are written once and tested with a runtime that is made up.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device.h"

namespace tessera::gpu {

using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;
using ModuleHandle = void*;
using KernelHandle = void*;

/// How a kernel is launched.
struct Grid {
  int64_t blocks;
  int threads;          // of a block
  size_t shared_bytes;  // of a block, chosen at the launch
  bool early = false;   // the kernel itself waits for the one before it, on NVIDIA's cards
};

/// What a captured graph does in one step: a kernel, or work of the library's own, which has no grid.
struct GraphNode {
  std::string name;  // as the source has it
  unsigned grid[3] = {}, block[3] = {};
  unsigned cluster = 1;     // blocks
  size_t shared_bytes = 0;  // of a block, those of its code and those chosen at the launch
  int registers = 0;        // of a thread
};

/// What the vendor's tracing library saw: a call of its run-time library on the host, or work on a device.
struct Activity {
  enum Kind : uint8_t { Call, Kernel, Copy, Fill };
  Kind kind = Kernel;
  std::string_view name;       // "cudaLaunchKernel", a kernel's as the source has it, "Memcpy HtoD (Pinned -> Device)"
  int64_t begin = 0, end = 0;  // nanoseconds since 1970
  int64_t thread = 0;          // of a call: the system's number of it
  int function = -1;           // of a call: the library's number of what was called
  int device = 0;
  int64_t stream = 0;
  uint32_t correlation = 0;              // joins a call and what it started
  uint64_t graph_node = 0;               // of a replay, in the order in which they were captured; 0: none, or not told
  unsigned grid[3] = {}, block[3] = {};  // how a kernel was launched; all 0 where that is not told
  int registers = 0;
  int64_t shared_bytes = 0;
  int64_t bytes = 0;  // copied or filled
};

/// What one multiprocessor has for all blocks that are on it; 0: not known.
struct Multiprocessor {
  int threads = 0, blocks = 0, registers = 0;
  int64_t shared_bytes = 0;
  int64_t reserved_bytes = 0;  // of them, that each block takes beside its own
};

struct FreeMemory {
  size_t free, total;  // bytes
};

/// Every function works on the device of the last `set_device` of its thread and throws DeviceError with the library's
/// own words; functions that are noexcept stay silent, since destructors call them. After a fault that the library
/// calls unrecoverable the device counts as lost, and everything but those throws.
class Runtime {
 public:
  virtual int device_count() = 0;
  virtual DeviceProperties properties(int device) = 0;
  virtual Multiprocessor multiprocessor(int /*device*/) { return {}; }
  /// Of the library, and of the driver where that is another: "CUDA 13.0, driver for 13.1", "HIP 6.2".
  virtual std::string versions() = 0;
  virtual void set_device(int device) = 0;

  /// Null where there is not that much.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Page-locked memory of the host that kernels can address, or null.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;
  virtual FreeMemory memory() = 0;
  /// In either direction or within the device. Host memory that is not page-locked is read before this returns.
  virtual void copy(void* to, const void* from, size_t bytes, StreamHandle stream) = 0;
  /// The same of rows of `bytes` that begin `pitch` bytes apart where they go, and lie one after the other now.
  virtual void copy_rows(void* to, size_t pitch, const void* from, size_t bytes, size_t rows, StreamHandle stream) = 0;
  virtual void fill(void* memory, int byte, size_t bytes, StreamHandle stream) = 0;

  virtual StreamHandle create_stream() = 0;
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  virtual void synchronize(StreamHandle stream) = 0;
  virtual bool is_idle(StreamHandle stream) = 0;
  /// What is queued on `stream` from now on waits for `event`.
  virtual void wait(StreamHandle stream, EventHandle event) = 0;
  virtual void synchronize_device() = 0;

  virtual EventHandle create_event(bool timed) = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record(EventHandle event, StreamHandle stream) = 0;
  virtual bool has_happened(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;
  virtual float milliseconds(EventHandle from, EventHandle to) = 0;

  virtual void begin_capture(StreamHandle stream) = 0;
  virtual GraphHandle end_capture(StreamHandle stream) = 0;
  /// How many steps were captured so far; 0 where that is not known.
  virtual size_t captured_nodes(StreamHandle /*stream*/) { return 0; }
  /// Ends it, too, and says in which steps the work would have been done.
  virtual std::vector<GraphNode> end_capture_nodes(StreamHandle stream) = 0;
  virtual void launch(GraphHandle graph, StreamHandle stream) = 0;
  virtual void destroy_graph(GraphHandle graph) noexcept = 0;

  /// Machine code for the current device; the memory may go afterwards. There is no way back.
  virtual ModuleHandle load_module(const void* code) = 0;
  /// Null where the module has no kernel of that name.
  virtual KernelHandle find_kernel(ModuleHandle module, const char* name) = 0;
  /// `arguments` point to the values of the kernel's parameters.
  virtual void launch(KernelHandle kernel, const Grid& grid, void** arguments, StreamHandle stream) = 0;

  /// Begins to watch all devices with the vendor's tracing library; what is seen is kept in at most `most_bytes`.
  /// Empty, or one line on why it cannot: then nothing has begun.
  virtual std::string start_activities(size_t /*most_bytes*/) { return "no tracing library is known"; }
  /// Waits for the devices, ends it and hands over what was seen, in any order, one after the other on this thread.
  /// Returns how many were dropped.
  virtual int64_t stop_activities(const std::function<void(const Activity&)>& /*take*/) { return 0; }

 protected:
  ~Runtime() = default;
};

/// What an error in the data is about: an index, or the weights of a row that numbers are drawn by.
enum class FaultKind : int { Index, NegativeWeight, WeightSum, FewWeights };

/// An error that a kernel found in the data, such as an index out of range. In page-locked memory: the first thread to
/// find one writes it, the next synchronising call throws it.
struct Fault {
  int raised;
  const char* op;          // a string of the host
  long long index, bound;  // of weights: their row
  FaultKind kind;
};

/// What libtessera_cuda.so and libtessera_hip.so export: `extern "C" const Plugin* tessera_plugin()`.
struct Plugin {
  int version;  // of the build's headers: plugin_version of plugin_version.h
  Runtime* runtime;
  const void* kernels;  // gpu_kernels::Tables
};

}  // namespace tessera::gpu
