#include "dist/flight_recorder.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tessera::dist {

// Words are written between two writes of the number. Who reads a new word, reads a new number behind it, too.
void FlightRecorder::begin(const CallRecord& record) {
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &record, sizeof record);
  Slot& slot = slots_[record.number % kCalls];
  slot.number.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.ended.store(0, std::memory_order_relaxed);
  slot.number.store(record.number, std::memory_order_release);
}

void FlightRecorder::end(uint64_t number, int64_t at) {
  Slot& slot = slots_[number % kCalls];
  if (slot.number.load(std::memory_order_relaxed) == number) slot.ended.store(at, std::memory_order_relaxed);
}

std::optional<CallRecord> FlightRecorder::Slot::read() const {
  const uint64_t before = number.load(std::memory_order_acquire);
  if (before == 0) return {};
  std::array<uint64_t, kWords> copied;
  for (size_t i = 0; i < kWords; ++i) copied[i] = words[i].load(std::memory_order_acquire);
  const int64_t end = ended.load(std::memory_order_relaxed);
  if (number.load(std::memory_order_relaxed) != before) return {};
  CallRecord out;
  std::memcpy(static_cast<void*>(&out), copied.data(), sizeof out);
  out.ended = end;
  return out;
}

std::vector<CallRecord> FlightRecorder::records() const {
  std::vector<CallRecord> out;
  for (const Slot& slot : slots_)
    if (const std::optional<CallRecord> record = slot.read()) out.push_back(*record);
  std::sort(out.begin(), out.end(), [](const CallRecord& a, const CallRecord& b) { return a.number < b.number; });
  return out;
}

std::optional<CallRecord> FlightRecorder::find(uint64_t group, uint64_t in_group) const {
  for (const Slot& slot : slots_)
    if (const std::optional<CallRecord> r = slot.read(); r && r->group == group && r->in_group == in_group) return r;
  return {};
}

}  // namespace tessera::dist
