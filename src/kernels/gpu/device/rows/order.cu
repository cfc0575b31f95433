// Running sums, selections and sorted lines along one dim: short lines are sorted in registers, long ones by one byte
// of their keys after another.
#include "order.h"

#include "kernels/gpu/device/runtime/ballot.h"

namespace tessera::gpu_kernels {

namespace {

// ---- running sums

/// Lines in tiles: `ends`, of each line and tile, has what all elements up to the tile's end add up to.
template <class C>
struct TiledLines {
  StridedLines<2> lines;
  i64 length, tiles;  // of a tile; of a line
  C* ends;
};

/// A block of threads for each tile of a line.
template <class C>
TESSERA_KERNEL(256)
void sum_tiles(const TiledLines<C> work) {
  __shared__ C totals[256 / team_lanes];
  const StridedLines<2>& lines = work.lines;
  const int thread = tile::thread_in_block();
  const i64 line = tile::block_in_grid() / work.tiles, number = tile::block_in_grid() - line * work.tiles;
  i64 at[2];
  lines.starts.locate(line, 1, at);
  C sum = C(0);
  const i64 end = tile::min((number + 1) * work.length, lines.length);
  for (i64 i = number * work.length + thread; i < end; i += 256)
    sum += load_as<C>(lines.data[0], lines.type[0], at[0] + i * lines.step[0]);
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) sum += from_lane(sum, mask);
  if (thread % team_lanes == 0) totals[thread / team_lanes] = sum;
  tile::sync_block();
  if (thread > 0) return;
  for (int t = 1; t < 256 / team_lanes; ++t) sum += totals[t];
  work.ends[tile::block_in_grid()] = sum;
}

/// A block of threads for each tile of a line, an element each at a time.
template <class C>
TESSERA_KERNEL(256)
void cumsum_lines(const TiledLines<C> work) {
  __shared__ C totals[256 / team_lanes];
  const StridedLines<2>& lines = work.lines;
  const int thread = tile::thread_in_block(), lane = thread % team_lanes, team = thread / team_lanes;
  const i64 line = tile::block_in_grid() / work.tiles, number = tile::block_in_grid() - line * work.tiles;
  i64 at[2];
  lines.starts.locate(line, 1, at);
  C carry = number > 0 ? work.ends[tile::block_in_grid() - 1] : C(0);
  const i64 end = tile::min((number + 1) * work.length, lines.length);
  for (i64 begin = number * work.length; begin < end; begin += 256) {
    const i64 i = begin + thread;
    C sum = i < end ? load_as<C>(lines.data[0], lines.type[0], at[0] + i * lines.step[0]) : C(0);
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
    if (i < end) store_as(lines.data[1], lines.type[1], at[1] + i * lines.step[1], before + sum);
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

/// Tiles of a line: one, unless lines are few and long.
i64 sum_tiles_of(const StridedLines<2>& lines) {
  constexpr i64 least = 4096, most_lines = 512;
  return lines.starts.total <= most_lines && lines.length >= 4 * least ? tile::ceil_div<i64>(lines.length, least) : 1;
}

template <class C>
void cumsum_in(const StridedLines<2>& lines, void* workspace, Executor& executor) {
  if (lines.length == 0) return;
  const i64 count = lines.starts.total, tiles = sum_tiles_of(lines);
  const bool apart = lines.step[0] != 1 && count >= 1024;
  if (apart || lines.length <= 16)
    return launch("cumsum", cumsum_columns<C>, tile::ceil_div<i64>(count, 256), 256, 0, executor, lines);
  C* const ends = static_cast<C*>(workspace);
  const TiledLines<C> work{lines, tile::ceil_div(lines.length, tiles), tiles, ends};
  if (tiles > 1) {
    launch("cumsum", sum_tiles<C>, count * tiles, 256, 0, executor, work);
    StridedLines<2> sums{};
    sums.starts.add(count, {tiles, tiles});
    sums.length = tiles;
    for (int k = 0; k < 2; ++k) {
      sums.data[k] = ends;
      sums.type[k] = tile::is_same_v<C, double> ? Scalar::f64 : Scalar::i64;
      sums.step[k] = 1;
    }
    launch("cumsum", cumsum_lines<C>, count, 256, 0, executor, TiledLines<C>{sums, tiles, 1, nullptr});
  }
  launch("cumsum", cumsum_lines<C>, count * tiles, 256, 0, executor, work);
}

StridedLines<2> summed_lines(const CumsumArgs& args) { return lines_of<2>(args, {&args.in, &args.out}); }

}  // namespace

i64 cumsum_workspace(const CumsumArgs& args) {
  const StridedLines<2> lines = summed_lines(args);
  const i64 tiles = sum_tiles_of(lines);
  return tiles > 1 ? lines.starts.total * tiles * 8 : 0;
}

void cumsum(const CumsumArgs& args, Executor& executor) {
  if (is_floating(args.in.type)) cumsum_in<double>(summed_lines(args), args.workspace, executor);
  else cumsum_in<i64>(summed_lines(args), args.workspace, executor);
}

namespace {

bool has_narrow_keys(const OrderedLines& lines) { return lines.type[0] != Scalar::f64 && lines.type[0] != Scalar::i64; }

// ---- short lines

template <class S>
inline constexpr int held_items = 64 / sizeof(S);  // by a thread

template <class S>
TESSERA_DEVICE S item_of(const OrderedLines& lines, i64 at, i64 index, bool largest) {
  if constexpr (sizeof(S) == 8) return u64{key_at<u32>(lines, at, largest)} << 32 | static_cast<u64>(index);
  else return {key_at<u64>(lines, at, largest), index};
}
/// What comes behind all others.
template <class S>
TESSERA_DEVICE S last_item() {
  if constexpr (sizeof(S) == 8) return ~0ull;
  else return {~0ull, 0x7fffffffffffffffll};
}
/// By fields: the compiler for AMD would choose between places in memory.
TESSERA_DEVICE Item pick(bool first, const Item& a, const Item& b) {
  return {first ? a.key : b.key, first ? a.index : b.index};
}
TESSERA_DEVICE u64 pick(bool first, u64 a, u64 b) { return first ? a : b; }
TESSERA_DEVICE i64 index_of(const Item& item) { return item.index; }
TESSERA_DEVICE i64 index_of(u64 item) { return static_cast<i64>(item & 0xffffffffu); }

/// Compares items `apart` from each other, all of one thread, and then those half as far, down to neighbours. A run of
/// items at a place with the bit `run` will be in reverse.
template <int apart, class S, int held>
TESSERA_DEVICE void compare_near(S (&items)[held], int first, int run) {
  if (apart * 2 <= run) {
    tile::unroll<held>([&](auto i) {
      if constexpr ((i & apart) == 0) {
        const S low = items[i], high = items[i + apart];
        const bool swaps = before(high, low) == (((first + i) & run) == 0);
        items[i] = pick(swaps, high, low);
        items[i + apart] = pick(swaps, low, high);
      }
    });
  }
  if constexpr (apart > 1) compare_near<apart / 2>(items, first, run);
}

/// Sorts the items of a line's `team` threads, a power of two; `rank` is this one's number (Batcher, "Sorting networks
/// and their applications", 1968). Threads of a warp pass items directly, others through `room`.
template <class S, int held>
TESSERA_DEVICE void sort_items(S (&items)[held], int rank, int team, S* room) {
  for (int run = 2; run <= team * held; run *= 2) {
    for (int apart = run / 2; apart >= held; apart /= 2) {
      const int far = apart / held;
      const bool keeps_first = ((rank * held & apart) == 0) == ((rank * held & run) == 0);
      if (far >= team_lanes) {
        tile::sync_block();
        tile::unroll<held>([&](auto i) { room[i * team + rank] = items[i]; });
        tile::sync_block();
      }
      tile::unroll<held>([&](auto i) {
        const S other = far < team_lanes ? from_lane(items[i], far) : room[i * team + (rank ^ far)];
        items[i] = pick(before(other, items[i]) == keeps_first, other, items[i]);
      });
    }
    compare_near<held / 2>(items, rank * held, run);
  }
}

struct ShortLines {
  OrderedLines lines;
  i64 k;
  bool largest;
  int team;  // threads of a line
};

template <class S>
TESSERA_KERNEL(512)
void sort_short(const ShortLines work) {
  extern __shared__ __attribute__((aligned(16))) unsigned char shared[];
  constexpr int held = held_items<S>;
  const OrderedLines& lines = work.lines;
  const int team = work.team, first = tile::thread_in_block() / team, rank = tile::thread_in_block() % team;
  const i64 line = tile::block_in_grid() * (tile::threads_in_block() / team) + first;
  i64 at[3];
  lines.starts.locate(tile::min(line, lines.starts.total - 1), 1, at);
  S items[held];
  tile::unroll<held>([&](auto i) {
    const i64 index = i64{i} * team + rank;
    items[i] = last_item<S>();
    if (index < lines.length) items[i] = item_of<S>(lines, at[0] + index * lines.step[0], index, work.largest);
  });
  sort_items(items, rank, team, reinterpret_cast<S*>(shared) + first * team * held);
  if (line >= lines.starts.total) return;
  tile::unroll<held>([&](auto i) {
    const i64 place = i64{rank} * held + i;
    if (place < tile::min(work.k, lines.length)) store_ordered(lines, at, place, index_of(items[i]));
  });
}

template <class S>
void launch_short(const OrderedLines& lines, i64 k, bool largest, Executor& executor) {
  constexpr int held = held_items<S>;
  ShortLines work{lines, k, largest, 1};
  while (work.team * held < lines.length) work.team *= 2;
  const int threads = tile::max(work.team, 128);
  const size_t room = work.team > team_lanes ? threads * held * sizeof(S) : 0;
  launch("sort_short", sort_short<S>, tile::ceil_div<i64>(lines.starts.total, threads / work.team), threads, room,
         executor, work);
}

// ---- long lines: least byte first, each pass stable

inline constexpr int tile_threads = 256, thread_items = 16, tile_items = tile_threads * thread_items;
inline constexpr int digits = 256, tile_teams = tile_threads / team_lanes;
static_assert(digits == tile_threads);  // each thread has a digit

/// The exclusive sum over this block's threads.
TESSERA_DEVICE u32 sum_before(u32 value) {
  TESSERA_SHARED u32 of_team[tile_teams];
  const int lane = tile::thread_in_block() % team_lanes, team = tile::thread_in_block() / team_lanes;
  u32 sum = value, all = value;
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) {
    const u32 other = from_lane(all, mask);
    if (lane & mask) sum += other;
    all += other;
  }
  if (lane == 0) of_team[team] = all;
  tile::sync_block();
  for (int t = 0; t < team; ++t) sum += of_team[t];
  tile::sync_block();
  return sum - value;
}

template <class Key>
TESSERA_KERNEL(256)
void make_keys(const OrderedLines lines, bool largest, Key* keys) {
  const i64 line = tile::block_in_grid() / tile::ceil_div<i64>(lines.length, tile_items);
  const i64 first = tile::block_in_grid() % tile::ceil_div<i64>(lines.length, tile_items) * tile_items;
  i64 at[3];
  lines.starts.locate(line, 1, at);
  for (i64 i = first + tile::thread_in_block(); i < tile::min(first + tile_items, lines.length); i += tile_threads)
    keys[line * lines.length + i] = key_at<Key>(lines, at[0] + i * lines.step[0], largest);
}

template <class Key>
TESSERA_KERNEL(256)
void store_keys(const OrderedLines lines, i64 k, const Key* keys) {
  const i64 n = first_index(), line = n / k, place = n - line * k;
  if (line >= lines.starts.total) return;
  i64 at[3];
  lines.starts.locate(line, 1, at);
  store_value(lines, at[1] + place * lines.step[1], keys[line * lines.length + place]);
}

TESSERA_KERNEL(256)
void store_results(const OrderedLines lines, i64 k, const u32* indices) {
  const i64 n = first_index(), line = n / k, place = n - line * k;
  if (line >= lines.starts.total) return;
  i64 at[3];
  lines.starts.locate(line, 1, at);
  store_ordered(lines, at, place, indices[line * lines.length + place]);
}

/// One byte's pass. Without indices items are as they were at first; without those out keys alone are sorted.
template <class Key>
struct Pass {
  i64 length, tiles;  // of a line
  int shift;
  const Key* keys;
  const u32* indices;
  Key* keys_out;
  u32* indices_out;
  u32 *counts, *totals;  // [line, digit, tile] and [line, digit]

  TESSERA_DEVICE int digit(Key key) const { return static_cast<int>(key >> shift) & (digits - 1); }
};

template <class Key>
TESSERA_KERNEL(256)
void count_digits(const Pass<Key> pass) {
  TESSERA_SHARED u32 counts[digits];
  const int thread = tile::thread_in_block();
  const i64 line = tile::block_in_grid() / pass.tiles, number = tile::block_in_grid() % pass.tiles;
  counts[thread] = 0;
  tile::sync_block();
  for (int j = 0; j < thread_items; ++j) {
    const i64 i = number * tile_items + j * tile_threads + thread;
    if (i < pass.length) atomicAdd(&counts[pass.digit(pass.keys[line * pass.length + i])], 1u);
  }
  tile::sync_block();
  pass.counts[(line * digits + thread) * pass.tiles + number] = counts[thread];
}

/// A warp for each digit of a line: how many are in the tiles before each, and in all.
TESSERA_KERNEL(256)
void sum_counts(u32* counts, u32* totals, i64 rows, i64 tiles) {
  const i64 row = first_index() / team_lanes;
  const int lane = tile::thread_in_block() % team_lanes;
  if (row >= rows) return;
  u32* const of_row = counts + row * tiles;
  u32 carry = 0;
  for (i64 begin = 0; begin < tiles; begin += team_lanes) {
    const i64 i = begin + lane;
    const u32 count = i < tiles ? of_row[i] : 0;
    u32 sum = count, all = count;
#pragma unroll
    for (int mask = 1; mask < team_lanes; mask *= 2) {
      const u32 other = from_lane(all, mask);
      if (lane & mask) sum += other;
      all += other;
    }
    if (i < tiles) of_row[i] = carry + sum - count;
    carry += all;
  }
  if (lane == 0) totals[row] = carry;
}

/// The same of a line of many tiles: a block for each digit.
TESSERA_KERNEL(256)
void sum_many_counts(u32* counts, u32* totals, i64 tiles) {
  u32* const of_row = counts + tile::block_in_grid() * tiles;
  const i64 each = tile::ceil_div<i64>(tiles, tile_threads), begin = tile::thread_in_block() * each,
            end = tile::min(begin + each, tiles);
  u32 sum = 0;
  for (i64 i = begin; i < end; ++i) sum += of_row[i];
  u32 before = sum_before(sum);
  for (i64 i = begin; i < end; ++i) {
    const u32 count = of_row[i];
    of_row[i] = before;
    before += count;
  }
  if (tile::thread_in_block() == tile_threads - 1) totals[tile::block_in_grid()] = before;
}

/// Brings a tile's items to their places: behind those of smaller digits, of tiles, warps and lanes before. They are
/// sorted within the tile first, so that neighbours write to neighbouring places.
template <class Key>
TESSERA_KERNEL(256)
void place_items(const Pass<Key> pass) {
  TESSERA_SHARED u32 begins[tile_teams][digits];  // in the tile
  TESSERA_SHARED u32 shifts[digits];              // from places in the tile to those in the line
  TESSERA_SHARED Key room[tile_items];
  const int thread = tile::thread_in_block(), lane = thread % team_lanes, team = thread / team_lanes;
  const i64 line = tile::block_in_grid() / pass.tiles, number = tile::block_in_grid() % pass.tiles;
  const i64 length = pass.length, first = number * tile_items + team * thread_items * team_lanes + lane;
  for (int t = 0; t < tile_teams; ++t) begins[t][thread] = 0;
  tile::sync_block();

  Key keys[thread_items];
  u32 before[thread_items];  // of the same digit in this warp
  tile::unroll<thread_items>([&](auto j) {
    const i64 i = first + j * team_lanes;
    keys[j] = i < length ? pass.keys[line * length + i] : Key(0);
  });
  tile::unroll<thread_items>([&](auto j) {
    const bool is_item = first + j * team_lanes < length;
    const int digit = pass.digit(keys[j]);
    u32 same = ballot(is_item);
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
      const u32 lanes = ballot(digit >> bit & 1);
      same &= digit >> bit & 1 ? lanes : ~lanes;
    }
    const u32 lower = count_of(same & ((1u << lane) - 1)), held = begins[team][digit];
    before[j] = held + lower;
    tile::sync_warp();
    if (is_item && lower == 0) begins[team][digit] = held + count_of(same);
    tile::sync_warp();
  });
  tile::sync_block();

  const i64 row = line * digits + thread;
  u32 count = 0;
  for (int t = 0; t < tile_teams; ++t) count += begins[t][thread];
  u32 begin = sum_before(count);
  tile::sync_block();
  shifts[thread] = sum_before(pass.totals[row]) + pass.counts[row * pass.tiles + number] - begin;
  for (int t = 0; t < tile_teams; ++t) {
    count = begins[t][thread];
    begins[t][thread] = begin;
    begin += count;
  }
  tile::sync_block();

  tile::unroll<thread_items>([&](auto j) {
    if (first + j * team_lanes >= length) return;
    before[j] += begins[team][pass.digit(keys[j])];
    room[before[j]] = keys[j];
  });
  tile::sync_block();
  const int items = static_cast<int>(tile::min<i64>(tile_items, length - number * tile_items));
  u32 to[thread_items];
  tile::unroll<thread_items>([&](auto j) {
    const int i = j * tile_threads + thread;
    if (i >= items) return;
    const Key key = room[i];
    to[j] = static_cast<u32>(i) + shifts[pass.digit(key)];
    pass.keys_out[line * length + to[j]] = key;
  });
  if (!pass.indices_out) return;
  tile::sync_block();
  u32* const indices = reinterpret_cast<u32*>(room);
  tile::unroll<thread_items>([&](auto j) {
    const i64 i = first + j * team_lanes;
    if (i < length) indices[before[j]] = pass.indices ? pass.indices[line * length + i] : static_cast<u32>(i);
  });
  tile::sync_block();
  tile::unroll<thread_items>([&](auto j) {
    const int i = j * tile_threads + thread;
    if (i < items) pass.indices_out[line * length + to[j]] = indices[i];
  });
}

/// The lowest bit of a key that may differ: the others follow from the sign.
int first_shift(Scalar type) {
  switch (type) {
    case Scalar::bf16:
      return 16;
    case Scalar::f16:
      return 8;
    default:
      return 0;
  }
}

/// Where the passes' items and counts lie in a workspace; null ones tell its size.
template <class Key>
struct Rooms {
  Key* keys[2];
  u32 *indices[2], *counts, *totals;
  i64 bytes = 0;

  Rooms(void* memory, i64 items, i64 lines, i64 tiles, bool has_indices) {
    const auto take = [&](auto*& room, i64 n) {
      room = memory ? reinterpret_cast<decltype(room + 0)>(static_cast<char*>(memory) + bytes) : nullptr;
      bytes += tile::ceil_div<i64>(n * static_cast<i64>(sizeof(*room)), 64) * 64;
    };
    for (auto& room : keys) take(room, items);
    for (auto& room : indices)
      if (has_indices) take(room, items);
      else room = nullptr;
    take(counts, lines * digits * tiles);
    take(totals, lines * digits);
  }
};

template <class Key>
Rooms<Key> rooms_of(const OrderedLines& lines, void* memory) {
  return {memory, lines.starts.total * lines.length, lines.starts.total, tile::ceil_div<i64>(lines.length, tile_items),
          has_indices(lines)};
}

template <class Key>
void launch_passes(const OrderedLines& lines, i64 k, bool largest, void* workspace, Executor& executor) {
  const Rooms<Key> rooms = rooms_of<Key>(lines, workspace);
  const i64 count = lines.starts.total, tiles = tile::ceil_div<i64>(lines.length, tile_items);
  launch("make_keys", make_keys<Key>, count * tiles, tile_threads, 0, executor, lines, largest, rooms.keys[0]);
  const u32* indices = nullptr;
  int from = 0;
  for (int shift = first_shift(lines.type[0]); shift < 8 * static_cast<int>(sizeof(Key)); shift += 8, from ^= 1) {
    const Pass<Key> pass{lines.length,        tiles,        shift,
                         rooms.keys[from],    indices,      rooms.keys[from ^ 1],
                         rooms.indices[from], rooms.counts, rooms.totals};
    launch("count_digits", count_digits<Key>, count * tiles, tile_threads, 0, executor, pass);
    if (tiles > tile_threads)
      launch("sum_counts", sum_many_counts, count * digits, tile_threads, 0, executor, pass.counts, pass.totals, tiles);
    else
      launch("sum_counts", sum_counts, tile::ceil_div<i64>(count * digits, tile_teams), tile_threads, 0, executor,
             pass.counts, pass.totals, count * digits, tiles);
    launch("place_items", place_items<Key>, count * tiles, tile_threads, 0, executor, pass);
    indices = pass.indices_out;
  }
  if (!has_indices(lines))
    return launch("store_results", store_keys<Key>, tile::ceil_div<i64>(count * k, tile_threads), tile_threads, 0,
                  executor, lines, k, static_cast<const Key*>(rooms.keys[from]));
  launch("store_results", store_results, tile::ceil_div<i64>(count * k, tile_threads), tile_threads, 0, executor, lines,
         k, indices);
}

bool is_sorted_at_once(const OrderedLines& lines) { return lines.length <= (has_narrow_keys(lines) ? 4096 : 2048); }

void sort_at_once(const OrderedLines& lines, i64 k, bool largest, Executor& executor) {
  if (has_narrow_keys(lines)) launch_short<u64>(lines, k, largest, executor);
  else launch_short<Item>(lines, k, largest, executor);
}

bool is_sorted_by_bytes(const OrderedLines& lines, i64 k) {
  constexpr i64 few = 128;  // are found in one walk
  const bool many_walk = lines.starts.total >= 16 || lines.length <= 65536;
  return lines.length < (i64{1} << 32) && (k > few || !many_walk);
}

i64 bytes_workspace(const OrderedLines& lines) {
  return has_narrow_keys(lines) ? rooms_of<u32>(lines, nullptr).bytes : rooms_of<u64>(lines, nullptr).bytes;
}

void sort_by_bytes(const OrderedLines& lines, i64 k, bool largest, void* workspace, Executor& executor) {
  if (has_narrow_keys(lines)) launch_passes<u32>(lines, k, largest, workspace, executor);
  else launch_passes<u64>(lines, k, largest, workspace, executor);
}

// ---- the k first in order

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
  OrderedLines lines;
  i64 k;
  bool largest;
  int size, kept;  // items sorted at a time, and how many of them are those found so far
};

/// A block for each line: sorts what it has found with the next elements, again and again. More than `kept` results
/// take more walks along the line, each of which finds those that come after the last.
TESSERA_KERNEL(512)
void topk_kernel(const TopkWork work) {
  __shared__ Item items[sorted_items];
  __shared__ Item last;
  const OrderedLines& lines = work.lines;
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
          item = {key_at<u64>(lines, at[0] + index * lines.step[0], work.largest), index};
          if (done > 0 && !before(last, item)) item = none;
        }
        items[item_place(i)] = item;
      }
      tile::sync_block();
      sort_items(items, work.size);
    }
    for (int i = thread; i < work.kept && done + i < work.k; i += 512)
      store_ordered(lines, at, done + i, items[item_place(i)].index);
    if (thread == 0) last = items[item_place(work.kept - 1)];
    tile::sync_block();
  }
}

}  // namespace

i64 topk_workspace(const TopkArgs& args) {
  const auto lines = lines_of<3>(args, {&args.in, &args.values, &args.indices});
  return !is_sorted_at_once(lines) && is_sorted_by_bytes(lines, args.k) ? bytes_workspace(lines) : 0;
}

void topk(const TopkArgs& args, Executor& executor) {
  if (args.k == 0) return;
  const auto lines = lines_of<3>(args, {&args.in, &args.values, &args.indices});
  if (is_sorted_at_once(lines)) return sort_at_once(lines, args.k, args.largest, executor);
  if (is_sorted_by_bytes(lines, args.k)) return sort_by_bytes(lines, args.k, args.largest, args.workspace, executor);
  TopkWork work{lines, args.k, args.largest, sorted_items, 1};
  while (work.kept < work.size / 2 && work.kept < work.k) work.kept *= 2;
  launch("topk", topk_kernel, work.lines.starts.total, 512, 0, executor, work);
}

}  // namespace tessera::gpu_kernels
