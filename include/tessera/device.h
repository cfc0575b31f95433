// Where tensors live.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class DeviceType : uint8_t { CPU, CUDA, HIP };
inline constexpr int kDeviceTypeCount = 3;

struct Device {
  DeviceType type = DeviceType::CPU;
  int8_t index = 0;
  friend bool operator==(Device, Device) = default;
};

inline Device cpu() { return {}; }

/// "cpu", "cuda:0", "hip:1". Throws Error on anything else.
Device parse_device(std::string_view text);
std::string to_string(Device device);

}  // namespace tessera
