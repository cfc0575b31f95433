// The processor's own counters, of all threads of this process.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "profiler/trace.h"

namespace tessera::profiler {

class Counters {
 public:
  Counters() = default;
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  /// Counts what the threads that are there do from now on. Empty, or one line on why the processor's counters cannot
  /// be read: then only what the system counts is there.
  std::string begin();
  /// Since begin().
  StepCounters read() const;
  void end();

 private:
  std::vector<std::pair<int, size_t>> files_;  // and which of cycles, instructions and cache misses they count
  StepCounters start_;
};

}  // namespace tessera::profiler
