// The report's memory: a curve by category, and what was alive at its peak.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "profiler/report_parts.h"

namespace tessera::profiler {
namespace {

constexpr int64_t kMostPieces = 600;  // of time: more would not be seen
constexpr size_t kMostModules = 12;

struct LiveBlock {
  int64_t bytes = 0;
  MemoryKind kind = MemoryKind::Unknown;
  int32_t owner = -1;
};

struct CurvePoint {
  int64_t at = 0, allocated = 0, reserved = 0;
  std::array<int64_t, kMemoryKinds> kinds{};
};

/// Follows the changes of one device.
class MemoryReplay {
 public:
  /// What was there before the recording is known by its being given back.
  explicit MemoryReplay(const std::vector<const MemoryChange*>& changes) {
    std::unordered_set<uint64_t> seen;
    for (const MemoryChange* change : changes) {
      if (change->bytes >= 0) seen.insert(change->address);
      else if (seen.insert(change->address).second) blocks_[change->address] = {-change->bytes, change->kind, -1};
    }
    for (const auto& [address, block] : blocks_) add(block.kind, block.bytes);
  }

  void apply(const MemoryChange& change) {
    if (const auto it = blocks_.find(change.address); it != blocks_.end()) {  // given back, or that was not seen
      add(it->second.kind, -it->second.bytes);
      blocks_.erase(it);
    }
    if (change.bytes >= 0) {
      blocks_[change.address] = {change.bytes, change.kind, change.owner};
      add(change.kind, change.bytes);
    }
    point_.at = change.at;
    // Not every source knows the totals.
    point_.allocated = change.allocated > 0 || change.reserved > 0 ? change.allocated : known();
    point_.reserved = change.reserved;
  }

  const CurvePoint& point() const { return point_; }
  const std::unordered_map<uint64_t, LiveBlock>& blocks() const { return blocks_; }
  int64_t known() const {
    int64_t sum = 0;
    for (const int64_t bytes : point_.kinds) sum += bytes;
    return sum;
  }

 private:
  void add(MemoryKind kind, int64_t bytes) { point_.kinds[static_cast<size_t>(kind)] += bytes; }

  CurvePoint point_;
  std::unordered_map<uint64_t, LiveBlock> blocks_;
};

/// The module, range or operator that a block was allocated in.
std::string owner_name(const Trace& trace, int32_t owner) {
  if (owner < 0) return "Before the recording, or outside of any module";
  const Span& span = trace.spans[static_cast<size_t>(owner)];
  if (const Call* call = trace.call_of(span); call && !call->path.empty()) return call->path;
  if (const Call* call = trace.call_of(span)) return call->op + " (operator outside of any module)";
  return std::string(trace.name_of(span));
}

/// [name, bytes, blocks], the largest first; those beyond `most` are joined.
nlohmann::json largest_first(const std::map<std::string, std::pair<int64_t, int64_t>>& groups, size_t most) {
  std::vector<std::pair<std::string, std::pair<int64_t, int64_t>>> rows(groups.begin(), groups.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  nlohmann::json out = nlohmann::json::array();
  std::pair<int64_t, int64_t> rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < most) {
      out.push_back({rows[i].first, rows[i].second.first, rows[i].second.second});
    } else {
      rest.first += rows[i].second.first;
      rest.second += rows[i].second.second;
    }
  }
  if (rows.size() > most) out.push_back({fmt::format("{} others", rows.size() - most), rest.first, rest.second});
  return out;
}

nlohmann::json peak_json(const Trace& trace, const std::vector<const MemoryChange*>& changes, size_t peak) {
  MemoryReplay replay(changes);
  for (size_t i = 0; i <= peak; ++i) replay.apply(*changes[i]);
  std::map<std::string, std::pair<int64_t, int64_t>> kinds, modules;
  for (const auto& [address, block] : replay.blocks()) {
    for (auto* row : {&kinds[std::string(name(block.kind))], &modules[owner_name(trace, block.owner)]}) {
      row->first += block.bytes;
      ++row->second;
    }
  }
  const CurvePoint& point = replay.point();
  if (const int64_t rest = point.allocated - replay.known(); rest > 0)
    for (auto* groups : {&kinds, &modules}) (*groups)["Not seen: allocated before the recording"].first += rest;
  return {{"at", point.at - report_origin(trace)},
          {"allocated", point.allocated},
          {"reserved", point.reserved},
          {"kinds", largest_first(kinds, kMemoryKinds + 1)},
          {"modules", largest_first(modules, kMostModules)}};
}

/// Of each piece of time its highest point and its last one; in the order of time.
std::vector<CurvePoint> thinned_curve(const std::vector<const MemoryChange*>& changes, size_t& peak) {
  MemoryReplay replay(changes);
  const int64_t first = changes.front()->at, piece = (changes.back()->at - first) / kMostPieces + 1;
  std::vector<CurvePoint> out;
  int64_t highest = -1, begin = 0;  // of all; of the piece at hand: its first point in `out`
  for (size_t i = 0; i < changes.size(); ++i) {
    replay.apply(*changes[i]);
    const CurvePoint& point = replay.point();
    if (point.allocated > highest) {
      highest = point.allocated;
      peak = i;
    }
    if (i == 0 || (changes[i - 1]->at - first) / piece != (point.at - first) / piece) begin = std::ssize(out);
    if (std::ssize(out) > begin && point.allocated >= out[static_cast<size_t>(begin)].allocated)
      out.resize(static_cast<size_t>(begin));
    else if (std::ssize(out) > begin + 1) out.pop_back();
    out.push_back(point);
  }
  return out;
}

nlohmann::json device_memory_json(const Trace& trace, int32_t device, const std::vector<const MemoryChange*>& changes) {
  size_t peak = 0;
  const std::vector<CurvePoint> curve = thinned_curve(changes, peak);
  nlohmann::json at = nlohmann::json::array(), allocated = at, reserved = at, kinds = nlohmann::json::array();
  for (const CurvePoint& point : curve) {
    at.push_back(point.at - report_origin(trace));
    allocated.push_back(point.allocated);
    reserved.push_back(point.reserved);
  }
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    nlohmann::json column = nlohmann::json::array();
    bool any = false;
    for (const CurvePoint& point : curve) {
      column.push_back(point.kinds[kind]);
      any |= point.kinds[kind] != 0;
    }
    if (any) kinds.push_back({kind, std::string(name(static_cast<MemoryKind>(kind))), std::move(column)});
  }
  return {{"device", device},
          {"at", std::move(at)},
          {"allocated", std::move(allocated)},
          {"reserved", std::move(reserved)},
          {"kinds", std::move(kinds)},
          {"peak", peak_json(trace, changes, peak)},
          {"changes", changes.size()}};
}

}  // namespace

nlohmann::json report_memory(const Trace& trace) {
  std::map<int32_t, std::vector<const MemoryChange*>> devices;
  for (const MemoryChange& change : trace.memory) devices[change.device].push_back(&change);
  nlohmann::json out = nlohmann::json::array();
  for (auto it = devices.rbegin(); it != devices.rend(); ++it)
    out.push_back(device_memory_json(trace, it->first, it->second));
  return out;
}

}  // namespace tessera::profiler
