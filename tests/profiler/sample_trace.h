// Traces of something like a GPT in training, as a recorder would make them.
#pragma once
#include <algorithm>
#include <string>

#include "trace_maker.h"

namespace tessera::profiler {

/// On a GPU the host starts kernels, on two streams, and copies, which run later; on the host its operators are all
/// there is.
class SampleTrace {
 public:
  explicit SampleTrace(bool gpu, int steps = 3, int layers = 3) : gpu_(gpu) {
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
    trace_.launches = {{{96, 18, 1}, {256, 1, 1}, 168, 49152, 0.375}, {{7, 1, 1}, {128, 1, 1}, 32, 0, 1}};
    trace_.notes = {"no counters: not permitted"};
    trace_.dropped = 3;
    trace_.plain_step = 1'234'567;
    for (int step = 0; step < steps; ++step) this->step(step, layers);
    trace_ = in_order(std::move(trace_));
  }
  const Trace& trace() const { return trace_; }

 private:
  void step(int number, int layers) {
    const int32_t step = open(Kind::Step, "ProfilerStep#" + std::to_string(number + 2));
    const int32_t data = open(Kind::Range, "data");
    now_ += 60'000;
    on_device(Kind::Copy, "Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", -1, 4'003);
    close(data);
    allocate(data, MemoryKind::Input);
    for (const std::string prefix : {"", "backward."}) {
      const int32_t range = open(Kind::Range, prefix.empty() ? "forward" : "backward");
      for (int layer = 0; layer < layers; ++layer)
        this->layer(prefix + "h." + std::to_string(layer), number * layers + layer);
      close(range);
      if (prefix.empty()) log_loss();
    }
    on_device(Kind::Fill, "Memset (Device)", "cudaMemsetAsync", -1, 1'500);
    op("adamw", "", 0, 4e6, {{768, 768}}, MemoryKind::OptimizerState);
    now_ += 25'000;
    for (; !blocks_.empty(); blocks_.pop_back()) free_last();
    now_ = std::max(now_, device_);
    close(step);
    trace_.counters.push_back({step, 1'000'000, 2'000'000, 3'000, 4, 5});
  }

  void log_loss() {
    const int32_t range = open(Kind::Range, "log");
    if (gpu_) {
      const int32_t wait = open(Kind::Runtime, "cudaStreamSynchronize");
      now_ = std::max(now_, device_);
      close(wait);
    }
    now_ += 40'000 + random() % 20'000;
    close(range);
  }

  void layer(const std::string& path, int64_t sequence) {
    const MemoryKind kind = path.starts_with("backward") ? MemoryKind::Gradient : MemoryKind::Activation;
    const int32_t module = open(Kind::Module, path);
    for (const std::string part : {".attention", ".mlp"}) {
      const int32_t inner = open(Kind::Module, path + part);
      op("layer_norm", path + part, 8e6, 1.2e7 / 7, {{12, 1024, 768}, {}, {768}}, kind);
      op("matmul", path + part, 1.1e10, 4e7, {{12288, 768}, {}, {768, 2304}}, kind, 2 * sequence + (part == ".mlp"));
      op(part == ".mlp" ? "gelu" : "attention", path + part, 9e9, 5e7, {{12, 12, 1024, 64}}, kind);
      op("add", path + part, 9e6, 1.1e8, {{12, 1024, 768}, {12, 1024, 768}}, kind);
      close(inner);
    }
    close(module);
  }

  void op(const std::string& name, const std::string& path, double flops, double bytes,
          std::vector<std::vector<int64_t>> dims, MemoryKind kind, int64_t sequence = -1) {
    const int32_t at = open(Kind::Op, name);
    trace_.spans[static_cast<size_t>(at)].detail = call(name, path, flops, bytes, std::move(dims));
    trace_.spans[static_cast<size_t>(at)].sequence = sequence;
    allocate(at, kind);
    const int64_t time = 1'500 + static_cast<int64_t>(std::max(flops / 5e5, bytes / 2.4e3)) + random() % 900;
    if (gpu_)
      on_device(Kind::Kernel, "void tessera::" + name + "_kernel<bf16, 128>(Args)", "cudaLaunchKernel", at, time);
    else now_ += 4'000 + static_cast<int64_t>(flops / 1000) + random() % 2000;
    close(at);
  }

  int32_t call(const std::string& op, const std::string& path, double flops, double bytes,
               std::vector<std::vector<int64_t>> dims) {
    for (size_t i = 0; i < trace_.calls.size(); ++i)
      if (trace_.calls[i].op == op && trace_.calls[i].path == path) return static_cast<int32_t>(i);
    Call out = call_of_op(op, std::move(dims), "bf16", flops, bytes, path);
    for (size_t i = 0; i < out.dims.size(); ++i)
      if (out.dims[i].empty()) out.types[i].clear();
    for (const auto& dims : out.dims) {
      out.strides.emplace_back(dims.size(), 1);
      for (size_t d = dims.size(); d-- > 1;) out.strides.back()[d - 1] = out.strides.back()[d] * dims[d];
    }
    out.attributes = "transposed=[0, 1]";
    out.source = "train.cpp:42";
    trace_.calls.push_back(std::move(out));
    return static_cast<int32_t>(trace_.calls.size()) - 1;
  }

  void on_device(Kind kind, const std::string& name, const std::string& runtime, int32_t owner, int64_t time) {
    if (!gpu_) return;
    const int32_t by = open(Kind::Runtime, runtime);
    now_ += 2'500 + random() % 1'500;
    close(by);
    const uint32_t correlation = ++correlation_;
    trace_.spans[static_cast<size_t>(by)].correlation = correlation;
    trace_.spans[static_cast<size_t>(by)].owner = owner;
    if (kind == Kind::Kernel) trace_.spans[static_cast<size_t>(by)].detail = 211;
    device_ = std::max(device_ + 400, now_ + 2'001);
    Span span{.kind = kind, .name = name_in(trace_, name), .begin = device_, .end = device_ + time, .device = 0};
    span.thread = name.find("add_") == name.npos ? 7 : 13;
    span.owner = owner;
    span.correlation = correlation;
    if (owner >= 0) span.call = trace_.spans[static_cast<size_t>(owner)].detail;
    if (kind == Kind::Kernel) span.detail = correlation % 3 == 0 ? -1 : static_cast<int32_t>(correlation % 2);
    else span.bytes = 1 << 20;
    trace_.spans.push_back(span);
    device_ += time;
  }

  int32_t open(Kind kind, const std::string& name) {
    now_ += 103;
    trace_.spans.push_back({.kind = kind, .name = name_in(trace_, name), .begin = now_, .thread = 4243});
    return static_cast<int32_t>(trace_.spans.size()) - 1;
  }
  void close(int32_t at) { trace_.spans[static_cast<size_t>(at)].end = now_ += 97; }

  void allocate(int32_t owner, MemoryKind kind) {
    MemoryChange change;
    change.device = gpu_ ? 0 : -1;
    change.thread = 4243;
    change.bytes = 1'000'000 + random() % 3'000'000;
    change.address = next_address_ += 1 << 24;
    change.owner = owner;
    change.kind = kind;
    record(change);
    blocks_.push_back(change);
  }
  void free_last() {
    MemoryChange change = blocks_.back();
    change.bytes = -change.bytes;
    change.owner = -1;
    record(change);
  }
  void record(MemoryChange& change) {
    change.at = now_ += 1'001;
    change.allocated = allocated_ += change.bytes;
    change.reserved = reserved_ = std::max(reserved_, (allocated_ / (1 << 25) + 1) << 25);
    trace_.memory.push_back(change);
  }

  int64_t random() {
    return static_cast<int64_t>((state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL) >> 40);
  }

  bool gpu_;
  int64_t now_ = 1'000, device_ = 0, allocated_ = 500'000'000, reserved_ = 0;
  uint64_t next_address_ = 0, state_ = 1;
  uint32_t correlation_ = 0;
  std::vector<MemoryChange> blocks_;
  Trace trace_;
};

}  // namespace tessera::profiler
