// What is worth an advice, and how it reads.
#include "profiler/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "profiler/advice_rules.h"

namespace tessera::profiler {
namespace {

constexpr double kTuned = 0.97;  // busier than this a device waits for nothing
constexpr size_t kAdviceWidth = 118;

/// Where the steps are; without steps, the thread that was longest in operators.
int64_t thread_of_steps(const Trace& trace, int rank) {
  std::map<int64_t, int64_t> ops;
  for (const Span& span : trace.spans) {
    if (is_on_device(span.kind) || rank_of(trace, span) != rank) continue;
    if (span.kind == Kind::Step) return span.thread;
    if (span.kind == Kind::Op) ops[span.thread] += interval_of(span).length();
  }
  const auto most = std::max_element(ops.begin(), ops.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return most == ops.end() ? 0 : most->first;
}

int rank_to_watch(const Trace& trace, int device) {
  for (const Span& span : trace.spans)
    if (device >= 0 && span.kind == Kind::Kernel && span.device == device) return rank_of(trace, span);
  return trace.rank;
}

/// Words in lines of that width, each after two spaces.
std::string wrapped(const std::string& text, size_t width) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(at + width, text.size());
    if (end < text.size()) {
      const size_t space = text.rfind(' ', end);
      if (space != text.npos && space > at) end = space;
    }
    out += "  " + text.substr(at, end - at) + "\n";
    at = text.find_first_not_of(' ', end);
  }
  return out;
}

}  // namespace

AdviceInput::AdviceInput(const Trace& trace)
    : trace(trace), device(device_to_watch(trace)), rank(rank_to_watch(trace, device)), launched(trace) {
  for (const StepRow& step : steps_of(trace))
    if (step.seconds > 0) steps.push_back(step);
  if (!on_host() && steps.size() > 1) steps.pop_back();
  double busy = 0, all = 0;
  for (const StepRow& step : steps) {
    windows.push_back({step.begin, step.end});
    busy += step.busy;
    all += step.seconds;
  }
  windows = union_of(std::move(windows));
  if (steps.empty()) return;
  step_seconds = all / static_cast<double>(steps.size());
  busy_share = busy / all;
  thread = thread_of_steps(trace, rank);
  std::vector<Interval> active;
  for (const Span& span : trace.spans)
    if (is_on_device(span.kind) && span.device == device) active.push_back(interval_of(span));
  if (!on_host()) {
    const Intervals covered = union_of(std::move(active));
    for (const StepRow& step : steps)  // a gap ends with its step
      for (const Interval& gap : without({{step.begin, step.end}}, clipped_to(covered, {step.begin, step.end})))
        idle.push_back(gap);
  }
}

bool AdviceInput::is_in_steps(int64_t at) const {
  const auto after =
      std::upper_bound(windows.begin(), windows.end(), at, [](int64_t t, const Interval& w) { return t < w.begin; });
  return after != windows.begin() && at < (after - 1)->end;
}

Advice AdviceInput::advice(std::string rule, double nanoseconds) const {
  Advice out;
  out.rule = std::move(rule);
  out.seconds = nanoseconds * 1e-9 / static_cast<double>(std::max<size_t>(steps.size(), 1));
  out.share = step_seconds > 0 ? out.seconds / step_seconds : 0;
  return out;
}

std::vector<Advice> advice(const Trace& trace) {
  AdviceInput in(trace);
  if (in.steps.empty()) return {};
  Advices out;
  const auto take = [&](Advices more) {
    for (Advice& one : more)
      if (one.share >= kWorthwhile) out.push_back(std::move(one));
  };
  // Each of these takes away the gaps that it explains: a loader's first, since what it does may wait, too.
  if (in.on_host() || in.busy_share < kTuned) {
    take(advise_on_loader(in));
    take(advise_on_synchronisation(in));
    take(advise_on_host(in));
  }
  take(advise_on_small_kernels(in));
  take(advise_on_matrix_cores(in));
  take(advise_on_copies(in));
  take(advise_on_imbalance(in));
  std::stable_sort(out.begin(), out.end(), [](const Advice& a, const Advice& b) { return a.seconds > b.seconds; });
  return out;
}

std::string advice_text(const std::vector<Advice>& all) {
  std::string out;
  for (const Advice& one : all) {
    const double most = one.share * one.at_most / one.seconds;
    out += one.at_most > 0
               ? fmt::format("{}: {} to {} of a step ({:.0f} to {:.0f} %)\n", one.rule, time_text(one.seconds),
                             time_text(one.at_most), 100 * one.share, 100 * most)
               : fmt::format("{}: {} of a step ({:.0f} %)\n", one.rule, time_text(one.seconds), 100 * one.share);
    out += wrapped(one.what, kAdviceWidth);
    std::string where;
    for (const auto& [what, text] : {std::pair{"operator", &one.op}, {"module", &one.path}, {"from", &one.source}})
      if (!text->empty()) where += fmt::format("{}{} {}", where.empty() ? "" : ", ", what, *text);
    if (!where.empty()) out += wrapped("at: " + where, kAdviceWidth);
  }
  return out;
}

}  // namespace tessera::profiler
