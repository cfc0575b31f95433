// Collectives: what ranks do together, and who waits for whom in it.
#pragma once
#include <string>
#include <vector>

#include "profiler/intervals.h"
#include "profiler/trace.h"

namespace tessera::profiler {

struct Collective {
  int rank = 0;
  std::string step, name;
  Interval time;
};
/// Kernels of collectives; where there are none, operators, ranges and scopes of such names, without those within
/// others. In the order of their begins.
std::vector<Collective> collectives_of(const Trace& trace);

/// Of a merged trace: collectives of a name in a step.
struct Waits {
  std::string step, name;
  int64_t calls = 0;
  int last = 0;                ///< the rank that came last most often,
  int64_t last_calls = 0;      ///< and how often it did
  std::vector<int> ranks;      ///< that took part
  std::vector<double> waited;  ///< seconds, of each of them
  double mean_wait() const;    ///< over the ranks
};
/// In the order of their first calls. Calls of one name are matched by their order in a step.
std::vector<Waits> waits_of(const Trace& merged);

}  // namespace tessera::profiler
