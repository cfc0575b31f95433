// Several ranks' traces as one, and what their ranks waited for.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/util/median.h"
#include "profiler/analysis.h"
#include "profiler/kernel_name.h"
#include "profiler/summary.h"
#include "profiler/waits.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

constexpr int64_t kClocksAgree = 1'000'000;  // nanoseconds; what NTP promises at best

using CollectiveKey = std::tuple<std::string, std::string, size_t>;  // step, name, which of them

/// By rank: when each began and ended.
using Meetings = std::map<CollectiveKey, std::map<int, Interval>>;

Meetings meetings_of(const std::vector<Collective>& all) {
  std::map<std::tuple<int, std::string, std::string>, size_t> counts;
  Meetings out;
  for (const Collective& c : all) out[{c.step, c.name, counts[{c.rank, c.step, c.name}]++}][c.rank] = c.time;
  return out;
}

/// How far the clock of `other` is ahead, as told by the ends of what both do together: all ranks leave an all_reduce
/// at about the same time. 0 where clocks agree, or nothing was done together.
int64_t clock_ahead(const Trace& first, const Trace& other) {
  std::vector<Collective> all = collectives_of(first);
  for (Collective& c : all) c.rank = 0;
  for (Collective c : collectives_of(other)) {
    c.rank = 1;
    c.time = {c.time.begin + (other.base - first.base), c.time.end + (other.base - first.base)};
    all.push_back(std::move(c));
  }
  std::vector<double> ahead;
  for (const auto& [key, ranks] : meetings_of(all)) {
    const bool one_sided = contains_word(std::get<1>(key), "broadcast");  // its root leaves when it likes
    if (ranks.size() == 2 && !one_sided) ahead.push_back(static_cast<double>(ranks.at(1).end - ranks.at(0).end));
  }
  const auto middle = static_cast<int64_t>(median(std::move(ahead)));
  return std::abs(middle) > kClocksAgree ? middle : 0;
}

std::set<int> devices_in(const Trace& trace) {
  std::set<int> ids;
  for (const DeviceInfo& info : trace.devices) ids.insert(info.id);
  for (const Span& span : trace.spans) ids.insert(span.device);
  for (const MemoryChange& change : trace.memory) ids.insert(change.device);
  ids.erase(-1);
  return ids;
}

/// Adds one trace after the other; spans are put in order at the end.
class Merger {
 public:
  Merger(const Trace& first, int64_t base) {
    out_.base = base;
    out_.host = first.host;
    out_.process = first.process;
    out_.rank = first.rank;
  }

  void add(const Trace& trace, int64_t ahead) {
    shift_ = trace.base - out_.base - ahead;
    thread_shift_ = int64_t{trace.rank - out_.rank} * kThreadsOfRank;
    if (out_.spans.size() + trace.spans.size() > INT32_MAX || out_.calls.size() + trace.calls.size() > INT32_MAX)
      throw Error("merge: the traces have more than 2147483647 events");
    number_devices(trace);
    number_threads(trace);
    add_tables(trace);
    const auto first_span = static_cast<int32_t>(out_.spans.size());
    for (const Span& span : trace.spans) add_span(trace, span, first_span);
    for (MemoryChange change : trace.memory) {
      change.at += shift_;
      change.device = devices_.at(change.device);
      change.thread = thread_of(change.thread);
      if (change.owner >= 0) change.owner += first_span;
      out_.memory.push_back(change);
    }
    for (StepCounters counters : trace.counters) {
      if (counters.step >= 0) counters.step += first_span;
      out_.counters.push_back(counters);
    }
    first_call_ = static_cast<int32_t>(out_.calls.size());
    first_launch_ = static_cast<int32_t>(out_.launches.size());
    first_correlation_ = last_correlation_;
    first_sequence_ = last_sequence_ + 1;
    out_.ranks = std::max({out_.ranks, trace.ranks, trace.rank + 1});
    out_.dropped += trace.dropped;
  }

  Trace finish() {
    std::vector<int32_t> order(out_.spans.size()), place(order.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const Span &x = span_at(out_, a), &y = span_at(out_, b);
      return x.begin != y.begin ? x.begin < y.begin : x.end > y.end;
    });
    std::vector<Span> spans;
    spans.reserve(order.size());
    for (const int32_t at : order) {
      place[static_cast<size_t>(at)] = static_cast<int32_t>(spans.size());
      spans.push_back(span_at(out_, at));
    }
    const auto moved = [&](int32_t owner) { return owner < 0 ? owner : place[static_cast<size_t>(owner)]; };
    for (Span& span : spans) span.owner = moved(span.owner);
    for (MemoryChange& change : out_.memory) change.owner = moved(change.owner);
    for (StepCounters& counters : out_.counters) counters.step = moved(counters.step);
    std::stable_sort(out_.memory.begin(), out_.memory.end(),
                     [](const MemoryChange& a, const MemoryChange& b) { return a.at < b.at; });
    out_.spans = std::move(spans);
    return std::move(out_);
  }

 private:
  /// A device keeps its number where no rank before has it.
  void number_devices(const Trace& trace) {
    devices_ = {{-1, -1}};
    for (const int id : devices_in(trace)) {
      int number = id;
      while (used_.count(number)) ++number;
      used_.insert(number);
      devices_[id] = number;
    }
    for (DeviceInfo info : trace.devices) {
      info.id = devices_.at(info.id);
      if (!device_info(out_, info.id)) out_.devices.push_back(std::move(info));
    }
  }

  /// Most numbers of threads fit below kThreadsOfRank; the others get new ones.
  void number_threads(const Trace& trace) {
    large_threads_.clear();
    const auto see = [&](int64_t thread) {
      if (thread >= 0 && thread < kThreadsOfRank) return;
      const auto next = kThreadsOfRank - 1 - static_cast<int64_t>(large_threads_.size());
      large_threads_.emplace(thread, next);
    };
    for (const Span& span : trace.spans) see(span.thread);
    for (const MemoryChange& change : trace.memory) see(change.thread);
  }
  int64_t thread_of(int64_t thread) const {
    const auto large = large_threads_.find(thread);
    return (large == large_threads_.end() ? thread : large->second) + thread_shift_;
  }

  void add_tables(const Trace& trace) {
    names_here_.clear();
    for (const std::string& name : trace.names) {
      const auto [at, fresh] = names_.emplace(name, static_cast<int32_t>(out_.names.size()));
      if (fresh) out_.names.push_back(name);
      names_here_.push_back(at->second);
    }
    out_.calls.insert(out_.calls.end(), trace.calls.begin(), trace.calls.end());
    out_.launches.insert(out_.launches.end(), trace.launches.begin(), trace.launches.end());
    for (const std::string& note : trace.notes) out_.notes.push_back(fmt::format("rank {}: {}", trace.rank, note));
  }

  void add_span(const Trace& trace, Span span, int32_t first_span) {
    span.name = names_here_.at(static_cast<size_t>(span.name));
    span.begin += shift_;
    span.end += shift_;
    span.thread = thread_of(span.thread);
    span.device = devices_.at(span.device);
    if (span.kind == Kind::Op && span.detail >= 0) span.detail += first_call_;
    if (span.kind == Kind::Kernel && span.detail >= 0) span.detail += first_launch_;
    span.owner = owner_of(trace, span) ? span.owner + first_span : -1;
    if (span.call >= 0) span.call += first_call_;
    if (span.sequence >= 0) last_sequence_ = std::max(last_sequence_, span.sequence += first_sequence_);
    if (span.correlation) last_correlation_ = std::max(last_correlation_, span.correlation += first_correlation_);
    out_.spans.push_back(span);
  }

  Trace out_;
  int64_t shift_ = 0, thread_shift_ = 0, first_sequence_ = 0, last_sequence_ = -1;
  int32_t first_call_ = 0, first_launch_ = 0;
  uint32_t first_correlation_ = 0, last_correlation_ = 0;
  std::set<int> used_;
  std::map<int, int> devices_;                // of the trace that is added
  std::map<int64_t, int64_t> large_threads_;  // of it, too
  std::vector<int32_t> names_here_;
  std::unordered_map<std::string, int32_t> names_;
};

/// The host's steps by rank, in order.
std::map<int, std::vector<const Span*>> steps_by_rank(const Trace& trace) {
  std::map<int, std::vector<const Span*>> out;
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Step) out[rank_of(trace, span)].push_back(&span);
  return out;
}

std::string step_at(const Trace& trace, const std::vector<const Span*>& steps, int64_t at) {
  const auto next =
      std::upper_bound(steps.begin(), steps.end(), at, [](int64_t time, const Span* s) { return time < s->begin; });
  return next == steps.begin() || at >= (*(next - 1))->end ? "" : std::string(trace.name_of(**(next - 1)));
}

/// One row of waits, from the calls of a name in a step.
void add_meeting(Waits& row, const std::map<int, Interval>& ranks, std::map<int, std::pair<double, int64_t>>& sums) {
  const auto late =
      std::max_element(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.second.begin < b.second.begin; });
  ++row.calls;
  ++sums[late->first].second;
  for (const auto& [rank, time] : ranks)
    sums[rank].first += seconds_in(std::min(late->second.begin - time.begin, time.length()));
}

/// Up to three ranks by name; of more the range.
std::string waiting_text(const Waits& row) {
  std::string text;
  int64_t count = 0;
  double least = INFINITY, most = 0;
  for (size_t i = 0; i < row.ranks.size(); ++i) {
    if (row.waited[i] <= 0) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", row.ranks[i], time_text(row.waited[i]));
    least = std::min(least, row.waited[i]);
    most = std::max(most, row.waited[i]);
    ++count;
  }
  if (count == 0) return "nobody";
  return count <= 3 ? text : fmt::format("{}, {} to {}", count_text(count, "rank"), time_text(least), time_text(most));
}

}  // namespace

std::vector<Collective> collectives_of(const Trace& trace) {
  const auto steps = steps_by_rank(trace);
  const LaunchTimes launched(trace);
  std::vector<bool> matches(trace.names.size());
  for (size_t i = 0; i < matches.size(); ++i) matches[i] = is_collective(trace.names[i]);
  const auto is_one = [&](const Span& s, Kind kind) { return s.kind == kind && matches[static_cast<size_t>(s.name)]; };
  const bool kernels =
      std::any_of(trace.spans.begin(), trace.spans.end(), [&](const Span& s) { return is_one(s, Kind::Kernel); });
  const auto counts = [&](const Span& s) {
    return kernels ? is_one(s, Kind::Kernel) : is_one(s, Kind::Op) || is_one(s, Kind::Range) || is_one(s, Kind::Module);
  };
  std::map<std::pair<int, int64_t>, int64_t> within;  // until when the thread is in one
  std::vector<Collective> out;
  for (const Span& span : trace.spans) {
    if (!counts(span)) continue;
    int64_t& until = within[{span.device, span.thread}];
    if (!kernels && span.begin < until) continue;
    until = span.end;
    const int rank = rank_of(trace, span);
    const auto of_rank = steps.find(rank);
    const int64_t at = kernels ? launched(span) : span.begin;
    out.push_back({rank, of_rank == steps.end() ? "" : step_at(trace, of_rank->second, at),
                   plain_kernel_name(bare_op(trace.name_of(span))), interval_of(span)});
  }
  return out;
}

double Waits::mean_wait() const {
  return ranks.empty() ? 0 : std::accumulate(waited.begin(), waited.end(), 0.0) / static_cast<double>(ranks.size());
}

std::vector<Waits> waits_of(const Trace& merged) {
  struct Group {
    Waits row;
    int64_t first = INT64_MAX;
    std::map<int, std::pair<double, int64_t>> sums;  // by rank: seconds waited, how often last
  };
  std::map<std::pair<std::string, std::string>, Group> groups;
  for (const auto& [key, ranks] : meetings_of(collectives_of(merged))) {
    if (ranks.size() < 2) continue;
    Group& group = groups[{std::get<0>(key), std::get<1>(key)}];
    for (const auto& [rank, time] : ranks) group.first = std::min(group.first, time.begin);
    add_meeting(group.row, ranks, group.sums);
  }
  std::vector<Group> ordered;
  for (auto& [key, group] : groups) {
    std::tie(group.row.step, group.row.name) = key;
    for (const auto& [rank, sum] : group.sums) {
      group.row.ranks.push_back(rank);
      group.row.waited.push_back(sum.first);
      if (sum.second > group.row.last_calls)
        std::tie(group.row.last, group.row.last_calls) = std::pair(rank, sum.second);
    }
    ordered.push_back(std::move(group));
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const Group& a, const Group& b) { return a.first < b.first; });
  std::vector<Waits> out;
  for (Group& group : ordered) out.push_back(std::move(group.row));
  return out;
}

Trace merge(const std::vector<Trace>& ranks) {
  if (ranks.empty()) throw Error("merge: no traces");
  std::vector<const Trace*> all;
  for (const Trace& trace : ranks) all.push_back(&trace);
  std::stable_sort(all.begin(), all.end(), [](const Trace* a, const Trace* b) { return a->rank < b->rank; });
  int64_t base = all[0]->base;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && all[i]->rank == all[i - 1]->rank)
      throw Error(fmt::format("merge: two traces are of rank {}", all[i]->rank));
    if (is_merged(*all[i])) throw Error("merge: a trace holds several ranks already");
    base = std::min(base, all[i]->base);
  }
  Merger merger(*all[0], base);
  for (const Trace* trace : all) merger.add(*trace, trace == all[0] ? 0 : clock_ahead(*all[0], *trace));
  return merger.finish();
}

std::string waits_text(const Trace& merged) {
  const std::vector<Waits> rows = waits_of(merged);
  if (rows.empty()) return "no collectives that ranks did together were recorded\n";
  std::string out =
      fmt::format("{:<18} {:<26} {:>6}  {:<22} {}\n", "step", "collective", "calls", "came last", "who waited");
  std::map<int, double> sums;
  for (const Waits& row : rows) {
    for (size_t i = 0; i < row.ranks.size(); ++i) sums[row.ranks[i]] += row.waited[i];
    out += fmt::format("{:<18} {:<26} {:>6}  {:<22} {}\n", row.step.empty() ? "-" : shortened(row.step, 18),
                       shortened(row.name, 26), row.calls,
                       fmt::format("rank {} ({} of {})", row.last, row.last_calls, row.calls), waiting_text(row));
  }
  for (const auto& [rank, seconds] : sums) out += fmt::format("rank {} waited {} in all\n", rank, time_text(seconds));
  return out;
}

}  // namespace tessera::profiler
