// Traces of write_trace and of PyTorch's profiler. Nothing in a file is trusted: an event that cannot be is left out
// and counted, a number that cannot be is as if it were not there.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "io/file.h"
#include "profiler/packed_file.h"
#include "profiler/trace_events.h"
#include "profiler/trace_json.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

constexpr int kMostDevices = 1 << 12;
const TraceJson kNothing;

const TraceJson& json_member(const TraceJson& object, const char* key) {
  if (!object.is_object()) return kNothing;
  const auto it = object.find(key);
  return it == object.end() ? kNothing : *it;
}

/// The number, if it is one from `least` to `most`; `otherwise` if not.
template <class Int = int64_t>
Int integer_of(const TraceJson& value, Int otherwise, Int least = std::numeric_limits<Int>::min(),
               Int most = std::numeric_limits<Int>::max()) {
  if (value.is_number_unsigned()) {
    const uint64_t v = value.get<uint64_t>();
    return std::cmp_less_equal(v, most) && std::cmp_greater_equal(v, least) ? static_cast<Int>(v) : otherwise;
  }
  if (value.is_number_integer()) {
    const int64_t v = value.get<int64_t>();
    return std::cmp_less_equal(v, most) && std::cmp_greater_equal(v, least) ? static_cast<Int>(v) : otherwise;
  }
  if (!value.is_number_float()) return otherwise;
  const double v = value.get<double>();  // 2^53 and beyond it is not sure which number was meant
  if (!(std::abs(v) < 9e15) || v != std::floor(v)) return otherwise;
  return integer_of(TraceJson(static_cast<int64_t>(v)), otherwise, least, most);
}

double real_of(const TraceJson& value) { return value.is_number() ? std::max(0.0, value.get<double>()) : 0.0; }

std::string json_string(const TraceJson& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

/// Of a thread or stream, which may be "stream 7", too.
int64_t thread_number(const TraceJson& value) {
  if (!value.is_string()) return integer_of(value, int64_t{0});
  const auto& text = value.get_ref<const std::string&>();
  size_t at = text.size();
  while (at > 0 && at + 18 > text.size() && std::isdigit(static_cast<unsigned char>(text[at - 1]))) --at;
  return at == text.size() ? 0 : std::atoll(text.c_str() + at);
}

std::string own_type(const std::string& kineto) {
  static const std::unordered_map<std::string, std::string> kTypes = {
      {"float", "f32"},        {"c10::Half", "f16"},          {"c10::BFloat16", "bf16"},
      {"double", "f64"},       {"long int", "i64"},           {"long", "i64"},
      {"int", "i32"},          {"unsigned char", "u8"},       {"signed char", "i8"},
      {"half", "f16"},         {"bfloat16", "bf16"},          {"short int", "i16"},
      {"short", "i16"},        {"short unsigned int", "u16"}, {"unsigned short", "u16"},
      {"unsigned int", "u32"}, {"long unsigned int", "u64"},  {"unsigned long", "u64"}};
  const auto it = kTypes.find(kineto);
  return it == kTypes.end() ? kineto : it->second;
}

std::vector<std::vector<int64_t>> read_dims(const TraceJson& value) {
  std::vector<std::vector<int64_t>> out;
  if (!value.is_array()) return out;
  for (const TraceJson& each : value) {
    std::vector<int64_t>& dims = out.emplace_back();
    if (!each.is_array()) continue;
    for (const TraceJson& dim : each)
      if (dim.is_number_integer()) dims.push_back(integer_of(dim, int64_t{0}));
  }
  return out;
}

std::vector<std::string> read_texts(const TraceJson& value) {
  std::vector<std::string> out;
  if (!value.is_array()) return out;
  for (const TraceJson& each : value) out.push_back(json_string(each));
  return out;
}

/// What write_trace calls the fields of a Call in both places that it writes them to.
void read_own_fields(const TraceJson& from, Call& call) {
  call.path = json_string(json_member(from, "Module"));
  call.kernel = json_string(json_member(from, "Kernel"));
  call.attributes = json_string(json_member(from, "Attributes"));
  call.source = json_string(json_member(from, "Source"));
  call.flops = real_of(json_member(from, "FLOPs"));
  call.bytes = real_of(json_member(from, "Bytes"));
}

Roof read_roof(const TraceJson& value) {
  return {real_of(json_member(value, "bytes")), real_of(json_member(value, "f32")),
          real_of(json_member(value, "tf32")),  real_of(json_member(value, "f16")),
          real_of(json_member(value, "bf16")),  real_of(json_member(value, "f64"))};
}

int count_of(const TraceJson& value) { return integer_of<int>(value, 0, 0); }

DeviceInfo read_own_device(const TraceJson& value) {
  DeviceInfo out;
  out.id = integer_of<int>(json_member(value, "id"), -1, -1, kMostDevices);
  out.name = json_string(json_member(value, "name"));
  out.memory = integer_of<int64_t>(json_member(value, "memory"), 0, 0);
  out.multiprocessors = count_of(json_member(value, "multiprocessors"));
  out.warp_size = count_of(json_member(value, "warp"));
  out.threads_per_multiprocessor = count_of(json_member(value, "threads"));
  out.architecture = json_string(json_member(value, "architecture"));
  out.roof = read_roof(json_member(value, "roof"));
  return out;
}

DeviceInfo read_kineto_device(const TraceJson& value) {
  DeviceInfo out;
  out.id = integer_of<int>(json_member(value, "id"), 0, 0, kMostDevices);
  out.name = json_string(json_member(value, "name"));
  out.memory = integer_of<int64_t>(json_member(value, "totalGlobalMem"), 0, 0);
  out.multiprocessors = count_of(json_member(value, "numSms"));
  out.warp_size = count_of(json_member(value, "warpSize"));
  out.threads_per_multiprocessor = count_of(json_member(value, "maxThreadsPerMultiprocessor"));
  const int major = count_of(json_member(value, "computeMajor")), minor = count_of(json_member(value, "computeMinor"));
  if (major > 0) out.architecture = fmt::format("sm_{}{}", major, minor);
  return out;
}

MemoryKind memory_kind(const TraceJson& value) {
  if (!value.is_string()) return MemoryKind::Unknown;
  for (int i = 0; i < kMemoryKinds; ++i)
    if (name(static_cast<MemoryKind>(i)) == value.get_ref<const std::string&>()) return static_cast<MemoryKind>(i);
  return MemoryKind::Unknown;
}

/// False: a category of which a Trace has nothing.
bool kind_of_event(const std::string& category, const std::string& name, const TraceJson& args, Kind& kind) {
  static const std::unordered_map<std::string, Kind> kKinds = {
      {"cpu_op", Kind::Op},       {"operator", Kind::Op},          {"user_annotation", Kind::Range},
      {"kernel", Kind::Kernel},   {"cuda_runtime", Kind::Runtime}, {"cuda_driver", Kind::Runtime},
      {"runtime", Kind::Runtime}, {"hip_runtime", Kind::Runtime},  {"gpu_memcpy", Kind::Copy},
      {"memcpy", Kind::Copy},     {"gpu_memset", Kind::Fill},      {"memset", Kind::Fill}};
  std::string lower = category;  // older files have "Operator", "Kernel"
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto it = kKinds.find(lower);
  if (it == kKinds.end()) return false;
  kind = it->second;
  const TraceJson& own = json_member(args, "Kind");
  if (kind == Kind::Range && own.is_string()) {
    if (own == "Step") kind = Kind::Step;
    if (own == "Module") kind = Kind::Module;
  } else if ((kind == Kind::Range || (kind == Kind::Op && !args.contains("Call"))) &&
             name.starts_with("ProfilerStep#")) {
    kind = Kind::Step;
  }
  return true;
}

class TraceReader {
 public:
  explicit TraceReader(const std::string& file) : file_(file) {}
  void event(const TraceJson& event);
  void member_of_file(const std::string& key, const TraceJson& value);
  Trace finish();

 private:
  static constexpr int64_t kNoId = -1;  ///< where an event does not say which number it has; 0: it is of none

  int32_t name_index(const std::string& name);
  int32_t call_index(const Span& span, const std::string& name, const TraceJson& args);
  int32_t launch_index(const TraceJson& args);
  void span(Kind kind, const std::string& name, const TraceJson& event, const TraceJson& args);
  void device_span(Span& span, const TraceJson& event, const TraceJson& args);
  void memory(const TraceJson& event, const TraceJson& args);
  void read_own(const TraceJson& value);
  void read_counters(const TraceJson& list);
  void sort_spans();
  void find_owners();
  void find_calls();
  void set_base();
  void count_check(size_t size) const {
    if (size >= INT32_MAX) throw FileError(file_ + ": more events than a trace may have");
  }

  const std::string& file_;
  Trace trace_;
  std::vector<int64_t> ids_;         ///< "External id" of each span
  std::vector<int64_t> memory_ids_;  ///< of each memory change
  std::vector<char> has_call_;       ///< whether a span said which call it was of
  std::unordered_map<std::string, int32_t> names_, calls_;
  std::map<std::tuple<unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, int, int64_t, double>, int32_t>
      launches_;
  bool has_base_ = false, has_schema_ = false, has_own_ = false;
  int64_t events_ = 0, left_out_ = 0;
};

int32_t TraceReader::name_index(const std::string& name) {
  const auto [it, added] = names_.try_emplace(name, static_cast<int32_t>(trace_.names.size()));
  if (added) trace_.names.push_back(name);
  return it->second;
}

// Calls of PyTorch are found alike by what they say of themselves; ours are in a list of their own.
int32_t TraceReader::call_index(const Span& span, const std::string& name, const TraceJson& args) {
  const TraceJson& own = json_member(args, "Call");
  if (!own.is_null()) return integer_of<int32_t>(own, -1, -1);
  if (span.kind != Kind::Op) return -1;
  const TraceJson& dims = json_member(args, args.contains("Input Dims") ? "Input Dims" : "Input dims");
  const TraceJson &types = json_member(args, "Input type"), &strides = json_member(args, "Input Strides"),
                  &values = json_member(args, "Concrete Inputs");
  const TraceJson &path = json_member(args, "Module Hierarchy"), &stack = json_member(args, "Call stack");
  const auto text = [](const TraceJson& value) {
    return value.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
  };
  const std::string key =
      name + '\n' + text(dims) + text(types) + text(strides) + text(values) + text(path) + text(stack);
  const auto [it, added] = calls_.try_emplace(key, static_cast<int32_t>(trace_.calls.size()));
  if (!added) return it->second;
  Call& call = trace_.calls.emplace_back();
  call.op = name;
  call.dims = read_dims(dims);
  call.strides = read_dims(strides);
  for (const std::string& type : read_texts(types)) call.types.push_back(own_type(type));
  for (const std::string& value : read_texts(values))
    if (!value.empty()) call.attributes += (call.attributes.empty() ? "" : ", ") + value;
  call.path = json_string(path);
  const std::string source = json_string(stack);
  call.source = source.substr(0, source.find(';'));
  return it->second;
}

int32_t TraceReader::launch_index(const TraceJson& args) {
  if (!args.contains("grid") && !args.contains("block")) return -1;
  Launch launch;
  const auto three = [&](const char* key, unsigned* out) {
    const TraceJson& value = json_member(args, key);
    for (size_t i = 0; value.is_array() && i < std::min<size_t>(value.size(), 3); ++i)
      out[i] = integer_of<unsigned>(value[i], 1);
  };
  three("grid", launch.grid);
  three("block", launch.block);
  launch.registers = count_of(json_member(args, "registers per thread"));
  launch.shared_bytes = integer_of<int64_t>(json_member(args, "shared memory"), 0, 0);
  launch.occupancy = std::min(1.0, real_of(json_member(args, "est. achieved occupancy %")) / 100);
  const std::tuple key(launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], launch.block[1],
                       launch.block[2], launch.registers, launch.shared_bytes, launch.occupancy);
  const auto [it, added] = launches_.try_emplace(key, static_cast<int32_t>(trace_.launches.size()));
  if (added) trace_.launches.push_back(launch);
  return it->second;
}

void TraceReader::event(const TraceJson& event) {
  ++events_;
  const TraceJson &ph = json_member(event, "ph"), &name = json_member(event, "name"),
                  &args = json_member(event, "args");
  if (!ph.is_string() || !name.is_string()) return;
  const auto& title = name.get_ref<const std::string&>();
  if (ph == "i" && title == "[memory]") return memory(event, args);
  if (ph != "X") return;
  static const TraceJson kNoArguments = TraceJson::object();
  const TraceJson& arguments = args.is_object() ? args : kNoArguments;
  Kind kind{};
  if (kind_of_event(json_string(json_member(event, "cat")), title, arguments, kind))
    span(kind, title, event, arguments);
}

void TraceReader::span(Kind kind, const std::string& name, const TraceJson& event, const TraceJson& args) {
  const TraceJson &ts = json_member(event, "ts"), &dur = json_member(event, "dur");
  if (!ts.is_number_integer() || !dur.is_number_integer() || dur.get<int64_t>() < 0) {
    ++left_out_;
    return;
  }
  Span span;
  span.kind = kind;
  span.begin = ts.get<int64_t>();
  span.end = span.begin + dur.get<int64_t>();
  span.thread = thread_number(json_member(event, "tid"));
  span.correlation = integer_of<uint32_t>(json_member(args, "correlation"), 0);
  if (is_on_device(kind)) device_span(span, event, args);
  if (is_on_device(kind) && span.device < 0) {
    ++left_out_;
    return;
  }
  if (kind == Kind::Op) {
    span.detail = call_index(span, name, args);
    span.sequence = integer_of<int64_t>(json_member(args, "Sequence number"), -1, -1);
  }
  if (kind == Kind::Runtime) span.detail = integer_of<int32_t>(json_member(args, "cbid"), -1, -1);
  if (kind < Kind::Runtime && trace_.process == 0)
    trace_.process = integer_of<int64_t>(json_member(event, "pid"), 0, 0);
  span.name = name_index(name);
  count_check(trace_.spans.size());
  trace_.spans.push_back(span);
  const TraceJson& id = json_member(args, args.contains("External id") ? "External id" : "external id");
  ids_.push_back(integer_of<int64_t>(id, id.is_null() ? kNoId : 0, 0));
  has_call_.push_back(args.contains("Call"));
}

void TraceReader::device_span(Span& span, const TraceJson& event, const TraceJson& args) {
  const TraceJson& device = json_member(args, "device");
  span.device = integer_of<int32_t>(device.is_null() ? json_member(event, "pid") : device, -1, 0, kMostDevices);
  if (args.contains("stream")) span.thread = thread_number(json_member(args, "stream"));
  if (span.kind == Kind::Kernel) span.detail = launch_index(args);
  else span.bytes = integer_of<int64_t>(json_member(args, "bytes"), 0, 0);
  span.call = call_index(span, {}, args);
}

void TraceReader::memory(const TraceJson& event, const TraceJson& args) {
  const TraceJson &ts = json_member(event, "ts"), &bytes = json_member(args, "Bytes");
  constexpr int64_t kMost = int64_t{1} << 44;  // more than any machine has
  MemoryChange change;
  change.bytes = integer_of<int64_t>(bytes, 0, -kMost, kMost);
  if (!ts.is_number_integer() || (change.bytes == 0 && bytes != 0)) {
    ++left_out_;
    return;
  }
  change.at = ts.get<int64_t>();
  change.thread = thread_number(json_member(event, "tid"));
  change.address = integer_of<uint64_t>(json_member(args, "Addr"), 0);
  change.allocated = integer_of<int64_t>(json_member(args, "Total Allocated"), 0, 0, kMost);
  change.reserved = integer_of<int64_t>(json_member(args, "Total Reserved"), 0, 0, kMost);
  if (integer_of<int>(json_member(args, "Device Type"), 0) != 0)
    change.device = integer_of<int32_t>(json_member(args, "Device Id"), 0, 0, kMostDevices);
  change.kind = memory_kind(json_member(args, "Category"));
  count_check(trace_.memory.size());
  trace_.memory.push_back(change);
  memory_ids_.push_back(integer_of<int64_t>(json_member(args, "External id"), 0, 0));
}

void TraceReader::member_of_file(const std::string& key, const TraceJson& value) {
  if (key == "schemaVersion") has_schema_ = true;
  if (key == "baseTimeNanoseconds" && value.is_number_integer()) {
    has_base_ = true;
    trace_.base = integer_of<int64_t>(value, 0);
  }
  if (key == "distributedInfo" && !has_own_) {
    trace_.ranks = std::max(1, count_of(json_member(value, "world_size")));
    trace_.rank = std::min(trace_.ranks - 1, count_of(json_member(value, "rank")));
  }
  if (key == "deviceProperties" && !has_own_ && value.is_array()) {
    trace_.devices.clear();
    for (const TraceJson& each : value)
      if (each.is_object()) trace_.devices.push_back(read_kineto_device(each));
  }
  if (key == "tessera" && value.is_object()) read_own(value);
}

void TraceReader::read_own(const TraceJson& value) {
  has_own_ = true;
  trace_.host = json_string(json_member(value, "host"));
  trace_.process = integer_of<int64_t>(json_member(value, "process"), 0, 0);
  trace_.ranks = std::max(1, count_of(json_member(value, "ranks")));
  trace_.rank = std::min(trace_.ranks - 1, count_of(json_member(value, "rank")));
  trace_.plain_step = integer_of<int64_t>(json_member(value, "plain step"), 0, 0);
  trace_.dropped = integer_of<int64_t>(json_member(value, "dropped"), 0, 0);
  trace_.notes = read_texts(json_member(value, "notes"));
  trace_.devices.clear();
  for (const TraceJson& each : json_member(value, "devices")) trace_.devices.push_back(read_own_device(each));
  read_counters(json_member(value, "counters"));
  // Operators that did not say which call of the list they are of were given calls as they came.
  const TraceJson& calls = json_member(value, "calls");
  if (!calls.is_array() || !trace_.calls.empty()) return;
  for (const TraceJson& each : calls) {
    Call& call = trace_.calls.emplace_back();
    call.op = json_string(json_member(each, "Operator"));
    call.dims = read_dims(json_member(each, "Dims"));
    call.strides = read_dims(json_member(each, "Strides"));
    call.types = read_texts(json_member(each, "Types"));
    read_own_fields(each, call);
  }
}

// Their steps are "External id"s until owners are found.
void TraceReader::read_counters(const TraceJson& list) {
  trace_.counters.clear();
  if (!list.is_array()) return;
  for (const TraceJson& each : list) {
    const auto count = [&](const char* key) { return integer_of<int64_t>(json_member(each, key), 0, 0); };
    StepCounters& out = trace_.counters.emplace_back();
    out.step = integer_of<int32_t>(json_member(each, "External id"), 0, 0);
    out.cycles = count("cycles");
    out.instructions = count("instructions");
    out.cache_misses = count("cache misses");
    out.context_switches = count("context switches");
    out.page_faults = count("page faults");
  }
}

// Without a base, times are since 1970, or since a machine was started: they are made small.
void TraceReader::set_base() {
  if (has_base_) return;
  int64_t first = INT64_MAX;
  for (const Span& span : trace_.spans) first = std::min(first, span.begin);
  for (const MemoryChange& change : trace_.memory) first = std::min(first, change.at);
  if (first == INT64_MAX || first <= 0) return;
  trace_.base = first;
  for (Span& span : trace_.spans) span.begin -= first, span.end -= first;
  for (MemoryChange& change : trace_.memory) change.at -= first;
}

template <class T>
std::vector<T> taken_in_order(const std::vector<T>& list, const std::vector<uint32_t>& order) {
  std::vector<T> out;
  out.reserve(list.size());
  for (const uint32_t at : order) out.push_back(list[at]);
  return out;
}

void TraceReader::sort_spans() {
  std::vector<uint32_t> order(trace_.spans.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const Span &x = trace_.spans[a], &y = trace_.spans[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end > y.end;
  });
  trace_.spans = taken_in_order(trace_.spans, order);
  ids_ = taken_in_order(ids_, order);
  has_call_ = taken_in_order(has_call_, order);
  order.resize(trace_.memory.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return trace_.memory[a].at < trace_.memory[b].at; });
  trace_.memory = taken_in_order(trace_.memory, order);
  memory_ids_ = taken_in_order(memory_ids_, order);
}

// "External id" of what runs for an operator is that of the operator; where it has none, the call of the run-time
// library of the same correlation says it.
void TraceReader::find_owners() {
  std::unordered_map<int64_t, int32_t> places;
  std::unordered_map<uint32_t, int64_t> started_by;
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    const Span& span = trace_.spans[i];
    if (ids_[i] <= 0 || is_on_device(span.kind)) continue;
    if (span.kind != Kind::Runtime) places.emplace(ids_[i], static_cast<int32_t>(i));
    else if (span.correlation != 0) started_by.emplace(span.correlation, ids_[i]);
  }
  const auto place = [&](int64_t id) {
    const auto it = places.find(id);
    return id <= 0 || it == places.end() ? -1 : it->second;
  };
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    Span& span = trace_.spans[i];
    if (!is_on_device(span.kind) && span.kind != Kind::Runtime) continue;
    const auto it = ids_[i] == kNoId ? started_by.find(span.correlation) : started_by.end();
    span.owner = place(it == started_by.end() ? ids_[i] : it->second);
  }
  for (size_t i = 0; i < trace_.memory.size(); ++i) trace_.memory[i].owner = place(memory_ids_[i]);
  for (StepCounters& counters : trace_.counters) counters.step = place(counters.step);
}

void TraceReader::find_calls() {
  const auto calls = static_cast<int64_t>(trace_.calls.size());
  for (Span& span : trace_.spans) {
    if (span.kind == Kind::Op && span.detail >= calls) span.detail = -1;
    if (span.call >= calls) span.call = -1;
  }
  for (size_t i = 0; i < trace_.spans.size(); ++i) {
    Span& span = trace_.spans[i];
    if (!is_on_device(span.kind) || has_call_[i] || span.owner < 0) continue;
    const Span& owner = trace_.spans[static_cast<size_t>(span.owner)];
    if (owner.kind == Kind::Op) span.call = owner.detail;
  }
}

Trace TraceReader::finish() {
  if (trace_.spans.empty() && trace_.memory.empty() && !has_schema_ && !has_own_)
    throw FileError(
        fmt::format("{}: is no trace: none of its {} events is of a profiler of operators", file_, events_));
  set_base();
  sort_spans();
  find_owners();
  find_calls();
  if (left_out_ > 0)
    trace_.notes.push_back(
        fmt::format("{} events of {} are left out: their times or devices cannot be", left_out_, file_));
  return std::move(trace_);
}

}  // namespace

Trace parse_trace(std::string_view json, const std::string& file) {
  TraceReader reader(file);
  static const std::vector<std::string> kMembers = {"schemaVersion", "baseTimeNanoseconds", "distributedInfo",
                                                    "deviceProperties", "tessera"};
  walk_trace(
      json, file,
      {.event = [&](const TraceJson& event) { reader.event(event); },
       .member = [&](const std::string& key, const TraceJson& value) { reader.member_of_file(key, value); },
       .wanted =
           [&](const std::string& key) { return std::find(kMembers.begin(), kMembers.end(), key) != kMembers.end(); }});
  return reader.finish();
}

Trace read_trace(const std::string& file) {
  const std::shared_ptr<MappedFile> mapped = map_file(file);
  const std::string_view bytes(mapped->data, mapped->size);
  return is_packed(bytes) ? parse_trace(unpack(bytes, file), file) : parse_trace(bytes, file);
}

}  // namespace tessera::profiler
