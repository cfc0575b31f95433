#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/file.h"
#include "profiler/advice.h"
#include "profiler/files.h"
#include "profiler/report.h"
#include "profiler/summary.h"
#include "profiler/trace_json.h"
#include "tessera/error.h"
#include "tessera/io.h"
#include "tessera/profiler.h"

namespace tessera::profiler {

Recording::Recording(std::shared_ptr<const Trace> trace) : trace_(std::move(trace)) {}

std::string Recording::table(size_t rows) const { return table_text(*trace_, kernel_table(*trace_), rows); }
// A line a step, of those of the processor's counters that this machine has.
static std::string counters_text(const Trace& trace) {
  std::string text;
  for (const StepCounters& c : trace.counters) {
    const auto each = [&](int64_t n) { return static_cast<double>(n); };
    std::vector<std::string> parts;
    if (c.cycles > 0) parts.push_back(fmt::format("{:.3g} cycles", each(c.cycles)));
    if (c.cycles > 0 && c.instructions > 0)
      parts.push_back(fmt::format("{:.2f} instructions a cycle", each(c.instructions) / each(c.cycles)));
    if (c.cache_misses > 0) parts.push_back(fmt::format("{:.3g} cache misses", each(c.cache_misses)));
    if (parts.empty()) continue;
    parts.push_back(fmt::format("{} context switches", c.context_switches));
    text += fmt::format("{}: {}\n", trace.name_of(trace.spans[static_cast<size_t>(c.step)]), fmt::join(parts, ", "));
  }
  return text;
}
std::string Recording::steps() const { return steps_text(steps_of(*trace_)) + counters_text(*trace_); }
std::string Recording::notes() const {
  std::string text;
  for (const std::string& note : trace_->notes) text += "note: " + note + "\n";
  return text;
}
std::string Recording::advice() const { return advice_text(profiler::advice(*trace_)); }
void Recording::write_trace(const std::string& file) const { profiler::write_trace(*trace_, file); }
void Recording::write_report(const std::string& file) const { write_file(file, report_html(*trace_)); }
void Recording::write_flame(const std::string& file) const { write_file(file, flame_svg(*trace_)); }

void Recording::write_memory(const std::string& file) const {
  std::map<int, int64_t> most;
  for (const MemoryChange& m : trace_->memory) most[m.device] = std::max(most[m.device], m.allocated);
  const auto device = std::max_element(most.begin(), most.end(), [](auto& a, auto& b) { return a.second < b.second; });
  write_memory_timeline(*trace_, device == most.end() ? -1 : device->first, file);
}

std::string Recording::write(const std::string& folder) const {
  const WrittenFiles written = write_files(*this, folder);
  if (!written.trouble.empty()) throw FileError(fmt::format("{}", fmt::join(written.trouble, "; ")));
  return written.trace;
}

}  // namespace tessera::profiler
