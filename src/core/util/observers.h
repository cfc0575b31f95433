// Where the library tells observers what happens: `if (observers::exist()) observers::allocated(...)`.
#pragma once
#include <array>
#include <atomic>
#include <optional>

#include "tessera/observer.h"

namespace tessera::observers {

extern constinit std::atomic<int> count;
inline bool exist() { return count.load(std::memory_order_relaxed) != 0; }

void allocated(const MemorySeen& memory);
void released(const MemorySeen& memory) noexcept;
/// What the error says that follows, by the caller, who holds no lock.
std::string ran_out(Device device, size_t bytes) noexcept;
void launched(const LaunchSeen& launch);

/// The number of the recorded call whose backward this thread runs; -1: none.
inline constinit thread_local int64_t backward_of = -1;

/// What this thread does is for now within that path alone; an empty one changes nothing.
class ScopeOf {
 public:
  explicit ScopeOf(std::string_view path);
  ~ScopeOf();
  ScopeOf(const ScopeOf&) = delete;
  ScopeOf& operator=(const ScopeOf&) = delete;

 private:
  const NamedScope* outer_;
  std::optional<NamedScope> scope_;
};

/// A call from its beginning on; if it ends without having returned anything, it has failed.
class Call {
 public:
  Call(std::string_view op, const Attrs& attrs, std::span<const Tensor> inputs);
  ~Call();
  /// `sequence` is that of the backward which will be recorded; -1: none.
  void returns(std::span<const Tensor> outputs, std::span<const Tensor> hidden, int64_t sequence);

 private:
  std::array<void*, 24> callers_;
  CallSeen seen_;
  bool over_ = false;
};

}  // namespace tessera::observers
