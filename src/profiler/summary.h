// What a trace comes to: tables, steps, who waited, and what two traces differ in.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "profiler/trace.h"

namespace tessera::profiler {

/// Kernels of one name for one operator: on a device its own times; on the host those of the operator's calls, without
/// operators that it calls.
struct KernelRow {
  std::string kernel, op;
  int device = -1;
  int64_t calls = 0;
  double seconds = 0;                                 ///< of all calls
  double share = 0;                                   ///< of all kernels' time, 0 to 1
  double bytes_per_second = 0, flops_per_second = 0;  ///< 0: not known
  double roof_share = 0;  ///< of what the measured roofs allow at its FLOPs and bytes, 0 to 1; 0: not known
  /// Of modules, and what each took, seconds: the one that took most first; "" is outside of all.
  std::vector<std::pair<std::string, double>> modules;
  std::vector<double> times;  ///< seconds of each call
  std::string path() const { return modules.empty() ? "" : modules[0].first; }
};
/// By time, the most first. With `by_op` rows of an operator's kernels are joined. Where the trace has kernels of a
/// device, the host's operators are left out.
std::vector<KernelRow> kernel_table(const Trace& trace, bool by_op = false);
/// The first `most` rows, for people: fits 120 columns.
std::string table_text(const Trace& trace, const std::vector<KernelRow>& rows, size_t most = 10);

/// A ProfilerStep, or all of the trace where it has none.
struct StepRow {
  std::string name;
  double seconds = 0;
  /// Parts of it, on the busiest device (on the host without one): kernels (the union of their intervals), copies and
  /// fills that no kernel hides, and the rest, in which nothing runs.
  double busy = 0, copies = 0, idle = 0;
  double host_ops = 0;         ///< the union of the operators' intervals on the host
  int64_t begin = 0, end = 0;  ///< of what it did on the device: the first kernel after its begin until the next step's
};
std::vector<StepRow> steps_of(const Trace& trace);
std::string steps_text(const std::vector<StepRow>& steps);

/// What became slower or faster from a to b, the largest change first: by operator and kernel, a call's mean and the
/// spread of it on both sides.
std::string compare(const Trace& a, const Trace& b, size_t most = 20);

/// Several ranks' traces as one, on one clock; processes are told apart by rank. Throws Error where two are of one
/// rank.
Trace merge(const std::vector<Trace>& ranks);
/// Of a merged trace: for each collective (all_reduce and the like) and step who came last, and how long others waited.
std::string waits_text(const Trace& merged);

}  // namespace tessera::profiler
