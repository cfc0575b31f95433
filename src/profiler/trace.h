// What a profile saw, as data: what the recorder makes, files hold, and tables, pictures and advice are made of.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::profiler {

enum class Kind : uint8_t {
  Step,     ///< "ProfilerStep#3": from one Profile::step() to the next
  Range,    ///< profiler::Range, and what else a program names
  Module,   ///< the call of a module, or what else NamedScope names
  Op,       ///< the call of an operator, on the host
  Runtime,  ///< a call of the vendor's run-time library or driver
  Kernel,   ///< on a device from here on
  Copy,
  Fill,
};
/// Whether the span is a device's.
constexpr bool is_on_device(Kind kind) { return kind >= Kind::Kernel; }

/// What calls of an operator that are alike share.
struct Call {
  std::string op;
  std::vector<std::vector<int64_t>> dims;  ///< of its inputs; empty of a scalar and of an absent one
  std::vector<std::string> types;          ///< "f32", of its inputs; empty: absent
  std::string attributes;                  ///< "dim=1, axes=[0, 2]": those that differ from their defaults
  std::string kernel;                      ///< of the operator's list; empty where it starts none itself
  std::string path;                        ///< of modules around it: "h.3.attention", or "backward.h.3.attention"
  std::string source;                      ///< who called it, where that is known
  double flops = 0, bytes = 0;             ///< that it takes at least; 0 where it starts no kernel itself
  std::vector<std::vector<int64_t>> strides = {};  ///< as dims, in elements; none: not known
};

/// How a kernel was launched.
struct Launch {
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  int registers = 0;         ///< of a thread
  int64_t shared_bytes = 0;  ///< of a block
  double occupancy = 0;      ///< of a multiprocessor's threads, as estimated: 0 to 1
};

/// A piece of time, in nanoseconds since Trace::base.
struct Span {
  Kind kind = Kind::Op;
  int32_t name = 0;  ///< in Trace::names
  int64_t begin = 0, end = 0;
  int64_t thread = 0;   ///< of the host: the system's number of it; of a device: its stream
  int32_t device = -1;  ///< -1: the host
  int32_t detail = -1;  ///< of an Op: in Trace::calls; of a Kernel: in Trace::launches; of Runtime: the number by which
                        ///< the vendor's tracing library knows the function; -1: none
  int32_t owner = -1;   ///< in Trace::spans: of a device's, and of Runtime, the Op that it was for; -1: none is known
  int32_t call = -1;    ///< in Trace::calls: of a device's whose operator is known, also in a replayed graph
  int64_t sequence = -1;     ///< of an Op: joins forward and backward; -1: none
  uint32_t correlation = 0;  ///< joins Runtime and what it started on a device; 0: none
  int64_t bytes = 0;         ///< of a Copy or a Fill
};

/// PyTorch's categories of its memory timeline, in the order of their columns there.
enum class MemoryKind : uint8_t {
  Parameter,
  OptimizerState,
  Input,
  Temporary,
  Activation,
  Gradient,
  Autograd,
  Unknown
};
inline constexpr int kMemoryKinds = 8;
std::string_view name(MemoryKind kind);

/// Memory that tensors got, or gave back.
struct MemoryChange {
  int64_t at = 0;       ///< nanoseconds since Trace::base
  int32_t device = -1;  ///< -1: the host
  int64_t thread = 0;
  int64_t bytes = 0;  ///< negative: given back
  uint64_t address = 0;
  int64_t allocated = 0, reserved = 0;  ///< then, of that device
  int32_t owner = -1;                   ///< in Trace::spans: the innermost Op, Module or Range around it
  MemoryKind kind = MemoryKind::Unknown;
};

/// Of a device, or the host: what it was measured to reach, for shares of a roof.
struct Roof {
  double bytes_per_second = 0;                           ///< of memory; 0: not measured
  double f32 = 0, tf32 = 0, f16 = 0, bf16 = 0, f64 = 0;  ///< FLOP/s of products
};
struct DeviceInfo {
  int id = -1;  ///< -1: the host
  std::string name;
  int64_t memory = 0;  ///< bytes
  int multiprocessors = 0, warp_size = 0, threads_per_multiprocessor = 0;
  std::string architecture;  ///< "sm_90"
  Roof roof;
  /// Of a multiprocessor, beside its threads; 0: not known.
  int blocks_per_multiprocessor = 0, registers_per_multiprocessor = 0;
  int64_t shared_per_multiprocessor = 0;  ///< bytes
  int64_t shared_reserved = 0;            ///< of them, that each block takes beside its own
};

/// What a step's threads did on the host.
struct StepCounters {
  int32_t step = -1;                                       ///< in Trace::spans
  int64_t cycles = 0, instructions = 0, cache_misses = 0;  ///< 0 where the processor's counters cannot be read
  int64_t context_switches = 0, page_faults = 0;
};

struct Trace {
  int64_t base = 0;  ///< nanoseconds since 1970, of the spans' zero
  std::string host;
  int64_t process = 0;
  int rank = 0, ranks = 1;
  int64_t plain_step = 0;  ///< nanoseconds of the host for a step that was not recorded; 0: there was none
  std::vector<DeviceInfo> devices;
  std::vector<std::string> names;
  std::vector<Call> calls;
  std::vector<Launch> launches;
  std::vector<Span> spans;  ///< in the order of their begins; of those that begin together, the longer one first
  std::vector<MemoryChange> memory;  ///< in the order of time
  std::vector<StepCounters> counters;
  std::vector<std::string> notes;  ///< what a reader should know: no CUPTI, events dropped, interrupted
  int64_t dropped = 0;             ///< events for which there was no room

  std::string_view name_of(const Span& span) const { return names[static_cast<size_t>(span.name)]; }
  const Call* call_of(const Span& span) const {
    const int32_t at = span.kind == Kind::Op ? span.detail : span.call;
    return at < 0 ? nullptr : &calls[static_cast<size_t>(at)];
  }
  const Launch* launch_of(const Span& span) const {
    return span.kind == Kind::Kernel && span.detail >= 0 ? &launches[static_cast<size_t>(span.detail)] : nullptr;
  }
};

}  // namespace tessera::profiler
