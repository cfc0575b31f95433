// Where elements are not zero, in row-major order: tiles count theirs, the counts are added up, and each tile writes
// from where those before it end.
#include "kernels/args/gpu/indexing.h"
#include "kernels/gpu/device/elementwise/loops.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256, per_thread = nonzero_tile / threads;

struct Elements {
  Nest<1> nest;
  const void* data;
  Scalar type;

  TESSERA_DEVICE bool is_nonzero(i64 i) const {
    if (i >= nest.total) return false;
    i64 at[1];
    nest.locate(i, 1, at);
    if (type >= Scalar::f16) return load_as<double>(data, type, at[0]) != 0;
    return load_as<i64>(data, type, at[0]) != 0;
  }
  /// Bit j: whether the thread's j-th element is not zero.
  TESSERA_DEVICE u32 mask_of(int thread, i64 tile) const {
    u32 mask = 0;
    for (int j = 0; j < per_thread; ++j)
      mask |= static_cast<u32>(is_nonzero(tile * nonzero_tile + thread * per_thread + j)) << j;
    return mask;
  }
};

TESSERA_DEVICE int ones(u32 mask) {
  int count = 0;
  for (int j = 0; j < per_thread; ++j) count += static_cast<int>(mask >> j & 1);
  return count;
}

TESSERA_KERNEL(threads)
void count_tiles(const Elements x, i64* counts) {
  __shared__ int count;
  const int thread = tile::thread_in_block();
  if (thread == 0) count = 0;
  tile::sync_block();
  if (const u32 mask = x.mask_of(thread, tile::block_in_grid())) atomicAdd(&count, ones(mask));
  tile::sync_block();
  if (thread == 0) counts[tile::block_in_grid()] = count;
}

struct Coordinates {
  i64* data;
  i64 row, column;  // strides
  int rank;
  i64 lengths[max_rank];

  TESSERA_DEVICE void write(i64 at, i64 index) const {
    for (int d = rank - 1; d >= 0; --d) {
      data[at * row + d * column] = index % lengths[d];
      index /= lengths[d];
    }
  }
};

/// `ends`: how many there are up to the end of each tile. No more than `most` are written.
TESSERA_KERNEL(threads)
void write_places(const Elements x, const i64* ends, i64 most, const Coordinates places) {
  __shared__ int before[2][threads];
  const int thread = tile::thread_in_block();
  const i64 tile = tile::block_in_grid();
  const u32 mask = x.mask_of(thread, tile);
  before[0][thread] = ones(mask);
  int from = 0;
  for (int reach = 1; reach < threads; reach *= 2, from = 1 - from) {  // running sums
    tile::sync_block();
    before[1 - from][thread] = before[from][thread] + (thread >= reach ? before[from][thread - reach] : 0);
  }
  tile::sync_block();
  i64 at = (tile > 0 ? ends[tile - 1] : 0) + before[from][thread] - ones(mask);
  for (int j = 0; j < per_thread; ++j)
    if (mask >> j & 1 && at < most) places.write(at++, tile * nonzero_tile + thread * per_thread + j);
}

Elements elements_of(const NonzeroArgs& args) {
  return {make_nest<1>(args.rank, args.lengths, {&args.x}), args.x.data, args.x.type};
}

void count(const NonzeroArgs& args, Executor& executor) {
  launch("nonzero", count_tiles, args.tiles, threads, 0, executor, elements_of(args), args.counts);
}
void write(const NonzeroArgs& args, Executor& executor) {
  Coordinates places{args.out, args.out_row, args.out_column, args.rank, {}};
  for (int d = 0; d < args.rank; ++d) places.lengths[d] = args.lengths[d];
  launch("nonzero", write_places, args.tiles, threads, 0, executor, elements_of(args),
         static_cast<const i64*>(args.counts), static_cast<i64>(args.most), places);
}

}  // namespace

const NonzeroTable* device_nonzero_table() {
  static const NonzeroTable table{count, write};
  return &table;
}

}  // namespace tessera::gpu_kernels
