// Traces go to files and come back; what others write is read as far as it holds the same; what is no trace is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "profiler/packed_file.h"
#include "profiler/trace_events.h"
#include "profiler/trace_json.h"
#include "sample_trace.h"
#include "tessera/error.h"
#include "tessera/profiler.h"

namespace tessera::profiler {
namespace {

namespace fs = std::filesystem;

/// A folder of its own, which is gone afterwards.
class TraceFolder {
 public:
  TraceFolder() {
    std::string name = (fs::temp_directory_path() / "tessera-traces-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TraceFolder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string bytes_of_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void put_bytes(const std::string& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string refusal(const std::string& json) {
  try {
    parse_trace(json, "FILE");
  } catch (const FileError& error) {
    return error.what();
  }
  return "read";
}

void expect_same_call(const Call* a, const Call* b) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (!a) return;
  EXPECT_EQ(std::tie(a->op, a->dims, a->strides, a->types, a->attributes, a->kernel, a->path, a->source),
            std::tie(b->op, b->dims, b->strides, b->types, b->attributes, b->kernel, b->path, b->source));
  EXPECT_EQ(a->flops, b->flops);
  EXPECT_EQ(a->bytes, b->bytes);
}

void expect_same_launch(const Launch* a, const Launch* b) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (!a) return;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(a->grid[i], b->grid[i]);
    EXPECT_EQ(a->block[i], b->block[i]);
  }
  EXPECT_EQ(std::tie(a->registers, a->shared_bytes), std::tie(b->registers, b->shared_bytes));
  EXPECT_NEAR(a->occupancy, b->occupancy, 1e-6);
}

void expect_same_spans(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (size_t i = 0; i < a.spans.size(); ++i) {
    const Span &x = a.spans[i], &y = b.spans[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(a.name_of(x), b.name_of(y));
    EXPECT_EQ(std::tie(x.begin, x.end, x.thread, x.device), std::tie(y.begin, y.end, y.thread, y.device));
    EXPECT_EQ(std::tie(x.owner, x.sequence, x.correlation, x.bytes),
              std::tie(y.owner, y.sequence, y.correlation, y.bytes));
    if (x.kind == Kind::Runtime) {
      EXPECT_EQ(x.detail, y.detail);
    }
    expect_same_call(a.call_of(x), b.call_of(y));
    expect_same_launch(a.launch_of(x), b.launch_of(y));
  }
}

void expect_same_devices(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.devices.size(), b.devices.size());
  for (size_t i = 0; i < a.devices.size(); ++i) {
    const DeviceInfo &x = a.devices[i], &y = b.devices[i];
    EXPECT_EQ(std::tie(x.id, x.name, x.memory, x.multiprocessors, x.warp_size, x.threads_per_multiprocessor),
              std::tie(y.id, y.name, y.memory, y.multiprocessors, y.warp_size, y.threads_per_multiprocessor));
    EXPECT_EQ(x.architecture, y.architecture);
    const Roof &r = x.roof, &s = y.roof;
    EXPECT_EQ(std::tie(r.bytes_per_second, r.f32, r.tf32, r.f16, r.bf16, r.f64),
              std::tie(s.bytes_per_second, s.f32, s.tf32, s.f16, s.bf16, s.f64));
  }
}

void expect_same_counters(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.counters.size(), b.counters.size());
  for (size_t i = 0; i < a.counters.size(); ++i) {
    const StepCounters &x = a.counters[i], &y = b.counters[i];
    EXPECT_EQ(std::tie(x.step, x.cycles, x.instructions, x.cache_misses, x.context_switches, x.page_faults),
              std::tie(y.step, y.cycles, y.instructions, y.cache_misses, y.context_switches, y.page_faults));
  }
}

void expect_same_trace(const Trace& a, const Trace& b) {
  EXPECT_EQ(std::tie(a.base, a.host, a.process, a.rank, a.ranks, a.plain_step, a.notes, a.dropped),
            std::tie(b.base, b.host, b.process, b.rank, b.ranks, b.plain_step, b.notes, b.dropped));
  expect_same_devices(a, b);
  expect_same_counters(a, b);
  expect_same_spans(a, b);
  ASSERT_EQ(a.memory.size(), b.memory.size());
  for (size_t i = 0; i < a.memory.size(); ++i) {
    const MemoryChange &x = a.memory[i], &y = b.memory[i];
    EXPECT_EQ(std::tie(x.at, x.device, x.thread, x.bytes, x.address, x.allocated, x.reserved, x.owner, x.kind),
              std::tie(y.at, y.device, y.thread, y.bytes, y.address, y.allocated, y.reserved, y.owner, y.kind));
  }
}

TEST(TraceJson, ComesBackAsItWent) {
  const TraceFolder folder;
  for (const bool gpu : {false, true}) {
    Trace trace = SampleTrace(gpu).trace();
    trace.rank = gpu ? 1 : 0;
    trace.ranks = gpu ? 2 : 1;
    for (const char* name : {"a.pt.trace.json", "a.pt.trace.json.gz"}) {
      write_trace(trace, folder.file(name));
      expect_same_trace(trace, read_trace(folder.file(name)));
    }
    EXPECT_EQ(bytes_of_file(folder.file("a.pt.trace.json")), trace_text(trace));
    EXPECT_LT(fs::file_size(folder.file("a.pt.trace.json.gz")), fs::file_size(folder.file("a.pt.trace.json")) / 4);
  }
  EXPECT_EQ(folder.files(), 2u) << "temporary files are left";
}

TEST(TraceJson, AnEmptyTraceAndOddTextsComeBack) {
  expect_same_trace({}, parse_trace(trace_text({}), "FILE"));
  Trace trace = SampleTrace(true).trace();
  trace.names[0] = "quotes \" and \\, \n\x01 and \xc3\xa9";
  trace.host = "";
  trace.calls[0].path.clear();
  trace.calls[0].attributes = "axes=[1, \"";  // of another program
  trace.calls[0].strides.clear();
  trace.spans[3].call = trace.spans[3].owner = -1;
  trace.base = 0;
  expect_same_trace(trace, parse_trace(trace_text(trace), "FILE"));
  trace.names[0] = "cut \xc3";  // is no character: it becomes one that says so
  trace.calls[0].flops = std::numeric_limits<double>::infinity();
  trace.calls[0].bytes = std::nan("");
  const Trace back = parse_trace(trace_text(trace), "FILE");
  EXPECT_EQ(back.name_of(back.spans[0]), "cut \xef\xbf\xbd");
  EXPECT_EQ(back.calls[0].flops, 0);
}

TEST(TraceJson, TimesBeforeTheBaseAndFarFromItAreExact) {
  Trace trace;
  trace.names = {"x"};
  for (const int64_t begin : {-(int64_t{1} << 60) - 1, int64_t{-1'001}, int64_t{-1}, int64_t{999}, int64_t{1} << 60})
    trace.spans.push_back({.kind = Kind::Range, .name = 0, .begin = begin, .end = begin + 12'345'678'901});
  expect_same_spans(trace, parse_trace(trace_text(trace), "FILE"));
  int64_t out = 0;
  EXPECT_TRUE(parse_microseconds("12.0019", out) && out == 12'001);
  EXPECT_TRUE(parse_microseconds("-0.5", out) && out == -500);
  EXPECT_TRUE(parse_microseconds("1.5e3", out) && out == 1'500'000);
  EXPECT_FALSE(parse_microseconds("1e300", out));
  EXPECT_FALSE(parse_microseconds("99999999999999999999", out));
}

/// What a machine does not count is not there, and is none when it is read.
TEST(TraceJson, CountersThatAMachineDoesNotHaveAreLeftAway) {
  Trace trace = SampleTrace(false).trace();
  trace.counters[0].cycles = trace.counters[0].instructions = trace.counters[0].cache_misses = 0;
  trace.counters[1].cache_misses = trace.counters[1].page_faults = 0;
  const auto counters = nlohmann::json::parse(trace_text(trace))["tessera"]["counters"];
  for (const char* name : {"cycles", "instructions", "cache misses"}) {
    EXPECT_FALSE(counters[0].contains(name)) << name;
    EXPECT_EQ(counters[1].contains(name), name != std::string("cache misses")) << name;
    EXPECT_TRUE(counters[2].contains(name)) << name;
  }
  EXPECT_EQ(counters[1]["page faults"], 0) << "which the system always counts";
  expect_same_counters(trace, parse_trace(trace_text(trace), "FILE"));
  const std::string steps = Recording(std::make_shared<const Trace>(trace)).steps();
  EXPECT_EQ(steps.find("ProfilerStep#2: "), std::string::npos) << steps;
  EXPECT_NE(steps.find("ProfilerStep#3: 1e+06 cycles, 2.00 instructions a cycle, 4 context switches"),
            std::string::npos)
      << steps;
  EXPECT_NE(steps.find("3e+03 cache misses"), std::string::npos) << steps;
}

// What readers of Kineto's schema look for.
TEST(TraceJson, HasWhatReadersLookFor) {
  const auto json = nlohmann::json::parse(trace_text(SampleTrace(true).trace()));
  EXPECT_EQ(json["schemaVersion"], 1);
  EXPECT_EQ(json["displayTimeUnit"], "ms");
  EXPECT_EQ(json["baseTimeNanoseconds"], 1'760'000'000'123'456'789);
  EXPECT_EQ(json["deviceProperties"][0]["computeMajor"], 9);
  EXPECT_EQ(json["deviceProperties"].size(), 1u) << "the host is no such device";
  EXPECT_FALSE(json.contains("distributedInfo"));
  std::map<std::string, nlohmann::json> one;
  for (const auto& event : json["traceEvents"]) one[event.value("cat", "")] = event;
  for (const char* category : {"cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "user_annotation",
                               "gpu_user_annotation", "cpu_instant_event", "ac2g", "fwdbwd", "Trace"})
    EXPECT_TRUE(one.count(category)) << category;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] != "matmul") continue;
    for (const char* key : {"External id", "Ev Idx", "Sequence number", "Fwd thread id", "Module", "FLOPs", "Bytes",
                            "Kernel", "Attributes", "Source"})
      EXPECT_TRUE(event["args"].contains(key)) << key;
    // Inputs, of which the second is absent, and then the one attribute.
    const auto& args = event["args"];
    EXPECT_EQ(args["Input Dims"], nlohmann::json::parse("[[12288, 768], [], [768, 2304], []]"));
    EXPECT_EQ(args["Input Strides"], nlohmann::json::parse("[[768, 1], [], [2304, 1], []]"));
    EXPECT_EQ(args["Input type"], nlohmann::json({"c10::BFloat16", "", "c10::BFloat16", "ScalarList"}));
    EXPECT_EQ(args["Concrete Inputs"], nlohmann::json({"", "", "", "[0, 1]"}));
  }
  std::map<int64_t, std::string> by_id;
  for (const auto& event : json["traceEvents"])
    if (event.value("cat", "") == "user_annotation") by_id[event["args"]["External id"].get<int64_t>()] = event["name"];
  for (const auto& event : json["traceEvents"]) {
    const auto args = event.value("args", nlohmann::json::object());
    if (event.value("cat", "") == "gpu_user_annotation") {
      EXPECT_EQ(by_id.at(args["External id"].get<int64_t>()), event["name"].get<std::string>());
    } else if (event["name"] == "cudaLaunchKernel") {
      EXPECT_EQ(args["cbid"], 211);
    } else if (event["name"] == "cudaStreamSynchronize") {
      EXPECT_FALSE(args.contains("cbid")) << "which nobody knows";
    }
  }
  for (const auto& event : json["traceEvents"]) {
    if (event.value("cat", "") != "kernel" || !event["args"].contains("grid")) continue;
    for (const char* key :
         {"External id", "queued", "device", "context", "stream", "correlation", "registers per thread",
          "shared memory", "blocks per SM", "warps per SM", "grid", "block", "est. achieved occupancy %"})
      EXPECT_TRUE(event["args"].contains(key)) << key;
    EXPECT_EQ(event["pid"], event["args"]["device"]);
    EXPECT_EQ(event["tid"], event["args"]["stream"]);
  }
  EXPECT_NEAR(one["gpu_memcpy"]["args"]["memory bandwidth (GB/s)"].get<double>(), (1 << 20) / 4003.0, 1e-3);
}

TEST(TraceJson, FlowsJoinWhatBelongsTogether) {
  const Trace trace = SampleTrace(true).trace();
  const auto json = nlohmann::json::parse(trace_text(trace));
  std::map<int64_t, double> starts;
  std::multiset<std::string> ends;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "s") starts[event["id"].get<int64_t>() + (event["cat"] == "ac2g" ? 0 : 1'000'000)] = event["ts"];
    if (event["ph"] != "f") continue;
    EXPECT_EQ(event["bp"], "e");
    const auto start = starts.find(event["id"].get<int64_t>() + (event["cat"] == "ac2g" ? 0 : 1'000'000));
    ASSERT_NE(start, starts.end());
    EXPECT_LT(start->second, event["ts"].get<double>());
    ends.insert(event["cat"]);
  }
  const auto on_device =
      std::count_if(trace.spans.begin(), trace.spans.end(), [](const Span& span) { return is_on_device(span.kind); });
  EXPECT_EQ(static_cast<int64_t>(ends.count("ac2g")), on_device);
  EXPECT_EQ(ends.count("fwdbwd"), 18u) << "two products in three layers in three steps";
}

TEST(TraceJson, RangesCoverTheirWorkOnTheDevice) {
  const Trace trace = SampleTrace(true).trace();
  const auto json = nlohmann::json::parse(trace_text(trace));
  int forwards = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event.value("cat", "") != "gpu_user_annotation" || event["name"] != "forward") continue;
    const auto range = static_cast<size_t>(event["args"]["External id"].get<int64_t>() - 1);
    int64_t begin = INT64_MAX, end = 0;
    for (const Span& span : trace.spans) {
      if (!is_on_device(span.kind) || span.owner < 0 || span.thread != event["tid"]) continue;
      const Span& op = trace.spans[static_cast<size_t>(span.owner)];
      if (op.begin < trace.spans[range].begin || op.end > trace.spans[range].end) continue;
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
    EXPECT_NEAR(event["ts"].get<double>() * 1000, static_cast<double>(begin), 1e-3);
    EXPECT_NEAR(event["dur"].get<double>() * 1000, static_cast<double>(end - begin), 1e-3);
    ++forwards;
  }
  EXPECT_EQ(forwards, 6) << "on two streams in three steps";
}

constexpr const char* kPyTorchTrace = R"json({
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "A100", "totalGlobalMem": 42505273344, "computeMajor": 8, "computeMinor": 0,
    "maxThreadsPerMultiprocessor": 2048, "warpSize": 32, "numSms": 108}],
  "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
  "baseTimeNanoseconds": 1759276800000000000,
  "traceEvents": [
  {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 2000000050.001, "dur": 101.472,
   "args": {"External id": 2, "device": 0, "context": 1, "stream": 7, "correlation": 77, "registers per thread": 122,
     "shared memory": 12544, "grid": [1, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 25}},
  {"ph": "X", "cat": "kernel", "name": "by correlation", "pid": 0, "tid": 7, "ts": 2000000300, "dur": 1,
   "args": {"device": 0, "stream": 7, "correlation": 77}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 900, "tid": 900, "ts": 2000000000.125,
   "dur": 900.5, "args": {"External id": 1}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 900, "tid": 901, "ts": 2000000010.250, "dur": 30.125,
   "args": {"External id": 2, "Sequence number": 5, "Fwd thread id": 0, "Input Dims": [[64, 128], [128, 32], []],
     "Input Strides": [[128, 1], [1, 128], []], "Concrete Inputs": ["", "", "1"],
     "Input type": ["float", "c10::BFloat16", "Scalar"], "Call stack": "train.py(3): main;runpy.py(1): run"}},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "pid": 900, "tid": 901, "ts": 2000000020.500, "dur": 8,
   "args": {"External id": 2, "cbid": 211, "correlation": 77}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "pid": 0, "tid": 7, "ts": 2000000200.0, "dur": 2.0,
   "args": {"External id": 0, "device": 0, "stream": 7, "correlation": 0, "bytes": 4096}},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 900, "tid": 901, "ts": 2000000012.5,
   "args": {"Total Reserved": 2097152, "Total Allocated": 8192, "Bytes": 8192, "Addr": 140234567890944,
     "Device Id": 0, "Device Type": 1}},
  {"ph": "X", "cat": "python_function", "name": "main", "pid": 900, "tid": 901, "ts": 1, "dur": 2, "args": {}},
  {"ph": "X", "cat": "Trace", "ts": 2000000000.0, "dur": 1000.0, "pid": "Spans", "tid": "PyTorch Profiler",
   "name": "PyTorch Profiler (0)"},
  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 2000001000.0}
  ], "traceName": "x"})json";

TEST(TraceJson, ReadsPyTorchs) {
  const Trace trace = parse_trace(kPyTorchTrace, "FILE");
  ASSERT_EQ(trace.spans.size(), 6u);
  EXPECT_EQ(std::tie(trace.base, trace.process, trace.rank, trace.ranks),
            std::make_tuple(1759276800000000000, 900, 1, 2));
  const Span &step = trace.spans[0], &op = trace.spans[1], &runtime = trace.spans[2], &kernel = trace.spans[3];
  EXPECT_EQ(step.kind, Kind::Step);
  EXPECT_EQ(step.begin, 2'000'000'000'125);
  EXPECT_EQ(trace.name_of(op), "aten::mm");
  EXPECT_EQ(op.sequence, 5);
  const Call* call = trace.call_of(op);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->dims, (std::vector<std::vector<int64_t>>{{64, 128}, {128, 32}, {}}));
  EXPECT_EQ(call->types, (std::vector<std::string>{"f32", "bf16", "Scalar"}));
  EXPECT_EQ(call->strides, (std::vector<std::vector<int64_t>>{{128, 1}, {1, 128}, {}}));
  EXPECT_EQ(call->attributes, "1");
  EXPECT_EQ(call->source, "train.py(3): main");
  EXPECT_NE(trace_text(trace).find(R"("Input Dims": [[64, 128], [128, 32], []], )"), std::string::npos);
  EXPECT_EQ(runtime.kind, Kind::Runtime);
  EXPECT_EQ(runtime.detail, 211);
  EXPECT_EQ(runtime.owner, 1);
  EXPECT_EQ(std::tie(kernel.kind, kernel.owner, kernel.device, kernel.thread),
            std::make_tuple(Kind::Kernel, 1, 0, int64_t{7}));
  EXPECT_EQ(trace.call_of(kernel), call);
  ASSERT_TRUE(trace.launch_of(kernel));
  EXPECT_EQ(trace.launch_of(kernel)->occupancy, 0.25);
  EXPECT_EQ(trace.spans[4].bytes, 4096);
  EXPECT_EQ(trace.spans[4].owner, -1);
  EXPECT_EQ(trace.spans[5].owner, 1) << "by what started it";
  ASSERT_EQ(trace.memory.size(), 1u);
  EXPECT_EQ(trace.memory[0].device, 0);
  EXPECT_EQ(trace.devices[0].multiprocessors, 108);
  EXPECT_TRUE(trace.notes.empty());
  expect_same_trace(trace, parse_trace(trace_text(trace), "FILE"));
}

TEST(TraceJson, ReadsOlderOnesWithoutABase) {
  const Trace trace = parse_trace(
      R"({"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 5, "tid": "6", "ts": 1600000000000100, "dur": 7,
         "args": {"Device": 5, "Input dims": [[2]], "External id": 3}},
        {"ph": "X", "cat": "Kernel", "name": "add", "pid": 0, "tid": "stream 7", "ts": 1600000000000110, "dur": 2,
         "args": {"external id": 3, "device": 0}}]})",
      "FILE");
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(trace.base, 1'600'000'000'000'100'000);
  EXPECT_EQ(std::tie(trace.spans[0].begin, trace.spans[0].end), std::make_tuple(0, 7'000));
  EXPECT_EQ(trace.spans[0].thread, 6);
  EXPECT_EQ(trace.spans[1].thread, 7);
  EXPECT_EQ(trace.call_of(trace.spans[1])->op, "aten::add");
}

TEST(TraceJson, SaysWhatIsWrongInOneLine) {
  const std::string whole = trace_text(SampleTrace(true).trace());
  for (const size_t size : {size_t{1}, size_t{20}, whole.size() / 3, whole.size() / 2, whole.size() - 3}) {
    const std::string at = "FILE: the trace is cut short at byte " + std::to_string(size);
    EXPECT_EQ(refusal(whole.substr(0, size)), at);
  }
  EXPECT_EQ(refusal(""), "FILE: is no trace: it is empty");
  EXPECT_EQ(refusal(" \n"), "FILE: is no trace: it is empty");
  EXPECT_EQ(refusal("hello"), "FILE: is no trace: no JSON object");
  EXPECT_EQ(refusal("[1, 2]"), "FILE: is no trace: no JSON object");
  EXPECT_EQ(refusal("17"), "FILE: is no trace: no JSON object");
  EXPECT_EQ(refusal(R"({"a": 1})"), "FILE: is no trace: it has no list \"traceEvents\"");
  EXPECT_EQ(refusal(R"({"traceEvents": 1})"), "FILE: is no trace: it has no list \"traceEvents\"");
  EXPECT_EQ(refusal(R"({"traceEvents": [{"ph": "X", "cat": "toplevel", "name": "Task", "ts": 1, "dur": 2}]})"),
            "FILE: is no trace: none of its 1 events is of a profiler of operators");
  EXPECT_EQ(refusal(R"({"traceEvents": [}})"), "FILE: is no trace: what is at byte 18 is not JSON");
  EXPECT_EQ(refusal(R"({"traceEvents": [)" + std::string(100'000, '[')),
            "FILE: is no trace: its values are nested too deeply");
  EXPECT_EQ(refusal(R"({"unknown": )" + std::string(100'000, '[')),
            "FILE: is no trace: its values are nested too deeply");
  EXPECT_EQ(refusal(R"({"baseTimeNanoseconds": 1e999, "traceEvents": []})").find("FILE: is no trace: what is at byte"),
            0u);
}

TEST(TraceJson, LeavesOutEventsThatCannotBe) {
  const auto event = [](const std::string& category, const std::string& rest) {
    return R"({"ph": "X", "cat": ")" + category + R"(", "name": "x", )" + rest + "},";
  };
  const std::string all =
      event("cpu_op", R"("ts": 1, "dur": -1)") + event("cpu_op", R"("ts": 1)") +
      event("cpu_op", R"("ts": "1", "dur": 1)") + event("cpu_op", R"("ts": 1e300, "dur": 1)") +
      event("kernel", R"("ts": 1, "dur": 1, "args": {"device": 18446744073709551615})") +
      event("kernel", R"("ts": 1, "dur": 1, "pid": "Spans")") +
      R"({"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": -9223372036854775808}},)"
      R"(7, [[]], null, {"ph": 1}, {"ph": "X", "cat": "cpu_op", "name": 5, "ts": 1, "dur": 1},)" +
      event("cpu_op", R"("ts": 5, "dur": 1, "args": {"External id": 1e300, "Call": 99, "Sequence number": "x"})") +
      event("kernel", R"("ts": 6, "dur": 1, "args": {"device": 3, "stream": {}, "External id": -5, "Call": 4294967296,
                         "correlation": 4294967296, "grid": [-1, "a"], "block": 7, "shared memory": -1}, "args2": 0)");
  const Trace trace = parse_trace(
      R"({"schemaVersion": "x", "deviceProperties": [5, {"id": "x"}], "distributedInfo": [], "baseTimeNanoseconds": 0,
          "tessera": {"calls": 5, "devices": {"a": null}, "notes": {}, "rank": 7, "ranks": -1}, "traceEvents": [)" +
          all.substr(0, all.size() - 1) + "]}",
      "FILE");
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(trace.call_of(trace.spans[0]), nullptr);
  EXPECT_EQ(trace.call_of(trace.spans[1]), nullptr);
  EXPECT_EQ(trace.spans[1].device, 3);
  EXPECT_EQ(std::tie(trace.spans[1].owner, trace.spans[1].correlation), std::make_tuple(-1, 0u));
  EXPECT_EQ(trace.launch_of(trace.spans[1])->grid[0], 1u);
  EXPECT_EQ(std::tie(trace.rank, trace.ranks), std::make_tuple(0, 1));
  ASSERT_EQ(trace.notes.size(), 1u);
  EXPECT_EQ(trace.notes[0], "7 events of FILE are left out: their times or devices cannot be");
}

TEST(TraceJson, DamagedGzipIsRefused) {
  const TraceFolder folder;
  const std::string file = folder.file("a.json.gz");
  write_trace(SampleTrace(true).trace(), file);
  const std::string packed = bytes_of_file(file);
  const auto complaint = [&](const std::string& bytes) -> std::string {
    put_bytes(file, bytes);
    try {
      read_trace(file);
    } catch (const FileError& error) {
      return error.what();
    }
    return "read";
  };
  for (const size_t size : {size_t{2}, size_t{15}, packed.size() / 2, packed.size() - 1})
    EXPECT_EQ(complaint(packed.substr(0, size)),
              file + ": the gzipped trace is cut short at byte " + std::to_string(size));
  std::string damaged = packed;
  for (size_t i = 0; i < 64; ++i) damaged[damaged.size() / 2 + i] ^= 0x55;
  EXPECT_NE(complaint(damaged).find(": the gzipped trace is damaged near byte "), std::string::npos);
  EXPECT_NE(complaint(packed + "more").find(": the gzipped trace is damaged near byte "), std::string::npos);
  EXPECT_EQ(unpack(packed + packed, "FILE").size(), 2 * unpack(packed, "FILE").size()) << "two in one file";
  EXPECT_THROW(unpack(packed, "FILE", 1000), FileError);
}

TEST(TraceJson, FilesThatCannotBeAreErrors) {
  const TraceFolder folder;
  EXPECT_THROW(read_trace(folder.file("none.json")), FileError);
  EXPECT_THROW(read_trace(folder.file("")), FileError) << "a folder";
  EXPECT_THROW(write_trace({}, folder.file("none/a.json")), FileError);
  EXPECT_THROW(write_memory_timeline({}, 0, folder.file("none/a.json.gz")), FileError);
  // A disk without room: the file's temporary name is a device that is always full.
  for (const std::string name : {"full.json", "full.json.gz"}) {
    fs::create_symlink("/dev/full", folder.file(name + ".tmp"));
    EXPECT_THROW(write_trace(SampleTrace(true).trace(), folder.file(name)), FileError);
    EXPECT_FALSE(fs::exists(folder.file(name)));
  }
}

nlohmann::json timeline(const Trace& trace, int device) {
  const TraceFolder folder;
  write_memory_timeline(trace, device, folder.file("memory.json.gz"));
  write_memory_timeline(trace, device, folder.file("memory.json"));
  const std::string text = unpack(bytes_of_file(folder.file("memory.json.gz")), "FILE");
  EXPECT_EQ(text, bytes_of_file(folder.file("memory.json")));
  return nlohmann::json::parse(text);
}

TEST(MemoryTimeline, IsOfKindsOverTime) {
  Trace trace;
  trace.base = 1'000'000'500;
  const auto change = [&](int64_t at, int64_t bytes, uint64_t address, MemoryKind kind, int64_t allocated) {
    trace.memory.push_back({at, 0, 1, bytes, address, allocated, 0, -1, kind});
  };
  change(0, 100, 1, MemoryKind::Parameter, 1100);
  change(400, 50, 2, MemoryKind::Activation, 1150);   // in the same microsecond
  change(5'000, -30, 3, MemoryKind::Gradient, 1120);  // it was there before
  trace.memory.push_back({6'000, -1, 1, 7, 4, 7, 0, -1, MemoryKind::Input});
  change(9'000, -50, 2, MemoryKind::Unknown, 1070);  // of the kind that it was got with
  const auto json = timeline(trace, 0);
  EXPECT_EQ(json[0], nlohmann::json({1'000'000, 1'000'005, 1'000'009}));
  EXPECT_EQ(json[1], nlohmann::json({{0, 100, 0, 0, 0, 50, 30, 0, 970},
                                     {0, 100, 0, 0, 0, 50, 0, 0, 970},
                                     {0, 100, 0, 0, 0, 0, 0, 0, 970}}));
  EXPECT_EQ(timeline(trace, -1)[1], nlohmann::json({{0, 0, 0, 7, 0, 0, 0, 0, 0}}));
  EXPECT_EQ(timeline(trace, 5), nlohmann::json({nlohmann::json::array(), nlohmann::json::array()}));
}

TEST(MemoryTimeline, AddsUpToWhatIsAllocated) {
  const Trace trace = SampleTrace(true).trace();
  const auto json = timeline(trace, 0);
  ASSERT_EQ(json[0].size(), trace.memory.size());
  for (size_t i = 0; i < trace.memory.size(); ++i) {
    int64_t sum = 0;
    for (const auto& size : json[1][i]) sum += size.get<int64_t>();
    EXPECT_EQ(sum, trace.memory[i].allocated);
    EXPECT_EQ(json[1][i].size(), 1u + kMemoryKinds);
  }
}

}  // namespace
}  // namespace tessera::profiler
