#include "profiler/assemble.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::profiler {
namespace {

bool begins_before(const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; }

Kind kind_of(gpu::Activity::Kind kind) {
  switch (kind) {
    case gpu::Activity::Call:
      return Kind::Runtime;
    case gpu::Activity::Copy:
      return Kind::Copy;
    case gpu::Activity::Fill:
      return Kind::Fill;
    default:
      return Kind::Kernel;
  }
}

}  // namespace

Assembly::Assembly(Recorded seen)
    : trace_(std::move(seen.trace)),
      replays_(std::move(seen.replays)),
      graphs_(std::move(seen.graphs)),
      pieces_(std::move(seen.pieces)),
      last_(now() - trace_.base) {
  for (size_t i = 0; i < trace_.names.size(); ++i) names_.emplace(trace_.names[i], static_cast<int32_t>(i));
}

int32_t Assembly::name_of(std::string_view text) {
  const auto [at, fresh] = names_.emplace(text, static_cast<int32_t>(trace_.names.size()));
  if (fresh) trace_.names.emplace_back(text);
  return at->second;
}

void Assembly::add(const gpu::Activity& a) {
  Span span;
  span.kind = kind_of(a.kind);
  span.begin = a.begin - trace_.base;
  span.end = std::max(a.end - trace_.base, span.begin);
  if (a.kind == gpu::Activity::Call && (span.begin < 0 || span.begin > last_)) {
    if (a.correlation) others_.insert(a.correlation);
    return;
  }
  span.name = name_of(a.name);
  span.correlation = a.correlation;
  span.bytes = a.bytes;
  if (a.kind == gpu::Activity::Call) {
    span.thread = a.thread;
    span.detail = a.function;
  } else {
    span.device = a.device;
    span.thread = a.stream;
  }
  if (a.kind == gpu::Activity::Kernel && a.block[0] > 0) {  // roctracer does not say how it was launched
    span.detail = static_cast<int32_t>(trace_.launches.size());
    trace_.launches.push_back(
        {{a.grid[0], a.grid[1], a.grid[2]}, {a.block[0], a.block[1], a.block[2]}, a.registers, a.shared_bytes});
  }
  if (a.graph_node) graph_nodes_.emplace(static_cast<int32_t>(trace_.spans.size()), a.graph_node);
  trace_.spans.push_back(span);
}

// What events timed: a piece is all that a call launched, under the name of its kernel in the list.
void Assembly::add_pieces() {
  for (const DeviceEvents::Piece& p : pieces_) {
    const int32_t call = trace_.spans[static_cast<size_t>(p.span)].detail;
    Span span;
    span.kind = Kind::Kernel;
    span.name = name_of(call < 0 ? "graph" : trace_.calls[static_cast<size_t>(call)].kernel);
    span.begin = p.begin - trace_.base;
    span.end = p.end - trace_.base;
    span.thread = p.stream;
    span.device = p.device;
    span.owner = p.span;
    span.call = call;
    trace_.spans.push_back(span);
  }
  pieces_.clear();
}

// A call of the library is for the innermost operator in which it lies; what it started is for the same.
void Assembly::find_owners() {
  std::vector<int32_t> order(trace_.spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return begins_before(trace_.spans[static_cast<size_t>(a)], trace_.spans[static_cast<size_t>(b)]);
  });
  std::map<int64_t, std::vector<int32_t>> open;   // by thread
  std::map<int64_t, int32_t> replay;              // the last of the thread
  std::unordered_map<uint32_t, int32_t> started;  // by correlation
  for (const int32_t at : order) {
    Span& s = trace_.spans[static_cast<size_t>(at)];
    auto& stack = open[s.thread];
    if (s.kind == Kind::Op) {
      while (!stack.empty() && trace_.spans[static_cast<size_t>(stack.back())].end <= s.begin) stack.pop_back();
      if (s.detail < 0) replay[s.thread] = at;
      else stack.push_back(at);
    } else if (s.kind == Kind::Runtime) {
      while (!stack.empty() && trace_.spans[static_cast<size_t>(stack.back())].end < s.begin) stack.pop_back();
      const bool replays = trace_.name_of(s).find("GraphLaunch") != std::string_view::npos;
      if (const auto last = replay.find(s.thread); replays && last != replay.end()) {
        s.owner = last->second;
        trace_.spans[static_cast<size_t>(s.owner)].end = s.end;
      } else if (!stack.empty()) {
        s.owner = stack.back();
      }
      if (s.correlation) started.emplace(s.correlation, s.owner);
    }
  }
  // What was started before the recording began is none of it.
  std::vector<bool> foreign(trace_.spans.size());
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    Span& s = trace_.spans[i];
    if (!is_on_device(s.kind) || s.owner >= 0) continue;
    const auto found = started.find(s.correlation);
    if (found != started.end()) s.owner = found->second;
    else foreign[i] = s.begin < 0 || others_.contains(s.correlation);
    if (s.owner >= 0) s.call = trace_.spans[static_cast<size_t>(s.owner)].detail;
  }
  for (size_t i = 0; i < trace_.spans.size(); ++i)
    if (foreign[i]) trace_.spans[i].name = -1;
}

// Steps of a replay come in the order in which they were captured: by their numbers in the graph where these are told,
// otherwise by their times, which say nothing once there are several streams.
void Assembly::own_replays() {
  struct Steps {
    std::vector<std::pair<uint64_t, int32_t>> all;
    bool are_ordered = true;
  };
  std::unordered_map<int32_t, Steps> steps;
  for (const Replay& r : replays_) steps[r.span];
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    const Span& s = trace_.spans[i];
    if (s.name < 0 || !is_on_device(s.kind)) continue;
    const auto found = steps.find(s.owner);
    if (found == steps.end()) continue;
    Steps& own = found->second;
    const auto node = graph_nodes_.find(static_cast<int32_t>(i));
    const bool has_number = node != graph_nodes_.end();
    if (!has_number && !own.all.empty())
      own.are_ordered &= trace_.spans[static_cast<size_t>(own.all.front().second)].thread == s.thread;
    own.all.emplace_back(has_number ? node->second : static_cast<uint64_t>(s.begin), static_cast<int32_t>(i));
  }
  for (const Replay& r : replays_) {
    auto& [own, are_ordered] = steps[r.span];
    const std::vector<int32_t>& calls = graphs_[r.graph];
    if (!are_ordered || own.size() != calls.size()) continue;
    std::sort(own.begin(), own.end());
    for (size_t k = 0; k < own.size(); ++k) trace_.spans[static_cast<size_t>(own[k].second)].call = calls[k];
  }
}

void Assembly::sort() {
  std::vector<int32_t> order, place(trace_.spans.size(), -1);
  for (size_t i = 0; i < trace_.spans.size(); ++i)
    if (trace_.spans[i].name >= 0) order.push_back(static_cast<int32_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return begins_before(trace_.spans[static_cast<size_t>(a)], trace_.spans[static_cast<size_t>(b)]);
  });
  std::vector<Span> sorted;
  sorted.reserve(order.size());
  for (const int32_t at : order) {
    place[static_cast<size_t>(at)] = static_cast<int32_t>(sorted.size());
    sorted.push_back(trace_.spans[static_cast<size_t>(at)]);
  }
  for (Span& s : sorted)
    if (s.owner >= 0) s.owner = place[static_cast<size_t>(s.owner)];
  for (StepCounters& c : trace_.counters) c.step = place[static_cast<size_t>(c.step)];
  for (MemoryChange& m : trace_.memory)
    if (m.owner >= 0) m.owner = place[static_cast<size_t>(m.owner)];
  trace_.spans = std::move(sorted);
}

Trace Assembly::take(const Kinds& known) {
  add_pieces();
  find_owners();
  own_replays();
  sort();
  tell_memory_kinds(trace_, known);
  if (trace_.dropped > 0) note(std::to_string(trace_.dropped) + " events were dropped: there was no room for more");
  return std::move(trace_);
}

// By the tightest of a multiprocessor's limits that are known.
double occupancy_of(const Launch& launch, const DeviceInfo& device) {
  const double block = 1.0 * launch.block[0] * launch.block[1] * launch.block[2];
  const double threads = device.threads_per_multiprocessor;
  if (block == 0 || threads == 0) return 0;
  double held = std::floor(threads / block);
  const auto limit = [&](double all, double of_a_block) {
    if (all > 0 && of_a_block > 0) held = std::min(held, std::floor(all / of_a_block));
  };
  limit(device.blocks_per_multiprocessor, 1);
  limit(device.registers_per_multiprocessor, launch.registers * block);
  limit(static_cast<double>(device.shared_per_multiprocessor),
        static_cast<double>(launch.shared_bytes + device.shared_reserved));
  return held * block / threads;
}

}  // namespace tessera::profiler
