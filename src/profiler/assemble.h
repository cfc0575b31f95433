// From what a recorder and the devices' libraries saw to a trace.
#pragma once
#include <map>
#include <unordered_set>

#include "core/gpu/runtime.h"
#include "profiler/recorder.h"

namespace tessera::profiler {

/// Takes activities while they are handed over, and joins them with the calls that they were for.
class Assembly {
 public:
  explicit Assembly(Recorded seen);
  void add(const gpu::Activity& activity);
  void note(std::string text) { trace_.notes.push_back(std::move(text)); }
  /// What these addresses hold, of each device; see Profile::parameters.
  using Kinds = std::map<std::pair<int, uint64_t>, std::pair<MemoryKind, int64_t>>;
  Trace take(const Kinds& known);

 private:
  int32_t name_of(std::string_view text);
  void add_pieces();
  void find_owners();
  void own_replays();
  void sort();

  Trace trace_;
  std::vector<Replay> replays_;
  std::vector<std::vector<int32_t>> graphs_;
  std::vector<DeviceEvents::Piece> pieces_;
  std::unordered_map<std::string, int32_t> names_;
  std::unordered_map<int32_t, uint64_t> graph_nodes_;  // of device spans
  std::unordered_set<uint32_t> others_;                // calls before and after the recording
  int64_t last_;                                       // moment of the recording
};

/// Says of each change what it was for, and adds what was there before, at the beginning.
void tell_memory_kinds(Trace& trace, const Assembly::Kinds& known);

/// What the devices of the trace are, with measured roofs; a device is measured once in a process.
void describe_devices(Trace& trace);

/// Which share of a multiprocessor's threads blocks of that launch can fill; 0: not known.
double occupancy_of(const Launch& launch, const DeviceInfo& device);

}  // namespace tessera::profiler
