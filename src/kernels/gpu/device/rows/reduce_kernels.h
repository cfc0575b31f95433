// The kernels of reductions, for memory of one type or any; see reduce.h.
#pragma once
#include "reduce.h"
#include "row_kernels.h"

namespace tessera::gpu_kernels {
namespace {

/// Memory whose type is known at run time.
struct AnyType {};

/// What a thread folds, in `ways` lanes that do not wait for one another; of one result, or of one for each lane.
template <class Fold, int ways, int results>
struct Folder {
  typename Fold::Local local[ways];
  typename Fold::State state[results];
  int pending = 0;

  TESSERA_DEVICE Folder() {
    tile::unroll<ways>([&](auto j) { local[j] = Fold::start(); });
    tile::unroll<results>([&](auto j) { state[j] = Fold::begin(); });
  }
  TESSERA_DEVICE void fold(int j, typename Fold::Compute x, i64 index) { Fold::fold(local[j], x, index); }
  /// After every round of fold()s.
  TESSERA_DEVICE void next() {
    if (++pending == 128) flush();
  }
  TESSERA_DEVICE void flush() {
    tile::unroll<ways>([&](auto j) { Fold::flush(state[j % results], local[j]); });
    pending = 0;
  }
};

template <class Fold>
struct Join {
  using State = typename Fold::State;
  TESSERA_DEVICE State operator()(const State& a, const State& b) const { return Fold::join(a, b); }
};

/// Lanes next to each other, for short rows of which there are many.
template <int lanes>
struct PartOfWarp {
  static constexpr int most = lanes, threads = 256, rows = threads / lanes;
  static TESSERA_DEVICE i64 row() { return tile::block_in_grid() * rows + tile::thread_in_block() / lanes; }
  static TESSERA_DEVICE int rank() { return tile::thread_in_block() % lanes; }
  static constexpr TESSERA_HD int size() { return lanes; }
  template <class S, class Op>
  static TESSERA_DEVICE S join(S value, const Op& op) {
#pragma unroll
    for (int mask = 1; mask < lanes; mask *= 2) {
      const S other = tile::from_lane(value, mask);
      value = rank() & mask ? op(other, value) : op(value, other);
    }
    return value;
  }
};

/// What a group has of a slice of a result.
template <class Fold>
TESSERA_DEVICE void store_slice(const ReducePlan& plan, i64 slice, i64 at, const typename Fold::State& state) {
  if (plan.states) static_cast<typename Fold::State*>(plan.states)[slice] = state;
  else store_result<Fold>(plan, at, state);
}

/// A group for each slice of a result whose elements lie together: what folds make of a row that nobody holds.
template <class Fold, class M, class Group>
TESSERA_KERNEL(256, 3)
void reduce_rows(const ReducePlan plan) {
  constexpr int width = 16 / sizeof(M);
  const i64 units = plan.results.total * plan.slices;
  const bool exists = Group::row() < units;
  if (!exists && Group::most >= team_lanes) return;
  const i64 unit = exists ? Group::row() : units - 1, result = tile::quotient(unit, plan.slices);  // others join
  i64 base[2];
  plan.results.locate(result, 1, base);
  const i64 begin = (unit - result * plan.slices) * plan.slice_length, pitch = plan.pitch;
  const M* const from = static_cast<const M*>(plan.in) + base[0] + begin;
  BlockRows<Group, width, 0> rows(1, tile::min(plan.extent - begin, plan.slice_length), from, 0, nullptr, 0);
  auto x = rows.tile(Rows<const M>{from, 0});
  rows.load(x);
  Folder<Fold, width, 1> folder;
  rows.each(
      [&](auto, auto at, const auto& v) {
        const i64 first = begin + at.column, column = pitch > 0 ? first - tile::quotient(first, pitch) * pitch : 0;
        constexpr int count = at.width;
        const auto fold = [&](auto j) { folder.fold(j, v[j], first + j); };
        if (pitch == 0 || column + count <= plan.row) tile::unroll<count>(fold);
        else
          tile::unroll<count>([&](auto j) {
            const i64 c = column + j;
            if ((c < pitch ? c : c - pitch) < plan.row) fold(j);
          });
        folder.next();
      },
      x);
  folder.flush();
  const auto state = Group::join(folder.state[0], Join<Fold>{});
  if (exists && Group::rank() == 0) store_slice<Fold>(plan, unit, base[1], state);
}

/// The same of elements of any type that lie anyhow, by teams of plan.team threads, 32 or 256.
template <class Fold>
TESSERA_KERNEL(256)
void reduce_elements(const ReducePlan plan) {
  const int thread = tile::thread_in_block(), rank = thread % plan.team;
  const i64 unit = tile::block_in_grid() * (256 / plan.team) + thread / plan.team;
  const i64 result = tile::quotient(unit, plan.slices), begin = (unit - result * plan.slices) * plan.slice_length;
  if (result >= plan.results.total) return;
  i64 base[2], at[1];
  plan.results.locate(result, 1, base);
  Folder<Fold, 1, 1> folder;
  for (i64 i = begin + rank; i < tile::min(plan.elements.total, begin + plan.slice_length); i += plan.team) {
    plan.elements.locate(i, 1, at);
    folder.fold(0, load_as<typename Fold::Compute>(plan.in, plan.in_type, base[0] + at[0]), i);
    folder.next();
  }
  folder.flush();
  auto state = folder.state[0];
  state = plan.team == team_lanes ? join_lanes(state, Join<Fold>{}) : join_block<256>(state, Join<Fold>{});
  if (rank == 0) store_slice<Fold>(plan, unit, base[1], state);
}

/// Threads next to each other take results next to each other, `width` each; plan.ways threads share them.
template <class Fold, class M, int width>
TESSERA_KERNEL(256)
void reduce_columns(const ReducePlan plan) {
  using C = typename Fold::Compute;
  using State = typename Fold::State;
  __shared__ __attribute__((aligned(16))) State room[256];
  const int thread = tile::thread_in_block(), lanes = 256 / plan.ways, lane = thread % lanes, way = thread / lanes;
  const i64 group = tile::quotient(tile::block_in_grid(), plan.slices);
  const i64 slice = tile::block_in_grid() - group * plan.slices, pack = group * lanes + lane;
  const bool exists = pack * width < plan.results.total;
  i64 base[2] = {0, 0}, left = width;
  Folder<Fold, width, width> folder;
  if (exists) {
    left = plan.results.locate(pack, width, base);
    const i64 begin = slice * plan.slice_length;
    const i64 end = tile::min<i64>(plan.elements.total, begin + plan.slice_length);
    i64 i = begin + way, at[1];
    const auto fold = [&](i64 index, const auto& pack) {
      const Lanes<M, width, C> v(pack);
      tile::unroll<width>([&](auto j) { folder.fold(j, v[j], index); });
      folder.next();
    };
    if constexpr (width > 1) {
      constexpr int ahead = 8;
      for (; left >= width && i < end; i += ahead * plan.ways) {  // several packs under way, no branches between them
        Pack<M, width> part[ahead];
        tile::unroll<ahead>([&](auto u) {
          plan.elements.locate(tile::min(i + u * plan.ways, end - 1), 1, at);
          part[u] = *reinterpret_cast<const Pack<M, width>*>(static_cast<const M*>(plan.in) + base[0] + at[0]);
        });
        tile::unroll<ahead>([&](auto u) {
          if (i + u * plan.ways < end) fold(i + u * plan.ways, part[u]);
        });
      }
      for (; left < width && i < end; i += plan.ways) {
        plan.elements.locate(i, 1, at);
        fold(i, load_unit<M, width>(static_cast<const M*>(plan.in) + base[0] + at[0], false, left));
      }
    } else {
      for (; i < end; i += plan.ways) {
        plan.elements.locate(i, 1, at);
        folder.fold(0, load_as<C>(plan.in, plan.in_type, base[0] + at[0]), i);
        folder.next();
      }
    }
    folder.flush();
  }
  const i64 step = plan.results.rank > 0 ? plan.results.strides[1][plan.results.rank - 1] : 0;
  tile::unroll<width>([&](auto j) {
    State state = folder.state[j];
    if (plan.ways > 1) {
      room[thread] = state;
      tile::sync_block();
      for (int w = 1; way == 0 && w < plan.ways; ++w) state = Fold::join(state, room[w * lanes + lane]);
      tile::sync_block();
    }
    if (exists && way == 0 && j < left)
      store_slice<Fold>(plan, (pack * width + j) * plan.slices + slice, base[1] + j * step, state);
  });
}

/// Whether `width` neighbouring results can be loaded at once from every place of their elements; the last of a row may
/// be fewer.
template <class M>
bool takes_packs(const ReducePlan& plan, int width) {
  const auto& r = plan.results;
  if (r.rank == 0 || r.strides[0][r.rank - 1] != 1 || r.lengths[r.rank - 1] < width) return false;
  if (r.rank > 1 && r.lengths[r.rank - 1] % width != 0) return false;
  if (reinterpret_cast<size_t>(plan.in) % 16 != 0) return false;
  for (int d = 0; d + 1 < r.rank; ++d)
    if (r.strides[0][d] % width != 0) return false;
  for (int d = 0; d < plan.elements.rank; ++d)
    if (plan.elements.strides[0][d] % width != 0) return false;
  return true;
}

inline auto launcher(const ReducePlan& plan, Executor& executor) {
  return [&](void (*kernel)(const ReducePlan), i64 threads) {  // threads of a slice
    launch("reduce", kernel, tile::ceil_div<i64>(threads, 256) * plan.slices, 256, 0, executor, plan);
  };
}

/// From memory of type M, in packs; false where the fold or the memory does not take them.
template <class C, class M>
bool run_packed(const ReducePlan& plan, Executor& executor) {
  const auto& e = plan.elements;
  constexpr int width = 16 / sizeof(M);
  const bool packs = plan.columns ? takes_packs<M>(plan, width)
                                  : e.total >= 64 && (plan.pitch > 0 || (e.rank == 1 && e.strides[0][0] == 1));
  bool done = false;
  with_fold<C>(plan.op, [&](auto fold) {
    using Fold = typename decltype(fold)::type;
    if constexpr (Fold::takes_packs) {
      if (!packs || (Fold::takes_places && (plan.columns || plan.pitch > 0))) return;
      const auto go = launcher(plan, executor);
      constexpr int lanes = 2 * width;  // of which each has an end of a row that is no pack
      const bool short_rows = plan.team == team_lanes && plan.slices == 1 && e.total <= 64 * width;
      if (plan.columns) go(reduce_columns<Fold, M, width>, tile::ceil_div<i64>(plan.results.total, width) * plan.ways);
      else if (short_rows && plan.results.total >= 4096)
        go(reduce_rows<Fold, M, PartOfWarp<lanes>>, plan.results.total * lanes);
      else
        go(plan.team == team_lanes ? reduce_rows<Fold, M, Team<team_lanes>> : reduce_rows<Fold, M, Team<256>>,
           plan.results.total * plan.team);
      done = true;
    }
  });
  return done;
}

/// From memory of any type, element by element.
template <class C>
void run_reduce(const ReducePlan& plan, Executor& executor) {
  with_fold<C>(plan.op, [&](auto fold) {
    using Fold = typename decltype(fold)::type;
    const auto go = launcher(plan, executor);
    if (plan.columns) go(reduce_columns<Fold, AnyType, 1>, plan.results.total * plan.ways);
    else go(reduce_elements<Fold>, plan.results.total * plan.team);
  });
}

}  // namespace
}  // namespace tessera::gpu_kernels
