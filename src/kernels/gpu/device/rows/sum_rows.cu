// Sums of rows that an index names, as the backward of an embedding needs them: the indices are sorted by row, stably,
// so that each row is summed in one order, whatever the threads do.
#include "kernels/args/gpu/indexing.h"
#include "kernels/gpu/device/runtime/fault.h"
#include "rows.h"
#include "tile/arch/gpu/shared_line.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256, digits = 256, digit_bits = 8;  // threads: also the entries of a tile
static_assert(threads == digits);

struct Entry {
  i64 row, position;
};

struct SortMemory {
  Entry* entries[2];
  i64* counts;  // [digits][tiles]
  i64* totals;  // [digits]
  i64* starts;  // [rows + 1]
  i64 tiles;
};

SortMemory lay_out(void* workspace, i64 count, i64 rows, i64* bytes = nullptr) {
  SortMemory m;
  m.tiles = tile::ceil_div<i64>(count, threads);
  m.entries[0] = static_cast<Entry*>(workspace);
  m.entries[1] = m.entries[0] + count;
  m.counts = reinterpret_cast<i64*>(m.entries[1] + count);
  m.totals = m.counts + digits * m.tiles;
  m.starts = m.totals + digits;
  if (bytes) *bytes = count * 2 * static_cast<i64>(sizeof(Entry)) + (digits * (m.tiles + 1) + rows + 1) * 8;
  return m;
}

/// Indices out of range become a row behind the last.
TESSERA_KERNEL(256)
void list_rows(const Nest<1> nest, const Places places, Entry* entries) {
  for (i64 i = first_index(); i < nest.total; i += index_step()) {
    i64 at[1];
    nest.locate(i, 1, at);
    const i64 row = places.at(at[0]);
    entries[i] = {row < 0 ? places.bound : row, i};
  }
}

TESSERA_DEVICE int digit_of(const Entry& e, int shift) { return static_cast<int>(e.row >> shift & (digits - 1)); }

/// How often each digit occurs in each tile.
TESSERA_KERNEL(threads)
void count_digits(const Entry* entries, i64 count, int shift, i64 tiles, i64* counts) {
  __shared__ int seen[digits];
  const int thread = tile::thread_in_block();
  const i64 tile = tile::block_in_grid(), i = tile * threads + thread;
  seen[thread] = 0;
  tile::sync_block();
  if (i < count) atomicAdd(&seen[digit_of(entries[i], shift)], 1);
  tile::sync_block();
  counts[thread * tiles + tile] = seen[thread];
}

/// The sum of the values of a team's lanes before this one, to which theirs together are added.
TESSERA_DEVICE i64 sum_before(i64 value, i64& together) {
  const int lane = tile::thread_in_block() % team_lanes;
  i64 before = 0;
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) {
    const i64 other = from_lane(value, mask);
    before += lane & mask ? other : 0;
    value += other;
  }
  together += value;
  return before;
}

/// Each count becomes the sum of its digit's in the tiles before; a team takes a digit.
TESSERA_KERNEL(threads)
void sum_counts(i64* counts, i64 tiles, i64* totals) {
  const i64 digit = Team<team_lanes>::row(), lane = tile::thread_in_block() % team_lanes;
  i64 total = 0;
  for (i64 first = 0; first < tiles; first += team_lanes) {
    const i64 tile = first + lane, here = tile < tiles ? counts[digit * tiles + tile] : 0, earlier = total;
    const i64 before = sum_before(here, total);
    if (tile < tiles) counts[digit * tiles + tile] = earlier + before;
  }
  if (lane == 0) totals[digit] = total;
}

/// Moves the entries of a tile behind those of lower digits and of earlier tiles, in their order.
TESSERA_KERNEL(threads)
void place_entries(const Entry* from, i64 count, int shift, i64 tiles, const i64* counts, const i64* totals,
                   Entry* to) {
  __shared__ int digit[threads];
  __shared__ i64 begin[digits], of_team[digits / team_lanes];
  const int thread = tile::thread_in_block();
  const i64 tile = tile::block_in_grid(), i = tile * threads + thread;
  const Entry entry = i < count ? from[i] : Entry{0, 0};
  digit[thread] = i < count ? digit_of(entry, shift) : -1;
  i64 together = 0;
  const i64 before = sum_before(totals[thread], together);
  if (thread % team_lanes == 0) of_team[thread / team_lanes] = together;
  tile::sync_block();
  i64 place = counts[thread * tiles + tile] + before;
  for (int t = 0; t < thread / team_lanes; ++t) place += of_team[t];
  begin[thread] = place;
  tile::sync_block();
  if (i >= count) return;
  const int mine = digit[thread];
  int equal = 0;
  for (int k = 0; k < threads; ++k) equal += k < thread && digit[k] == mine;
  to[begin[mine] + equal] = entry;
}

/// Where each row's entries begin, by bisection.
TESSERA_KERNEL(256)
void find_starts(const Entry* entries, i64 count, i64 rows, i64* starts) {
  for (i64 row = first_index(); row <= rows; row += index_step()) {
    i64 low = 0, high = count;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (entries[middle].row < row) low = middle + 1;
      else high = middle;
    }
    starts[row] = low;
  }
}

struct SumWork {
  Nest<1> nest;  // of the rows that are added
  const void* x;
  void* out;
  i64 step, rows, width, count, out_row, out_step;
  bool adds;
  const Entry* entries;
  const i64* starts;
};

constexpr int lanes = 32, groups = threads / lanes, long_threads = 1024, long_groups = long_threads / lanes;
constexpr int chunk = 8;        // entries that are looked through together for those that are the first of a row
constexpr int most_short = 32;  // a row of so many is a group's, a longer one a block's

/// The sum of a row's entries, or of every `ways`-th from `first` on, in columns from `column` on.
template <class T, int W, int ahead, class Sum>
TESSERA_DEVICE void add_entries(const SumWork& work, i64 first, i64 end, int ways, i64 column, Sum (&sum)[W]) {
  using C = tile::compute_t<T>;
#pragma unroll ahead
  for (i64 k = first; k < end; k += ways) {
    i64 at[1];
    work.nest.locate(work.entries[k].position, 1, at);
    const auto in = *reinterpret_cast<const Pack<T, W>*>(static_cast<const T*>(work.x) + at[0] + column * work.step);
    for (int j = 0; j < W; ++j) sum[j] += tile::convert_element<C>(in.lane[j]);
  }
}
template <class T, int W, class Sum>
TESSERA_DEVICE void store_sum(const SumWork& work, i64 row, i64 column, const Sum (&sum)[W]) {
  auto* to = reinterpret_cast<Pack<T, W>*>(static_cast<T*>(work.out) + row * work.out_row + column * work.out_step);
  Pack<T, W> out = *to;  // zeros where nothing is added to
  for (int j = 0; j < W; ++j)
    out.lane[j] = tile::convert_element<T>(tile::convert_element<tile::compute_t<T>>(out.lane[j]) + sum[j]);
  *to = out;
}

template <class T, int W>
TESSERA_KERNEL(threads)
void clear_rows(const SumWork work) {
  Pack<T, W> none;
  for (int j = 0; j < W; ++j) none.lane[j] = tile::convert_element<T>(tile::compute_t<T>(0));
  const i64 packs = work.width / W;
  for (i64 i = first_index(); i < work.rows * packs; i += index_step()) {
    const i64 row = tile::quotient(i, packs), column = (i - row * packs) * W;
    T* const to = static_cast<T*>(work.out) + row * work.out_row + column * work.out_step;
    *reinterpret_cast<Pack<T, W>*>(to) = none;
  }
}

/// Columns in vectors of W, `lanes` of them a group, which adds up the short rows that begin in a chunk.
template <class T, int W>
TESSERA_KERNEL(threads)
void sum_short_rows(const SumWork work) {
  using Sum = tile::compute_t<T>;
  const i64 strips = tile::ceil_div<i64>(work.width, lanes * W);
  const i64 item = tile::block_in_grid() * groups + tile::thread_in_block() / lanes, part = item / strips;
  const i64 column = ((item - part * strips) * lanes + tile::thread_in_block() % lanes) * W;
  if (column >= work.width) return;
  const Entry* const entries = work.entries;
  const auto* const starts = work.starts;
  const i64 count = work.count, rows = work.rows;
  int begin = 0;  // bits of those entries at which short rows do; all are asked for at once
  tile::unroll<chunk>([&](auto i) {
    const i64 k = part * chunk + i, row = k < count ? entries[k].row : rows;
    const bool there = row < rows;
    const i64 first = there ? starts[row] : -1, end = there ? starts[row + 1] : 0;
    begin |= (first == k && end - k <= most_short) << i;
  });
  for (int i = 0; i < chunk; ++i) {
    if (!(begin >> i & 1)) continue;
    const i64 k = part * chunk + i, row = work.entries[k].row;
    Sum sum[W];
    for (int j = 0; j < W; ++j) sum[j] = Sum(0);
    add_entries<T, W, 4>(work, k, work.starts[row + 1], 1, column, sum);
    store_sum<T, W>(work, row, column, sum);
  }
}

/// The long row that begins among `most_short` entries, if there is one: each group takes every 32nd entry.
template <class T, int W>
TESSERA_KERNEL(long_threads)
void sum_long_rows(const SumWork work) {
  using Sum = tile::compute_t<T>;
  __shared__ __attribute__((aligned(16))) Sum parts[long_groups][lanes * W];
  const int group = tile::thread_in_block() / lanes, lane = tile::thread_in_block() % lanes;
  const i64 strips = tile::ceil_div<i64>(work.width, lanes * W), part = tile::block_in_grid() / strips;
  const i64 row = work.entries[tile::min<i64>(work.count, (part + 1) * most_short) - 1].row;
  if (row >= work.rows) return;
  const i64 begin = work.starts[row], end = work.starts[row + 1];
  if (begin < part * most_short || end - begin <= most_short) return;
  const i64 column = ((tile::block_in_grid() - part * strips) * lanes + lane) * W;
  const bool inside = column < work.width;
  Sum sum[W];
  for (int j = 0; j < W; ++j) sum[j] = Sum(0);
  if (inside) add_entries<T, W, 8>(work, begin + group, end, long_groups, column, sum);
  using Line = tile::SharedLine<Sum, W>;
  Line::store(parts[group], lane * W, sum);
  tile::sync_block();
  if (group > 0 || !inside) return;
#pragma unroll 4
  for (int g = 1; g < long_groups; ++g) {
    Sum part[W];
    Line::load(parts[g], lane * W, part);
    for (int j = 0; j < W; ++j) sum[j] += part[j];
  }
  store_sum<T, W>(work, row, column, sum);
}

template <class T, int W>
void launch_sum(const SumWork& work, Executor& executor) {
  const i64 strips = tile::ceil_div<i64>(work.width, lanes * W);
  const char* const op = "embedding_backward";
  if (!work.adds)
    launch(op, clear_rows<T, W>, grid_for(work.rows * work.width / W, threads, executor), threads, 0, executor, work);
  launch(op, sum_short_rows<T, W>, tile::ceil_div<i64>(tile::ceil_div<i64>(work.count, chunk) * strips, groups),
         threads, 0, executor, work);
  launch(op, sum_long_rows<T, W>, tile::ceil_div<i64>(work.count, most_short) * strips, long_threads, 0, executor,
         work);
}

/// Whether rows can be read and written four elements at a time.
bool takes_vectors(const SumWork& work, int bytes) {
  if (work.step != 1 || work.out_step != 1 || work.width % 4 != 0 || work.out_row % 4 != 0) return false;
  for (const void* p : {work.x, static_cast<const void*>(work.out)})
    if (reinterpret_cast<size_t>(p) % (4 * bytes) != 0) return false;
  for (int d = 0; d < work.nest.rank; ++d)
    if (work.nest.strides[0][d] % 4 != 0) return false;
  return true;
}

/// The entries sorted by row, in which of the two lists they are.
const Entry* sort_entries(const SortMemory& m, i64 count, i64 rows, Executor& executor) {
  int from = 0;
  for (int shift = 0; shift < 64 && rows >> shift > 0; shift += digit_bits, from ^= 1) {
    launch("embedding_backward", count_digits, m.tiles, threads, 0, executor, m.entries[from], count, shift, m.tiles,
           m.counts);
    launch("embedding_backward", sum_counts, digits * team_lanes / threads, threads, 0, executor, m.counts, m.tiles,
           m.totals);
    launch("embedding_backward", place_entries, m.tiles, threads, 0, executor, m.entries[from], count, shift, m.tiles,
           m.counts, m.totals, m.entries[1 - from]);
  }
  return m.entries[from];
}

}  // namespace

long long sum_rows_bytes(long long count, long long rows) {
  i64 bytes;
  lay_out(nullptr, count, rows, &bytes);
  return bytes;
}

void sum_rows(const SumRowsArgs& args, Executor& executor) {
  const SortMemory m = lay_out(args.workspace, args.count, args.rows);
  const auto indices = make_nest<1>(args.rank, args.lengths, {&args.index});
  launch("embedding_backward", list_rows, grid_for(args.count, 256, executor), 256, 0, executor, indices,
         Places(args.index, args.rows, args.op, executor), m.entries[0]);
  const Entry* sorted = sort_entries(m, args.count, args.rows, executor);
  launch("embedding_backward", find_starts, grid_for(args.rows + 1, 256, executor), 256, 0, executor, sorted,
         args.count, args.rows, m.starts);
  const SumWork work{make_nest<1>(args.rank, args.lengths, {&args.x}),
                     args.x.data,
                     args.out,
                     args.step,
                     args.rows,
                     args.width,
                     args.count,
                     args.out_row,
                     args.out_step,
                     args.adds,
                     sorted,
                     m.starts};
  with_float(args.x.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (takes_vectors(work, sizeof(T))) return launch_sum<T, 4>(work, executor);
    launch_sum<T, 1>(work, executor);
  });
}

}  // namespace tessera::gpu_kernels
