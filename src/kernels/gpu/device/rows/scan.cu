// Running sums along one dim.
#include "strided_lines.h"

namespace tessera::gpu_kernels {
namespace {

/// A block of threads for each line, an element each at a time.
template <class C>
TESSERA_KERNEL(256)
void cumsum_lines(const StridedLines<2> lines) {
  __shared__ C totals[256 / team_lanes];
  const int thread = tile::thread_in_block(), lane = thread % team_lanes, team = thread / team_lanes;
  i64 at[2];
  lines.starts.locate(tile::block_in_grid(), 1, at);
  C carry = C(0);
  for (i64 begin = 0; begin < lines.length; begin += 256) {
    const i64 i = begin + thread;
    C sum = i < lines.length ? load_as<C>(lines.data[0], lines.type[0], at[0] + i * lines.step[0]) : C(0);
    C all = sum;  // of 1, 2, 4, ... neighbours: a lane takes those before it
#pragma unroll
    for (int mask = 1; mask < team_lanes; mask *= 2) {
      const C other = from_lane(all, mask);
      if (lane & mask) sum += other;
      all = lane & mask ? other + all : all + other;
    }
    if (lane == 0) totals[team] = all;
    tile::sync_block();
    C before = carry;
    for (int t = 0; t < 256 / team_lanes; ++t) {
      if (t < team) before += totals[t];
      carry += totals[t];
    }
    if (i < lines.length) store_as(lines.data[1], lines.type[1], at[1] + i * lines.step[1], before + sum);
    tile::sync_block();
  }
}

/// A thread for each line: neighbouring lines lie side by side.
template <class C>
TESSERA_KERNEL(256)
void cumsum_columns(const StridedLines<2> lines) {
  const i64 line = first_index();
  if (line >= lines.starts.total) return;
  i64 at[2];
  lines.starts.locate(line, 1, at);
  C sum = C(0);
  for (i64 i = 0; i < lines.length; ++i) {
    sum += load_as<C>(lines.data[0], lines.type[0], at[0] + i * lines.step[0]);
    store_as(lines.data[1], lines.type[1], at[1] + i * lines.step[1], sum);
  }
}

template <class C>
void cumsum_in(const StridedLines<2>& lines, Executor& executor) {
  if (lines.length == 0) return;
  const i64 count = lines.starts.total;
  const bool apart = lines.step[0] != 1 && count >= 1024;
  if (apart || lines.length <= 16)
    launch("cumsum", cumsum_columns<C>, tile::ceil_div<i64>(count, 256), 256, 0, executor, lines);
  else launch("cumsum", cumsum_lines<C>, count, 256, 0, executor, lines);
}

}  // namespace

void cumsum(const CumsumArgs& args, Executor& executor) {
  const auto lines = lines_of<2>(args, {&args.in, &args.out});
  if (is_floating(args.in.type)) cumsum_in<double>(lines, executor);
  else cumsum_in<i64>(lines, executor);
}

}  // namespace tessera::gpu_kernels
