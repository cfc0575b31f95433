// The last collectives of each rank of a host, in the memory that its ranks and their launcher share.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "dist/engine.h"

namespace tessera::dist {

/// A collective that a rank began, or a message.
struct CallRecord {
  uint64_t number = 0;               ///< among those of the rank, from 1
  int64_t began = 0, ended = 0;      ///< in now_ns(); ended 0: it goes on, or nobody saw its end
  uint64_t group = 0, in_group = 0;  ///< which group, by a number that its ranks share, and which of its collectives
  int64_t step = 0;                  ///< of training
  int32_t ranks = 0;                 ///< of the group
  Call call = {};
};

/// Those of one rank, whose threads write while other processes read. Zeroed memory is an empty one.
class FlightRecorder {
 public:
  static constexpr size_t kCalls = 1000;  ///< that are kept
  void begin(const CallRecord& record);
  void end(uint64_t number, int64_t at);
  /// In their order, without those that are being written.
  std::vector<CallRecord> records() const;
  /// Nothing where the rank has not come so far, or no longer keeps it.
  std::optional<CallRecord> find(uint64_t group, uint64_t in_group) const;

 private:
  static constexpr size_t kWords = sizeof(CallRecord) / sizeof(uint64_t);
  static_assert(sizeof(CallRecord) % sizeof(uint64_t) == 0);
  struct Slot {
    std::atomic<uint64_t> number;  // 0: nothing, or half written
    std::atomic<int64_t> ended;
    std::atomic<uint64_t> words[kWords];
    std::optional<CallRecord> read() const;
  };
  Slot slots_[kCalls];
};

}  // namespace tessera::dist
