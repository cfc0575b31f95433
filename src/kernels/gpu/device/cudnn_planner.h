// The plans of cuDNN for this process's devices, and how they are run.
#pragma once
#include <map>
#include <memory>
#include <mutex>

#include "cudnn.h"
#include "gpu.h"
#include "recent.h"
#include "tessera/error.h"

namespace tessera::gpu_kernels::cudnn {

inline int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);
  return device;
}

/// A problem that was asked before, and its plan, if the library has one.
struct Entry {
  std::optional<Plan> plan;
  cudaEvent_t used = nullptr;  // after the last run
  bool kept = false;           // a captured graph refers to its code, which goes with the plan

  Entry() = default;
  Entry(const Entry&) = delete;
  ~Entry() {
    if (!used) return;
    (void)cudaEventSynchronize(used);
    (void)cudaEventDestroy(used);
  }
};

class Planner {
 public:
  std::mutex mutex;  // held by whoever uses an entry

  /// The entry of a key; a new one gets make(target).
  template <class Make>
  Entry& entry(std::string_view key, const Make& make) {
    return plans_.at(key, [&](Entry& entry) {
      if (Handle handle = handle_of(current_device())) entry.plan = make(Target{handle});
    });
  }

  void run(Entry& entry, std::span<const int64_t> ids, std::span<void* const> pointers, void* workspace,
           Executor& executor, const char* what) {
    const Queue stream = static_cast<Queue>(executor.stream);
    Handle handle = handle_of(current_device());
    try {
      check(library().set_stream(handle, stream));
      execute(handle, entry.plan.value(), ids, pointers, workspace);
    } catch (const Refusal& refusal) {
      throw DeviceError(std::string("cudnn: ") + what + " failed with status " + std::to_string(refusal.status));
    }
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &capturing);
    if (capturing != cudaStreamCaptureStatusNone) {
      entry.kept = true;
      return;
    }
    if (!entry.used) (void)cudaEventCreateWithFlags(&entry.used, cudaEventDisableTiming);
    (void)cudaEventRecord(entry.used, stream);
  }

 private:
  /// Null where the library cannot use the device.
  Handle handle_of(int device) {
    auto [found, fresh] = handles_.try_emplace(device, nullptr);
    if (fresh && library().create(&found->second) != 0) found->second = nullptr;
    return found->second;
  }

  std::map<int, Handle> handles_;
  Recent<Entry> plans_{256};
};

}  // namespace tessera::gpu_kernels::cudnn
