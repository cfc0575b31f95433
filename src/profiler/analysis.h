// What tables, comparisons and advice ask of a trace.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "profiler/intervals.h"
#include "profiler/trace.h"

namespace tessera::profiler {

// ---- for people

/// "1.23 ms"; "0" where it is none.
std::string time_text(double seconds);
/// Three digits: "0.0123", "1.23", "123", "12345"; "-" for 0, which is not known.
std::string digits_text(double value);
/// "n thing", "n things".
std::string count_text(int64_t count, std::string_view thing);

// ---- spans

inline Interval interval_of(const Span& span) { return {span.begin, span.end}; }
inline double seconds_in(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }
inline const Span& span_at(const Trace& trace, int32_t at) { return trace.spans[static_cast<size_t>(at)]; }
/// Null where none is known.
const Span* owner_of(const Trace& trace, const Span& span);
/// The operator that a span is, or is for; empty where none is known.
std::string_view op_of(const Trace& trace, const Span& span);
bool has_kernels(const Trace& trace);
/// Where kernels took longest; -1: the host, without kernels.
int device_to_watch(const Trace& trace);
const DeviceInfo* device_info(const Trace& trace, int device);
std::string device_name(const Trace& trace, int device);
/// In a merged trace each rank's threads and streams have numbers from a multiple of this, by its distance from
/// Trace::rank: so they stay apart in files, too.
inline constexpr int64_t kThreadsOfRank = 1'000'000'000;
bool is_merged(const Trace& trace);
int rank_of(const Trace& trace, const Span& span);

/// By correlation: the calls of the run-time library.
class LaunchTimes {
 public:
  explicit LaunchTimes(const Trace& trace);
  /// When the host asked a device for the span: the begin of that call; else no later than the end of its operator on
  /// the host. Where nothing is known, the span's own begin.
  int64_t operator()(const Span& span) const;
  /// The call of the run-time library; null: not known.
  const Span* call(const Span& span) const;

 private:
  const Trace& trace_;
  std::vector<std::pair<uint32_t, int32_t>> calls_;  // in order
};

// ---- what a call of an operator took

/// Kernels of a device that one call of an operator started, or the operator's own time on the host.
struct Piece {
  std::vector<int32_t> spans;
  std::vector<int64_t> times;  ///< of each, nanoseconds
  const Call* call = nullptr;
  int64_t time = 0;
};
/// Of the device's kernels by call; of a replayed graph, where all have one owner, those in a row that are of one call.
std::vector<Piece> device_pieces(const Trace& trace);
/// Of each Op on the host: its time without that of operators that it calls.
std::vector<Piece> host_pieces(const Trace& trace);

// ---- operators

/// Without "aten::" and the sign of an operator that overwrites.
std::string_view bare_op(std::string_view op);
/// Products of matrices, convolutions and attention: what matrix cores are for.
bool is_product(std::string_view op);
/// Moves or converts elements, and computes nothing.
bool is_layout_copy(std::string_view op);
bool is_collective(std::string_view name);
bool contains_word(std::string_view text, std::string_view lower);  ///< whatever the case

/// The call's floating-point type: of its first input that has one.
std::string_view dtype_of(const Call& call);
double roof_of(const Roof& roof, std::string_view dtype);
/// Seconds that the roofs allow for so much; 0: not known.
double allowed_seconds(const Roof& roof, std::string_view dtype, bool product, double flops, double bytes);

}  // namespace tessera::profiler
