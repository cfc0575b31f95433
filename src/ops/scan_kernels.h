// Running values along lines on GPUs.
#pragma once
#include <string>
#include <string_view>

namespace tessera {

/// The text of a kernel `name`: `state` has State, none() and combine(earlier, later), and `line` what Line::load() and
/// Line::store() do. A warp takes a line of neighbours, four of each lane, and lines that lie side by side have a
/// thread each. x [outer, length, inner] and all else are contiguous; y, g and places are there where the line wants
/// them.
inline std::string scan_kernel(std::string_view name, std::string_view state, std::string_view line) {
  constexpr std::string_view lines = R"(
struct Line {
  const T *x, *y, *g;
  T* out;
  i64* places;
  i64 length, inner;
  bool backwards;
  TESSERA_DEVICE i64 at(i64 begin, i64 i) const { return begin + (backwards ? length - 1 - i : i) * inner; }
  TESSERA_DEVICE State load(i64 begin, i64 i) const;
  TESSERA_DEVICE void store(i64 begin, i64 i, const State& s) const;
};
)",
                             head = R"(
extern "C" TESSERA_KERNEL(256) void )",
                             body = R"((const T* x, const T* y, const T* g, T* out, i64* places, i64 outer, i64 length,
                                      i64 inner, int backwards) {
  const Line line{x, y, g, out, places, length, inner, backwards != 0};
  if (inner > 1) {
    const i64 number = block_in_grid() * 256 + thread_in_block();
    if (number >= outer * inner) return;
    const i64 begin = number / inner * length * inner + number % inner;
    State running = none();
    for (i64 i = 0; i < length; ++i) {
      running = combine(running, line.load(begin, i));
      line.store(begin, i, running);
    }
    return;
  }
  const i64 number = (block_in_grid() * 256 + thread_in_block()) / team_lanes, begin = number * length;
  if (number >= outer) return;
  constexpr int each = 4;  // elements of a lane, one after the other
  const int lane = thread_in_block() % team_lanes;
  State carry = none();
  for (i64 first = 0; first < length; first += each * team_lanes) {
    const i64 from = first + lane * each;
    State mine[each];
    unroll<each>([&](auto j) {
      mine[j] = from + j < length ? line.load(begin, from + j) : none();
      if constexpr (j > 0) mine[j] = combine(mine[j - 1], mine[j]);
    });
    State all = mine[each - 1], before = none();
    for (int mask = 1; mask < team_lanes; mask *= 2) {
      const State other = from_lane(all, mask);
      if (lane & mask) before = combine(other, before);
      all = lane & mask ? combine(other, all) : combine(all, other);
    }
    before = combine(carry, before);
    unroll<each>([&](auto j) {
      if (from + j < length) line.store(begin, from + j, combine(before, mine[j]));
    });
    carry = combine(carry, all);
  }
}
)";
  std::string text(state);
  for (const std::string_view part : {lines, line, head, name, body}) text += part;
  return text;
}

}  // namespace tessera
