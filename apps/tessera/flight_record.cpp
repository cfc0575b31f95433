#include "flight_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "dist/control.h"
#include "profiler/summary.h"
#include "profiler/trace_json.h"

namespace tessera::app {
namespace {

using dist::CallRecord, dist::RankHistory, profiler::Trace;

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// Nanoseconds since 1970 at the zero of dist's clock.
int64_t clock_begin() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - dist::now_ns();
}

profiler::Call call_of(const CallRecord& record) {
  profiler::Call out;
  out.op = dist::name_of(record.call.kind);
  const int dims = std::clamp(record.call.dims, 0, static_cast<int>(std::size(record.call.shape)));
  if (record.call.dims < 0) out.dims = {{record.call.count}};
  else out.dims = {{record.call.shape, record.call.shape + dims}};
  out.types = {std::string(name(record.call.dtype))};
  out.attributes =
      fmt::format("{}, number={} of group {:x} of {} ranks, step={}{}", to_string(record.call), record.in_group,
                  record.group, record.ranks, record.step, record.ended == 0 ? ", did not end" : "");
  return out;
}

Trace trace_of(const RankHistory& rank, int64_t base, int64_t now) {
  Trace out;
  out.host = host_name();
  out.process = rank.process;
  out.rank = rank.rank, out.ranks = rank.ranks;
  const int64_t first = rank.calls.empty() ? now : rank.calls.front().began;
  out.base = base + first;
  for (const CallRecord& record : rank.calls) {
    const auto index = static_cast<int32_t>(out.calls.size());
    out.calls.push_back(call_of(record));
    out.names.push_back(out.calls.back().op);
    const int64_t end = record.ended > 0 ? record.ended : now;
    out.spans.push_back({.kind = profiler::Kind::Op,
                         .name = index,
                         .begin = record.began - first,
                         .end = std::max(end, record.began) - first,
                         .thread = rank.process,
                         .detail = index});
  }
  return out;
}

}  // namespace

void write_flight_record(const std::vector<RankHistory>& ranks, const std::string& file) {
  const int64_t base = clock_begin(), now = dist::now_ns();
  std::vector<Trace> traces;
  for (const RankHistory& rank : ranks) traces.push_back(trace_of(rank, base, now));
  profiler::write_trace(traces.size() > 1 ? profiler::merge(traces) : traces[0], file);
}

}  // namespace tessera::app
