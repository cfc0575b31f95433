// Where the library tells observers what happens: `if (observers::exist()) observers::allocated(...)`.
#pragma once
#include <array>
#include <atomic>

#include "tessera/observer.h"

namespace tessera::observers {

extern constinit std::atomic<int> count;
inline bool exist() { return count.load(std::memory_order_relaxed) != 0; }

void allocated(Device device, size_t bytes);
void released(Device device, size_t bytes) noexcept;
void launched(const LaunchSeen& launch);

/// A call from its beginning on; if it ends without having returned anything, it has failed.
class Call {
 public:
  Call(std::string_view op, const Attrs& attrs, std::span<const Tensor> inputs);
  ~Call();
  void returns(std::span<const Tensor> outputs, std::span<const Tensor> hidden);

 private:
  std::array<void*, 24> callers_;
  CallSeen seen_;
  bool over_ = false;
};

}  // namespace tessera::observers
