// The report's gaps: when no kernel ran within a step, and what the host did meanwhile.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "profiler/report_parts.h"
#include "profiler/summary.h"

namespace tessera::profiler {
namespace {

constexpr size_t kMostGaps = 20, kMostHostParts = 4;
constexpr int64_t kShortestGap = 1000;  // nanoseconds; kernels in a row are about as far apart

struct DeviceGap {
  int64_t begin = 0, end = 0;
  int32_t before = -1, after = -1;  // spans
  size_t step = 0;
};

/// Of one thread: pieces of time, with the innermost span of each.
struct InnermostPiece {
  int64_t begin, end;
  int32_t span;
};
using InnermostPieces = std::vector<InnermostPiece>;

int32_t busiest_device(const Trace& trace) {
  std::map<int32_t, int64_t> times;
  for (const Span& span : trace.spans)
    if (is_on_device(span.kind)) times[span.device] += std::max<int64_t>(span.end - span.begin, 0);
  int32_t best = -1;
  for (const auto& [device, time] : times)
    if (best < 0 || time > times[best]) best = device;
  return best;
}

/// Walks the device's spans in order; `end` is the latest of those before.
std::vector<DeviceGap> gaps_in_step(const Trace& trace, const std::vector<int32_t>& spans, const StepRow& step,
                                    size_t number) {
  std::vector<DeviceGap> out;
  auto begin_of = [&](int32_t at) { return trace.spans[static_cast<size_t>(at)].begin; };
  auto it = std::partition_point(spans.begin(), spans.end(), [&](int32_t at) { return begin_of(at) < step.begin; });
  int32_t before = -1;
  int64_t end = step.begin;
  for (; it != spans.end() && begin_of(*it) < step.end; ++it) {
    const Span& span = trace.spans[static_cast<size_t>(*it)];
    if (before >= 0 && span.begin - end >= kShortestGap) out.push_back({end, span.begin, before, *it, number});
    if (before < 0 || span.end > end) {
      end = span.end;
      before = *it;
    }
  }
  if (before >= 0 && step.end - end >= kShortestGap)
    out.push_back({end, step.end, before, it == spans.end() ? -1 : *it, number});
  return out;
}

std::unordered_map<int64_t, InnermostPieces> innermost_pieces(const Trace& trace) {
  struct Thread {
    InnermostPieces pieces;
    std::vector<int32_t> open;
    int64_t now = 0;
  };
  std::unordered_map<int64_t, Thread> threads;
  auto end_of = [&](int32_t at) { return trace.spans[static_cast<size_t>(at)].end; };
  auto advance = [&](Thread& thread, int64_t to) {
    while (!thread.open.empty() && thread.now < to) {
      const int64_t end = std::min(end_of(thread.open.back()), to);
      if (end > thread.now) thread.pieces.push_back({thread.now, end, thread.open.back()});
      thread.now = std::max(thread.now, end);
      if (end_of(thread.open.back()) <= to) thread.open.pop_back();
    }
    thread.now = to;
  };
  int64_t last = 0;
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    last = std::max(last, span.end);
    if (is_on_device(span.kind)) continue;
    Thread& thread = threads[span.thread];
    advance(thread, span.begin);
    thread.open.push_back(static_cast<int32_t>(i));
  }
  std::unordered_map<int64_t, InnermostPieces> out;
  for (auto& [number, thread] : threads) {
    advance(thread, last);
    out[number] = std::move(thread.pieces);
  }
  return out;
}

/// Nanoseconds by what the thread did, in a piece of time.
std::map<std::string, int64_t> host_parts(const Trace& trace, const InnermostPieces& pieces, int64_t begin,
                                          int64_t end) {
  std::map<std::string, int64_t> out;
  auto it = std::partition_point(pieces.begin(), pieces.end(),
                                 [&](const InnermostPiece& piece) { return piece.end <= begin; });
  for (; it != pieces.end() && it->begin < end; ++it) {
    const Span& span = trace.spans[static_cast<size_t>(it->span)];
    if (span.kind == Kind::Step) continue;  // nothing that has a name
    std::string what(trace.name_of(span));
    if (const Call* call = trace.call_of(span); call && !call->path.empty()) what += " in " + call->path;
    out[what] += std::min(end, it->end) - std::max(begin, it->begin);
  }
  return out;
}

/// Of the thread that did most in it: [what, nanoseconds], the longest first.
nlohmann::json host_in_gap(const Trace& trace, const std::unordered_map<int64_t, InnermostPieces>& threads,
                           const DeviceGap& gap) {
  int64_t most = 0;
  std::vector<std::pair<std::string, int64_t>> best;
  for (const auto& [number, pieces] : threads) {
    const auto parts = host_parts(trace, pieces, gap.begin, gap.end);
    int64_t sum = 0;
    for (const auto& [what, time] : parts) sum += time;
    if (sum <= most) continue;
    most = sum;
    best.assign(parts.begin(), parts.end());
  }
  std::stable_sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  nlohmann::json out = nlohmann::json::array();
  int64_t rest = gap.end - gap.begin;
  for (size_t i = 0; i < std::min(best.size(), kMostHostParts); ++i) {
    out.push_back({best[i].first, best[i].second});
    rest -= best[i].second;
  }
  if (rest > (gap.end - gap.begin) / 100)
    out.push_back(
        {best.size() > kMostHostParts ? "others, or nothing that has a name" : "nothing that has a name", rest});
  return out;
}

std::string neighbour_name(const Trace& trace, int32_t at) {
  return at < 0 ? std::string() : std::string(trace.name_of(trace.spans[static_cast<size_t>(at)]));
}

}  // namespace

nlohmann::json report_gaps(const Trace& trace) {
  nlohmann::json out = nlohmann::json::array();
  const int32_t device = busiest_device(trace);
  if (device < 0) return out;
  std::vector<int32_t> spans;
  for (size_t i = 0; i < trace.spans.size(); ++i)
    if (is_on_device(trace.spans[i].kind) && trace.spans[i].device == device) spans.push_back(static_cast<int32_t>(i));
  const std::vector<StepRow> steps = steps_of(trace);
  std::vector<DeviceGap> gaps;
  for (size_t i = 0; i < steps.size(); ++i)
    for (const DeviceGap& gap : gaps_in_step(trace, spans, steps[i], i)) gaps.push_back(gap);
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const DeviceGap& a, const DeviceGap& b) { return a.end - a.begin > b.end - b.begin; });
  if (gaps.size() > kMostGaps) gaps.resize(kMostGaps);
  const auto threads = innermost_pieces(trace);
  const int64_t origin = report_origin(trace);
  for (const DeviceGap& gap : gaps)
    out.push_back({{"begin", gap.begin - origin},
                   {"end", gap.end - origin},
                   {"step", steps[gap.step].name},
                   {"before", neighbour_name(trace, gap.before)},
                   {"after", neighbour_name(trace, gap.after)},
                   {"host", host_in_gap(trace, threads, gap)}});
  return out;
}

}  // namespace tessera::profiler
