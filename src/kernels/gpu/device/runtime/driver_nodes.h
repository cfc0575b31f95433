// Which of HIP's devices has which of the numbers that AMD's driver gives: those count processors, too, and cards that
// HIP_VISIBLE_DEVICES hides.
#pragma once
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tessera::gpu_kernels {

/// Where on the PCI bus a card is.
struct PciPlace {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const PciPlace&) const = default;
};

/// The devices' indices by the driver's numbers, from the driver's folder: NUMBER/properties has lines "key value". Of
/// several nodes in one place, as parts of one card are, the first is the first device there. Empty without a driver.
inline std::map<int, int> devices_by_node(const std::string& folder, const std::vector<PciPlace>& devices) {
  constexpr int most_nodes = 256;
  std::map<int, int> found;
  std::vector<bool> taken(devices.size());
  for (int node = 0; node < most_nodes && found.size() < devices.size(); ++node) {
    std::ifstream file(folder + '/' + std::to_string(node) + "/properties");
    PciPlace place;
    bool is_card = false;
    std::string key;
    for (unsigned long long value = 0; file >> key >> value;) {
      if (key == "simd_count") is_card = value > 0;
      if (key == "domain") place.domain = static_cast<unsigned>(value);
      if (key == "location_id") {  // bus, device, function: 8, 5 and 3 bits
        place.bus = static_cast<unsigned>(value >> 8 & 0xFF);
        place.device = static_cast<unsigned>(value >> 3 & 0x1F);
      }
    }
    for (size_t i = 0; is_card && i < devices.size(); ++i) {
      if (taken[i] || devices[i] != place) continue;
      taken[i] = true;
      found[node] = static_cast<int>(i);
      break;
    }
  }
  return found;
}

}  // namespace tessera::gpu_kernels
