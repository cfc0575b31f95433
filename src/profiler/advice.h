// What to do about it: rules over a trace, each with the time that mending it would win.
#pragma once
#include <string>
#include <vector>

#include "profiler/trace.h"

namespace tessera::profiler {

struct Advice {
  std::string rule;              ///< "data loader", "host-bound", "small kernels", "matrix cores", "layout copies",
                                 ///< "synchronisation", "imbalance"
  std::string what;              ///< a sentence: what is slow, and what to change
  std::string op, path, source;  ///< where it is known
  double seconds = 0;            ///< of a step, to be won
  double share = 0;              ///< of a step's time
  double at_most = 0;            ///< seconds, where more than `seconds` may be won; else 0
};
/// What is worth at least 2 % of a step, by time to be won. A tuned step gets none.
std::vector<Advice> advice(const Trace& trace);
std::string advice_text(const std::vector<Advice>& all);

}  // namespace tessera::profiler
