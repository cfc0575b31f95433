// The report's page and the flame graph, of traces made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "profiler/flame.h"
#include "profiler/report.h"
#include "profiler/report_page.h"
#include "profiler/report_parts.h"
#include "profiler/trace_json.h"
#include "sample_trace.h"

namespace tessera::profiler {
namespace {

using nlohmann::json;

/// The page's data; where TESSERA_REPORT_PAGES names a folder, the page is left there for screenshots.py.
json page_data(const Trace& trace, const std::string& name) {
  const std::string page = report_html(trace);
  if (const char* folder = std::getenv("TESSERA_REPORT_PAGES")) {
    std::ofstream(std::string(folder) + "/" + name + ".html") << page;
    std::ofstream(std::string(folder) + "/" + name + ".svg") << flame_svg(trace);
  }
  const std::string open = R"(<script type="application/json" id="data">)";
  const size_t begin = page.find(open) + open.size(), end = page.find("</script>", begin);
  EXPECT_NE(end, std::string::npos);
  return json::parse(page.substr(begin, end - begin));
}

/// What page.js does to a column.
std::vector<int64_t> unpacked(const std::string& base64) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (size_t i = 0; i < base64.size(); i += 4) {
    uint32_t bits = 0;
    size_t count = 0;
    for (size_t k = 0; k < 4; ++k) {
      const size_t at = letters.find(base64[i + k]);
      bits = bits << 6 | static_cast<uint32_t>(at == std::string::npos ? 0 : at);
      count += at != std::string::npos;
    }
    for (size_t k = 0; k + 1 < count; ++k) bytes += static_cast<char>(bits >> (16 - 8 * k) & 255);
  }
  std::vector<int64_t> out;
  uint64_t value = 0;
  int shift = 0;
  for (const char letter : bytes) {
    value |= static_cast<uint64_t>(letter & 127) << shift;
    shift += 7;
    if (letter & static_cast<char>(128)) continue;
    out.push_back(static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1));
    value = 0;
    shift = 0;
  }
  return out;
}

TEST(Report, HoldsEverySpanOfADeviceTrace) {
  const Trace trace = SampleTrace(true, 3, 12).trace();
  const json data = page_data(trace, "gpu");
  const json& timeline = data["timeline"];
  ASSERT_EQ(timeline["lanes"].size(), 3U);
  EXPECT_EQ(timeline["lanes"][0][0], -1);
  EXPECT_EQ(timeline["lanes"][1][1], "7");
  const auto kind = unpacked(timeline["kind"]), begin = unpacked(timeline["begin"]),
             length = unpacked(timeline["length"]);
  const auto owner = unpacked(timeline["owner"]), name = unpacked(timeline["name"]);
  ASSERT_EQ(kind.size(), trace.spans.size());
  size_t at = 0;
  for (const json& lane : timeline["lanes"]) {
    int64_t now = report_origin(trace);
    size_t in_trace = 0;
    for (size_t k = 0; k < lane[2].get<size_t>(); ++k, ++at, ++in_trace) {
      auto of_lane = [&](const Span& span) {
        return (is_on_device(span.kind) ? span.device : -1) == lane[0].get<int>() &&
               std::to_string(span.thread) == lane[1].get<std::string>();
      };
      while (!of_lane(trace.spans[in_trace])) ++in_trace;
      const Span& span = trace.spans[in_trace];
      now += begin[at];
      ASSERT_EQ(now, span.begin);
      ASSERT_EQ(length[at], span.end - span.begin);
      ASSERT_EQ(kind[at], static_cast<int64_t>(span.kind));
      ASSERT_EQ(data["texts"][static_cast<size_t>(name[at])], trace.name_of(span));
      ASSERT_EQ(owner[at] != 0, span.owner >= 0);
      if (span.owner < 0) continue;
      const auto above = static_cast<size_t>(static_cast<int64_t>(at) - owner[at]);
      ASSERT_EQ(data["texts"][static_cast<size_t>(name[above])],
                trace.name_of(trace.spans[static_cast<size_t>(span.owner)]));
    }
  }
  EXPECT_FALSE(data["kernels"].empty());
  EXPECT_FALSE(data["gaps"].empty());
}

TEST(Report, IsOnePageWithoutNetwork) {
  const std::string page = report_html(SampleTrace(true, 1, 2).trace());
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_EQ(page.find("{{"), std::string::npos) << "a part was not filled in";
  EXPECT_NE(page.find("Content-Security-Policy"), std::string::npos);
  for (const char* outside : {"src=\"", "@import", "<link rel=\"stylesheet", "fetch(", "XMLHttpRequest"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST(Report, OfTheHostAloneHasNoDevices) {
  const json data = page_data(SampleTrace(false, 20, 6).trace(), "cpu");
  EXPECT_EQ(data["timeline"]["lanes"].size(), 1U);
  EXPECT_EQ(unpacked(data["device_flame"]["name"]).size(), 0U);
  EXPECT_TRUE(data["gaps"].empty());
  EXPECT_EQ(data["memory"][0]["device"], -1);
}

/// Rows have the times of their modules, the longest first; of very many only these, and their number.
TEST(Report, RowsSayWhichModules) {
  const json data = page_data(SampleTrace(true, 1, 40).trace(), "modules");
  for (const char* table : {"kernels", "operators"}) {
    for (const json& row : data[table]) {
      const std::string op = data["texts"][row[1].get<size_t>()];
      const json& modules = row[12];
      const size_t count = op == "adamw" ? 1 : op == "attention" || op == "gelu" ? 80 : 160;
      EXPECT_EQ(row[13], count) << op;
      ASSERT_EQ(modules.size(), 2 * std::min<size_t>(count, 100)) << op;
      double sum = 0, last = 1;
      for (size_t i = 1; i < modules.size(); i += 2) {
        EXPECT_LE(modules[i].get<double>(), last);
        sum += last = modules[i].get<double>();
      }
      if (count <= 100) {
        EXPECT_NEAR(sum, row[4].get<double>(), 1e-9);
      }
    }
  }
}

/// Of a card that is behind its host, with an earlier version's names.
TEST(Report, OfAStoredTraceOfACard) {
  const Trace trace = read_trace(TESSERA_SOURCE_DIR "/tests/profiler/traces/gpt2_h100.pt.trace.json.gz");
  const json data = page_data(trace, "h100");
  EXPECT_EQ(data["span_count"], trace.spans.size());
  EXPECT_EQ(data["timeline"]["lanes"].size(), 3U) << "two threads and a stream";
  for (const char* panel : {"kernels", "operators", "gaps", "memory"}) EXPECT_FALSE(data[panel].empty()) << panel;
  EXPECT_EQ(data["steps"].size(), 2U);
}

TEST(Report, OfNothingIsStillAPage) {
  Trace trace;
  trace.notes = {"interrupted before the first step"};
  const json data = page_data(trace, "empty");
  EXPECT_EQ(data["span_count"], 0);
  EXPECT_TRUE(data["timeline"]["lanes"].empty());
  EXPECT_EQ(data["notes"][0], trace.notes[0]);
  EXPECT_NE(flame_svg(trace).find("Nothing was recorded"), std::string::npos);
}

TEST(Report, OfManySpansIsSmallAndQuick) {
  const Trace trace = SampleTrace(true, 165, 12).trace();
  ASSERT_GT(trace.spans.size(), 100'000U);
  const std::clock_t begin = std::clock();  // of the processor, whatever else the machine does
  const std::string page = report_html(trace);
  EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC);
  EXPECT_LT(page.size(), trace.spans.size() * 30 + 400'000);
  page_data(trace, "large");
}

TEST(Report, NamesCannotLeaveTheirPlace) {
  Trace trace = SampleTrace(true, 1, 1).trace();
  const std::string evil = "</script><script>alert(1)</script>{{page.js}}\xff\"&";
  trace.names[static_cast<size_t>(trace.spans[0].name)] = evil;
  trace.host = evil;
  trace.notes = {evil};
  const std::string page = report_html(trace), svg = flame_svg(trace);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_EQ(svg.find('\xff'), std::string::npos);
  const json data = page_data(trace, "names");
  EXPECT_EQ(data["notes"][0].get<std::string>().rfind("</script><script>", 0), 0U);
}

TEST(Report, PartsThatAreNotThereAreEmpty) {
  EXPECT_FALSE(report_page_part("page.js").empty());
  EXPECT_TRUE(report_page_part("other.js").empty());
  EXPECT_TRUE(report_page_part("").empty());
}

Span host_span(Kind kind, int32_t name, int64_t begin, int64_t end) {
  Span span;
  span.kind = kind;
  span.name = name;
  span.begin = begin;
  span.end = end;
  return span;
}

TEST(ReportGaps, SayWhatTheHostDid) {
  Trace trace;
  trace.names = {"ProfilerStep#0", "data", "kernel_a", "kernel_b", "decode"};
  trace.spans = {host_span(Kind::Step, 0, 0, 100'000), host_span(Kind::Kernel, 2, 1'000, 10'000),
                 host_span(Kind::Range, 1, 20'000, 60'000), host_span(Kind::Range, 4, 30'000, 40'000),
                 host_span(Kind::Kernel, 3, 80'000, 100'000)};
  trace.spans[1].device = trace.spans[4].device = 0;
  const json gaps = report_gaps(trace);
  ASSERT_FALSE(gaps.empty());
  EXPECT_EQ(gaps[0]["begin"], 10'000);
  EXPECT_EQ(gaps[0]["end"], 80'000);
  EXPECT_EQ(gaps[0]["before"], "kernel_a");
  EXPECT_EQ(gaps[0]["after"], "kernel_b");
  EXPECT_EQ(gaps[0]["host"][0], (json{"data", 30'000}));
  EXPECT_EQ(gaps[0]["host"][1], (json{"decode", 10'000}));
  EXPECT_EQ(gaps[0]["host"][2][1], 30'000);
}

MemoryChange memory_change(int64_t at, int64_t bytes, uint64_t address, int64_t allocated, MemoryKind kind) {
  MemoryChange change;
  change.at = at;
  change.device = 0;
  change.bytes = bytes;
  change.address = address;
  change.allocated = allocated;
  change.reserved = 1000;
  change.kind = kind;
  return change;
}

TEST(ReportMemory, PeakIsWhatWasAliveThen) {
  Trace trace;
  trace.memory = {
      memory_change(10, 100, 1, 400, MemoryKind::Activation), memory_change(20, -50, 2, 350, MemoryKind::Gradient),
      memory_change(30, 200, 3, 550, MemoryKind::Activation), memory_change(40, -100, 1, 450, MemoryKind::Activation),
      memory_change(50, -200, 3, 250, MemoryKind::Activation)};
  const json memory = report_memory(trace);
  ASSERT_EQ(memory.size(), 1U);
  const json& peak = memory[0]["peak"];
  EXPECT_EQ(peak["at"], 20);  // of the page, whose zero is the first change
  EXPECT_EQ(peak["allocated"], 550);
  EXPECT_EQ(peak["kinds"][0][1], 300);
  EXPECT_EQ(peak["kinds"][0][2], 2);
  EXPECT_EQ(peak["kinds"][1][1], 250);  // from before the recording, and never given back in it
  const json& gradient = memory[0]["kinds"][1];
  EXPECT_EQ(gradient[2], (json{50, 0, 0, 0, 0}));  // known to have been there because it was given back
}

TEST(ReportMemory, WithoutTotalsTheSumIsTaken) {
  Trace trace;
  trace.memory = {memory_change(10, 100, 1, 0, MemoryKind::Unknown), memory_change(20, 30, 1, 0, MemoryKind::Unknown)};
  for (MemoryChange& change : trace.memory) change.reserved = 0;
  const json memory = report_memory(trace);
  EXPECT_EQ(memory[0]["allocated"], (json{100, 30})) << "an address that is allocated twice was given back unseen";
}

TEST(Flame, HostTimeIsOfWhatEncloses) {
  Trace trace;
  trace.names = {"ProfilerStep#0", "ProfilerStep#1", "forward", "matmul"};
  trace.spans = {host_span(Kind::Step, 0, 0, 100), host_span(Kind::Range, 2, 10, 60), host_span(Kind::Op, 3, 20, 30),
                 host_span(Kind::Op, 3, 50, 80),  // outlasts what encloses it
                 host_span(Kind::Step, 1, 100, 300)};
  Span kernel = host_span(Kind::Kernel, 3, 55, 95);
  kernel.device = 0;
  kernel.owner = 3;
  trace.spans.insert(trace.spans.begin() + 4, kernel);
  const std::vector<FlameNode> nodes = host_flame(trace);
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[0].name, "ProfilerStep");
  EXPECT_EQ(nodes[0].total, 300);
  EXPECT_EQ(nodes[0].calls, 2);
  EXPECT_EQ(nodes[1].depth, 1);
  EXPECT_EQ(nodes[2].total, 20);
  for (const FlameNode& node : nodes) EXPECT_EQ(node.device, 40) << node.name;
}

TEST(Flame, DeviceTimeIsOfModulesAndOperators) {
  const Trace trace = SampleTrace(true, 2, 3).trace();
  int64_t kernels = 0, total = 0;
  for (const Span& span : trace.spans)
    if (is_on_device(span.kind)) kernels += span.end - span.begin;
  std::vector<int64_t> room;  // by depth: of the frame above, what its children have not taken
  for (const FlameNode& node : device_flame(trace)) {
    const auto depth = static_cast<size_t>(node.depth);
    if (depth == 0) total += node.total;
    ASSERT_LE(depth, room.size());
    room.resize(depth);
    if (depth > 0) {
      ASSERT_GE(room[depth - 1] -= node.total, 0) << node.name;
    }
    room.push_back(node.total);
  }
  EXPECT_EQ(total, kernels);
}

TEST(Flame, PictureIsWellFormed) {
  const std::string svg = flame_svg(SampleTrace(true, 1, 2).trace());
  EXPECT_EQ(svg.rfind("<svg xmlns=", 0), 0U);
  size_t open = 0, closed = 0;
  for (size_t at = svg.find("<g>"); at != std::string::npos; at = svg.find("<g>", at + 1)) ++open;
  for (size_t at = svg.find("</g>"); at != std::string::npos; at = svg.find("</g>", at + 1)) ++closed;
  EXPECT_GT(open, 20U);
  EXPECT_EQ(open, closed);
  EXPECT_NE(svg.find("Device time"), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(flame_svg(SampleTrace(false, 1, 2).trace()).find("Device time"), std::string::npos);
}

TEST(Flame, MarkupIsEscaped) {
  EXPECT_EQ(escape_markup("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(escape_markup("é…𝛼"), "é…𝛼");
  EXPECT_EQ(escape_markup(std::string_view("\0\x01", 2)), "\uFFFD\uFFFD");
  EXPECT_EQ(escape_markup("\xC0\xAF"), "\uFFFD\uFFFD");            // not the shortest form
  EXPECT_EQ(escape_markup("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // half a pair
  EXPECT_EQ(escape_markup("cut \xE2\x80"), "cut \uFFFD\uFFFD");
}

TEST(Flame, DurationsAreForPeople) {
  EXPECT_EQ(duration_text(0), "0 ns");
  EXPECT_EQ(duration_text(1250), "1.25 µs");
  EXPECT_EQ(duration_text(99'900'000), "99.9 ms");
  EXPECT_EQ(duration_text(61'230'000'000), "61.23 s");
}

}  // namespace
}  // namespace tessera::profiler
