// Cross-entropy of long rows on Hopper: TMA streams them through a ring in shared memory that never drains,
// so that memory is busy, too, while a block adds up what its threads have of a row.
#pragma once
#include "kernels/gpu/device/runtime/fault.h"
#include "row_kernels.h"
#include "tile/arch/sm90/bulk.h"
#include "tile/arch/sm90/ring.h"

namespace tessera::gpu_kernels {

using tile::convert_element;

template <class T>
struct LossesWork {
  i64 rows, ignore_index;
  int classes;
  tile::Rows<const T> logits;
  const i64* targets;
  float *losses, *lse;
  Sums<float>* parts;  // of losses and targets that count, one for each block
  gpu::Fault* fault;
  const char* op;
};

/// A row is whole packs of 16 bytes, of which each thread takes `ahead` of a stage, and, one to a thread, the few
/// elements beside them. Stages begin at whole lines of memory. A warp more than `threads` asks for them. Small
/// blocks, `blocks` to a multiprocessor: most of them read while one joins what its threads have of a row.
template <class T>
class LossesByRing {
 public:
  static constexpr int threads = 128, blocks = 7, width = 16 / sizeof(T), ahead = 4, stages = 3, warps = threads / 32;
  static constexpr int stage_packs = ahead * threads;
  using Ring = tile::sm90::Ring<stages, stage_packs * 16, warps>;
  static constexpr int shared_bytes = Ring::bytes + Ring::barrier_bytes + 2 * warps * 8;

  TESSERA_DEVICE LossesByRing(const LossesWork<T>& work, char* shared)
      : work_(work),
        shared_(shared),
        ring_(tile::sm90::shared_address(shared), tile::sm90::shared_address(shared) + Ring::bytes) {}

  TESSERA_DEVICE void run() const {
    const int thread = tile::thread_in_block();
    if (thread == 0) {
      ring_.make();
      tile::sm90::fence_mbarrier_init();
    }
    tile::sync_block();
    if (thread < threads) take_rows();
    else if (thread == threads) fetch_rows();
  }

 private:
  using Packed = Pack<T, width>;
  using Sum = Exponents<float>;
  using State = typename Ring::State;

  struct Row {
    const T* data;
    int n, head, packs;  // elements, those before the first whole pack, and whole packs
    int lead;            // packs of the first one's line of memory that lie before it

    TESSERA_DEVICE Row(const LossesWork<T>& work, i64 r)
        : data(work.logits[r]),
          n(work.classes),
          head(-static_cast<int>(reinterpret_cast<size_t>(data) / sizeof(T)) & (width - 1)),
          packs((n - head) / width),
          lead(static_cast<int>(reinterpret_cast<size_t>(data + head) / 16 % 8)) {}
    /// A thread's element beside whole packs, or -1.
    TESSERA_DEVICE int edge(int thread) const {
      if (thread < width) return thread < head ? thread : -1;
      const int i = head + packs * width + thread - width;
      return thread < 2 * width && i < n ? i : -1;
    }
  };
  /// What a thread asks for before it takes the row before: its element beside packs; the first one, the target.
  struct Known {
    i64 target;
    Pack<T, 1> edge, wanted;
    bool has_edge, valid;
  };

  TESSERA_DEVICE void fetch_rows() const {
    State state;
    for (i64 r = tile::block_in_grid(); r < work_.rows; r += gridDim.x) {
      const Row row(work_, r);
      for (int p = -row.lead; p < row.packs; p += stage_packs, state.next()) {
        const int first = tile::max(p, 0);
        const u32 bytes = static_cast<u32>(tile::min(p + stage_packs, row.packs) - first) * 16;
        const u32 barrier = ring_.producer_acquire(state, bytes);
        tile::sm90::bulk_load(ring_.at(state) + (first - p) * 16, row.data + row.head + first * width, bytes, barrier);
      }
    }
  }

  TESSERA_DEVICE i64 target(i64 r) const {
    return tile::thread_in_block() == 0 && r < work_.rows ? work_.targets[r] : 0;
  }
  TESSERA_DEVICE Known know(i64 r, i64 target) const {
    Known known{};
    if (r >= work_.rows) return known;
    const Row row(work_, r);
    const int edge = row.edge(tile::thread_in_block());
    known.has_edge = edge >= 0;
    if (edge >= 0) known.edge.lane[0] = row.data[edge];
    if (tile::thread_in_block() == 0) {
      known.target = target;
      known.valid = known.target >= 0 && known.target < row.n;
      if (known.valid) known.wanted.lane[0] = row.data[known.target];
    }
    return known;
  }

  TESSERA_DEVICE void take_rows() const {
    const int thread = tile::thread_in_block();
    State state;
    Sums<float> part{0.0f, 0.0f};
    int parity = 0;
    const i64 first = tile::block_in_grid(), step = gridDim.x;
    Known known = know(first, target(first));
    i64 next_target = target(first + step);
    for (i64 r = first; r < work_.rows; r += step, parity ^= 1) {
      const Known next = know(r + step, next_target);
      next_target = target(r + 2 * step);
      Sum sum = Sum::start();
      const Row row(work_, r);
      int left = row.lead + row.packs, lead = row.lead;
      for (; left > 0; left -= stage_packs, lead = 0, state.next()) {
        const Packed* const from = reinterpret_cast<const Packed*>(shared_) + state.stage * stage_packs + thread;
        ring_.consumer_wait(state);
        if (left >= stage_packs) {
          Packed x[ahead];
          tile::unroll<ahead>([&](auto k) { x[k] = from[k * threads]; });
          ring_.consumer_release(state);
          if (thread < lead) tile::unroll<width>([&](auto j) { x[0].lane[j] = convert_element<T>(-__builtin_inff()); });
          add(sum, x);
        } else {
          for (int p = thread; p < left; p += threads)
            if (p >= lead) add(sum, {from[p - thread]});
          ring_.consumer_release(state);
        }
      }
      if (known.has_edge) add(sum, {known.edge});
      join(sum, parity);
      if (thread == 0) part = part + finish(r, known, sum);
      known = next;
    }
    if (thread == 0) work_.parts[tile::block_in_grid()] = part;
  }

  template <class P, int count>
  static TESSERA_DEVICE void add(Sum& sum, const P (&x)[count]) {
    constexpr float per_ln2 = 1.44269504f;
    float top = largest_of(x[0]), more[2] = {};
    tile::unroll<count - 1>([&](auto k) { top = larger(top, largest_of(x[k + 1])); });
    if (top > sum.largest) sum.move_to(top);
    const float by = -sum.shift() * per_ln2;
    tile::unroll<count>([&](auto k) {
      const auto v = lanes(x[k]);
      tile::unroll<sizeof(v) / 4>([&](auto j) { more[j % 2] += tile::fast_exp2(tile::fma(v[j], per_ln2, by)); });
    });
    sum.sum += more[0] + more[1];
  }

  /// The block's, in its first warp, by way of one of two rooms in turns.
  TESSERA_DEVICE void join(Sum& sum, int parity) const {
    Sum* const room = reinterpret_cast<Sum*>(shared_ + Ring::bytes + Ring::barrier_bytes) + parity * warps;
    const int thread = tile::thread_in_block();
    const auto join_warp = [&] {
      sum.move_to(join_lanes(sum.largest, Larger{}));
      sum.sum = join_lanes(sum.sum, Plus{});
    };
    join_warp();
    if (thread % 32 == 0) room[thread / 32] = sum;
    tile::sm90::named_barrier_sync(1, threads);
    if (thread >= 32) return;
    sum = thread < warps ? room[thread] : Sum::start();
    join_warp();
  }

  TESSERA_DEVICE Sums<float> finish(i64 r, const Known& known, const Sum& sum) const {
    const bool counts = known.target != work_.ignore_index;
    const float lse = sum.shift() + tile::log(sum.sum);
    float loss = 0;
    if (known.valid && counts) loss = lse - convert_element<float>(known.wanted.lane[0]);
    else if (counts) raise(work_.fault, work_.op, known.target, work_.classes);
    work_.lse[r] = lse;
    work_.losses[r] = loss;
    return {loss, counts ? 1.0f : 0.0f};
  }

  const LossesWork<T>& work_;
  char* shared_;
  Ring ring_;
};

}  // namespace tessera::gpu_kernels
