// Memory over time as torch.profiler's export_memory_timeline writes it: [times, sizes]. A time is in microseconds
// since 1970, one for each at which something changed; its sizes are a 0, which is where a picture of layers begins,
// and the bytes of each category.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiler/packed_file.h"
#include "profiler/trace_json.h"

namespace tessera::profiler {
namespace {

using MemorySizes = std::array<int64_t, kMemoryKinds>;

constexpr size_t kTimelineBuffer = size_t{1} << 16;

/// What is alive of a device, kind by kind, as its changes are told in order.
class MemoryCurve {
 public:
  explicit MemoryCurve(std::vector<const MemoryChange*> changes) : changes_(std::move(changes)) {}

  /// Calls visit(microseconds, sizes) for each time.
  template <class Visit>
  void walk(int64_t base, const Visit& visit) {
    sizes_ = before();
    alive_.clear();
    for (size_t i = 0; i < changes_.size(); ++i) {
      apply(*changes_[i]);
      const int64_t at = time(base, *changes_[i]);
      if (i + 1 == changes_.size() || time(base, *changes_[i + 1]) != at) visit(at, sizes_);
    }
  }

 private:
  struct Held {
    MemoryKind kind;
    int64_t bytes;
  };

  static int64_t time(int64_t base, const MemoryChange& change) {
    return base / 1000 + (base % 1000 + change.at) / 1000;
  }
  int64_t& size_of_kind(MemoryKind kind) { return sizes_[static_cast<size_t>(kind)]; }

  // What was there before: that which is given back without having been got, and the rest of what the first change
  // says is allocated, of which no more is known.
  MemorySizes before() {
    MemorySizes out{};
    if (changes_.empty()) return out;
    std::unordered_map<uint64_t, int64_t> got;
    int64_t known = 0;
    for (const MemoryChange* change : changes_) {
      if (change->bytes >= 0) {
        got[change->address] = change->bytes;
      } else if (got.erase(change->address) == 0) {
        out[static_cast<size_t>(change->kind)] -= change->bytes;
        known -= change->bytes;
      }
    }
    const MemoryChange& first = *changes_.front();
    out[static_cast<size_t>(MemoryKind::Unknown)] += std::max<int64_t>(0, first.allocated - first.bytes - known);
    return out;
  }

  // What is given back is of the kind and size that it was got with, so that no kind falls below nothing.
  void apply(const MemoryChange& change) {
    if (change.bytes >= 0) {
      release(change.address);
      alive_[change.address] = {change.kind, change.bytes};
      size_of_kind(change.kind) += change.bytes;
    } else if (!release(change.address)) {
      size_of_kind(change.kind) += change.bytes;
    }
  }
  bool release(uint64_t address) {
    const auto it = alive_.find(address);
    if (it == alive_.end()) return false;
    size_of_kind(it->second.kind) -= it->second.bytes;
    alive_.erase(it);
    return true;
  }

  std::vector<const MemoryChange*> changes_;
  MemorySizes sizes_{};
  std::unordered_map<uint64_t, Held> alive_;
};

}  // namespace

void write_memory_timeline(const Trace& trace, int device, const std::string& file) {
  std::vector<const MemoryChange*> changes;
  for (const MemoryChange& change : trace.memory)
    if (change.device == device) changes.push_back(&change);
  MemoryCurve curve(std::move(changes));
  PackedFile out(file);
  std::string buffer = "[[";
  const auto add = [&](std::string_view separator, const std::string& text) {
    buffer += separator;
    buffer += text;
    if (buffer.size() < kTimelineBuffer) return;
    out.write(buffer);
    buffer.clear();
  };
  std::string_view separator;
  curve.walk(trace.base, [&](int64_t at, const MemorySizes&) {
    add(separator, std::to_string(at));
    separator = ", ";
  });
  separator = "], [";
  curve.walk(trace.base, [&](int64_t, const MemorySizes& sizes) {
    add(separator, fmt::format("[0, {}]", fmt::join(sizes, ", ")));
    separator = ", ";
  });
  add(separator == ", " ? "" : separator, "]]\n");
  out.write(buffer);
  out.commit();
}

}  // namespace tessera::profiler
