// The plans of cuDNN for this process's devices, and how they are run.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "cudnn.h"
#include "kernels/gpu/device/runtime/host.h"
#include "kernels/gpu/device/runtime/recent.h"
#include "tessera/error.h"

namespace tessera::gpu_kernels::cudnn {

inline int current_device() {
  int device = 0;
  (void)cudaGetDevice(&device);
  return device;
}

/// The graph that a stream is being captured into, or null.
inline cudaGraph_t captured_into(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  (void)cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
#else
  (void)cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
#endif
  return status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

/// A problem that was asked before. Its plan's code may not go while a stream or a graph has use for it.
class Entry {
 public:
  Outcome outcome;
  std::atomic<int> kept = 0;  // captured graphs that refer to the plan's code

  Entry() = default;
  Entry(const Entry&) = delete;
  ~Entry() {
    for (auto& [stream, event] : used_) {
      (void)cudaEventSynchronize(event);
      (void)cudaEventDestroy(event);
    }
  }

  /// After the plan was queued.
  void note_use(cudaStream_t stream) {
    if (cudaGraph_t graph = captured_into(stream)) return keep_for(graph);
    cudaEvent_t& event = used_[stream];
    const bool made = event || cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
    if (!made || cudaEventRecord(event, stream) != cudaSuccess) ++kept;  // nothing says when it may go
  }

 private:
  void keep_for(cudaGraph_t graph) {
    ++kept;
    const auto release = [](void* entry) { --static_cast<Entry*>(entry)->kept; };
    cudaUserObject_t graph_is_there = nullptr;
    if (cudaUserObjectCreate(&graph_is_there, this, release, 1, cudaUserObjectNoDestructorSync) != cudaSuccess) return;
    (void)cudaGraphRetainUserObject(graph, graph_is_there, 1, cudaGraphUserObjectMove);
  }

  std::map<cudaStream_t, cudaEvent_t> used_;  // the last run on each
};

class Planner {
 public:
  std::mutex mutex;  // held by whoever uses an entry

  /// The entry of a key, with the plan that make(target) finds.
  template <class Make>
  Entry& entry(std::string_view key, const Make& make) {
    Entry& entry = plans_.at(key, [](Entry&) {});
    entry.outcome.settle([&]() -> std::optional<Plan> {
      const Handle handle = handle_of(current_device());
      return handle ? make(Target{handle}) : std::nullopt;
    });
    return entry;
  }

  /// Bytes, or -1 without a plan.
  static long long workspace(const Entry& entry) {
    const std::optional<Plan>& plan = entry.outcome.plan();
    return plan ? plan->workspace : -1;
  }

  void run(Entry& entry, std::span<const int64_t> ids, std::span<void* const> pointers, void* workspace,
           Executor& executor, const char* what) {
    const auto stream = static_cast<Queue>(executor.stream);
    if (!entry.outcome.plan()) throw DeviceError(std::string("cudnn: there is no plan for ") + what + " now");
    try {
      const Handle handle = handle_of(current_device());
      check(library().set_stream(handle, stream));
      execute(handle, *entry.outcome.plan(), ids, pointers, workspace);
    } catch (const Refusal& refusal) {
      throw DeviceError(std::string("cudnn: ") + what + " failed with status " + std::to_string(refusal.status));
    }
    entry.note_use(stream);
  }

  /// Null where the library cannot use the device. Throws Refusal where it cannot for now.
  Handle handle_of(int device) {
    auto [found, fresh] = handles_.try_emplace(device, nullptr);
    if (!fresh) return found->second;
    Handle made = nullptr;
    const Refusal refusal{library().create(&made)};
    if (refusal.status == 0) return found->second = made;
    if (refusal.may_pass()) {
      handles_.erase(found);
      throw refusal;
    }
    return nullptr;
  }

 private:
  std::map<int, Handle> handles_;
  Recent<Entry> plans_{256};
};

/// This process's.
inline Planner& planner() {
  static auto* planner = new Planner;
  return *planner;
}

}  // namespace tessera::gpu_kernels::cudnn
