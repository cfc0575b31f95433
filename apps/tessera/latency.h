// Latency and throughput of a model, for batches and numbers of threads, beside peers that a Python has.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "command.h"

namespace tessera::app {

struct LatencyOptions {
  CommonOptions common;
  std::string batches = "1", threads, python;
  double seconds = 3;
};

/// A model with inputs of one batch.
struct TimedCall {
  std::function<void()> once;
  /// Arguments of the peers' script; empty where peers cannot take these inputs.
  std::vector<std::string> arguments;
};

struct TimedModel {
  std::function<TimedCall(int64_t batch)> with_batch;
  /// A program of Python that times peers and prints a line of JSON for each: {name, p50, p90, p99, calls} or {name,
  /// error}. Its arguments are threads, seconds and those of the call.
  std::string peers;
};

/// Throws UsageError: before a model is loaded.
void check(const LatencyOptions& options);

/// Times the model and its peers, prints a table and writes results. Throws UsageError.
void time_model(const LatencyOptions& options, const TimedModel& model);

/// What every script of peers begins with: arguments, and `timed(name, call)`.
extern const char* const kTimedInPython;

}  // namespace tessera::app
