// Traces by hand, in microseconds: steps, operators, launches and kernels where a test wants them.
#pragma once
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "profiler/trace.h"

namespace tessera::profiler {

/// Where the name is among the trace's, to which it is added.
inline int32_t name_in(Trace& trace, const std::string& name) {
  const auto at = std::find(trace.names.begin(), trace.names.end(), name) - trace.names.begin();
  if (at == std::ssize(trace.names)) trace.names.push_back(name);
  return static_cast<int32_t>(at);
}

/// With spans in order.
inline Trace in_order(Trace trace) {
  std::vector<int32_t> order(trace.spans.size()), place(order.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int32_t i) -> const Span& { return trace.spans[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return at(a).begin != at(b).begin ? at(a).begin < at(b).begin : at(a).end > at(b).end;
  });
  std::vector<Span> sorted;
  for (const int32_t i : order) {
    place[static_cast<size_t>(i)] = static_cast<int32_t>(sorted.size());
    sorted.push_back(at(i));
  }
  const auto moved = [&](int32_t owner) { return owner < 0 ? owner : place[static_cast<size_t>(owner)]; };
  for (Span& span : sorted) span.owner = moved(span.owner);
  for (MemoryChange& change : trace.memory) change.owner = moved(change.owner);
  for (StepCounters& counters : trace.counters) counters.step = moved(counters.step);
  trace.spans = std::move(sorted);
  return trace;
}

class TraceMaker {
 public:
  static constexpr int64_t kThread = 100, kStream = 7;

  int32_t add(Kind kind, const std::string& name, double begin, double end, int64_t thread = kThread) {
    Span span;
    span.kind = kind;
    span.name = name_in(trace, name);
    span.begin = in_nanoseconds(begin);
    span.end = in_nanoseconds(end);
    span.thread = thread;
    trace.spans.push_back(span);
    return static_cast<int32_t>(trace.spans.size()) - 1;
  }
  int32_t call(Call call) {
    trace.calls.push_back(std::move(call));
    return static_cast<int32_t>(trace.calls.size()) - 1;
  }
  int32_t op(int32_t call, double begin, double end, int64_t thread = kThread) {
    const int32_t at = add(Kind::Op, trace.calls[static_cast<size_t>(call)].op, begin, end, thread);
    trace.spans.back().detail = call;
    return at;
  }
  int32_t on_device(Kind kind, const std::string& name, double begin, double end, int32_t owner = -1, int device = 0) {
    const int32_t at = add(kind, name, begin, end, kStream);
    trace.spans.back().device = device;
    trace.spans.back().owner = owner;
    if (owner >= 0) trace.spans.back().call = trace.spans[static_cast<size_t>(owner)].detail;
    return at;
  }
  int32_t kernel(const std::string& name, double begin, double end, int32_t owner = -1, int device = 0) {
    return on_device(Kind::Kernel, name, begin, end, owner, device);
  }
  /// An operator of some microseconds at `launch`, which launches a kernel.
  int32_t launched(int32_t call, const std::string& name, double launch, double begin, double end) {
    const int32_t owner = op(call, launch, launch + 4);
    const int32_t runtime = add(Kind::Runtime, "cudaLaunchKernel", launch + 1, launch + 3);
    trace.spans[static_cast<size_t>(runtime)].owner = owner;
    trace.spans[static_cast<size_t>(runtime)].detail = 211;
    trace.spans[static_cast<size_t>(runtime)].correlation = ++correlation_;
    const int32_t at = kernel(name, begin, end, owner);
    trace.spans[static_cast<size_t>(at)].correlation = correlation_;
    return at;
  }
  void step(int number, double begin, double end) {
    add(Kind::Step, "ProfilerStep#" + std::to_string(number), begin, end);
  }
  void roof(int device, Roof roof) {
    DeviceInfo info;
    info.id = device;
    info.name = "a card";
    info.roof = roof;
    trace.devices.push_back(info);
  }

  Trace made() const { return in_order(trace); }

  Trace trace;

 private:
  static int64_t in_nanoseconds(double us) { return static_cast<int64_t>(us * 1000); }
  uint32_t correlation_ = 0;
};

/// A call of an operator on inputs of a type.
inline Call call_of_op(const std::string& op, std::vector<std::vector<int64_t>> dims = {},
                       const std::string& type = "f32", double flops = 0, double bytes = 0,
                       const std::string& path = "") {
  Call call;
  call.op = op;
  call.types.assign(dims.size(), type);
  call.dims = std::move(dims);
  call.flops = flops;
  call.bytes = bytes;
  call.path = path;
  call.kernel = op + "_kernel";
  return call;
}

}  // namespace tessera::profiler
