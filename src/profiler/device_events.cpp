#include "profiler/device_events.h"

#include <algorithm>
#include <cmath>

#include "core/gpu/backend.h"
#include "profiler/recorder.h"

namespace tessera::profiler {

const DeviceEvents::Base& DeviceEvents::base(Device device) {
  const auto known = bases_.find(device.index);
  if (known != bases_.end()) return known->second;
  Base made{Event(device, true), 0};
  made.event.record(current_stream(device));
  made.event.synchronize();
  made.at = now();
  return bases_.emplace(device.index, std::move(made)).first->second;
}

int32_t DeviceEvents::begin(Device device, void* stream, int32_t span) {
  if (marked_.size() >= kMost || gpu::graph_being_captured(device)) return -1;
  base(device);
  const int64_t number = streams_.emplace(stream, static_cast<int64_t>(streams_.size()) + 1).first->second;
  marked_.push_back({device, number, span, Event(device, true), Event(device, true)});
  marked_.back().begin.record(current_stream(device));
  return static_cast<int32_t>(marked_.size()) - 1;
}

void DeviceEvents::end(int32_t piece) {
  Marked& m = marked_[static_cast<size_t>(piece)];
  m.end.record(current_stream(m.device));
  m.complete = true;
}

std::vector<DeviceEvents::Piece> DeviceEvents::take() {
  std::vector<Piece> pieces;
  for (const Marked& m : marked_) {
    if (!m.complete) continue;
    m.end.synchronize();
    const Base& zero = base(m.device);
    const auto nanoseconds = [](float ms) { return static_cast<int64_t>(std::llround(static_cast<double>(ms) * 1e6)); };
    const int64_t begin = zero.at + nanoseconds(m.begin.milliseconds_since(zero.event));
    pieces.push_back({m.span, m.device.index, m.stream, begin, begin + nanoseconds(m.end.milliseconds_since(m.begin))});
  }
  forget();
  return pieces;
}

void DeviceEvents::forget() {
  marked_.clear();
  bases_.clear();
}

}  // namespace tessera::profiler
