#pragma once
#include <fmt/format.h>

#include <string>

namespace tessera {

/// "1610612736 bytes (1.50 GiB)"
inline std::string describe_bytes(size_t bytes) {
  return fmt::format("{} bytes ({:.2f} GiB)", bytes, static_cast<double>(bytes) / 0x1p30);
}

}  // namespace tessera
