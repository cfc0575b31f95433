// Running values along lines on GPUs.
#pragma once
#include <string>
#include <string_view>

namespace tessera {

/// Most bytes of a State below.
inline constexpr int64_t kScanStateBytes = 32;

/// The text of a kernel `name`: `state` has State, none() and combine(earlier, later), and `line` what Line::load() and
/// Line::store() do. A warp takes a line of neighbours, and lines that lie side by side have a thread each. Where lines
/// are few, each is cut into segments: the first phase puts their states together, the second makes of these what lies
/// before each segment, and the third begins with that. Many short lines have a part of a warp each. x [outer, length,
/// inner] and all else are contiguous, but rows of x may begin x_pitch apart; y, g and places are there where the line
/// wants them.
inline std::string scan_kernel(std::string_view name, std::string_view state, std::string_view line) {
  constexpr std::string_view lines = R"(
struct Line {
  const T *x, *y, *g;
  T* out;
  i64* places;
  i64 length, inner;
  bool backwards;
  TESSERA_DEVICE i64 at(i64 i) const { return (backwards ? length - 1 - i : i) * inner; }
  TESSERA_DEVICE State load(i64 i) const;
  TESSERA_DEVICE void store(i64 i, const State& s) const;
};
static_assert(sizeof(State) <= 32);
enum Phase { whole, segments_alone, before_segments, segments_in_turn, by_parts };
constexpr int turn = 4 * team_lanes;  // elements that a team has at once
/// Whether shared memory has room for four teams of a warp.
constexpr bool has_parts = sizeof(State) <= 8;
)",
                             steps = R"(
/// What lies before this lane's state, and in `all` what those of its team come to.
template <int lanes = team_lanes>
TESSERA_DEVICE State before_lane(State& all) {
  const int lane = thread_in_block() % lanes;
  State before = none();
  for (int mask = 1; mask < lanes; mask *= 2) {
    const State other = from_lane(all, mask);
    if (lane & mask) before = combine(other, before);
    all = lane & mask ? combine(other, all) : combine(all, other);
  }
  return before;
}

TESSERA_DEVICE State by_thread(const Line& line, i64 first, i64 last, State running, bool stores) {
  constexpr int ahead = 4;  // loads that are under way at once
  for (; first + ahead <= last; first += ahead) {
    State next[ahead];
    unroll<ahead>([&](auto j) { next[j] = line.load(first + j); });
    unroll<ahead>([&](auto j) {
      running = combine(running, next[j]);
      if (stores) line.store(first + j, running);
    });
  }
  for (; first < last; ++first) {
    running = combine(running, line.load(first));
    if (stores) line.store(first, running);
  }
  return running;
}

/// Lanes read and write neighbours, and put together several that follow one another.
template <int lanes>
TESSERA_DEVICE State by_team(const Line& line, State* room, i64 first, i64 last, State running, bool stores,
                             bool exists = true) {
  constexpr int most = turn / lanes;
  const int lane = thread_in_block() % lanes;
  const auto place = [](int i) { return i + i / team_lanes; };  // other banks for each row of lanes
  for (; first < last; first += turn) {
    const int each = static_cast<int>(ceil_div(min<i64>(turn, last - first), i64(lanes)));
    unroll<most>([&](auto j) {
      const int i = j * lanes + lane;
      if (j < each) room[place(i)] = exists && first + i < last ? line.load(first + i) : none();
    });
    sync_warp();
    State mine[most], all = none();
    unroll<most>([&](auto j) {
      if (j < each) mine[j] = all = combine(all, room[place(lane * each + j)]);
    });
    const State before = combine(running, before_lane<lanes>(all));
    running = combine(running, all);
    sync_warp();
    if (!stores) continue;
    unroll<most>([&](auto j) {
      if (j < each) room[place(lane * each + j)] = combine(before, mine[j]);
    });
    sync_warp();
    unroll<most>([&](auto j) {
      const int i = j * lanes + lane;
      if (j < each && exists && first + i < last) line.store(first + i, room[place(i)]);
    });
    sync_warp();
  }
  return running;
}

TESSERA_DEVICE void make_before_segments(State* totals, i64 segments) {
  State running = none();
  for (i64 first = 0; first < segments; first += team_lanes) {
    const i64 i = first + thread_in_block() % team_lanes;
    State all = i < segments ? totals[i] : none();
    const State before = combine(running, before_lane(all));
    if (i < segments) totals[i] = before;
    running = combine(running, all);
  }
}

extern "C" TESSERA_KERNEL(256) void )",
                             body =
                                 R"((const T* x, const T* y, const T* g, T* out, i64* places, State* totals, i64 outer,
                                      i64 length, i64 inner, i64 x_pitch, i64 segments, int backwards, int phase) {
  constexpr int teams = has_parts ? 4 : 1, part = team_lanes / teams;  // of a warp
  TESSERA_SHARED State rooms[256 / part][turn + 4];
  const bool apart = inner > 1;  // a thread takes a line
  const auto line_of = [&](i64 row, i64 side) {
    const i64 begin = row * length * inner + side;
    return Line{x + (apart ? begin : row * x_pitch), y + begin, g + begin, out + begin, places + begin, length, inner,
                backwards != 0};
  };
  const i64 thread = block_in_grid() * 256 + thread_in_block();
  if (phase == by_parts) {
    if (thread / team_lanes * teams >= outer) return;
    const i64 row = thread / part;
    const bool exists = row < outer;  // lanes of others of the warp wait for this one
    by_team<part>(line_of(exists ? row : 0, 0), rooms[thread_in_block() / part], 0, length, none(), true, exists);
    return;
  }
  if (phase == before_segments) {
    if (thread / team_lanes < outer * inner) make_before_segments(totals + thread / team_lanes * segments, segments);
    return;
  }
  const i64 number = apart ? thread : thread / team_lanes;
  if (number >= outer * inner * segments) return;
  const i64 side = number % inner, segment = number / inner % segments, row = number / inner / segments;
  const i64 each = ceil_div(length, segments), first = segment * each, last = min(first + each, length);
  const Line line = line_of(row, side);
  State* const total = totals + (row * inner + side) * segments + segment;
  const State running = phase == segments_in_turn ? *total : none();
  const bool stores = phase != segments_alone;
  const State end = apart ? by_thread(line, first, last, running, stores)
                          : by_team<team_lanes>(line, rooms[thread_in_block() / team_lanes], first, last, running, stores);
  if (phase == segments_alone && (apart || thread_in_block() % team_lanes == 0)) *total = end;
}
)";
  std::string text(state);
  for (const std::string_view part : {lines, line, steps, name, body}) text += part;
  return text;
}

}  // namespace tessera
