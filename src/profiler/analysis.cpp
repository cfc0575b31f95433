#include "profiler/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

namespace tessera::profiler {

// ---- for people

std::string digits_text(double value) {
  if (!(value > 0) || !std::isfinite(value)) return "-";
  if (value < 1e-3 || value >= 1e6) return fmt::format("{:.1e}", value);
  const int digits = std::clamp(2 - static_cast<int>(std::floor(std::log10(value * 1.0005))), 0, 5);
  return fmt::format("{:.{}f}", value, digits);
}

std::string time_text(double seconds) {
  const double size = std::abs(seconds);
  if (!(size > 0)) return "0";
  for (const auto& [unit, name] : {std::pair{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}})
    if (size >= 0.9995 * unit) return (seconds < 0 ? "-" : "") + digits_text(size / unit) + " " + name;
  return fmt::format("{:.0f} ns", seconds * 1e9);
}

std::string count_text(int64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

// ---- spans

const Span* owner_of(const Trace& trace, const Span& span) {
  return span.owner < 0 || static_cast<size_t>(span.owner) >= trace.spans.size() ? nullptr
                                                                                 : &span_at(trace, span.owner);
}

std::string_view op_of(const Trace& trace, const Span& span) {
  if (const Call* call = trace.call_of(span)) return call->op;
  if (span.kind == Kind::Op) return trace.name_of(span);
  const Span* owner = owner_of(trace, span);
  return owner && owner->kind == Kind::Op ? op_of(trace, *owner) : std::string_view();
}

bool has_kernels(const Trace& trace) {
  return std::any_of(trace.spans.begin(), trace.spans.end(), [](const Span& s) { return s.kind == Kind::Kernel; });
}

int device_to_watch(const Trace& trace) {
  std::map<int, int64_t> times;
  for (const Span& span : trace.spans)
    if (span.kind == Kind::Kernel) times[span.device] += interval_of(span).length();
  const auto most = std::max_element(times.begin(), times.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return most == times.end() ? -1 : most->first;
}

const DeviceInfo* device_info(const Trace& trace, int device) {
  for (const DeviceInfo& info : trace.devices)
    if (info.id == device) return &info;
  return nullptr;
}

std::string device_name(const Trace& trace, int device) {
  const DeviceInfo* info = device_info(trace, device);
  if (info && !info->name.empty()) return info->name;
  return device < 0 ? "the host" : fmt::format("device {}", device);
}

bool is_merged(const Trace& trace) {
  return std::any_of(trace.spans.begin(), trace.spans.end(),
                     [&](const Span& span) { return rank_of(trace, span) != trace.rank; });
}

int rank_of(const Trace& trace, const Span& span) {
  const int64_t rank = trace.rank + std::max<int64_t>(span.thread, 0) / kThreadsOfRank;
  return rank < trace.ranks ? static_cast<int>(rank) : trace.rank;  // some systems' numbers of threads are as large
}

LaunchTimes::LaunchTimes(const Trace& trace) : trace_(trace) {
  for (size_t i = 0; i < trace.spans.size(); ++i)
    if (trace.spans[i].kind == Kind::Runtime && trace.spans[i].correlation)
      calls_.emplace_back(trace.spans[i].correlation, static_cast<int32_t>(i));
  std::sort(calls_.begin(), calls_.end());
}

const Span* LaunchTimes::call(const Span& span) const {
  if (!span.correlation) return nullptr;
  const auto at = std::lower_bound(calls_.begin(), calls_.end(), std::pair{span.correlation, int32_t{0}});
  return at == calls_.end() || at->first != span.correlation ? nullptr : &span_at(trace_, at->second);
}

int64_t LaunchTimes::operator()(const Span& span) const {
  if (const Span* launch = call(span)) return launch->begin;
  const Span* owner = owner_of(trace_, span);
  return owner ? std::min(owner->end, span.begin) : span.begin;
}

// ---- what a call of an operator took

std::vector<Piece> device_pieces(const Trace& trace) {
  std::vector<Piece> out;
  std::unordered_map<int32_t, size_t> eager;  // by owner
  struct Last {
    int32_t owner = -1, call = -1;
    size_t piece = 0;
  };
  std::map<std::pair<int32_t, int64_t>, Last> streams;
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (span.kind != Kind::Kernel) continue;
    const Span* owner = owner_of(trace, span);
    const bool own_call = owner && owner->kind == Kind::Op && owner->detail >= 0 && owner->detail == span.call;
    Last& last = streams[{span.device, span.thread}];
    size_t piece = out.size();
    if (own_call) piece = eager.emplace(span.owner, piece).first->second;
    else if (span.call >= 0 && last.owner == span.owner && last.call == span.call) piece = last.piece;
    last = {span.owner, span.call, piece};
    if (piece == out.size()) out.push_back({{}, {}, trace.call_of(span), 0});
    out[piece].spans.push_back(static_cast<int32_t>(i));
    out[piece].times.push_back(interval_of(span).length());
    out[piece].time += interval_of(span).length();
  }
  return out;
}

std::vector<Piece> host_pieces(const Trace& trace) {
  std::vector<Piece> out;
  std::unordered_map<int64_t, std::vector<size_t>> open;  // in out, by thread
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (span.kind != Kind::Op) continue;
    std::vector<size_t>& stack = open[span.thread];
    while (!stack.empty() && span_at(trace, out[stack.back()].spans[0]).end <= span.begin) stack.pop_back();
    if (!stack.empty()) {
      Piece& outer = out[stack.back()];
      outer.time -= std::min(span.end, span_at(trace, outer.spans[0]).end) - span.begin;
    }
    stack.push_back(out.size());
    out.push_back({{static_cast<int32_t>(i)}, {}, trace.call_of(span), interval_of(span).length()});
  }
  for (Piece& piece : out) {
    piece.time = std::max<int64_t>(piece.time, 0);
    piece.times = {piece.time};
  }
  return out;
}

// ---- operators

bool contains_word(std::string_view text, std::string_view lower) {
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b; };
  return std::search(text.begin(), text.end(), lower.begin(), lower.end(), same) != text.end();
}

std::string_view bare_op(std::string_view op) {
  if (op.starts_with("aten::")) op.remove_prefix(6);
  while (op.size() > 1 && op.ends_with('_')) op.remove_suffix(1);
  return op;
}

bool is_product(std::string_view op) {
  op = bare_op(op);
  const auto has = [op](std::string_view part) { return op.find(part) != op.npos; };
  if (has("matmul") || has("attention") || has("gemm")) return true;
  if ((has("conv") && !has("convert")) || (has("linear") && !has("ilinear"))) return true;  // bilinear resizes images
  for (const std::string_view name : {"mlp", "mm", "bmm", "addmm", "baddbmm", "einsum"})
    if (op == name) return true;
  return false;
}

bool is_layout_copy(std::string_view op) {
  op = bare_op(op);
  for (const std::string_view name :
       {"contiguous", "copy", "cast", "to", "_to_copy", "clone", "permute", "transpose", "reshape"})
    if (op == name) return true;
  return false;
}

bool is_collective(std::string_view name) {
  for (const std::string_view part :
       {"all_reduce", "allreduce", "reduce_scatter", "reducescatter", "all_gather", "allgather", "nccl", "rccl"})
    if (contains_word(name, part)) return true;
  // Shapes are broadcast, too, and blocks of a kernel have barriers: these must be the name.
  const std::string_view last = bare_op(name.substr(name.find_last_of(":.") + 1));
  return contains_word(last, "broadcast") ? last.size() == 9 : contains_word(last, "barrier") && last.size() == 7;
}

std::string_view dtype_of(const Call& call) {
  constexpr std::pair<std::string_view, std::string_view> names[] = {
      {"f32", "f32"},   {"f16", "f16"},       {"bf16", "bf16"},          {"f64", "f64"},
      {"float", "f32"}, {"c10::Half", "f16"}, {"c10::BFloat16", "bf16"}, {"double", "f64"}};
  for (const std::string_view type : call.types)
    for (const auto& [known, dtype] : names)
      if (type == known) return dtype;
  return "f32";
}

double roof_of(const Roof& roof, std::string_view dtype) {
  if (dtype == "f16") return roof.f16;
  if (dtype == "bf16") return roof.bf16;
  if (dtype == "f64") return roof.f64;
  return dtype == "tf32" ? roof.tf32 : roof.f32;
}

double allowed_seconds(const Roof& roof, std::string_view dtype, bool product, double flops, double bytes) {
  const double rate = roof_of(roof, dtype);
  if (product ? rate <= 0 : roof.bytes_per_second <= 0) return 0;
  const double compute = rate > 0 ? flops / rate : 0;
  return std::max(compute, roof.bytes_per_second > 0 ? bytes / roof.bytes_per_second : 0);
}

}  // namespace tessera::profiler
