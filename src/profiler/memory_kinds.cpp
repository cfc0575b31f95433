// What memory was for: told from when it was asked for, and how long it was held.
#include <algorithm>
#include <limits>
#include <set>

#include "profiler/assemble.h"

namespace tessera::profiler {

std::string_view name(MemoryKind kind) {
  constexpr std::string_view names[] = {"parameters",  "optimizer state", "inputs",           "temporary",
                                        "activations", "gradients",       "autograd details", "unknown"};
  return names[static_cast<int>(kind)];
}

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Stretch {
  int64_t begin, end;
};

// The outermost spans of that scope, whatever is around it, in the order of time.
std::vector<Stretch> phases(const Trace& trace, std::string_view scope) {
  std::vector<Stretch> all;
  for (const Span& s : trace.spans) {
    if (s.kind != Kind::Module) continue;
    const std::string_view path = trace.name_of(s);
    if (path.substr(path.rfind('.') + 1) != scope) continue;
    if (all.empty() || s.begin >= all.back().end) all.push_back({s.begin, s.end});
  }
  return all;
}
const Stretch* around(const std::vector<Stretch>& all, int64_t at) {
  const auto next =
      std::upper_bound(all.begin(), all.end(), at, [](int64_t t, const Stretch& i) { return t < i.begin; });
  return next != all.begin() && std::prev(next)->end >= at ? &*std::prev(next) : nullptr;
}
int64_t next_begin(const std::vector<Stretch>& all, int64_t at) {
  const auto next =
      std::upper_bound(all.begin(), all.end(), at, [](int64_t t, const Stretch& i) { return t < i.begin; });
  return next == all.end() ? kNever : next->begin;
}

class MemoryTeller {
 public:
  explicit MemoryTeller(const Trace& trace)
      : trace_(trace), backward_(phases(trace, "backward")), optimizer_(phases(trace, "optimizer")) {}

  /// Of what was held from one moment to another.
  MemoryKind kind(const MemoryChange& made, int64_t released) const {
    const Span* owner = made.owner < 0 ? nullptr : &trace_.spans[static_cast<size_t>(made.owner)];
    if (owner && owner->kind == Kind::Op && released <= owner->end) return MemoryKind::Temporary;
    if (const Stretch* phase = around(optimizer_, made.at))
      return released > phase->end ? MemoryKind::OptimizerState : MemoryKind::Temporary;
    if (const Stretch* phase = around(backward_, made.at))
      return released > phase->end ? MemoryKind::Gradient : MemoryKind::Temporary;
    if (owner && is_input(*owner)) return MemoryKind::Input;
    const int64_t backward = next_begin(backward_, made.at);
    return backward != kNever && released > backward ? MemoryKind::Activation : MemoryKind::Temporary;
  }

 private:
  bool is_input(const Span& owner) const {
    const std::string_view name = trace_.name_of(owner);
    return name == "to_device" || (owner.kind == Kind::Range && name == "data");
  }
  const Trace& trace_;
  std::vector<Stretch> backward_, optimizer_;
};

using Blocks = std::map<uint64_t, std::pair<MemoryKind, int64_t>>;  // by address

// Of a device: what is given back without having been got, and what was told of and is not got later.
Blocks blocks_before(const Trace& trace, int device, const Assembly::Kinds& known) {
  Blocks before;
  std::set<uint64_t> seen;
  for (const MemoryChange& m : trace.memory)
    if (m.device == device && seen.insert(m.address).second && m.bytes < 0)
      before[m.address] = {MemoryKind::Unknown, -m.bytes};
  for (const auto& [where, what] : known) {
    if (where.first != device) continue;
    const auto at = before.find(where.second);
    if (at != before.end()) at->second.first = what.first;
    else if (!seen.contains(where.second)) before[where.second] = what;
  }
  return before;
}

// What was there before the recording, as changes at its beginning: blocks that are known, and the rest.
std::vector<MemoryChange> baseline(const Trace& trace, const Assembly::Kinds& known) {
  std::vector<MemoryChange> all;
  std::map<int, const MemoryChange*> first;
  for (const MemoryChange& m : trace.memory) first.emplace(m.device, &m);
  for (const auto& [device, change] : first) {
    const int64_t total = change->allocated - change->bytes;
    MemoryChange one;
    one.device = device;
    one.reserved = change->reserved;
    const auto add = [&](uint64_t address, MemoryKind kind, int64_t bytes) {
      one.address = address;
      one.kind = kind;
      one.bytes = bytes;
      one.allocated += bytes;
      all.push_back(one);
    };
    for (const auto& [address, block] : blocks_before(trace, device, known))
      if (one.allocated + block.second <= total) add(address, block.first, block.second);
    if (one.allocated < total) add(0, MemoryKind::Unknown, total - one.allocated);
  }
  return all;
}

}  // namespace

void tell_memory_kinds(Trace& trace, const Assembly::Kinds& known) {
  std::vector<MemoryChange> before = baseline(trace, known);
  trace.memory.insert(trace.memory.begin(), before.begin(), before.end());
  const MemoryTeller teller(trace);
  std::map<std::pair<int, uint64_t>, size_t> held;
  std::vector<int64_t> released(trace.memory.size(), kNever);
  std::vector<size_t> made(trace.memory.size(), SIZE_MAX);  // of a release: the allocation
  for (size_t i = 0; i < trace.memory.size(); ++i) {
    const MemoryChange& m = trace.memory[i];
    const std::pair where{static_cast<int>(m.device), m.address};
    if (m.bytes >= 0) {
      if (m.address) held[where] = i;  // the rest of what was there has none
    } else if (const auto at = held.find(where); at != held.end()) {
      released[at->second] = m.at;
      made[i] = at->second;
      held.erase(at);
    }
  }
  for (size_t i = 0; i < trace.memory.size(); ++i) {
    MemoryChange& m = trace.memory[i];
    if (i < before.size()) continue;
    if (m.bytes >= 0) {
      const auto told = known.find({m.device, m.address});
      m.kind = told != known.end() && released[i] == kNever ? told->second.first : teller.kind(m, released[i]);
    } else if (made[i] != SIZE_MAX) {
      m.kind = trace.memory[made[i]].kind;
    }
  }
}

}  // namespace tessera::profiler
