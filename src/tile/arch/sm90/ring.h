// Rings of stages in shared memory between TMA and those who read.
#pragma once
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A place in a ring of Stages, and how often it has gone round.
template <int Stages>
struct PipelineState {
  int stage = 0;
  u32 parity = 0;
  TESSERA_DEVICE void next() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  TESSERA_DEVICE void skip(int steps) {
    const u32 to = static_cast<u32>(stage + steps);
    parity ^= to / Stages % 2;
    stage = static_cast<int>(to % Stages);
  }
};

/// How many lanes of a warp say that it has read or written a stage. TESSERA_RACECHECK: all, since compute-sanitizer's
/// racecheck takes an arrival for what that lane has done, and not for what its warp had before sync_warp.
#if defined(TESSERA_RACECHECK)
constexpr u32 speaking_lanes = 32;
#else
constexpr u32 speaking_lanes = 1;
#endif

/// Stages in shared memory, emptied by `Consumers` warps and filled by TMA, of which one thread says so, and
/// by other writers; each has two barriers.
template <int Stages, int Bytes, int Consumers, int Producers = 1>
class Ring {
 public:
  static constexpr int bytes = Stages * Bytes, barrier_bytes = 16 * Stages;
  using State = PipelineState<Stages>;
  TESSERA_DEVICE Ring(u32 data, u32 barriers) : data_(data), barriers_(barriers) {}
  TESSERA_DEVICE void make() const {
    for (int stage = 0; stage < Stages; ++stage) {
      mbarrier_init(full_barrier(stage), Producers);
      mbarrier_init(empty_barrier(stage), Consumers * speaking_lanes);
    }
  }
  TESSERA_DEVICE u32 at(const State& state) const { return data_ + state.stage * Bytes; }
  /// The barrier that copies of so many bytes to this stage count for, once it is free.
  TESSERA_DEVICE u32 producer_acquire(const State& state, u32 copied = Bytes) const {
    producer_wait(state);
    mbarrier_arrive_expect_tx(full_barrier(state.stage), copied);
    return full_barrier(state.stage);
  }
  TESSERA_DEVICE void producer_wait(const State& state) const {
    mbarrier_wait(empty_barrier(state.stage), state.parity ^ 1);
  }
  /// A writer other than TMA is done.
  TESSERA_DEVICE void producer_commit(const State& state) const { mbarrier_arrive(full_barrier(state.stage)); }
  /// By all lanes of a warp that have written; each warp is `speaking_lanes` of the Producers.
  TESSERA_DEVICE void producer_commit_by_warp(const State& state) const {
    sync_warp();
    if (thread_in_block() % 32 < speaking_lanes) producer_commit(state);
  }
  TESSERA_DEVICE void consumer_wait(const State& state) const {
    mbarrier_wait(full_barrier(state.stage), state.parity);
  }
  /// By all lanes of a warp, whose first one speaks for what all have read.
  TESSERA_DEVICE void consumer_release(const State& state) const {
    sync_warp();
    if (thread_in_block() % 32 < speaking_lanes) mbarrier_arrive(empty_barrier(state.stage));
  }
  /// By a lane that reads without the others of its warp.
  TESSERA_DEVICE void consumer_release_by_lane(const State& state) const {
    mbarrier_arrive(empty_barrier(state.stage), speaking_lanes);
  }

 private:
  TESSERA_DEVICE u32 full_barrier(int stage) const { return barriers_ + stage * 16; }
  TESSERA_DEVICE u32 empty_barrier(int stage) const { return full_barrier(stage) + 8; }
  u32 data_, barriers_;
};

/// Called by all threads of a block of Warpgroups and one more: makes the barriers of `rings`. Then the warpgroups have
/// Many registers a thread and call compute(warp), the warps of the last one have Few and call beside(0) to beside(3).
template <int Warpgroups, int Few, int Many, class Beside, class Compute, class... Rings>
TESSERA_DEVICE void split_block(const Beside& beside, const Compute& compute, const Rings&... rings) {
  const int warp = from_first_lane(thread_in_block() / 32);
  if (thread_in_block() == 0) {
    (rings.make(), ...);
    fence_mbarrier_init();
  }
  sync_block();
  if (warp >= 4 * Warpgroups) {
    setmaxnreg_dec<Few>();
    beside(warp - 4 * Warpgroups);
  } else {
    setmaxnreg_inc<Many>();
    compute(warp);
  }
}

}  // namespace sm90
TESSERA_TILE_END
