// Times of launches by events on their streams: where the vendor's tracing library cannot be asked.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tessera/device.h"
#include "tessera/stream.h"

namespace tessera::profiler {

class DeviceEvents {
 public:
  /// A launch on a device, in nanoseconds since 1970 as the host counts them.
  struct Piece {
    int32_t span;  // the Op that launched
    int device;
    int64_t stream;
    int64_t begin, end;
  };

  /// Before a launch on the device's current stream. -1: there is no room, or its work is being captured.
  int32_t begin(Device device, void* stream, int32_t span);
  /// Behind it.
  void end(int32_t piece);
  void forget();
  /// Waits for the devices, and forgets the events.
  std::vector<Piece> take();

 private:
  struct Marked {
    Device device;
    int64_t stream;
    int32_t span;
    Event begin, end;
    bool complete = false;
  };
  // A moment that host and device both know.
  struct Base {
    Event event;
    int64_t at;
  };
  static constexpr size_t kMost = 1 << 15;  // events are dear

  const Base& base(Device device);
  std::vector<Marked> marked_;
  std::map<int, Base> bases_;  // by device index
  std::map<void*, int64_t> streams_;
};

}  // namespace tessera::profiler
