// Sums of rows that an index names, as the backward of an embedding needs them: the indices are sorted by row, stably,
// so that each row is summed in one order, whatever the threads do.
#include "fault.h"
#include "kernels/gpu/indexing.h"
#include "loops.h"
#include "tile/arch/gpu/shared_line.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256, digits = 256, digit_bits = 8, per_tile = 1024;
static_assert(threads == digits);

struct Entry {
  i64 row, position;
};

struct SortMemory {
  Entry* entries[2];
  i64* counts;  // [digits][tiles]
  i64* starts;  // [rows + 1]
  i64 tiles;
};

SortMemory lay_out(void* workspace, i64 count, i64 rows, i64* bytes = nullptr) {
  SortMemory m;
  m.tiles = tile::ceil_div<i64>(count, per_tile);
  m.entries[0] = static_cast<Entry*>(workspace);
  m.entries[1] = m.entries[0] + count;
  m.counts = reinterpret_cast<i64*>(m.entries[1] + count);
  m.starts = m.counts + digits * m.tiles;
  if (bytes) *bytes = count * 2 * static_cast<i64>(sizeof(Entry)) + (digits * m.tiles + rows + 1) * 8;
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
  const i64 tile = tile::block_in_grid(), end = tile::min(count, (tile + 1) * per_tile);
  seen[thread] = 0;
  tile::sync_block();
  for (i64 i = tile * per_tile + thread; i < end; i += threads) atomicAdd(&seen[digit_of(entries[i], shift)], 1);
  tile::sync_block();
  counts[thread * tiles + tile] = seen[thread];
}

/// Each count becomes the sum of those before it; one block.
TESSERA_KERNEL(1024)
void sum_counts(i64* counts, i64 n) {
  __shared__ i64 sums[1024];
  const int thread = tile::thread_in_block();
  const i64 part = tile::ceil_div<i64>(n, 1024), begin = tile::min(n, thread * part), end = tile::min(n, begin + part);
  i64 sum = 0;
  for (i64 i = begin; i < end; ++i) sum += counts[i];
  sums[thread] = sum;
  tile::sync_block();
  for (int step = 1; step < 1024; step *= 2) {
    const i64 before = thread >= step ? sums[thread - step] : 0;
    tile::sync_block();
    sums[thread] += before;
    tile::sync_block();
  }
  i64 before = sums[thread] - sum;
  for (i64 i = begin; i < end; ++i) {
    const i64 here = counts[i];
    counts[i] = before;
    before += here;
  }
}

/// Moves the entries of a tile behind those of lower digits and of earlier tiles, in their order.
TESSERA_KERNEL(threads)
void place_entries(const Entry* from, i64 count, int shift, i64 tiles, const i64* counts, Entry* to) {
  __shared__ i64 next[digits];
  __shared__ int digit[threads];
  const int thread = tile::thread_in_block();
  const i64 tile = tile::block_in_grid();
  next[thread] = counts[thread * tiles + tile];
  for (int part = 0; part < per_tile; part += threads) {
    const i64 i = tile * per_tile + part + thread;
    const Entry entry = i < count ? from[i] : Entry{0, 0};
    const int mine = i < count ? digit_of(entry, shift) : -1;
    tile::sync_block();
    digit[thread] = mine;
    tile::sync_block();
    int before = 0, after = 0;
    for (int k = 0; k < threads; ++k) {
      before += k < thread && digit[k] == mine;
      after += k > thread && digit[k] == mine;
    }
    if (mine >= 0) to[next[mine] + before] = entry;
    tile::sync_block();
    if (mine >= 0 && after == 0) next[mine] += before + 1;
  }
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

constexpr int lanes = 32, groups = threads / lanes;
constexpr i64 chunk = 8;        // entries that are looked through together for those that are the first of a row
constexpr i64 most_short = 32;  // a row of so many is a group's, a longer one a block's

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
  for (i64 k = part * chunk; k < tile::min<i64>(work.count, (part + 1) * chunk); ++k) {
    const i64 row = work.entries[k].row;
    if (row >= work.rows || work.starts[row] != k) continue;
    const i64 end = work.starts[row + 1];
    if (end - k > most_short) continue;
    Sum sum[W];
    for (int j = 0; j < W; ++j) sum[j] = Sum(0);
    add_entries<T, W, 4>(work, k, end, 1, column, sum);
    store_sum<T, W>(work, row, column, sum);
  }
}

/// The long row that begins in a chunk, if there is one: each group takes every eighth entry.
template <class T, int W>
TESSERA_KERNEL(threads)
void sum_long_rows(const SumWork work) {
  using Sum = tile::compute_t<T>;
  __shared__ __attribute__((aligned(16))) Sum parts[groups][lanes * W];
  const int group = tile::thread_in_block() / lanes, lane = tile::thread_in_block() % lanes;
  const i64 strips = tile::ceil_div<i64>(work.width, lanes * W), part = tile::block_in_grid() / strips;
  const i64 row = work.entries[tile::min<i64>(work.count, (part + 1) * chunk) - 1].row;
  if (row >= work.rows) return;
  const i64 begin = work.starts[row], end = work.starts[row + 1];
  if (begin < part * chunk || end - begin <= most_short) return;
  const i64 column = ((tile::block_in_grid() - part * strips) * lanes + lane) * W;
  const bool inside = column < work.width;
  Sum sum[W];
  for (int j = 0; j < W; ++j) sum[j] = Sum(0);
  if (inside) add_entries<T, W, 8>(work, begin + group, end, groups, column, sum);
  using Line = tile::SharedLine<Sum, W>;
  Line::store(parts[group], lane * W, sum);
  tile::sync_block();
  if (group > 0 || !inside) return;
  for (int g = 1; g < groups; ++g) {
    Sum part[W];
    Line::load(parts[g], lane * W, part);
    for (int j = 0; j < W; ++j) sum[j] += part[j];
  }
  store_sum<T, W>(work, row, column, sum);
}

template <class T, int W>
void launch_sum(const SumWork& work, Executor& executor) {
  const i64 items = tile::ceil_div<i64>(work.count, chunk) * tile::ceil_div<i64>(work.width, lanes * W);
  const char* const op = "embedding_backward";
  if (!work.adds)
    launch(op, clear_rows<T, W>, grid_for(work.rows * work.width / W, threads, executor), threads, 0, executor, work);
  launch(op, sum_short_rows<T, W>, tile::ceil_div<i64>(items, groups), threads, 0, executor, work);
  launch(op, sum_long_rows<T, W>, items, threads, 0, executor, work);
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
    launch("embedding_backward", sum_counts, 1, 1024, 0, executor, m.counts, digits * m.tiles);
    launch("embedding_backward", place_entries, m.tiles, threads, 0, executor, m.entries[from], count, shift, m.tiles,
           m.counts, m.entries[1 - from]);
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
