// Where tensors live, and what there is to live on.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class DeviceType : uint8_t { CPU, CUDA, HIP };
inline constexpr int kDeviceTypeCount = 3;

struct Device {
  DeviceType type = DeviceType::CPU;
  int8_t index = 0;   ///< negative: no card, only what one of an architecture would do
  bool meta = false;  ///< tensors have shape, dtype and layout as on the device, but no memory
  /// Whether layouts and kernels are a GPU's.
  bool is_gpu() const { return type != DeviceType::CPU; }
  /// Whether there is a card behind it.
  bool is_card() const { return type != DeviceType::CPU && !meta; }
  friend bool operator==(Device, Device) = default;
};

inline Device cpu() { return {}; }
/// The same device without its memory: tensors there flow through every function, and nothing is computed.
inline Device meta(Device device) { return {device.type, device.index, true}; }
/// The GPU of that index, which need not be there. Throw Error unless it is 0 to 127.
Device cuda(int index = 0);
Device hip(int index = 0);

/// "cpu", "cuda:0", "hip:1", "meta(cuda:0)"; "cuda:sm90", "hip:gfx90a": a card of that architecture that need not be
/// there, without memory. Throws Error on anything else.
Device parse_device(std::string_view text);
std::string to_string(Device device);

struct DeviceProperties {
  std::string name;          ///< as its maker calls it
  std::string architecture;  ///< "sm_90", "gfx90a"
  size_t memory = 0;         ///< bytes
  int multiprocessors = 0;
  int warp_size = 0;
  size_t shared_memory = 0;  ///< bytes that one block can have at most
};

/// GPUs of a kind that were found; 0 without driver or plugin, which is no error. A card that is not supported counts:
/// why_unavailable() names it.
int device_count(DeviceType type);
/// Why `device` cannot be used, or nothing if it can: "libtessera_cuda.so was not found beside the program", ...
std::string why_unavailable(Device device);
/// Throws Error unless it is a GPU that can be used.
DeviceProperties properties(Device device);
/// Waits for all that was queued on a GPU. Throws what its kernels found wrong.
void synchronize(Device device);

/// Lets products of f32 on NVIDIA's cards round their operands to tf32, which has 10 bits of fraction and runs several
/// times as fast; sums stay in f32. Off at first, for all threads alike, and takes effect from the next operator on.
void allow_tf32(bool allowed);
bool tf32_allowed();

/// Lets kernels on GPUs add up in any order where that is faster (gradients of attention's queries), so that the last
/// bits of results differ from run to run. Off at first, for all threads alike, from the next operator on.
void allow_nondeterministic(bool allowed);
bool nondeterministic_allowed();

/// The device of tensors that are made without naming one: the CPU, or what the innermost DeviceGuard says.
Device default_device();
class DeviceGuard {
 public:
  /// Throws Error where the device cannot be used.
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  Device before_;
};

}  // namespace tessera
