// A trace of three training steps of something small, as a recorder would make it: what files are tested with.
#pragma once
#include <algorithm>
#include <string>

#include "profiler/trace.h"

namespace tessera::profiler {

/// On a GPU the host starts kernels, and copies, which run later; on the host its operators are all there is.
class SampleTrace {
 public:
  explicit SampleTrace(bool gpu) : gpu_(gpu) {
    trace_.base = 1'760'000'000'123'456'789;
    trace_.host = "node-17";
    trace_.process = 4242;
    trace_.devices.push_back({-1, "A processor", int64_t{64} << 30, 16, 0, 0, "x86-64", {4e10, 1.2e12, 0, 0, 0, 6e11}});
    if (gpu)
      trace_.devices.push_back({0,
                                "A \"GPU\" of 80 GiB",
                                int64_t{80} << 30,
                                132,
                                32,
                                2048,
                                "sm_90",
                                {3.1e12, 5.5e13, 4.2e14, 8.1e14, 8.2e14, 5.6e13}});
    trace_.launches = {{{132, 2, 1}, {256, 1, 1}, 168, 49152, 0.375}, {{7, 1, 1}, {128, 1, 1}, 32, 0, 1}};
    trace_.notes = {"no counters: not permitted"};
    trace_.dropped = 3;
    for (int step = 0; step < 3; ++step) this->step(step);
    sort();
  }
  const Trace& trace() const { return trace_; }

 private:
  void step(int number) {
    const int32_t step = open(Kind::Step, "ProfilerStep#" + std::to_string(number + 2));
    const int32_t data = open(Kind::Range, "data");
    now_ += 10'007;
    device(Kind::Copy, "Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", -1, 4'003, -1);
    close(data);
    change(1 << 20, 0x7f0000000000u + static_cast<uint64_t>(number), MemoryKind::Input, data);
    const int32_t forward = open(Kind::Range, "forward");
    for (int layer = 0; layer < 3; ++layer) product("h." + std::to_string(layer), number * 10 + layer, 21'011);
    close(forward);
    const int32_t backward = open(Kind::Range, "backward");
    for (int layer = 2; layer >= 0; --layer)
      product("backward.h." + std::to_string(layer), number * 10 + layer, 40'123);
    close(backward);
    device(Kind::Fill, "Memset (Device)", "cudaMemsetAsync", -1, 1'500, -1);
    op("adamw", "", -1, 30'000);
    change(-(1 << 20), 0x7f0000000000u + static_cast<uint64_t>(number), MemoryKind::Input, step);
    now_ = std::max(now_, device_) + 3'000;
    close(step);
    now_ += 500;
  }
  void product(const std::string& path, int64_t sequence, int64_t time) {
    const int32_t module = open(Kind::Module, path);
    op("matmul", path, sequence, time);
    op("gelu", path, -1, time / 7);
    close(module);
  }
  void op(const std::string& name, const std::string& path, int64_t sequence, int64_t time) {
    const int32_t at = open(Kind::Op, name);
    Span& span = trace_.spans[static_cast<size_t>(at)];
    span.detail = call(name, path);
    span.sequence = sequence;
    now_ += gpu_ ? 2'003 : time;
    if (gpu_) device(Kind::Kernel, name + "_kernel<float, 128>", "cudaLaunchKernel", at, time, span.detail);
    close(at);
  }
  void device(Kind kind, const std::string& name, const std::string& runtime, int32_t op, int64_t time, int32_t call) {
    if (!gpu_) return;
    const int32_t by = open(Kind::Runtime, runtime);
    now_ += 1'501;
    close(by);
    const uint32_t correlation = ++correlation_;
    trace_.spans[static_cast<size_t>(by)].correlation = correlation;
    trace_.spans[static_cast<size_t>(by)].owner = op;
    device_ = std::max(device_ + 250, now_ + 3'001);
    Span span{.kind = kind, .name = name_of(name), .begin = device_, .end = device_ + time, .thread = 7, .device = 0};
    span.owner = op;
    span.call = call;
    span.correlation = correlation;
    if (kind == Kind::Kernel) span.detail = correlation % 3 == 0 ? -1 : static_cast<int32_t>(correlation % 2);
    else span.bytes = 1 << 20;
    trace_.spans.push_back(span);
    device_ += time;
  }
  int32_t call(const std::string& name, const std::string& path) {
    Call call{name,
              {{64, 768}, {}, {768, 3072}},
              {"f32", "", "bf16"},
              "transposed=[0, 1]",
              name + " tiles",
              path,
              "train.cpp:42",
              2.5e9,
              1.25e7 / 3};
    for (size_t i = 0; i < trace_.calls.size(); ++i)
      if (trace_.calls[i].op == name && trace_.calls[i].path == path) return static_cast<int32_t>(i);
    trace_.calls.push_back(call);
    return static_cast<int32_t>(trace_.calls.size()) - 1;
  }
  int32_t name_of(const std::string& name) {
    const auto it = std::find(trace_.names.begin(), trace_.names.end(), name);
    if (it != trace_.names.end()) return static_cast<int32_t>(it - trace_.names.begin());
    trace_.names.push_back(name);
    return static_cast<int32_t>(trace_.names.size()) - 1;
  }
  int32_t open(Kind kind, const std::string& name) {
    now_ += 103;
    trace_.spans.push_back({.kind = kind, .name = name_of(name), .begin = now_, .thread = 4243});
    return static_cast<int32_t>(trace_.spans.size()) - 1;
  }
  void close(int32_t at) { trace_.spans[static_cast<size_t>(at)].end = now_ += 97; }
  void change(int64_t bytes, uint64_t address, MemoryKind kind, int32_t owner) {
    allocated_ += bytes;
    trace_.memory.push_back({now_, gpu_ ? 0 : -1, 4243, bytes, address, allocated_, int64_t{1} << 30, owner, kind});
  }
  void sort() {
    std::vector<int32_t> order(trace_.spans.size()), place(trace_.spans.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto at = [&](int32_t i) -> const Span& { return trace_.spans[static_cast<size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return at(a).begin != at(b).begin ? at(a).begin < at(b).begin : at(a).end > at(b).end;
    });
    std::vector<Span> sorted;
    for (size_t i = 0; i < order.size(); ++i) {
      place[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
      sorted.push_back(at(order[i]));
    }
    for (Span& span : sorted)
      if (span.owner >= 0) span.owner = place[static_cast<size_t>(span.owner)];
    for (MemoryChange& change : trace_.memory) change.owner = place[static_cast<size_t>(change.owner)];
    trace_.spans = std::move(sorted);
    for (size_t i = 0; i < trace_.spans.size(); ++i)
      if (trace_.spans[i].kind == Kind::Step)
        trace_.counters.push_back({static_cast<int32_t>(i), 1'000'000, 2'000'000, 3'000, 4, 5});
  }

  bool gpu_;
  int64_t now_ = 1'000, device_ = 0, allocated_ = int64_t{3} << 20;
  uint32_t correlation_ = 0;
  Trace trace_;
};

}  // namespace tessera::profiler
