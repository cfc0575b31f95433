// Traces as Kineto's JSON. What of a Trace that schema has no place for is in arguments and a list of our own, which
// other readers pass over: "Call" of events, and "tessera" at the end.
#include "profiler/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/attr_value.h"
#include "profiler/analysis.h"
#include "profiler/packed_file.h"

namespace tessera::profiler {
namespace {

using TraceSink = std::function<void(std::string_view)>;

constexpr size_t kTraceBuffer = size_t{1} << 16;
constexpr int kFirstDeviceSort = 5'000'000;  // Kineto's: devices are shown below processes

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// JSON has neither infinities nor NaN.
double finite_or_zero(double value) { return std::isfinite(value) ? value : 0; }

// Nanoseconds as microseconds, exactly.
std::string microseconds(int64_t nanoseconds) {
  const uint64_t size = nanoseconds < 0 ? 0 - static_cast<uint64_t>(nanoseconds) : static_cast<uint64_t>(nanoseconds);
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", size / 1000, size % 1000);
}

template <class List, class Text>
std::string joined_json(const List& list, const Text& text) {
  std::string out = "[";
  for (const auto& item : list) out += (out.size() > 1 ? ", " : "") + text(item);
  return out + "]";
}

std::string dims_json(const std::vector<std::vector<int64_t>>& dims) {
  return joined_json(dims,
                     [](const auto& each) { return joined_json(each, [](int64_t d) { return std::to_string(d); }); });
}

// What PyTorch calls a type of ours.
std::string_view kineto_type(std::string_view type) {
  static constexpr std::string_view kTypes[][2] = {{"f32", "float"},          {"f16", "c10::Half"},
                                                   {"bf16", "c10::BFloat16"}, {"f64", "double"},
                                                   {"i64", "long int"},       {"i32", "int"},
                                                   {"u8", "unsigned char"},   {"i8", "signed char"},
                                                   {"i16", "short int"},      {"u16", "short unsigned int"},
                                                   {"u32", "unsigned int"},   {"u64", "long unsigned int"}};
  for (const auto& each : kTypes)
    if (each[0] == type) return each[1];
  return type;
}

// The fields of a Call that Kineto's schema has no place for; the same names in a cpu_op and in the list of calls.
std::string own_fields(const Call& call) {
  std::string out;
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) out += fmt::format(", \"{}\": {}", key, json_text(value));
  };
  add("Module", call.path);
  add("Kernel", call.kernel);
  add("Attributes", call.attributes);
  add("Source", call.source);
  if (call.flops != 0) out += fmt::format(", \"FLOPs\": {}", finite_or_zero(call.flops));
  if (call.bytes != 0) out += fmt::format(", \"Bytes\": {}", finite_or_zero(call.bytes));
  return out;
}

// The values of attributes, which PyTorch has among an operator's inputs; of its own operators these are there already.
std::vector<std::string_view> attribute_values(const Call& call) {
  std::vector<std::string_view> values;
  try {
    for (const std::string_view each : split_list(call.attributes))
      if (const size_t equal = each.find('='); equal != each.npos) values.push_back(each.substr(equal + 1));
  } catch (const Error&) {  // what was read from a file may be anything
  }
  return values;
}

// Of an operator's event: each list has an entry for each input, and then one for each attribute.
std::string inputs_json(const Call& call) {
  std::vector<std::vector<int64_t>> dims = call.dims, strides = call.strides;
  std::vector<std::string> types, values(dims.size());
  for (const std::string& type : call.types) types.emplace_back(kineto_type(type));
  for (const std::string_view value : attribute_values(call)) {
    dims.emplace_back();
    types.emplace_back(value.starts_with('[') ? "ScalarList" : "Scalar");
    values.emplace_back(value);
  }
  strides.resize(call.strides.empty() ? 0 : dims.size());
  std::string out = fmt::format(", \"Input Dims\": {}, \"Input type\": {}, \"Concrete Inputs\": {}", dims_json(dims),
                                joined_json(types, json_text), joined_json(values, json_text));
  if (!strides.empty()) out += fmt::format(", \"Input Strides\": {}", dims_json(strides));
  return out;
}

std::pair<int, int> compute_capability(const std::string& architecture) {
  const size_t at = architecture.find_first_of("0123456789");
  if (at == std::string::npos) return {0, 0};
  // "sm_90": the last digit is the minor version; "gfx942": the last but one, and the last one is a stepping.
  const size_t tail = architecture.starts_with("gfx") ? 2 : 1;
  const std::string digits = architecture.substr(at);
  if (digits.size() <= tail || digits.size() > 6) return {0, 0};
  const std::string major = digits.substr(0, digits.size() - tail);
  const char minor = digits[digits.size() - tail];
  return {std::atoi(major.c_str()), minor >= '0' && minor <= '9' ? minor - '0' : 0};
}

// For each span of the host the innermost range around it on its thread; -1: none.
std::vector<int32_t> ranges_around(const Trace& trace) {
  std::vector<int32_t> around(trace.spans.size(), -1);
  std::unordered_map<int64_t, std::vector<int32_t>> open;  // of each thread
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (is_on_device(span.kind)) continue;
    std::vector<int32_t>& stack = open[span.thread];
    while (!stack.empty() && trace.spans[static_cast<size_t>(stack.back())].end <= span.begin) stack.pop_back();
    if (!stack.empty()) around[i] = stack.back();
    if (span.kind == Kind::Range) stack.push_back(static_cast<int32_t>(i));
  }
  return around;
}

class TraceWriter {
 public:
  TraceWriter(const Trace& trace, const TraceSink& sink) : trace_(trace), sink_(sink) {}
  void write();

 private:
  /// A sequence number's operators: the first is forward's; what begins after its end is backward's.
  struct Pair {
    int32_t forward = -1, backward = -1;
  };

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kTraceBuffer) flush();
  }
  void flush() {
    sink_({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }
  /// The begin of an event: after it come its other fields, and "}".
  void event(std::string_view ph, std::string_view category, std::string_view quoted_name, int64_t process,
             int64_t thread, int64_t at) {
    put("{}{{\"ph\": \"{}\", ", separator_, ph);
    if (!category.empty()) put("\"cat\": \"{}\", ", category);
    put("\"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}", quoted_name, process, thread, microseconds(at));
    separator_ = ",\n  ";
  }
  /// A merged trace has a process for each rank, numbered from the first one's.
  int rank_of_thread(int64_t thread) const {
    Span span;
    span.thread = thread;
    return merged_ ? rank_of(trace_, span) : trace_.rank;
  }
  int64_t process_of_thread(int64_t thread) const { return trace_.process + rank_of_thread(thread) - trace_.rank; }
  int64_t process_of(const Span& span) const {
    return is_on_device(span.kind) ? span.device : process_of_thread(span.thread);
  }

  void prepare();
  void head();
  void device_properties();
  void label(int64_t process, const std::string& name, const std::string& labels, int64_t sort);
  void label_thread(int64_t process, int64_t thread, const std::string& name);
  void labels();
  void whole();
  void span(size_t at);
  void arguments(size_t at);
  void operator_arguments(size_t at);
  void kernel_arguments(const Launch& launch, int device);
  void flows(size_t at);
  void flow(bool begins, std::string_view category, int64_t id, const Span& span);
  void ranges_on_devices();
  void memory(const MemoryChange& change);
  void own();
  void own_device(const DeviceInfo& device);

  const Trace& trace_;
  const TraceSink& sink_;
  fmt::memory_buffer buffer_;
  std::string_view separator_ = "\n  ";
  std::vector<std::string> names_, call_arguments_;  ///< as JSON
  const bool merged_ = is_merged(trace_);
  std::unordered_map<int32_t, int> multiprocessors_, warps_;
  std::unordered_map<int64_t, Pair> pairs_;
  std::unordered_set<uint32_t> started_;  ///< correlations of what ran on a device
};

void TraceWriter::prepare() {
  for (const std::string& name : trace_.names) names_.push_back(json_text(name));
  for (const Call& call : trace_.calls) call_arguments_.push_back(inputs_json(call) + own_fields(call));
  for (const DeviceInfo& device : trace_.devices) {
    multiprocessors_[device.id] = device.multiprocessors;
    warps_[device.id] = device.warp_size;
  }
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    const Span& span = trace_.spans[i];
    if (is_on_device(span.kind) && span.correlation != 0) started_.insert(span.correlation);
    if (span.kind != Kind::Op || span.sequence < 0) continue;
    Pair& pair = pairs_[span.sequence];
    if (pair.forward < 0) pair.forward = static_cast<int32_t>(i);
    else if (pair.backward < 0 && span.begin > trace_.spans[static_cast<size_t>(pair.forward)].begin &&
             span.begin >= trace_.spans[static_cast<size_t>(pair.forward)].end)
      pair.backward = static_cast<int32_t>(i);
  }
}

void TraceWriter::write() {
  prepare();
  head();
  labels();
  whole();
  // Spans and memory in the order of time, as both are.
  auto change = trace_.memory.begin();
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    for (; change != trace_.memory.end() && change->at < trace_.spans[i].begin; ++change) memory(*change);
    span(i);
    flows(i);
  }
  for (; change != trace_.memory.end(); ++change) memory(*change);
  ranges_on_devices();
  put("\n  ],\n");
  own();
  flush();
}

void TraceWriter::head() {
  const bool shapes =
      std::any_of(trace_.calls.begin(), trace_.calls.end(), [](const Call& call) { return !call.dims.empty(); });
  put("{{\n  \"schemaVersion\": 1,\n");
  device_properties();
  put("  \"record_shapes\": {},\n  \"profile_memory\": {},\n  \"with_stack\": 0,\n", shapes ? 1 : 0,
      trace_.memory.empty() ? 0 : 1);
  // What the ranks use to talk is not known here; readers ask for a name.
  if (trace_.ranks > 1)
    put("  \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}},\n", trace_.rank,
        trace_.ranks);
  put("  \"displayTimeUnit\": \"ms\",\n  \"baseTimeNanoseconds\": {},\n", trace_.base);
  put("  \"traceName\": {},\n  \"traceEvents\": [",
      json_text(fmt::format("{}_{}.pt.trace.json", trace_.host, trace_.process)));
}

void TraceWriter::device_properties() {
  std::vector<std::string> all;
  for (const DeviceInfo& device : trace_.devices) {
    if (device.id < 0) continue;
    const auto [major, minor] = compute_capability(device.architecture);
    all.push_back(
        fmt::format("\n    {{\"id\": {}, \"name\": {}, \"totalGlobalMem\": {}, \"computeMajor\": {}, "
                    "\"computeMinor\": {}, \"maxThreadsPerMultiprocessor\": {}, \"warpSize\": {}, "
                    "\"numSms\": {}}}",
                    device.id, json_text(device.name), device.memory, major, minor, device.threads_per_multiprocessor,
                    device.warp_size, device.multiprocessors));
  }
  put("  \"deviceProperties\": {},\n", joined_json(all, [](const std::string& each) { return each; }));
}

void TraceWriter::label(int64_t process, const std::string& name, const std::string& labels, int64_t sort) {
  event("M", "", "\"process_name\"", process, 0, 0);
  put(", \"args\": {{\"name\": {}}}}}", json_text(name));
  event("M", "", "\"process_labels\"", process, 0, 0);
  put(", \"args\": {{\"labels\": {}}}}}", json_text(labels));
  event("M", "", "\"process_sort_index\"", process, 0, 0);
  put(", \"args\": {{\"sort_index\": {}}}}}", sort);
}

void TraceWriter::label_thread(int64_t process, int64_t thread, const std::string& name) {
  event("M", "", "\"thread_name\"", process, thread, 0);
  put(", \"args\": {{\"name\": {}}}}}", json_text(name));
  event("M", "", "\"thread_sort_index\"", process, thread, 0);
  put(", \"args\": {{\"sort_index\": {}}}}}", thread);
}

void TraceWriter::labels() {
  std::set<int64_t> threads;
  std::set<std::pair<int32_t, int64_t>> streams;
  std::map<int32_t, std::string> devices;
  for (const DeviceInfo& device : trace_.devices)
    if (device.id >= 0) devices[device.id] = device.name;
  for (const Span& span : trace_.spans) {
    if (is_on_device(span.kind)) streams.emplace(span.device, span.thread);
    else threads.insert(span.thread);
  }
  for (const auto& [device, stream] : streams) devices.emplace(device, "");
  std::map<int64_t, int> processes = {{trace_.process, trace_.rank}};
  for (const int64_t thread : threads) processes.emplace(process_of_thread(thread), rank_of_thread(thread));
  for (const auto& [process, rank] : processes)
    label(process, merged_ ? fmt::format("tessera, rank {}", rank) : "tessera", "CPU", process);
  for (const int64_t thread : threads)
    label_thread(process_of_thread(thread), thread, fmt::format("thread {} (tessera)", thread));
  for (const auto& [device, name] : devices)
    label(device, name.empty() ? "tessera" : "tessera on " + name, fmt::format("GPU {}", device),
          kFirstDeviceSort + device);
  for (const auto& [device, stream] : streams) label_thread(device, stream, fmt::format("stream {}", stream));
}

// Readers of PyTorch's traces take the time that was profiled from an event of just this name.
void TraceWriter::whole() {
  if (trace_.spans.empty()) return;
  int64_t end = trace_.spans.front().end;
  for (const Span& span : trace_.spans) end = std::max(end, span.end);
  const int64_t begin = trace_.spans.front().begin;
  put("{}{{\"ph\": \"X\", \"cat\": \"Trace\", \"name\": \"PyTorch Profiler (0)\", \"pid\": \"Spans\", "
      "\"tid\": \"PyTorch Profiler\", \"ts\": {}, \"dur\": {}, \"args\": {{\"Op count\": 0}}}}",
      separator_, microseconds(begin), microseconds(end - begin));
}

std::string_view category_of(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::Step:
    case Kind::Range:
    case Kind::Module:
      return "user_annotation";
    case Kind::Op:
      return "cpu_op";
    case Kind::Runtime:  // "cuLaunchKernel" is the driver's, "cudaLaunchKernel" the run-time library's
      return name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z' ? "cuda_driver"
                                                                                           : "cuda_runtime";
    case Kind::Kernel:
      return "kernel";
    case Kind::Copy:
      return "gpu_memcpy";
    case Kind::Fill:
      return "gpu_memset";
  }
  return "";
}

void TraceWriter::span(size_t at) {
  const Span& span = trace_.spans[at];
  event("X", category_of(span.kind, trace_.name_of(span)), names_[static_cast<size_t>(span.name)], process_of(span),
        span.thread, span.begin);
  put(", \"dur\": {}, \"args\": {{", microseconds(span.end - span.begin));
  arguments(at);
  put("}}}}");
}

void TraceWriter::arguments(size_t at) {
  const Span& span = trace_.spans[at];
  // A device's events, and calls of the run-time library, bear the number of the operator that they are for; 0: none.
  const int64_t id =
      is_on_device(span.kind) || span.kind == Kind::Runtime ? int64_t{span.owner} + 1 : static_cast<int64_t>(at) + 1;
  put("\"External id\": {}", id);
  if (!is_on_device(span.kind) && span.kind != Kind::Runtime) put(", \"Ev Idx\": {}", at);
  if (span.kind == Kind::Op) return operator_arguments(at);
  if (span.kind == Kind::Runtime) {
    if (span.detail >= 0) put(", \"cbid\": {}", span.detail);
    return put(", \"correlation\": {}", span.correlation);
  }
  if (span.kind == Kind::Step) return put(", \"Kind\": \"Step\"");
  if (span.kind == Kind::Range) return put(", \"Kind\": \"Range\"");
  if (span.kind == Kind::Module) return put(", \"Kind\": \"Module\"");
  put(", \"device\": {}, \"context\": 1, \"stream\": {}, \"correlation\": {}, \"Call\": {}", span.device, span.thread,
      span.correlation, span.call);
  if (const Launch* launch = trace_.launch_of(span)) kernel_arguments(*launch, span.device);
  if (span.kind == Kind::Kernel) return;
  const int64_t time = span.end - span.begin;
  put(", \"bytes\": {}, \"memory bandwidth (GB/s)\": {}", span.bytes,
      time > 0 ? static_cast<double>(span.bytes) / static_cast<double>(time) : 0.0);
}

void TraceWriter::operator_arguments(size_t at) {
  const Span& span = trace_.spans[at];
  put(", \"Call\": {}", span.detail);
  if (span.sequence >= 0) {
    const Pair& pair = pairs_.at(span.sequence);
    const bool backward = pair.backward >= 0 && static_cast<size_t>(pair.backward) <= at;
    put(", \"Sequence number\": {}, \"Fwd thread id\": {}", span.sequence,
        backward ? trace_.spans[static_cast<size_t>(pair.forward)].thread : 0);
  }
  if (span.detail >= 0) put("{}", call_arguments_[static_cast<size_t>(span.detail)]);
}

void TraceWriter::kernel_arguments(const Launch& launch, int device) {
  const auto found = [&](const auto& map) {
    const auto it = map.find(device);
    return it == map.end() ? 0.0 : static_cast<double>(it->second);
  };
  const double blocks = 1.0 * launch.grid[0] * launch.grid[1] * launch.grid[2];
  const double threads = 1.0 * launch.block[0] * launch.block[1] * launch.block[2];
  const double multiprocessors = found(multiprocessors_), warp = found(warps_);
  const double per = multiprocessors > 0 ? blocks / multiprocessors : 0;
  put(", \"queued\": 0, \"registers per thread\": {}, \"shared memory\": {}, \"blocks per SM\": {}, \"warps per SM\": "
      "{}, \"grid\": [{}, {}, {}], \"block\": [{}, {}, {}], \"est. achieved occupancy %\": {:.4f}",
      launch.registers, launch.shared_bytes, per, warp > 0 ? per * std::ceil(threads / warp) : 0.0, launch.grid[0],
      launch.grid[1], launch.grid[2], launch.block[0], launch.block[1], launch.block[2],
      100 * finite_or_zero(launch.occupancy));
}

// Arrows from a call of the run-time library to what it started, and from an operator to its backward.
void TraceWriter::flows(size_t at) {
  const Span& span = trace_.spans[at];
  if (span.correlation != 0 && started_.count(span.correlation)) {
    if (span.kind == Kind::Runtime) flow(true, "ac2g", span.correlation, span);
    if (is_on_device(span.kind)) flow(false, "ac2g", span.correlation, span);
  }
  if (span.kind != Kind::Op || span.sequence < 0) return;
  const Pair& pair = pairs_.at(span.sequence);
  if (pair.backward < 0) return;
  if (static_cast<size_t>(pair.forward) == at) flow(true, "fwdbwd", pair.forward + int64_t{1}, span);
  if (static_cast<size_t>(pair.backward) == at) flow(false, "fwdbwd", pair.forward + int64_t{1}, span);
}

void TraceWriter::flow(bool begins, std::string_view category, int64_t id, const Span& span) {
  event(begins ? "s" : "f", category, fmt::format("\"{}\"", category), process_of(span), span.thread, span.begin);
  put(", \"id\": {}{}}}", id, begins ? "" : ", \"bp\": \"e\"");
}

// Ranges as seen on each stream: from the first to the last piece of work of an operator in them. Steps are not among
// them: TensorBoard's plug-in would take those for more steps of the host.
void TraceWriter::ranges_on_devices() {
  const std::vector<int32_t> around = ranges_around(trace_);
  std::map<std::tuple<int32_t, int32_t, int64_t>, std::pair<int64_t, int64_t>> seen;  // range, device, stream: times
  for (const Span& span : trace_.spans) {
    if (!is_on_device(span.kind) || span.owner < 0) continue;
    for (int32_t range = around[static_cast<size_t>(span.owner)]; range >= 0;
         range = around[static_cast<size_t>(range)]) {
      const auto [it, added] = seen.try_emplace({range, span.device, span.thread}, span.begin, span.end);
      it->second.first = std::min(it->second.first, span.begin);
      it->second.second = std::max(it->second.second, span.end);
    }
  }
  for (const auto& [key, times] : seen) {
    const auto [range, device, stream] = key;
    event("X", "gpu_user_annotation", names_[static_cast<size_t>(trace_.spans[static_cast<size_t>(range)].name)],
          device, stream, times.first);
    put(", \"dur\": {}, \"args\": {{\"External id\": {}}}}}", microseconds(times.second - times.first),
        range + int64_t{1});
  }
}

void TraceWriter::memory(const MemoryChange& change) {
  event("i", "cpu_instant_event", "\"[memory]\"", process_of_thread(change.thread), change.thread, change.at);
  put(", \"s\": \"t\", \"args\": {{\"Total Reserved\": {}, \"Total Allocated\": {}, \"Bytes\": {}, \"Addr\": {}, "
      "\"Device Id\": {}, \"Device Type\": {}, \"External id\": {}, \"Category\": \"{}\"}}}}",
      change.reserved, change.allocated, change.bytes, change.address, change.device, change.device < 0 ? 0 : 1,
      int64_t{change.owner} + 1, name(change.kind));
}

void TraceWriter::own_device(const DeviceInfo& device) {
  const Roof& roof = device.roof;
  put("\n    {{\"id\": {}, \"name\": {}, \"memory\": {}, \"multiprocessors\": {}, \"warp\": {}, \"threads\": {}, "
      "\"architecture\": {}, ",
      device.id, json_text(device.name), device.memory, device.multiprocessors, device.warp_size,
      device.threads_per_multiprocessor, json_text(device.architecture));
  put("\"roof\": {{\"bytes\": {}, \"f32\": {}, \"tf32\": {}, \"f16\": {}, \"bf16\": {}, \"f64\": {}}}}}",
      finite_or_zero(roof.bytes_per_second), finite_or_zero(roof.f32), finite_or_zero(roof.tf32),
      finite_or_zero(roof.f16), finite_or_zero(roof.bf16), finite_or_zero(roof.f64));
}

// At the end, so that readers which look for something in a file's first lines find it.
void TraceWriter::own() {
  const auto each = [](const std::string& text) { return json_text(text); };
  put("  \"tessera\": {{\n  \"host\": {}, \"process\": {}, \"rank\": {}, \"ranks\": {}, \"plain step\": {}, "
      "\"dropped\": {},\n",
      json_text(trace_.host), trace_.process, trace_.rank, trace_.ranks, trace_.plain_step, trace_.dropped);
  put("  \"notes\": {},\n  \"devices\": [", joined_json(trace_.notes, each));
  for (const DeviceInfo& device : trace_.devices) {
    if (&device != &trace_.devices.front()) put(",");
    own_device(device);
  }
  put("],\n  \"counters\": [");
  for (const StepCounters& of : trace_.counters) {
    put("{}\n    {{\"External id\": {}, \"context switches\": {}, \"page faults\": {}",
        &of == &trace_.counters.front() ? "" : ",", of.step + int64_t{1}, of.context_switches, of.page_faults);
    const std::pair<const char*, int64_t> processors[] = {
        {"cycles", of.cycles}, {"instructions", of.instructions}, {"cache misses", of.cache_misses}};
    for (const auto& [name, count] : processors)  // many a virtual machine has some of them, or none
      if (count > 0) put(", \"{}\": {}", name, count);
    put("}}");
  }
  put("],\n  \"calls\": [");
  for (const Call& call : trace_.calls)
    put("{}\n    {{\"Operator\": {}, \"Dims\": {}, \"Strides\": {}, \"Types\": {}{}}}",
        &call == &trace_.calls.front() ? "" : ",", json_text(call.op), dims_json(call.dims), dims_json(call.strides),
        joined_json(call.types, each), own_fields(call));
  put("]\n  }}\n}}\n");
}

}  // namespace

void write_trace(const Trace& trace, const std::string& file) {
  PackedFile out(file);
  TraceWriter(trace, [&](std::string_view text) { out.write(text); }).write();
  out.commit();
}

std::string trace_text(const Trace& trace) {
  std::string out;
  TraceWriter(trace, [&](std::string_view text) { out += text; }).write();
  return out;
}

}  // namespace tessera::profiler
