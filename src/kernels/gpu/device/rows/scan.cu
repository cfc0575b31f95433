// Running sums and selections along one dim.
#include "rows.h"

namespace tessera::gpu_kernels {
namespace {

/// Lines along a dim of N operands: where they begin, and the step along each.
template <int N>
struct Lines {
  Nest<N> starts;
  i64 length;
  i64 step[N];
  void* data[N];
  Scalar type[N];
};

template <int N, class Args>
Lines<N> lines_of(const Args& args, const TensorArg* const (&operand)[N]) {
  Lines<N> lines{};
  lines.length = args.lengths[args.dim];
  for (int k = 0; k < N; ++k) {
    lines.step[k] = operand[k]->strides[args.dim];
    lines.data[k] = operand[k]->data;
    lines.type[k] = operand[k]->type;
  }
  for (int d = 0; d < args.rank; ++d) {
    if (d == args.dim) continue;
    i64 step[N];
    for (int k = 0; k < N; ++k) step[k] = operand[k]->strides[d];
    lines.starts.add(args.lengths[d], step);
  }
  return lines;
}

bool is_floating(Scalar type) { return type >= Scalar::f16; }

// ---- running sums

/// A block of threads for each line, an element each at a time.
template <class C>
TESSERA_KERNEL(256)
void cumsum_lines(const Lines<2> lines) {
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
void cumsum_columns(const Lines<2> lines) {
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
void cumsum_in(const Lines<2>& lines, Executor& executor) {
  if (lines.length == 0) return;
  const i64 count = lines.starts.total;
  const bool apart = lines.step[0] != 1 && count >= 1024;
  if (apart || lines.length <= 16)
    launch("cumsum", cumsum_columns<C>, tile::ceil_div<i64>(count, 256), 256, 0, executor, lines);
  else launch("cumsum", cumsum_lines<C>, count, 256, 0, executor, lines);
}

// ---- the k first in order

/// Keys in the order of the results, and of equal keys the smaller index first.
struct alignas(16) Item {
  u64 key;
  i64 index;
};
TESSERA_DEVICE bool before(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.index < b.index; }

/// Integers in the order of doubles, NaN largest and both zeros the same; and of integers.
TESSERA_DEVICE u64 key_of(double x) {
  if (x != x) return ~0ull;
  const u64 bits = tile::bit_cast<u64>(x + 0.0), sign = 1ull << 63;
  return bits & sign ? ~bits : bits | sign;
}
TESSERA_DEVICE u64 key_of(i64 x) { return static_cast<u64>(x) ^ (1ull << 63); }

inline constexpr int sorted_items = 2048;

/// Where an item lies in shared memory: every second eight of them in reverse.
constexpr TESSERA_HD int item_place(int i) { return i ^ i / 8 % 2 * 7; }
/// The first of the pair that a thread compares, and the other `apart` behind it.
constexpr TESSERA_HD int low_of_pair(int thread, int apart) { return thread / apart * apart * 2 + thread % apart; }

constexpr TESSERA_HD bool pairs_meet_no_bank_twice() {
  for (int apart = 1; apart < 64; apart *= 2)
    for (auto memory : {tile::SharedMemory::amd_read, tile::SharedMemory::amd_write})
      for (int other : {0, apart}) {
        const auto place = [&](const auto& c) { return item_place(low_of_pair(c[0], apart) + other); };
        if (!tile::bank_use(tile::named("t", tile::lanes(64)), memory, sizeof(Item), place).is_conflict_free())
          return false;
      }
  return true;
}
static_assert(pairs_meet_no_bank_twice());

/// Sorts `size` items, a power of two (Batcher, "Sorting networks and their applications", 1968).
TESSERA_DEVICE void sort_items(Item* items, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = tile::thread_in_block(); i < size / 2; i += 512) {
        const int first = low_of_pair(i, apart), low = item_place(first), high = item_place(first + apart);
        const Item a = items[low], b = items[high];
        if (before(b, a) == ((low & run) == 0)) {
          items[low] = b;
          items[high] = a;
        }
      }
      tile::sync_block();
    }
  }
}

struct TopkWork {
  Lines<3> lines;  // of the input, the values and the indices
  i64 k;
  bool largest;
  int size, kept;  // items sorted at a time, and how many of them are those found so far
};

/// A block for each line: sorts what it has found with the next elements, again and again. More than `kept` results
/// take more walks along the line, each of which finds those that come after the last.
template <class C>
TESSERA_KERNEL(512)
void topk_kernel(const TopkWork work) {
  __shared__ Item items[sorted_items];
  __shared__ Item last;
  const Lines<3>& lines = work.lines;
  const Item none{~0ull, 0x7fffffffffffffffll};
  const int thread = tile::thread_in_block();
  i64 at[3];
  lines.starts.locate(tile::block_in_grid(), 1, at);
  for (i64 done = 0; done < work.k; done += work.kept) {
    for (int i = thread; i < work.kept; i += 512) items[item_place(i)] = none;
    for (i64 begin = 0; begin < lines.length; begin += work.size - work.kept) {
      for (int i = thread; i < work.size; i += 512) {
        if (i < work.kept) continue;
        const i64 index = begin + i - work.kept;
        Item item = none;
        if (index < lines.length) {
          const u64 key = key_of(load_as<C>(lines.data[0], lines.type[0], at[0] + index * lines.step[0]));
          item = {work.largest ? ~key : key, index};
          if (done > 0 && !before(last, item)) item = none;
        }
        items[item_place(i)] = item;
      }
      tile::sync_block();
      sort_items(items, work.size);
    }
    for (int i = thread; i < work.kept && done + i < work.k; i += 512) {
      const i64 index = items[item_place(i)].index;
      const C value = load_as<C>(lines.data[0], lines.type[0], at[0] + index * lines.step[0]);
      store_as(lines.data[1], lines.type[1], at[1] + (done + i) * lines.step[1], value);
      store_as(lines.data[2], lines.type[2], at[2] + (done + i) * lines.step[2], index);
    }
    if (thread == 0) last = items[item_place(work.kept - 1)];
    tile::sync_block();
  }
}

}  // namespace

void cumsum(const CumsumArgs& args, Executor& executor) {
  const auto lines = lines_of<2>(args, {&args.in, &args.out});
  if (is_floating(args.in.type)) cumsum_in<double>(lines, executor);
  else cumsum_in<i64>(lines, executor);
}

void topk(const TopkArgs& args, Executor& executor) {
  if (args.k == 0) return;
  TopkWork work{lines_of<3>(args, {&args.in, &args.values, &args.indices}), args.k, args.largest, 2, 1};
  while (work.size < sorted_items && work.size < work.lines.length * 2) work.size *= 2;
  while (work.kept < work.size / 2 && work.kept < work.k) work.kept *= 2;
  const auto kernel = is_floating(args.in.type) ? topk_kernel<double> : topk_kernel<i64>;
  launch("topk", kernel, work.lines.starts.total, 512, 0, executor, work);
}

}  // namespace tessera::gpu_kernels
