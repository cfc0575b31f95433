// The report's page: its data as JSON, columns of numbers packed, within the page's files.
#include "profiler/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "profiler/advice.h"
#include "profiler/flame.h"
#include "profiler/report_page.h"
#include "profiler/report_parts.h"
#include "profiler/summary.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

using nlohmann::json;

/// More spans would make the page slow to open: the shortest are left out of its timeline.
constexpr size_t kMostSpans = 400'000;
constexpr size_t kMostRows = 2000, kModulesOfARow = 100, kMostFlameNodes = 20'000;

/// Whole numbers in base64, seven bits in each byte, the lowest first; the sign is in the lowest bit.
class PackedColumn {
 public:
  void push(int64_t value) {
    uint64_t rest = (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
    for (; rest >= 128; rest >>= 7) bytes_ += static_cast<char>(rest | 128);
    bytes_ += static_cast<char>(rest);
  }

  std::string base64() const {
    constexpr const char* kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve(bytes_.size() / 3 * 4 + 4);
    for (size_t i = 0; i < bytes_.size(); i += 3) {
      const size_t count = std::min<size_t>(bytes_.size() - i, 3);
      uint32_t bits = 0;
      for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes_[i + k]) : 0U);
      for (size_t k = 0; k < 4; ++k) out += k <= count ? kLetters[bits >> (18 - 6 * k) & 63] : '=';
    }
    return out;
  }

 private:
  std::string bytes_;
};

/// Texts that repeat, each once.
class TextPool {
 public:
  int operator()(std::string_view text) {
    const auto [it, added] = places_.try_emplace(std::string(text), static_cast<int>(texts_.size()));
    if (added) texts_.emplace_back(text);
    return it->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, int> places_;
};

/// The spans that the timeline shows: all, or the longest.
std::vector<int32_t> shown_spans(const Trace& trace) {
  std::vector<int32_t> out(trace.spans.size());
  std::iota(out.begin(), out.end(), 0);
  if (out.size() <= kMostSpans) return out;
  auto longer = [&](int32_t a, int32_t b) {
    const Span& left = trace.spans[static_cast<size_t>(a)];
    const Span& right = trace.spans[static_cast<size_t>(b)];
    return left.end - left.begin > right.end - right.begin;
  };
  std::nth_element(out.begin(), out.begin() + kMostSpans, out.end(), longer);
  out.resize(kMostSpans);
  std::sort(out.begin(), out.end());
  return out;
}

/// Rows of the timeline: the host's threads, those with most spans first, then streams.
struct Lane {
  int32_t device;
  int64_t thread;
  std::vector<int32_t> spans;
};
std::vector<Lane> lanes_of(const Trace& trace, const std::vector<int32_t>& shown) {
  std::map<std::pair<int32_t, int64_t>, Lane> lanes;
  for (const int32_t at : shown) {
    const Span& span = trace.spans[static_cast<size_t>(at)];
    const int32_t device = is_on_device(span.kind) ? span.device : -1;
    Lane& lane = lanes.try_emplace({device, span.thread}, Lane{device, span.thread, {}}).first->second;
    lane.spans.push_back(at);
  }
  std::vector<Lane> out;
  for (auto& [key, lane] : lanes) out.push_back(std::move(lane));
  std::stable_sort(out.begin(), out.end(), [](const Lane& a, const Lane& b) {
    return a.device < 0 && b.device < 0 && a.spans.size() > b.spans.size();
  });
  return out;
}

json timeline_json(const Trace& trace, TextPool& pool) {
  const std::vector<int32_t> shown = shown_spans(trace);
  std::vector<Lane> lanes = lanes_of(trace, shown);
  std::vector<int32_t> place(trace.spans.size(), -1);
  int32_t next = 0;
  for (const Lane& lane : lanes)
    for (const int32_t at : lane.spans) place[static_cast<size_t>(at)] = next++;

  PackedColumn kind, name, begin, length, call, launch, owner, bytes;
  json lane_rows = json::array();
  const int64_t origin = report_origin(trace);
  int32_t here = 0;
  for (const Lane& lane : lanes) {
    lane_rows.push_back({lane.device, std::to_string(lane.thread), lane.spans.size()});
    int64_t previous = origin;
    for (const int32_t at : lane.spans) {
      const Span& span = trace.spans[static_cast<size_t>(at)];
      kind.push(static_cast<int64_t>(span.kind));
      name.push(pool(trace.name_of(span)));
      begin.push(span.begin - previous);
      previous = span.begin;
      length.push(std::max<int64_t>(span.end - span.begin, 0));
      call.push(span.kind == Kind::Op ? span.detail : span.call);
      launch.push(span.kind == Kind::Kernel ? span.detail : -1);
      const int32_t above = span.owner < 0 ? -1 : place[static_cast<size_t>(span.owner)];
      owner.push(above < 0 ? 0 : here - above);  // no span is its own owner
      bytes.push(span.bytes);
      ++here;
    }
  }
  return {{"lanes", std::move(lane_rows)}, {"left_out", trace.spans.size() - shown.size()},
          {"kind", kind.base64()},         {"name", name.base64()},
          {"begin", begin.base64()},       {"length", length.base64()},
          {"call", call.base64()},         {"launch", launch.base64()},
          {"owner", owner.base64()},       {"bytes", bytes.base64()}};
}

/// "f32[8, 64], f32[64]".
std::string shapes_text(const Call& call) {
  std::string out;
  for (size_t i = 0; i < call.dims.size(); ++i) {
    const bool absent = i >= call.types.size() || call.types[i].empty();
    if (!out.empty()) out += ", ";
    out += absent && call.dims[i].empty()
               ? "none"
               : fmt::format("{}[{}]", absent ? "" : call.types[i], fmt::join(call.dims[i], ", "));
  }
  return out;
}

json calls_json(const Trace& trace, TextPool& pool) {
  json out = json::array();
  for (const Call& call : trace.calls)
    out.push_back({pool(call.op), pool(shapes_text(call)), pool(call.attributes), pool(call.kernel), pool(call.path),
                   pool(call.source), call.flops, call.bytes});
  return out;
}

json launches_json(const Trace& trace) {
  json out = json::array();
  for (const Launch& launch : trace.launches)
    out.push_back({fmt::format("{}×{}×{}", launch.grid[0], launch.grid[1], launch.grid[2]),
                   fmt::format("{}×{}×{}", launch.block[0], launch.block[1], launch.block[2]), launch.registers,
                   launch.shared_bytes, launch.occupancy});
  return out;
}

json devices_json(const Trace& trace) {
  json out = json::array();
  for (const DeviceInfo& device : trace.devices) {
    json roofs = json::object();
    const auto& roof = device.roof;
    const std::pair<const char*, double> rates[] = {
        {"f64", roof.f64}, {"f32", roof.f32}, {"tf32", roof.tf32}, {"f16", roof.f16}, {"bf16", roof.bf16}};
    for (const auto& [type, rate] : rates)
      if (rate > 0) roofs[type] = rate;
    out.push_back({{"id", device.id},
                   {"name", device.name},
                   {"memory", device.memory},
                   {"multiprocessors", device.multiprocessors},
                   {"architecture", device.architecture},
                   {"bandwidth", roof.bytes_per_second},
                   {"roofs", std::move(roofs)}});
  }
  return out;
}

/// Those that took most, one after the other with their seconds.
json modules_json(const KernelRow& row, TextPool& pool) {
  json out = json::array();
  for (size_t i = 0; i < std::min(row.modules.size(), kModulesOfARow); ++i) {
    out.push_back(pool(row.modules[i].first));
    out.push_back(row.modules[i].second);
  }
  return out;
}

/// The kernel's name, operator, device, calls, seconds, share, of a call the least, the median and the most, rates,
/// share of the roof, modules with seconds, how many modules there are.
json rows_json(const std::vector<KernelRow>& rows, TextPool& pool) {
  json out = json::array();
  for (const KernelRow& row : rows) {
    if (out.size() == kMostRows) break;
    std::vector<double> times = row.times;
    std::sort(times.begin(), times.end());
    if (times.empty()) times.push_back(row.calls > 0 ? row.seconds / static_cast<double>(row.calls) : 0);
    out.push_back({pool(row.kernel), pool(row.op), row.device, row.calls, row.seconds, row.share, times.front(),
                   times[times.size() / 2], times.back(), row.bytes_per_second, row.flops_per_second, row.roof_share,
                   modules_json(row, pool), row.modules.size()});
  }
  return out;
}

json steps_json(const Trace& trace) {
  json out = json::array();
  for (const StepRow& step : steps_of(trace))
    out.push_back({{"name", step.name},
                   {"seconds", step.seconds},
                   {"busy", step.busy},
                   {"copies", step.copies},
                   {"idle", step.idle},
                   {"host", step.host_ops}});
  return out;
}

json advice_json(const Trace& trace) {
  json out = json::array();
  for (const Advice& item : advice(trace))
    out.push_back({{"rule", item.rule},
                   {"what", item.what},
                   {"op", item.op},
                   {"path", item.path},
                   {"source", item.source},
                   {"seconds", item.seconds},
                   {"at_most", item.at_most},
                   {"share", item.share}});
  return out;
}

/// Columns; a tree that is too large loses its thinnest frames.
json flame_json(const std::vector<FlameNode>& nodes, TextPool& pool) {
  int64_t least = 0;
  if (nodes.size() > kMostFlameNodes) {
    std::vector<int64_t> totals;
    for (const FlameNode& node : nodes) totals.push_back(node.total);
    std::nth_element(totals.begin(), totals.begin() + kMostFlameNodes, totals.end(), std::greater<>());
    least = totals[kMostFlameNodes] + 1;
  }
  PackedColumn name, kind, depth, total, device, calls;
  for (const FlameNode& node : nodes) {
    if (node.total < least) continue;  // and with it what is below it, which takes no longer
    name.push(pool(node.name));
    kind.push(static_cast<int64_t>(node.kind));
    depth.push(node.depth);
    total.push(node.total);
    device.push(node.device);
    calls.push(node.calls);
  }
  return {{"name", name.base64()},   {"kind", kind.base64()},     {"depth", depth.base64()},
          {"total", total.base64()}, {"device", device.base64()}, {"calls", calls.base64()}};
}

json report_data(const Trace& trace) {
  TextPool pool;
  const int64_t origin = report_origin(trace);
  int64_t end = origin;
  for (const Span& span : trace.spans) end = std::max(end, span.end);
  json out = {{"host", trace.host},
              {"process", trace.process},
              {"rank", trace.rank},
              {"ranks", trace.ranks},
              {"notes", trace.notes},
              {"dropped", trace.dropped},
              {"length", end - origin},
              {"when", trace.base == 0 ? 0 : (trace.base + origin) / 1'000'000},
              {"span_count", trace.spans.size()}};
  out["devices"] = devices_json(trace);
  out["advice"] = advice_json(trace);
  out["steps"] = steps_json(trace);
  out["timeline"] = timeline_json(trace, pool);
  out["calls"] = calls_json(trace, pool);
  out["launches"] = launches_json(trace);
  out["operators"] = rows_json(kernel_table(trace, true), pool);
  out["kernels"] = rows_json(kernel_table(trace, false), pool);
  out["host_flame"] = flame_json(host_flame(trace), pool);
  out["device_flame"] = flame_json(device_flame(trace), pool);
  out["memory"] = report_memory(trace);
  out["gaps"] = report_gaps(trace);
  out["texts"] = pool.texts();
  return out;
}

/// JSON within a script element of HTML: no "</script>" in it can end that. What is no UTF-8 is replaced.
std::string script_text(const json& data) {
  const std::string plain = data.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string out;
  out.reserve(plain.size());
  for (const char letter : plain) {
    if (letter == '<') out += "\\u003c";
    else out += letter;
  }
  return out;
}

}  // namespace

std::string_view report_page_part(std::string_view name) {
  for (const EmbeddedFile& file : report_page_files())
    if (name == file.name) return file.text;
  return {};
}

int64_t report_origin(const Trace& trace) {
  int64_t origin = trace.spans.empty() ? INT64_MAX : trace.spans.front().begin;
  if (!trace.memory.empty()) origin = std::min(origin, trace.memory.front().at);
  return origin == INT64_MAX ? 0 : origin;
}

std::string report_html(const Trace& trace) {
  const std::string title = escape_markup("Profile of " + (trace.host.empty() ? std::string("a run") : trace.host));
  const std::string data = script_text(report_data(trace));
  const std::string_view page = report_page_part("page.html");
  if (page.empty()) throw Error("report: this build has no page to fill");
  std::string out;
  out.reserve(page.size() + data.size() + 100'000);
  for (size_t at = 0; at < page.size();) {  // {{data}}, {{title}} and names of files are replaced
    const size_t open = page.find("{{", at), close = page.find("}}", open);
    if (close == std::string_view::npos) {
      out += page.substr(at);
      break;
    }
    out += page.substr(at, open - at);
    const std::string_view what = page.substr(open + 2, close - open - 2);
    if (what == "data") out += data;
    else if (what == "title") out += title;
    else out += report_page_part(what);
    at = close + 2;
  }
  return out;
}

}  // namespace tessera::profiler
