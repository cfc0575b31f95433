// tessera profile FILE|DIR: what a recorded profile comes to; two compared; several ranks' as one.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "profiler/advice.h"
#include "profiler/report.h"
#include "profiler/summary.h"
#include "profiler/trace_json.h"
#include "profiling.h"
#include "tessera/io.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using profiler::Advice, profiler::KernelRow, profiler::StepRow, profiler::Trace;

struct TraceOptions {
  std::string trace, out, report, json;
  std::vector<std::string> compare, merge;
  int top = 10;
  bool by_op = false;
};

bool is_trace_name(const std::string& name) {
  return name.ends_with(".pt.trace.json") || name.ends_with(".pt.trace.json.gz");
}

/// The file itself, or of a folder the trace that was written last.
std::string trace_file(const std::string& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return path;
  fs::path newest;
  fs::file_time_type when;
  for (const auto& entry : fs::directory_iterator(path, code)) {
    if (!is_trace_name(entry.path().filename().string()) || !entry.is_regular_file(code)) continue;
    const fs::file_time_type written = entry.last_write_time(code);
    const bool later = newest.empty() || written > when || (written == when && entry.path() > newest);
    if (later) std::tie(newest, when) = std::pair(entry.path(), written);
  }
  if (code) throw FileError(path + ": " + code.message());
  if (newest.empty()) throw FileError(path + ": has no file *.pt.trace.json or *.pt.trace.json.gz");
  return newest.string();
}

Trace trace_of(const std::string& path) { return profiler::read_trace(trace_file(path)); }

/// Known before the work, not after it.
void check_writable(const std::string& file) {
  if (file.empty()) return;
  const std::string folder = fs::path(file).parent_path().string();
  if (fs::is_directory(file) || access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)
    throw UsageError("cannot write " + file);
}

nlohmann::json as_json(const std::string& file, const std::vector<StepRow>& steps, const std::vector<KernelRow>& rows,
                       const std::vector<Advice>& all) {
  nlohmann::json out = {{"command", "profile"}, {"trace", file}};
  auto& step_list = out["steps"] = nlohmann::json::array();
  for (const StepRow& s : steps)
    step_list.push_back({{"name", s.name},
                         {"seconds", s.seconds},
                         {"busy", s.busy},
                         {"copies", s.copies},
                         {"idle", s.idle},
                         {"host_ops", s.host_ops}});
  auto& kernels = out["kernels"] = nlohmann::json::array();
  for (const KernelRow& r : rows) {
    auto modules = nlohmann::json::array();
    for (const auto& [module, seconds] : r.modules) modules.push_back({{"module", module}, {"seconds", seconds}});
    kernels.push_back({{"kernel", r.kernel},
                       {"op", r.op},
                       {"module", r.path()},
                       {"modules", std::move(modules)},
                       {"calls", r.calls},
                       {"seconds", r.seconds},
                       {"share", r.share},
                       {"bytes_per_second", r.bytes_per_second},
                       {"flops_per_second", r.flops_per_second},
                       {"roof_share", r.roof_share}});
  }
  auto& advices = out["advice"] = nlohmann::json::array();
  for (const Advice& a : all)
    advices.push_back({{"rule", a.rule},
                       {"what", a.what},
                       {"op", a.op},
                       {"module", a.path},
                       {"source", a.source},
                       {"seconds", a.seconds},
                       {"at_most", std::max(a.seconds, a.at_most)},
                       {"share", a.share}});
  return out;
}

void print_notes(const Trace& trace) {
  for (const std::string& note : trace.notes) fmt::print("note: {}\n", note);
  if (trace.dropped > 0) fmt::print("note: {} events had no room and are missing\n", trace.dropped);
}

/// Prints the trace, and writes what was asked for.
void show_trace(const Trace& trace, const std::string& file, const TraceOptions& options) {
  const std::vector<StepRow> steps = profiler::steps_of(trace);
  const std::vector<KernelRow> rows = profiler::kernel_table(trace, options.by_op);
  const std::vector<Advice> all = profiler::advice(trace);
  print_notes(trace);
  fmt::print("{}\n{}\n", profiler::steps_text(steps),
             profiler::table_text(trace, rows, static_cast<size_t>(options.top)));
  fmt::print("{}", advice_lines(profiler::advice_text(all)));
  if (!options.report.empty()) write_file(options.report, profiler::report_html(trace));
  if (!options.json.empty()) {
    const auto replace = nlohmann::json::error_handler_t::replace;  // names are a file's
    write_file(options.json, as_json(file, steps, rows, all).dump(2, ' ', false, replace) + "\n");
  }
}

void run_merge(const TraceOptions& options) {
  if (options.merge.size() < 2) throw UsageError("--merge wants the traces of two ranks or more");
  if (options.out.empty()) throw UsageError("--merge wants --out FILE for the one trace");
  std::vector<Trace> ranks;
  for (const std::string& path : options.merge) ranks.push_back(trace_of(path));
  Trace merged;
  try {
    merged = profiler::merge(ranks);
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  profiler::write_trace(merged, options.out);
  fmt::print("{} ranks, {} events -> {}\n{}", ranks.size(), merged.spans.size(), options.out,
             profiler::waits_text(merged));
  if (!options.report.empty()) write_file(options.report, profiler::report_html(merged));
}

void run(const TraceOptions& options) {
  const int jobs = !options.trace.empty() + !options.compare.empty() + !options.merge.empty();
  if (jobs != 1) throw UsageError("give one of a trace, --compare A B and --merge RANK0 RANK1 ...");
  if (!options.out.empty() && options.merge.empty()) throw UsageError("--out belongs to --merge");
  if (!options.json.empty() && options.trace.empty()) throw UsageError("--json wants a trace to say what it holds");
  if (!options.report.empty() && !options.compare.empty()) throw UsageError("--report is of one trace, not of two");
  for (const std::string& file : {options.out, options.report, options.json}) check_writable(file);
  if (!options.merge.empty()) return run_merge(options);
  if (options.compare.empty()) {
    const std::string file = trace_file(options.trace);
    return show_trace(profiler::read_trace(file), file, options);
  }
  if (options.compare.size() != 2) throw UsageError("--compare wants two traces");
  const Trace a = trace_of(options.compare[0]), b = trace_of(options.compare[1]);
  fmt::print("{}", profiler::compare(a, b, static_cast<size_t>(options.top)));
}

}  // namespace

void add_profile(Command app) {
  const Command command =
      app.command("profile", "Say what a recorded profile comes to: steps, the kernels that cost most, advice.");
  auto options = std::make_shared<TraceOptions>();
  command.option("trace", options->trace, "a *.pt.trace.json[.gz], or a folder: the newest in it");
  command.option("--compare", options->compare, "two traces: what became slower or faster from one to the other")
      .take_all();
  command.option("--merge", options->merge, "traces of several ranks: one trace, and who waited for whom").take_all();
  command.option("--out", options->out, "where --merge writes the one trace");
  command.option("--top", options->top, "rows of the table").range(1, 100000).with_default();
  command.flag("--by-op", options->by_op, "a row for each operator, not for each of its kernels");
  command.option("--report", options->report, "write the page with timeline, tables and pictures to this file");
  command.option("--json", options->json, "write steps, kernels and advice to this file");
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
