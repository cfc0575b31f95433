#include "dist/page_locked.h"

#include <algorithm>
#include <bit>

#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::dist {

Tensor PageLocked::empty(const Shape& shape, DType dtype, Device device) {
  constexpr uint64_t kLeast = 4096;
  const auto bytes = static_cast<uint64_t>(shape.numel().value()) * size_of(dtype);
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const auto& block) {
    return block.first == device && block.second.storage()->bytes >= bytes && block.second.storage().unique();
  };
  auto found = std::find_if(blocks_.begin(), blocks_.end(), fits);
  if (found == blocks_.end()) {
    try {
      const auto size = static_cast<int64_t>(std::bit_ceil(std::max(bytes, kLeast)));
      found = blocks_.insert(blocks_.end(), {device, empty_pinned({size}, UInt8, device)});
    } catch (const OutOfMemoryError&) {
      return tessera::empty(shape, dtype, cpu());
    }
    std::sort(blocks_.begin(), blocks_.end(),
              [](const auto& a, const auto& b) { return a.second.storage()->bytes < b.second.storage()->bytes; });
    found = std::find_if(blocks_.begin(), blocks_.end(), fits);
  }
  return as_strided(found->second.storage(), shape, contiguous_strides(shape), 0, dtype);
}

}  // namespace tessera::dist
