#include "profiler/intervals.h"

#include <algorithm>

namespace tessera::profiler {

Intervals union_of(std::vector<Interval> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals out;
  for (const Interval& piece : pieces) {
    if (piece.length() == 0) continue;
    if (out.empty() || piece.begin > out.back().end) out.push_back(piece);
    else out.back().end = std::max(out.back().end, piece.end);
  }
  return out;
}

int64_t length_of(const Intervals& all) {
  int64_t sum = 0;
  for (const Interval& piece : all) sum += piece.length();
  return sum;
}

Intervals common(const Intervals& a, const Intervals& b) {
  Intervals out;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const Interval both{std::max(i->begin, j->begin), std::min(i->end, j->end)};
    if (both.length() > 0) out.push_back(both);
    if (i->end < j->end) ++i;
    else ++j;
  }
  return out;
}

Intervals without(const Intervals& a, const Intervals& b) {
  Intervals out;
  auto j = b.begin();
  for (const Interval& piece : a) {
    int64_t at = piece.begin;
    while (j != b.end() && j->end <= at) ++j;
    for (auto k = j; k != b.end() && k->begin < piece.end; ++k) {
      if (k->begin > at) out.push_back({at, k->begin});
      at = std::max(at, k->end);
    }
    if (at < piece.end) out.push_back({at, piece.end});
  }
  return out;
}

Intervals clipped_to(const Intervals& all, Interval window) {
  if (window.length() == 0) return {};
  auto first = std::partition_point(all.begin(), all.end(), [&](const Interval& i) { return i.end <= window.begin; });
  auto last = std::partition_point(first, all.end(), [&](const Interval& i) { return i.begin < window.end; });
  return common(Intervals(first, last), {window});
}

}  // namespace tessera::profiler
