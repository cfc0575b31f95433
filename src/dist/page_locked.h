// Memory of the host that GPUs copy to and from by themselves, for tensors whose engine is of the host.
#pragma once
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::dist {

/// Keeps it: locking pages takes longer than copying them.
class PageLocked {
 public:
  /// Ordinary memory where there is no more. It is handed out again once no tensor has it, so that whoever lets go of
  /// one has waited for the copies from it.
  Tensor empty(const Shape& shape, DType dtype, Device device);

 private:
  std::mutex mutex_;
  std::vector<std::pair<Device, Tensor>> blocks_;
};

}  // namespace tessera::dist
