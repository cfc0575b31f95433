#include "dist/waiting_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace tessera::dist {

char letter_of_process(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // behind the name, which may hold anything
  return end == std::string::npos || end + 2 >= text.size() ? 'X' : text[end + 2];
}

// As its launcher sees it.
char letter_of(const Place& place) {
  return place.pid > 0 ? letter_of_process(place.pid) : static_cast<char>(place.process.load());
}

bool is_stopped(char letter) { return letter == 'T' || letter == 't'; }

std::string_view state_of_process(char letter) {
  if (is_stopped(letter)) return "is stopped";
  switch (letter) {
    case 'R':
      return "computes";
    case 'D':
      return "waits for a disk or a device";
    case 'S':
      return "sleeps";
    default:
      return "is gone";
  }
}

std::vector<std::string> waiting_table(const Control& control, double seconds) {
  constexpr const char* kNames[kPhases] = {"between collectives", "reading data", "computing", "saving"};
  const int n = control.ranks();
  const double all = seconds * n;
  double lost = 0;
  std::vector<double> of_rank(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) {
    for (const std::atomic<int64_t>& ns : control.place(r).kept_waiting)
      of_rank[static_cast<size_t>(r)] += static_cast<double>(ns.load()) * 1e-9;
    lost += of_rank[static_cast<size_t>(r)];
  }
  if (lost < std::max(0.05 * all, 1.0)) return {};
  const int worst = static_cast<int>(std::max_element(of_rank.begin(), of_rank.end()) - of_rank.begin());
  // By chance each would be last as often as any other.
  const bool persistent = of_rank[static_cast<size_t>(worst)] > std::min(0.75, 2.0 / n + 0.1) * lost && n > 1;
  std::vector<std::string> lines{
      fmt::format("ranks waited for each other in {:.1f} % of their time, {}", 100 * lost / all,
                  persistent ? fmt::format("mostly for rank {}", worst) : "for one as much as for another")};
  for (int r = 0; r < n && persistent; ++r) {
    if (of_rank[static_cast<size_t>(r)] < 0.1 * lost) continue;
    std::vector<std::string> parts;
    for (int phase = 0; phase < kPhases; ++phase) {
      const double part = static_cast<double>(control.place(r).kept_waiting[phase].load()) * 1e-9;
      if (part > 0.1 * of_rank[static_cast<size_t>(r)])
        parts.push_back(fmt::format("{} {:.0f} %", kNames[phase], 100 * part / of_rank[static_cast<size_t>(r)]));
    }
    lines.push_back(fmt::format("  for rank {}: {:.1f} %, while it was {}", r,
                                100 * of_rank[static_cast<size_t>(r)] / all, fmt::join(parts, ", ")));
  }
  return lines;
}

WaitingRanks::WaitingRanks(const Control& control, double patience)
    : control_(control), patience_(patience), named_(static_cast<size_t>(control.ranks())) {}

std::vector<Waited> WaitingRanks::look() {
  std::map<int, std::vector<int>> waiting;  // for whom, and who
  std::set<int> overdue;                    // for whom one has waited all its patience
  std::vector<int> waits_for(static_cast<size_t>(control_.ranks()), -1);
  std::vector<double> waited(static_cast<size_t>(control_.ranks()));
  const int64_t now = now_ns();
  for (int r = 0; r < control_.ranks(); ++r) {
    const Place& place = control_.place(r);
    const int other = place.waits_for.load(std::memory_order_relaxed) - 1;
    double& seconds = waited[static_cast<size_t>(r)];
    seconds = static_cast<double>(now - place.since.load(std::memory_order_relaxed)) * 1e-9;
    // Ranks begin a call one after the other, and the first to lose its patience speaks for the others. One that was
    // stopped while it waited may have nothing to wait for any more.
    if (other >= 0 && other < control_.ranks() && seconds >= patience_ / 2 && !is_stopped(letter_of(place)))
      waits_for[static_cast<size_t>(r)] = other;
  }
  for (int r = 0; r < control_.ranks(); ++r) {
    if (waits_for[static_cast<size_t>(r)] < 0) continue;
    int cause = r, steps = 0;
    while (waits_for[static_cast<size_t>(cause)] >= 0 && steps++ < control_.ranks())
      cause = waits_for[static_cast<size_t>(cause)];
    if (waits_for[static_cast<size_t>(cause)] >= 0)  // in a circle, whose first rank stands for all
      for (int at = waits_for[static_cast<size_t>(cause)], end = cause; at != end;
           at = waits_for[static_cast<size_t>(at)])
        cause = std::min(cause, at);
    waiting[cause].push_back(r);
    if (waited[static_cast<size_t>(r)] >= patience_) overdue.insert(cause);
  }
  std::vector<Waited> found;
  for (const auto& [cause, ranks] : waiting) {
    if (!overdue.contains(cause)) continue;
    uint64_t& named = named_[static_cast<size_t>(cause)];
    const uint64_t calls = control_.place(cause).calls.load(std::memory_order_relaxed) + 1;
    if (std::exchange(named, calls) != calls) found.push_back(describe(ranks, cause));
  }
  return found;
}

Waited WaitingRanks::describe(const std::vector<int>& waiting, int cause) const {
  const Place& late = control_.place(cause);
  const auto call_of = [&](int r) {
    const Place& place = control_.place(r);
    return fmt::format("{}, call {}", name_of(static_cast<Call::Kind>(place.kind.load())), place.calls.load());
  };
  if (std::find(waiting.begin(), waiting.end(), cause) != waiting.end()) {
    std::vector<std::string> circle;
    std::vector<int> ranks;
    for (int r = cause; circle.empty() || r != cause; r = control_.place(r).waits_for.load() - 1) {
      if (r < 0 || static_cast<int>(circle.size()) > control_.ranks()) break;  // somebody goes on
      circle.push_back(fmt::format("rank {} for rank {} in {}", r, control_.place(r).waits_for.load() - 1, call_of(r)));
      ranks.push_back(r);
    }
    return {fmt::format("ranks wait for each other, and none will come: {}", fmt::join(circle, "; ")), ranks};
  }
  const int64_t step = late.step.load();
  const std::string line = fmt::format(
      "rank{} {} wait{} for rank {} in {}: it {}, after {} calls{}", waiting.size() > 1 ? "s" : "",
      fmt::join(waiting, ", "), waiting.size() > 1 ? "" : "s", cause, call_of(waiting[0]),
      state_of_process(letter_of(late)), late.calls.load(), step > 0 ? fmt::format(", in step {}", step) : "");
  return {line, {cause}};
}

}  // namespace tessera::dist
