#include "profiler/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include <fmt/format.h>

#include "core/gpu/backend.h"
#include "core/op.h"
#include "ops/cost.h"
#include "ops/op_table.h"

namespace tessera::profiler {

int64_t now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

namespace {

int32_t index_of(Device device) { return device.is_gpu() ? device.index : -1; }

uint64_t mixed(uint64_t h, uint64_t word) {
  h = (h ^ word) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}
uint64_t mixed(uint64_t h, const Tensor& t) {
  if (!t.defined()) return mixed(h, ~uint64_t{0});
  h = mixed(h, static_cast<uint64_t>(t.dtype()) << 8 | static_cast<uint64_t>(t.dim()));
  if (!t.shape().is_symbolic())
    for (const Dim d : t.shape()) h = mixed(h, static_cast<uint64_t>(d.value()));
  if (!t.impl().symbolic)
    for (const int64_t stride : t.strides()) h = mixed(h, static_cast<uint64_t>(stride));
  return h;
}

template <class Dims>
std::vector<int64_t> numbers_of(const Dims& dims) {
  std::vector<int64_t> numbers;
  for (const Dim d : dims) numbers.push_back(d.is_symbolic() ? -1 : d.value());
  return numbers;
}

// What keeping a text costs that is looked up by itself, and a call.
size_t kept_bytes(std::string_view text) { return 2 * (sizeof(std::string) + text.size()) + 4 * sizeof(void*); }
size_t kept_bytes(const Call& call) {
  size_t bytes = sizeof(Call) + call.op.size() + call.attributes.size() + call.path.size() + call.source.size();
  for (const auto& dims : call.dims) bytes += 2 * (sizeof dims + dims.size() * sizeof(int64_t)) + sizeof(std::string);
  return bytes + 4 * sizeof(void*);
}

// Grows as a vector does, but not beyond what it may hold.
template <class T>
void add_bounded(std::vector<T>& to, const T& what, size_t most) {
  if (to.size() == to.capacity()) to.reserve(std::max(to.size() + 1, std::min(2 * to.size() + 64, most)));
  to.push_back(what);
}

void add_input(Call& call, const TensorMeta& input) {
  const bool absent = is_absent(input);
  call.dims.push_back(absent ? std::vector<int64_t>() : numbers_of(input.shape));
  call.strides.push_back(absent ? std::vector<int64_t>() : numbers_of(strides_of(input)));
  call.types.emplace_back(absent ? "" : name(input.dtype));
}

StepCounters operator-(const StepCounters& a, const StepCounters& b) {
  return {-1,
          a.cycles - b.cycles,
          a.instructions - b.instructions,
          a.cache_misses - b.cache_misses,
          a.context_switches - b.context_switches,
          a.page_faults - b.page_faults};
}

// Number of the thread, as the system and its tools have it.
int64_t thread_number() {
  static thread_local const int64_t number = gettid();
  return number;
}

}  // namespace

Recorder::Recorder(const Options& options)
    : options_(options),
      room_(options.most_bytes * (options.memory ? 2 : 3) / 3),
      most_changes_(options.memory ? options.most_bytes / 3 / sizeof(MemoryChange) : 0) {}

void Recorder::begin() {
  const std::lock_guard lock(mutex_);
  trace_ = {};
  trace_.base = now();
  names_.clear();
  paths_.clear();
  path_texts_.clear();
  calls_.clear();
  graphs_.clear();
  graph_numbers_.clear();
  threads_.clear();
  replays_.clear();
  kept_ = 0;
  step_ = {};
  cards_.clear();
  device_events_.forget();
  static std::atomic<bool> told{false};  // of what cannot be counted, once
  const std::string why = counters_.begin();
  if (!why.empty() && !told.exchange(true)) trace_.notes.push_back(why);
}

static void close_open_spans(Trace& trace) {
  const int64_t at = now() - trace.base;
  for (Span& s : trace.spans)
    if (s.end < s.begin) s.end = at;
}

Recorded Recorder::copy() const {
  Recorded all{trace_, replays_, graphs_, {}};
  close_open_spans(all.trace);
  return all;
}

Recorded Recorder::end() {
  const std::lock_guard lock(mutex_);
  if (step_.span >= 0) trace_.spans[static_cast<size_t>(step_.span)].name = -1;  // which the assembly leaves out
  Recorded all{std::move(trace_), std::move(replays_), std::move(graphs_), device_events_.take()};
  close_open_spans(all.trace);
  trace_ = {};
  replays_.clear();
  graphs_.clear();
  graph_numbers_.clear();
  return all;
}

// Whether a launch there is to be timed by events.
bool Recorder::times(Device device) {
  if (!device.is_card() || gpu::graph_being_captured(device)) return false;
  const auto [at, fresh] = cards_.emplace(device.type, false);
  if (fresh && on_card) at->second = on_card(device);
  return at->second;
}

Recorder::Thread& Recorder::thread() {
  Thread& on = threads_[thread_number()];
  if (on.id == 0) {
    on.id = thread_number();
    on.paths.push_back(path_of(scope_path()));
  }
  return on;
}

int32_t Recorder::name_of(std::string_view text) {
  const auto [at, fresh] = names_.emplace(text, static_cast<int32_t>(trace_.names.size()));
  if (fresh) {
    trace_.names.emplace_back(text);
    kept_ += kept_bytes(text);
  }
  return at->second;
}

int32_t Recorder::path_of(const std::string& path) {
  const auto [at, fresh] = paths_.emplace(path, static_cast<int32_t>(path_texts_.size()));
  if (fresh) {
    path_texts_.push_back(path);
    kept_ += kept_bytes(path);
  }
  return at->second;
}

// ---- spans

// An end before the begin says that it is open.
Recorder::Open Recorder::open(Kind kind, std::string_view name, int32_t detail, Thread& on) {
  Open made;
  if (!has_room()) {
    ++trace_.dropped;
    return made;
  }
  made.span = static_cast<int32_t>(trace_.spans.size());
  Span span;
  span.kind = kind;
  span.name = name_of(name);
  span.detail = detail;
  span.thread = on.id;
  span.begin = now() - trace_.base;
  span.end = span.begin - 1;
  kept_ += sizeof(Span);
  add_bounded(trace_.spans, span, room_ / sizeof(Span));
  return made;
}

void Recorder::close(std::vector<Open>& list) {
  if (list.empty()) return;  // it was open before the recording began
  if (const int32_t span = list.back().span; span >= 0)
    trace_.spans[static_cast<size_t>(span)].end = now() - trace_.base;
  list.pop_back();
}

void Recorder::begin_step(const std::string& name) {
  const std::lock_guard lock(mutex_);
  counted_ = counters_.read();
  step_ = open(Kind::Step, name, -1, thread());
}
void Recorder::end_step() {
  const std::lock_guard lock(mutex_);
  if (step_.span < 0) return;
  trace_.spans[static_cast<size_t>(step_.span)].end = now() - trace_.base;
  trace_.counters.push_back(counters_.read() - counted_);
  trace_.counters.back().step = step_.span;
  step_ = Open();
}

void Recorder::begin_range(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  on.ranges.push_back(open(Kind::Range, name, -1, on));
}
void Recorder::end_range() {
  const std::lock_guard lock(mutex_);
  close(thread().ranges);
}

void Recorder::entered(const std::string& path) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  on.paths.push_back(has_room() ? path_of(path) : on.paths.back());
  on.modules.push_back(open(Kind::Module, path, -1, on));
}
void Recorder::left(const std::string&) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  if (on.paths.size() > 1) on.paths.pop_back();
  else on.paths[0] = path_of("");  // of what was entered before the recording began
  close(on.modules);
}

// ---- calls

int32_t Recorder::call_of(const CallSeen& call, Thread& on, bool& fresh) {
  const int32_t path = on.paths.back();
  uint64_t key = mixed(reinterpret_cast<uintptr_t>(call.op.data()), static_cast<uint64_t>(path));
  if (options_.shapes) {
    KeyWords words;
    call.attrs.add_to_key(words);
    for (const uint64_t w : words) key = mixed(key, w);
    for (const Tensor& t : call.inputs) key = mixed(key, t);
  }
  const std::string source = options_.call_sites ? call_site(call) : std::string();
  if (!source.empty()) key = mixed(key, std::hash<std::string>()(source));
  const auto [at, made] = calls_.emplace(key, static_cast<int32_t>(trace_.calls.size()));
  fresh = made;
  if (!made) return at->second;
  Call known;
  known.op = call.op;
  known.path = path_texts_[static_cast<size_t>(path)];
  known.source = source;
  if (options_.shapes) {
    known.attributes = call.attrs.describe();
    for (const Tensor& t : call.inputs) add_input(known, t.defined() ? t.meta() : absent_meta());
  }
  add_call(std::move(known));
  return at->second;
}

int32_t Recorder::add_call(Call known) {
  kept_ += kept_bytes(known);
  trace_.calls.push_back(std::move(known));
  return static_cast<int32_t>(trace_.calls.size()) - 1;
}

void Recorder::called(const CallSeen& call) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  bool fresh = false;
  const int32_t detail = has_room() ? call_of(call, on, fresh) : -1;
  Open opened = open(Kind::Op, call.op, detail, on);
  opened.fresh = fresh;
  if (opened.span >= 0) trace_.spans[static_cast<size_t>(opened.span)].sequence = call.sequence;
  on.calls.push_back(opened);
}

// What it takes, if it starts kernels itself; once, since calls of these shapes take the same.
void Recorder::complete(Call& known, const CallSeen& call) {
  std::vector<TensorMeta> in, out;
  for (const Tensor& t : call.inputs) in.push_back(t.defined() ? t.meta() : absent_meta());
  for (const auto tensors : {call.outputs, call.hidden})
    for (const Tensor& t : tensors) out.push_back(t.defined() ? t.meta() : absent_meta());
  try {
    const Cost cost = cost_of(find_op(call.op), in, out, call.attrs);
    known.flops = cost.flops;
    known.bytes = cost.bytes;
  } catch (const Error&) {  // it stays unknown
  }
}

void Recorder::returned(const CallSeen& call) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  if (on.calls.empty()) return;
  const Open opened = on.calls.back();
  if (opened.event >= 0) device_events_.end(opened.event);
  if (opened.span >= 0) {
    Span& span = trace_.spans[static_cast<size_t>(opened.span)];
    span.sequence = call.sequence;
    if (opened.launched && opened.fresh && !call.failed) complete(trace_.calls[static_cast<size_t>(span.detail)], call);
  }
  close(on.calls);
}

int32_t Recorder::captured_call(const CapturedCall& call) {
  Call known;
  known.op = call.op;
  known.kernel = call.kernel;
  known.path = call.path;
  known.flops = call.flops;
  known.bytes = call.bytes;
  for (const TensorMeta& m : call.inputs) add_input(known, m);
  return add_call(std::move(known));
}

size_t Recorder::graph_of(const LaunchSeen& launch) {
  const auto [at, fresh] = graph_numbers_.emplace(launch.graph, graphs_.size());
  if (fresh) {
    auto& calls = graphs_.emplace_back();
    for (const CapturedCall& c : launch.captured) calls.resize(std::max(c.end, calls.size()), captured_call(c));
    kept_ += calls.size() * sizeof(int32_t);
  }
  return at->second;
}

void Recorder::launched(const LaunchSeen& launch) {
  const std::lock_guard lock(mutex_);
  Thread& on = thread();
  const bool timed = times(launch.device);
  if (launch.graph) {  // which no operator launches: it stands for itself
    const size_t graph = has_room() ? graph_of(launch) : 0;
    if (const int32_t span = open(Kind::Op, "graph", -1, on).span; span >= 0) {
      trace_.spans[static_cast<size_t>(span)].end = trace_.spans[static_cast<size_t>(span)].begin;
      replays_.push_back({span, graph});
      kept_ += sizeof(Replay);
    }
    return;
  }
  if (on.calls.empty()) return;
  Open& opened = on.calls.back();
  if (opened.span < 0) return;
  opened.launched = true;
  Call& known = trace_.calls[static_cast<size_t>(trace_.spans[static_cast<size_t>(opened.span)].detail)];
  if (known.kernel.empty()) known.kernel = launch.kernel;
  if (!timed) return;
  try {
    opened.event = device_events_.begin(launch.device, launch.stream, opened.span);
  } catch (const Error&) {  // the program hears of it by itself
    cards_[launch.device.type] = false;
  }
}

// ---- memory

void Recorder::change(const MemorySeen& memory, int64_t bytes) {
  if (!options_.memory || memory.device.meta) return;
  const std::lock_guard lock(mutex_);
  if (trace_.memory.size() >= most_changes_) {
    ++trace_.dropped;
    return;
  }
  const Thread& on = thread();
  const MemoryStats stats = memory_stats(memory.device);
  MemoryChange seen;
  seen.at = now() - trace_.base;
  seen.device = index_of(memory.device);
  seen.thread = on.id;
  seen.bytes = bytes;
  seen.address = reinterpret_cast<uint64_t>(memory.address);
  seen.allocated = stats.allocated;
  seen.reserved = stats.reserved;
  for (const auto* list : {&on.calls, &on.modules, &on.ranges})
    if (seen.owner < 0 && !list->empty()) seen.owner = list->back().span;
  add_bounded(trace_.memory, seen, most_changes_);
}
void Recorder::allocated(const MemorySeen& memory) { change(memory, static_cast<int64_t>(memory.bytes)); }
void Recorder::released(const MemorySeen& memory) { change(memory, -static_cast<int64_t>(memory.bytes)); }

std::string Recorder::ran_out(Device device, size_t bytes) {
  return on_ran_out ? on_ran_out(fmt::format("{} bytes on {} were asked for", bytes, to_string(device))) : "";
}

}  // namespace tessera::profiler
