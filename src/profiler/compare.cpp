// What became slower or faster from one trace to another.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "profiler/analysis.h"
#include "profiler/kernel_name.h"
#include "profiler/summary.h"

namespace tessera::profiler {
namespace {

struct Spread {
  double mean = 0, deviation = 0, total = 0;
  size_t count = 0;
  /// Of the mean, squared.
  double variance() const { return count > 1 ? deviation * deviation / static_cast<double>(count) : 0; }
};

/// Steps repeat their calls. So, where it can be, the deviation is that among calls in the same place of their steps:
/// that calls of other shapes take other times says nothing about noise.
Spread spread_of(const std::vector<double>& times, size_t steps = 1) {
  Spread out;
  out.count = times.size();
  if (times.empty()) return out;
  for (const double t : times) out.total += t;
  out.mean = out.total / static_cast<double>(out.count);
  const bool repeats = steps > 1 && times.size() % steps == 0;
  const size_t places = repeats ? times.size() / steps : 1;
  double squares = 0;
  for (size_t place = 0; place < places; ++place) {
    double sum = 0, count = 0;
    for (size_t i = place; i < times.size(); i += places) sum += times[i], count += 1;
    for (size_t i = place; i < times.size(); i += places)
      squares += (times[i] - sum / count) * (times[i] - sum / count);
  }
  if (out.count > places) out.deviation = std::sqrt(squares / static_cast<double>(out.count - places));
  return out;
}

/// Below two standard errors a change of the mean is noise. Of one call there is no error to compare with.
std::string_view verdict_of(const Spread& a, const Spread& b) {
  if (a.count == 0) return "only B";
  if (b.count == 0) return "only A";
  if (a.mean == b.mean) return "same";
  if (a.count < 2 || b.count < 2) return "once";
  if (std::abs(b.mean - a.mean) < 2 * std::sqrt(a.variance() + b.variance())) return "noise";
  return b.mean > a.mean ? "slower" : "faster";
}

/// The same work on both sides.
struct Pair {
  std::string kernel, op;
  std::string renamed = {};  // the kernel of b, where that is another one
  std::vector<double> a = {}, b = {};
  Spread before = {}, after = {};
  double change = 0;  // seconds a step
};

void append(std::vector<double>& to, const std::vector<double>& times) {
  to.insert(to.end(), times.begin(), times.end());
}

/// Rows of an operator that only one side has, joined: the kernel has another name there.
void pair_renamed(std::vector<Pair>& pairs) {
  std::map<std::string, std::pair<std::vector<size_t>, std::vector<size_t>>> alone;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    if (pair.op.empty() || (!pair.a.empty() && !pair.b.empty())) continue;
    auto& [of_a, of_b] = alone[pair.op];
    (pair.b.empty() ? of_a : of_b).push_back(i);
  }
  for (const auto& [op, rows] : alone) {
    const auto& [of_a, of_b] = rows;
    if (of_a.empty() || of_b.empty()) continue;
    const auto name = [&](const std::vector<size_t>& of) {
      return of.size() == 1 ? pairs[of[0]].kernel : count_text(static_cast<int64_t>(of.size()), "kernel");
    };
    Pair joined{name(of_a), op, name(of_b)};
    for (const size_t i : of_a) append(joined.a, std::exchange(pairs[i].a, {}));
    for (const size_t i : of_b) append(joined.b, std::exchange(pairs[i].b, {}));
    pairs.push_back(std::move(joined));
  }
  std::erase_if(pairs, [](const Pair& pair) { return pair.a.empty() && pair.b.empty(); });
}

std::vector<Pair> pairs_of(const Trace& a, const Trace& b) {
  std::map<std::pair<std::string, std::string>, Pair> rows;
  for (KernelRow& row : kernel_table(a)) rows[{row.op, row.kernel}].a = std::move(row.times);
  for (KernelRow& row : kernel_table(b)) rows[{row.op, row.kernel}].b = std::move(row.times);
  std::vector<Pair> out;
  for (auto& [name, pair] : rows) {
    pair.op = name.first;
    pair.kernel = name.second;
    out.push_back(std::move(pair));
  }
  pair_renamed(out);
  return out;
}

struct StepSpread {
  Spread time;
  double count = 1;
};

/// The last step of a device ends with its last kernel: too early to be compared, where there are others.
StepSpread step_spread(const Trace& trace) {
  std::vector<double> times;
  for (const StepRow& step : steps_of(trace))
    if (step.seconds > 0) times.push_back(step.seconds);
  const double count = static_cast<double>(std::max<size_t>(times.size(), 1));
  if (times.size() > 2 && has_kernels(trace)) times.pop_back();
  return {spread_of(times), count};
}

/// "1.23 ms +-0.02 x120".
std::string spread_text(const Spread& s) {
  if (s.count == 0) return "-";
  const std::string time = time_text(s.mean);
  const size_t space = time.find(' ');
  const std::string unit = space == time.npos ? "" : time.substr(space + 1);
  const double scale = unit == "us" ? 1e6 : unit == "ms" ? 1e3 : unit == "ns" ? 1e9 : 1;
  const double deviation = s.deviation * scale;
  const std::string spread = s.count > 1 ? fmt::format(" +-{:.{}f}", deviation, deviation < 10 ? 2 : 0) : "";
  return fmt::format("{}{} x{}", time, spread, s.count);
}

std::string change_text(const Spread& a, const Spread& b) {
  return a.count && b.count && a.mean > 0 ? fmt::format("{:+.1f} %", 100 * (b.mean / a.mean - 1)) : "-";
}
std::string signed_time(double seconds) { return (seconds > 0 ? "+" : "") + time_text(seconds); }

std::string pair_line(std::string_view kernel, std::string_view op, std::string_view a, std::string_view b,
                      std::string_view change, std::string_view step, std::string_view verdict) {
  std::string line =
      fmt::format("{:<29} {:<16} {:>21} {:>21} {:>9} {:>9}  {}", kernel, op, a, b, change, step, verdict);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

/// The largest changes of a step's time first.
std::vector<Pair> changes_of(const Trace& a, const Trace& b, const StepSpread& step_a, const StepSpread& step_b) {
  std::vector<Pair> pairs = pairs_of(a, b);
  for (Pair& pair : pairs) {
    pair.before = spread_of(pair.a, static_cast<size_t>(step_a.count));
    pair.after = spread_of(pair.b, static_cast<size_t>(step_b.count));
    pair.change = pair.after.total / step_b.count - pair.before.total / step_a.count;
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& x, const Pair& y) { return std::abs(x.change) > std::abs(y.change); });
  return pairs;
}

}  // namespace

std::string compare(const Trace& a, const Trace& b, size_t most) {
  const StepSpread step_a = step_spread(a), step_b = step_spread(b);
  const std::vector<Pair> pairs = changes_of(a, b, step_a, step_b);
  if (pairs.empty()) return "no kernels and no operators were recorded in either\n";
  std::string out = fmt::format("a step: {} -> {}, {} ({})\n", spread_text(step_a.time), spread_text(step_b.time),
                                change_text(step_a.time, step_b.time), verdict_of(step_a.time, step_b.time));
  out += pair_line("kernel", "operator", "A, a call", "B, a call", "a call", "a step", "");
  const size_t shown = std::min(most, pairs.size());
  std::vector<std::string> names;
  for (size_t i = 0; i < shown; ++i) names.push_back(pairs[i].kernel);
  names = short_kernel_names(names, 29);
  for (size_t i = 0; i < shown; ++i) {
    const Pair& pair = pairs[i];
    out += pair_line(names[i].empty() ? "-" : names[i], pair.op.empty() ? "-" : shortened(pair.op, 16),
                     spread_text(pair.before), spread_text(pair.after), change_text(pair.before, pair.after),
                     signed_time(pair.change), verdict_of(pair.before, pair.after));
    if (!pair.renamed.empty()) out += fmt::format("  in B: {}\n", shortened(plain_kernel_name(pair.renamed), 110));
  }
  double rest = 0;
  for (size_t i = shown; i < pairs.size(); ++i) rest += pairs[i].change;
  if (shown < pairs.size())
    out += pair_line(count_text(static_cast<int64_t>(pairs.size() - shown), "other"), "", "", "", "", signed_time(rest),
                     "");
  return out;
}

}  // namespace tessera::profiler
