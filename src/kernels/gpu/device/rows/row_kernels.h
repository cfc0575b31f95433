// Kernels of rows held by warps and blocks, and how many threads hold how much. A kernel is a structure whose
// run(rows) says what becomes of rows, see tile/arch/gpu/row_tile.h; it is the kernel's argument, too.
#pragma once
#include "rows.h"
#include "tile/arch/gpu/block_rows.h"

namespace tessera::gpu_kernels {

using tile::apart, tile::BlockRows, tile::Turns;

template <class T>
tile::Rows<T> rows_of(const RowArg& arg) {
  return {static_cast<T*>(arg.data), arg.pitch};
}

/// How rows of several operands lie within 16 bytes.
struct RowLayout {
  bool alike = true;    // equal positions in the same place of a pack
  bool aligned = true;  // each row begins a pack

  template <class... Row>
  RowLayout(int element_bytes, const RowArg& first, const Row&... more) {
    add(element_bytes, first, first);
    (add(element_bytes, first, more), ...);
  }

 private:
  static size_t phase(const void* p) { return reinterpret_cast<size_t>(p) % 16; }
  void add(int bytes, const RowArg& first, const RowArg& row) {
    if (!row.data) return;
    aligned &= phase(row.data) == 0 && row.pitch * bytes % 16 == 0;
    alike &= phase(row.data) == phase(first.data) && (row.pitch - first.pitch) * bytes % 16 == 0;
  }
};

/// The shared memory that a block may have on this device.
i64 most_shared_bytes();

/// How a kernel's blocks hold their rows.
struct RowsHeld {
  int threads;     // of a block
  int kept = 0;    // packs of a thread, of each row, in shared memory
  i64 shared = 0;  // bytes
};

/// fn(Group, Int<width>, Int<held>, RowsHeld) as it fits `count` rows of n elements of type T, which kernels read more
/// than once or, unless `again`, only once: warps, or blocks of up to `most` threads, that hold them in registers, 32
/// elements of each row a thread; or blocks of `streams` threads that stream them. Rows of f64, which are rare, come
/// element by element, which spares kernels; those that do not lie alike are streamed by warps or by blocks.
template <class T, int count, bool again, int most, int streams, class Fn>
void with_rows(i64 n, const RowLayout& layout, const Fn& fn) {
  constexpr int width = 16 / sizeof(T), held = 32 / width;
  using tile::Int;
  if constexpr (sizeof(T) == 8) {
    fn(Team<512>{}, Int<1>{}, Int<0>{}, RowsHeld{512});
  } else {
    const i64 packs = n / width, threads = tile::ceil_div<i64>(packs, held);
    const auto stream = [&](auto team, auto how) {
      RowsHeld rows{team.threads};
      constexpr i64 bytes = team.threads * 16 * count;
      if (again)
        rows.kept = static_cast<int>(
            tile::min(tile::ceil_div<i64>(packs + 8, team.threads), (most_shared_bytes() - 1024) / bytes));
      rows.shared = rows.kept * bytes;
      fn(team, Int<width>{}, how, rows);
    };
    if (!layout.alike && n <= 1024)  // of which a block would have more threads than packs
      return fn(Team<team_lanes>{}, Int<width>{}, Int<apart>{}, RowsHeld{Team<team_lanes>::threads});
    if (!layout.alike || n > 0x7fffffff - 1024 * width) return stream(Team<512>{}, Int<apart>{});
    if (packs <= team_lanes)  // whose warps are many, and take turns with few registers
      return fn(Team<team_lanes>{}, Int<width>{}, Int<1>{}, RowsHeld{Team<team_lanes>::threads});
    if (threads <= team_lanes)
      return fn(Team<team_lanes>{}, Int<width>{}, Int<held>{}, RowsHeld{Team<team_lanes>::threads});
    if constexpr (most > team_lanes)
      if (threads <= most)
        return fn(tile::BlockOf<most>{}, Int<width>{}, Int<held>{},
                  RowsHeld{static_cast<int>(tile::round_up<i64>(threads, team_lanes))});
    stream(Team<streams>{}, Int<0>{});
  }
}

template <class Work, class Group, int width, int held, Turns turns>
TESSERA_KERNEL(Group::threads, tile::max(1, 65536 / Work::registers / Group::threads))
void row_kernel(const Work work, int kept) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  BlockRows<Group, width, held, turns> rows(work.count, work.n, work.to[Group::row()], kept, shared);
  work.run(rows);
}

/// The same of rows of whole packs that take turns; registers must suffice for so many blocks.
template <class Work, class Group, int width, int held, Turns turns, int resident>
TESSERA_KERNEL(Group::threads, resident)
void turns_kernel(const Work work) {
  BlockRows<Group, width, held, turns> rows(work.count, work.n, nullptr);
  work.run(rows);
}

/// Launches a group for each row, with `count` operands of type T that are read twice.
template <class T, int count, int most, int streams, class Work>
void launch_rows(const char* what, const RowLayout& layout, const Work& work, Executor& executor) {
  with_rows<T, count, true, most, streams>(
      work.n, layout, [&](auto group, auto width, auto held, const RowsHeld& rows) {
        using Group = decltype(group);
        const auto kernel = row_kernel<Work, Group, width, held, Turns::one>;
        if (rows.shared > 0)  // more than kernels get unasked
          (void)TESSERA_RT(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                             TESSERA_RT(FuncAttributeMaxDynamicSharedMemorySize),
                                             static_cast<int>(rows.shared));
        launch(what, kernel, Group::blocks(work.count), rows.threads, static_cast<size_t>(rows.shared), executor, work,
               rows.kept);
      });
}

}  // namespace tessera::gpu_kernels
