// Writing to computed places, in an order that is the same each time; and the places of what is not zero.
#include "kernels/args/gpu/indexing.h"
#include "kernels/gpu/device/elementwise/by_size.h"
#include "kernels/gpu/device/elementwise/loops.h"
#include "kernels/gpu/device/runtime/ballot.h"
#include "kernels/gpu/device/runtime/fault.h"
#include "tile/arch/gpu/group.h"

namespace tessera::gpu_kernels {
namespace {

// ---- combining: a line is one thread's, so that it happens in order

struct ScatterWork {
  Nest<3> nest;  // out, index, source
  void* out;
  const void* source;
  Places places;
  i64 length, out_step, index_step, source_step;
  bool lines_lie_close;  // closer than the elements of one
};

struct Sum {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return a + b;
  }
};
struct Product {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return a * b;
  }
};
// NaN stays.
struct Largest {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return b > a || b != b ? b : a;
  }
};
struct Smallest {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return b < a || b != b ? b : a;
  }
};

template <class T, class Combine>
TESSERA_KERNEL(128)
void scatter_kernel(const ScatterWork work, const Combine combine) {
  using C = tile::compute_t<T>;
  for (i64 line = first_index(); line < work.nest.total; line += index_step()) {
    i64 at[3];
    work.nest.locate(line, 1, at);
    T* const to = static_cast<T*>(work.out) + at[0];
    const T* const from = static_cast<const T*>(work.source) + at[2];
    for (i64 i = 0; i < work.length; ++i) {
      const i64 place = work.places.at(at[1] + i * work.index_step);
      if (place < 0) continue;
      T& held = to[place * work.out_step];
      held = tile::convert_element<T>(
          combine(tile::convert_element<C>(held), tile::convert_element<C>(from[i * work.source_step])));
    }
  }
}

/// A line is a warp's, as many elements at a time as it has threads. Of those that come to one place the first takes
/// the others, always in one order.
template <class T, class Combine>
TESSERA_KERNEL(128)
void scatter_long_lines(const ScatterWork work, const Combine combine) {
  using C = tile::compute_t<T>;
  constexpr int lanes = 32;
  const int lane = static_cast<int>(first_index() % lanes);
  for (i64 line = first_index() / lanes; line < work.nest.total; line += index_step() / lanes) {
    i64 at[3];
    work.nest.locate(line, 1, at);
    T* const to = static_cast<T*>(work.out) + at[0];
    const T* const from = static_cast<const T*>(work.source) + at[2];
    for (i64 first = 0; first < work.length; first += lanes) {
      const i64 i = first + lane;
      const bool inside = i < work.length;
      const i64 place = inside ? work.places.at(at[1] + i * work.index_step) : -1;
      const C mine = inside ? tile::convert_element<C>(from[i * work.source_step]) : C(0);
      C held = place < 0 ? C(0) : tile::convert_element<C>(to[place * work.out_step]);
      bool is_first = true;
      held = combine(held, mine);
      for (int mask = 1; mask < lanes; ++mask) {
        const i64 other = tile::from_lane_xor(place, mask);
        const C value = tile::from_lane_xor(mine, mask);
        if (other != place) continue;
        is_first = is_first && (lane ^ mask) > lane;
        held = combine(held, value);
      }
      if (is_first && place >= 0) to[place * work.out_step] = tile::convert_element<T>(held);
      tile::sync_warp();
    }
  }
}

/// In any order, of which sums of integers do not depend.
template <class T>
TESSERA_KERNEL(256)
void add_elements(const ScatterWork work) {
  const i64 inner = work.lines_lie_close ? work.nest.total : work.length;
  for (i64 i = first_index(); i < work.nest.total * work.length; i += index_step()) {
    const i64 outer = tile::quotient(i, inner), rest = i - outer * inner;
    const i64 line = work.lines_lie_close ? rest : outer, along = work.lines_lie_close ? outer : rest;
    i64 at[3];
    work.nest.locate(line, 1, at);
    const i64 place = work.places.at(at[1] + along * work.index_step);
    if (place >= 0)
      atomicAdd(static_cast<T*>(work.out) + at[0] + place * work.out_step,
                static_cast<const T*>(work.source)[at[2] + along * work.source_step]);
  }
}

/// None where sums depend on their order, which matters.
auto sum_in_any_order(const ScatterArgs& args) -> void (*)(ScatterWork) {
  if (args.combine != ScatterCombine::sum) return nullptr;
  switch (args.out.type) {
    case Scalar::i32:
      return add_elements<u32>;
    case Scalar::i64:
      return add_elements<unsigned long long>;
    case Scalar::f32:
      return args.in_any_order ? add_elements<float> : nullptr;
    case Scalar::f64:
      return args.in_any_order ? add_elements<double> : nullptr;
    default:
      return nullptr;
  }
}

/// Whether the source's neighbours in memory are of neighbouring lines, as where rows are added to rows.
bool have_close_lines(const ScatterArgs& args) {
  for (int d = args.rank; d-- > 0;)
    if (args.lengths[d] > 1) return args.source.strides[d] > 0 && args.source.strides[d] < args.source_step;
  return false;
}

template <class Combine>
void scatter_by(const ScatterArgs& args, Executor& executor) {
  const ScatterWork work{make_nest<3>(args.rank, args.lengths, {&args.out, &args.index, &args.source}),
                         args.out.data,
                         args.source.data,
                         Places(args.index, args.bound, args.op, executor),
                         args.length,
                         args.out_step,
                         args.index_step,
                         args.source_step,
                         have_close_lines(args)};
  if (const auto add = sum_in_any_order(args))
    return launch("scatter", add, grid_for(work.nest.total * work.length, 256, executor), 256, 0, executor, work);
  const bool is_long = args.length >= 32 && work.nest.total < 2048 * i64{executor.multiprocessors};
  with_any(args.out.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (sizeof(tile::compute_t<T>) >= 4)
      if (is_long)
        return launch("scatter", scatter_long_lines<T, Combine>, grid_for(work.nest.total * 32, 128, executor, 16), 128,
                      0, executor, work, Combine());
    launch("scatter", scatter_kernel<T, Combine>, grid_for(work.nest.total, 128, executor, 16), 128, 0, executor, work,
           Combine());
  });
}

void scatter(const ScatterArgs& args, Executor& executor) {
  switch (args.combine) {
    case ScatterCombine::sum:
      return scatter_by<Sum>(args, executor);
    case ScatterCombine::product:
      return scatter_by<Product>(args, executor);
    case ScatterCombine::largest:
      return scatter_by<Largest>(args, executor);
    default:
      return scatter_by<Smallest>(args, executor);
  }
}

// ---- overwriting: the last element that comes to a place is found first, and alone writes

struct OverwriteWork {
  Nest<4> nest;  // out, its last writers, index, source
  void* out;
  const void* source;
  u64* writers;
  Places places;
  i64 out_step, writer_step;
};

TESSERA_KERNEL(256)
void clear_writers(u64* writers, i64 count) {
  for (i64 i = first_index(); i < count; i += index_step()) writers[i] = 0;
}

TESSERA_KERNEL(256)
void find_writers(const OverwriteWork work) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[4];
    work.nest.locate(i, 1, at);
    const i64 place = work.places.at(at[2]);
    if (place >= 0)
      atomicMax(reinterpret_cast<unsigned long long*>(work.writers + at[1] + place * work.writer_step),
                static_cast<unsigned long long>(i + 1));
  }
}

template <class T>
TESSERA_KERNEL(256)
void overwrite_kernel(const OverwriteWork work) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[4];
    work.nest.locate(i, 1, at);
    const i64 place = work.places.at(at[2]);
    if (place >= 0 && (!work.writers || work.writers[at[1] + place * work.writer_step] == static_cast<u64>(i + 1)))
      static_cast<T*>(work.out)[at[0] + place * work.out_step] = static_cast<const T*>(work.source)[at[3]];
  }
}

void overwrite(const OverwriteArgs& args, Executor& executor) {
  const OverwriteWork work{make_nest<4>(args.rank, args.lengths, {&args.out, &args.writers, &args.index, &args.source}),
                           args.out.data,
                           args.source.data,
                           static_cast<u64*>(args.writers.data),
                           Places(args.index, args.bound, args.op, executor),
                           args.out_step,
                           args.writer_step};
  const auto grid = grid_for(work.nest.total, 256, executor);
  if (work.writers) {
    launch("scatter", clear_writers, grid_for(args.count, 256, executor), 256, 0, executor, work.writers, args.count);
    launch("scatter", find_writers, grid, 256, 0, executor, work);
  }
  with_size(args.out.type, [&](auto type) {
    launch("scatter", overwrite_kernel<typename decltype(type)::type>, grid, 256, 0, executor, work);
  });
}

}  // namespace

const ScatterTable* device_scatter_table() {
  static const ScatterTable table{scatter, overwrite};
  return &table;
}

}  // namespace tessera::gpu_kernels

// ---- nonzero, in row-major order: tiles count theirs, the counts are added up, and each tile writes from where those
// before it end

namespace tessera::gpu_kernels {
namespace {

using tile::team_lanes;
constexpr int threads = 256, per_thread = nonzero_tile / threads;

struct Elements {
  Nest<1> nest;
  const void* data;
  u64 value_bits;        // of an element: all but the sign of a float
  bool dense, has_rows;  // has_rows: of two dims, counted in 32 bits
  tile::Inverse by_columns;

  template <class W>
  TESSERA_DEVICE bool is_nonzero(i64 i) const {
    if (i >= nest.total) return false;
    i64 at[1] = {i};
    if (has_rows) {
      const i64 row = by_columns(static_cast<int>(i));
      at[0] = row * nest.strides[0][0] + (i - row * nest.lengths[1]) * nest.strides[0][1];
    } else if (!dense) {
      nest.locate(i, 1, at);
    }
    return (static_cast<const W*>(data)[at[0]] & static_cast<W>(value_bits)) != 0;
  }
  /// Bit j: whether the thread's j-th element is not zero. Neighbours are those of neighbouring threads.
  template <class W>
  TESSERA_DEVICE u32 mask_of(int thread, i64 tile) const {
    u32 mask = 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j)
      mask |= static_cast<u32>(is_nonzero<W>(tile * nonzero_tile + j * threads + thread)) << j;
    return mask;
  }
};

TESSERA_DEVICE int ones(u32 mask) {
  int count = 0;
  for (int j = 0; j < per_thread; ++j) count += static_cast<int>(mask >> j & 1);
  return count;
}

template <class W>
TESSERA_KERNEL(threads)
void count_tiles(const Elements x, i64* counts) {
  __shared__ int count;
  const int thread = tile::thread_in_block();
  if (thread == 0) count = 0;
  tile::sync_block();
  if (const u32 mask = x.mask_of<W>(thread, tile::block_in_grid())) atomicAdd(&count, ones(mask));
  tile::sync_block();
  if (thread == 0) counts[tile::block_in_grid()] = count;
}

struct Coordinates {
  i64* data;
  i64 row, column;  // strides
  int rank;
  i64 lengths[max_rank];
  bool is_short;  // all is counted in 32 bits
  tile::Inverse inverses[max_rank];

  TESSERA_DEVICE void write(i64 at, i64 index) const {
    for (int d = rank - 1; d > 0; --d) {
      const i64 rest = is_short ? inverses[d](static_cast<int>(index)) : index / lengths[d];
      data[at * row + d * column] = index - rest * lengths[d];
      index = rest;
    }
    if (rank > 0) data[at * row] = index;
  }
};

/// `ends`: how many there are up to the end of each tile. No more than `most` are written.
template <class W>
TESSERA_KERNEL(threads)
void write_places(const Elements x, const i64* ends, i64 most, const Coordinates places) {
  constexpr int teams = threads / team_lanes, rows = per_thread * teams;
  __shared__ int upto[rows];  // of the tile's rows of `team_lanes` elements: what is in them and those before
  const int thread = tile::thread_in_block(), lane = thread % team_lanes, team = thread / team_lanes;
  const i64 tile = tile::block_in_grid();
  const u32 mask = x.mask_of<W>(thread, tile);
  u32 row[per_thread];
#pragma unroll
  for (int j = 0; j < per_thread; ++j) {
    row[j] = ballot(mask >> j & 1);
    if (lane == 0) upto[j * teams + team] = static_cast<int>(count_of(row[j]));
  }
  for (int reach = 1; reach < rows; reach *= 2) {
    tile::sync_block();
    const int earlier = thread >= reach && thread < rows ? upto[thread - reach] : 0;
    tile::sync_block();
    if (thread < rows) upto[thread] += earlier;
  }
  tile::sync_block();
  const i64 first = tile > 0 ? ends[tile - 1] : 0;
#pragma unroll
  for (int j = 0; j < per_thread; ++j) {
    const int which = j * teams + team, before = which > 0 ? upto[which - 1] : 0;
    const i64 at = first + before + count_of(row[j] & ((1u << lane) - 1));
    if (mask >> j & 1 && at < most) places.write(at, tile * nonzero_tile + j * threads + thread);
  }
}

Elements elements_of(const NonzeroArgs& args) {
  Elements x{make_nest<1>(args.rank, args.lengths, {&args.x}), args.x.data, ~u64{0}, false, false, {}};
  if (args.x.type >= Scalar::f16) x.value_bits >>= 65 - 8 * size_of(args.x.type);
  x.dense = x.nest.rank == 0 || (x.nest.rank == 1 && x.nest.strides[0][0] == 1);
  x.has_rows = x.nest.rank == 2 && x.nest.total < i64{1} << 30;
  if (x.has_rows) x.by_columns = tile::Inverse::of(x.nest.lengths[1]);
  return x;
}

void count(const NonzeroArgs& args, Executor& executor) {
  with_size(args.x.type, [&](auto type) {
    launch("nonzero", count_tiles<typename decltype(type)::type>, args.tiles, threads, 0, executor, elements_of(args),
           args.counts);
  });
}
void write(const NonzeroArgs& args, Executor& executor) {
  Coordinates places{args.out, args.out_row, args.out_column, args.rank, {}, true, {}};
  const Elements x = elements_of(args);
  places.is_short = x.nest.total < i64{1} << 30;
  for (int d = 0; d < args.rank; ++d) {
    places.lengths[d] = args.lengths[d];
    if (places.is_short) places.inverses[d] = tile::Inverse::of(args.lengths[d]);
  }
  with_size(args.x.type, [&](auto type) {
    launch("nonzero", write_places<typename decltype(type)::type>, args.tiles, threads, 0, executor, x,
           static_cast<const i64*>(args.counts), static_cast<i64>(args.most), places);
  });
}

}  // namespace

const NonzeroTable* device_nonzero_table() {
  static const NonzeroTable table{count, write};
  return &table;
}

}  // namespace tessera::gpu_kernels
