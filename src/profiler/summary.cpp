// Tables of kernels and steps.
#include "profiler/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "profiler/analysis.h"
#include "profiler/kernel_name.h"

namespace tessera::profiler {
namespace {

/// A row in the making.
struct RowSums {
  KernelRow row;
  double flops = 0, bytes = 0, allowed = 0;
  bool roofs_known = true;
  std::map<std::string_view, double> paths, kernels;

  void add(const Trace& trace, std::string_view kernel, int device, const Call* call, double seconds, double share) {
    ++row.calls;
    row.seconds += seconds;
    row.times.push_back(seconds);
    row.device = device;
    kernels[kernel] += seconds;
    if (!call) {
      roofs_known = false;
      return;
    }
    paths[call->path] += seconds;
    flops += call->flops * share;
    bytes += call->bytes * share;
    const DeviceInfo* info = device_info(trace, device);
    std::string_view dtype = dtype_of(*call);
    if (dtype == "f32" && (contains_word(kernel, "tf32") || contains_word(call->kernel, "tf32"))) dtype = "tf32";
    const double least =
        info ? allowed_seconds(info->roof, dtype, is_product(call->op), call->flops * share, call->bytes * share) : 0;
    if (least <= 0) roofs_known = false;
    allowed += least;
  }

  KernelRow finished(double total) {
    for (const auto& [path, seconds] : paths) row.modules.emplace_back(path, seconds);
    std::stable_sort(row.modules.begin(), row.modules.end(), [](auto& a, auto& b) { return a.second > b.second; });
    row.kernel =
        std::max_element(kernels.begin(), kernels.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
    if (total > 0) row.share = row.seconds / total;
    if (row.seconds > 0) {
      row.flops_per_second = flops / row.seconds;
      row.bytes_per_second = bytes / row.seconds;
      if (roofs_known) row.roof_share = std::min(allowed / row.seconds, 1.0);
    }
    return std::move(row);
  }
};

struct NameHash {
  size_t operator()(const std::pair<std::string_view, std::string_view>& name) const {
    const std::hash<std::string_view> hash;
    return hash(name.first) * 31 + hash(name.second);
  }
};
using RowsByName = std::unordered_map<std::pair<std::string_view, std::string_view>, RowSums, NameHash>;

RowSums& row_of(RowsByName& rows, std::string_view kernel, std::string_view op) {
  RowSums& sums = rows[{kernel, op}];
  if (sums.row.calls == 0) sums.row.op = op;
  return sums;
}

void add_device_piece(RowsByName& rows, const Trace& trace, const Piece& piece, bool by_op) {
  const std::string_view op = op_of(trace, span_at(trace, piece.spans[0]));
  // Of all that the call started, what took longest names it.
  const auto longest = std::max_element(piece.times.begin(), piece.times.end()) - piece.times.begin();
  const Span& main = span_at(trace, piece.spans[static_cast<size_t>(longest)]);
  if (by_op && !op.empty())
    return row_of(rows, "", op).add(trace, trace.name_of(main), main.device, piece.call, seconds_in(piece.time), 1);
  for (size_t i = 0; i < piece.spans.size(); ++i) {
    const Span& span = span_at(trace, piece.spans[i]);
    const double share = piece.time > 0 ? static_cast<double>(piece.times[i]) / static_cast<double>(piece.time)
                                        : 1 / static_cast<double>(piece.spans.size());
    row_of(rows, trace.name_of(span), op)
        .add(trace, trace.name_of(span), span.device, piece.call, seconds_in(piece.times[i]), share);
  }
}

void add_host_piece(RowsByName& rows, const Trace& trace, const Piece& piece, bool by_op) {
  const std::string_view op = op_of(trace, span_at(trace, piece.spans[0]));
  const std::string_view kernel = piece.call ? std::string_view(piece.call->kernel) : std::string_view();
  row_of(rows, by_op ? "" : kernel, op).add(trace, kernel, -1, piece.call, seconds_in(piece.time), 1);
}

// ---- the table

constexpr size_t kKernelWidth = 45, kOpWidth = 22;

std::string table_line(std::string_view kernel, std::string_view op, std::string_view calls, std::string_view time,
                       std::string_view share, std::string_view bytes, std::string_view flops, std::string_view roof) {
  std::string line = fmt::format("{:<{}} {:<{}} {:>8} {:>9} {:>6} {:>7} {:>7} {:>6}", kernel, kKernelWidth, op,
                                 kOpWidth, calls, time, share, bytes, flops, roof);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

struct TableSum {
  int64_t calls = 0;
  double seconds = 0, share = 0, bytes = 0, flops = 0;

  void add(const KernelRow& row) {
    calls += row.calls;
    seconds += row.seconds;
    share += row.share;
    bytes += row.bytes_per_second * row.seconds;
    flops += row.flops_per_second * row.seconds;
  }
  std::string line(std::string_view what) const {
    const double time = seconds > 0 ? seconds : 1;
    return table_line(what, "", std::to_string(calls), time_text(seconds), percent_text(share),
                      digits_text(bytes / time * 1e-9), digits_text(flops / time * 1e-12), "");
  }
};

std::string row_line(const KernelRow& row, const std::string& kernel) {
  return table_line(kernel.empty() ? "-" : kernel, row.op.empty() ? "-" : shortened(row.op, kOpWidth),
                    std::to_string(row.calls), time_text(row.seconds), percent_text(row.share),
                    digits_text(row.bytes_per_second * 1e-9), digits_text(row.flops_per_second * 1e-12),
                    row.roof_share > 0 ? fmt::format("{:.0f} %", 100 * row.roof_share) : "-");
}

// ---- steps

/// The rank's steps, in order.
std::vector<const Span*> step_spans(const Trace& trace, int rank) {
  std::vector<const Span*> steps;
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Step && rank_of(trace, span) == rank && span.end > span.begin) steps.push_back(&span);
  return steps;
}

/// In a merged trace: of the host that started kernels of the device; -1: not known.
int rank_of_device(const Trace& trace, int device) {
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Kernel && span.device == device) return rank_of(trace, span);
  return -1;
}

/// What a step did on the device.
struct DeviceWindow {
  int64_t first = -1, last = -1;  // the first kernel's begin and the end of all
  bool seen() const { return first >= 0; }
};

/// Steps by what the device did; a step in which it did nothing takes no time there.
std::vector<Interval> device_windows(const Trace& trace, int device, const std::vector<const Span*>& steps) {
  std::vector<DeviceWindow> done(steps.size());
  const LaunchTimes launched(trace);
  for (const Span& span : trace.spans) {
    if (!is_on_device(span.kind) || span.device != device) continue;
    const int64_t at = launched(span);
    const auto next = std::upper_bound(steps.begin(), steps.end(), at,
                                       [](int64_t time, const Span* step) { return time < step->begin; });
    if (next == steps.begin() || at >= (*(next - 1))->end) continue;
    DeviceWindow& step = done[static_cast<size_t>(next - steps.begin()) - 1];
    if (span.kind == Kind::Kernel && (!step.seen() || span.begin < step.first)) step.first = span.begin;
    step.last = std::max(step.last, span.end);
  }
  std::vector<Interval> out(steps.size());
  int64_t next = -1, next_begin = -1;  // of the step after: on the device, and on the host
  for (size_t i = steps.size(); i-- > 0;) {
    const int64_t pause = next_begin - steps[i]->end;
    const bool followed = next >= 0 && pause * 20 <= steps[i]->end - steps[i]->begin;
    if (done[i].seen()) {
      out[i] = {done[i].first, followed ? next : next >= 0 ? std::min(next, done[i].last) : done[i].last};
      out[i].begin = std::min(out[i].begin, out[i].end);
      next = out[i].begin;
    } else {
      out[i] = {next, next};
    }
    next_begin = steps[i]->begin;
  }
  for (size_t i = 1; i < out.size(); ++i)
    if (out[i].begin < 0) out[i] = {out[i - 1].end, out[i - 1].end};
  return out;
}

struct StepIntervals {
  Intervals kernels, copies, ops;
};

StepIntervals step_intervals(const Trace& trace, int device, int rank) {
  std::vector<Interval> kernels, copies, ops;
  for (const Span& span : trace.spans) {
    if (span.kind == Kind::Op && (rank < 0 || rank_of(trace, span) == rank)) ops.push_back(interval_of(span));
    if (!is_on_device(span.kind) || span.device != device) continue;
    (span.kind == Kind::Kernel ? kernels : copies).push_back(interval_of(span));
  }
  StepIntervals out{union_of(std::move(kernels)), {}, union_of(std::move(ops))};
  out.copies = without(union_of(std::move(copies)), out.kernels);
  return out;
}

/// Busy and copies are parts of the window, so idle, which is the rest, is never negative.
StepRow step_row(const StepIntervals& all, std::string name, Interval window, Interval host, bool on_host) {
  StepRow row;
  row.name = std::move(name);
  row.begin = window.begin;
  row.end = window.end;
  const int64_t busy = length_of(clipped_to(on_host ? all.ops : all.kernels, window));
  const int64_t copies = length_of(clipped_to(all.copies, window));
  row.seconds = seconds_in(window.length());
  row.busy = seconds_in(busy);
  row.copies = seconds_in(copies);
  row.idle = seconds_in(window.length() - busy - copies);
  row.host_ops = seconds_in(length_of(clipped_to(all.ops, host)));
  return row;
}

/// Of all that was seen, on the device or the host.
Interval whole_window(const Trace& trace, int device) {
  Interval all{INT64_MAX, INT64_MIN};
  for (const Span& span : trace.spans) {
    if (span.device != device || (device >= 0 && !is_on_device(span.kind))) continue;
    all.begin = std::min(all.begin, span.begin);
    all.end = std::max(all.end, span.end);
  }
  return all;
}

}  // namespace

std::vector<KernelRow> kernel_table(const Trace& trace, bool by_op) {
  RowsByName rows;
  double total = 0;
  const bool on_device = has_kernels(trace);
  for (const Piece& piece : on_device ? device_pieces(trace) : host_pieces(trace)) {
    total += seconds_in(piece.time);
    if (on_device) add_device_piece(rows, trace, piece, by_op);
    else add_host_piece(rows, trace, piece, by_op);
  }
  std::vector<KernelRow> out;
  out.reserve(rows.size());
  for (auto& [name, sums] : rows) out.push_back(sums.finished(total));
  std::sort(out.begin(), out.end(), [](const KernelRow& a, const KernelRow& b) {
    if (a.seconds != b.seconds) return a.seconds > b.seconds;
    return std::tie(a.op, a.kernel) < std::tie(b.op, b.kernel);
  });
  return out;
}

std::string table_text(const Trace& trace, const std::vector<KernelRow>& rows, size_t most) {
  if (rows.empty()) return "no kernels and no operators were recorded\n";
  std::string out = table_line(has_kernels(trace) ? "kernel" : "kernel, on the host", "operator", "calls", "time",
                               "share", "GB/s", "TFLOP/s", "roof");
  const size_t shown = std::min(most, rows.size());
  std::vector<std::string> names;
  for (size_t i = 0; i < shown; ++i) names.push_back(rows[i].kernel);
  names = short_kernel_names(names, kKernelWidth);
  TableSum others, all;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < shown) out += row_line(rows[i], names[i]);
    else others.add(rows[i]);
    all.add(rows[i]);
  }
  if (shown < rows.size()) out += others.line(count_text(static_cast<int64_t>(rows.size() - shown), "other"));
  return out + all.line("total");
}

std::vector<StepRow> steps_of(const Trace& trace) {
  const int device = device_to_watch(trace);
  const bool on_host = device < 0;
  const int rank = on_host ? trace.rank : rank_of_device(trace, device);
  const std::vector<const Span*> steps = step_spans(trace, rank);
  const StepIntervals all = step_intervals(trace, device, rank);
  if (steps.empty()) {
    const Interval window = whole_window(trace, device);
    if (window.length() == 0) return {};
    return {step_row(all, "all", window, on_host ? window : whole_window(trace, -1), on_host)};
  }
  const std::vector<Interval> windows = on_host ? std::vector<Interval>() : device_windows(trace, device, steps);
  std::vector<StepRow> out;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Interval host = interval_of(*steps[i]);
    out.push_back(step_row(all, std::string(trace.name_of(*steps[i])), on_host ? host : windows[i], host, on_host));
  }
  return out;
}

std::string steps_text(const std::vector<StepRow>& steps) {
  if (steps.empty()) return "no steps were recorded\n";
  const auto line = [](const std::string& name, const StepRow& step) {
    const auto part = [&](double seconds) {
      return fmt::format("{:>9} {:>8}", time_text(seconds),
                         step.seconds > 0 ? "(" + percent_text(seconds / step.seconds) + ")" : "");
    };
    return fmt::format("{:<24} {:>9}  {}  {}  {}  {:>9}\n", shortened(name, 24), time_text(step.seconds),
                       part(step.busy), part(step.copies), part(step.idle), time_text(step.host_ops));
  };
  std::string out = fmt::format("{:<24} {:>9}  {:>18}  {:>18}  {:>18}  {:>9}\n", "step", "time", "busy", "copies alone",
                                "idle", "operators");
  StepRow mean;
  double count = 0;
  constexpr size_t first = 6, last = 4;  // of many; the mean is of all
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepRow& step = steps[i];
    const bool shown = steps.size() <= first + last + 1 || i < first || i + last >= steps.size();
    if (shown) out += line(step.name, step);
    else if (i == first) out += fmt::format("{} others\n", steps.size() - first - last);
    if (step.seconds <= 0) continue;
    count += 1;
    mean.seconds += step.seconds;
    mean.busy += step.busy;
    mean.copies += step.copies;
    mean.idle += step.idle;
    mean.host_ops += step.host_ops;
  }
  if (count < 2) return out;
  for (double* sum : {&mean.seconds, &mean.busy, &mean.copies, &mean.idle, &mean.host_ops}) *sum /= count;
  return out + line("mean", mean);
}

}  // namespace tessera::profiler
