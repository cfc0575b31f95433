// Pieces of time, in nanoseconds: what is busy, what is idle, and what both have in common.
#pragma once
#include <cstdint>
#include <vector>

namespace tessera::profiler {

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end > begin ? end - begin : 0; }
};
/// In order; they neither overlap nor touch, and none is empty.
using Intervals = std::vector<Interval>;

/// What any of them covers.
Intervals union_of(std::vector<Interval> pieces);
int64_t length_of(const Intervals& all);
Intervals common(const Intervals& a, const Intervals& b);
/// What of `a` is not in `b`.
Intervals without(const Intervals& a, const Intervals& b);

/// What of `all` is in the window.
Intervals clipped_to(const Intervals& all, Interval window);

}  // namespace tessera::profiler
