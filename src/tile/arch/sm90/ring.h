// Rings of stages in shared memory between TMA and those who read.
#pragma once
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// A place in a ring of Stages, and how often it has gone round.
template <int Stages>
struct RingTurn {
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

/// Stages in shared memory, emptied by `Readers` warps and filled by TMA, of which one thread says so, and
/// by other writers; each has two barriers.
template <int Stages, int Bytes, int Readers, int Writers = 1>
class Ring {
 public:
  static constexpr int bytes = Stages * Bytes, barrier_bytes = 16 * Stages;
  using Turn = RingTurn<Stages>;
  TESSERA_DEVICE Ring(u32 data, u32 barriers) : data_(data), barriers_(barriers) {}
  TESSERA_DEVICE void make() const {
    for (int stage = 0; stage < Stages; ++stage) {
      mbarrier_init(filled(stage), Writers);
      mbarrier_init(emptied(stage), Readers * speaking_lanes);
    }
  }
  TESSERA_DEVICE u32 at(const Turn& turn) const { return data_ + turn.stage * Bytes; }
  /// The barrier that copies of so many bytes to this stage count for, once it is free.
  TESSERA_DEVICE u32 claim(const Turn& turn, u32 copied = Bytes) const {
    wait_empty(turn);
    mbarrier_arrive_expect_tx(filled(turn.stage), copied);
    return filled(turn.stage);
  }
  TESSERA_DEVICE void wait_empty(const Turn& turn) const { mbarrier_wait(emptied(turn.stage), turn.parity ^ 1); }
  /// A writer other than TMA is done.
  TESSERA_DEVICE void fill(const Turn& turn) const { mbarrier_arrive(filled(turn.stage)); }
  /// By all lanes of a warp that have written; each warp is `speaking_lanes` of the Writers.
  TESSERA_DEVICE void fill_by_warp(const Turn& turn) const {
    sync_warp();
    if (thread_in_block() % 32 < speaking_lanes) fill(turn);
  }
  TESSERA_DEVICE void wait(const Turn& turn) const { mbarrier_wait(filled(turn.stage), turn.parity); }
  /// By all lanes of a warp, whose first one speaks for what all have read.
  TESSERA_DEVICE void release(const Turn& turn) const {
    sync_warp();
    if (thread_in_block() % 32 < speaking_lanes) mbarrier_arrive(emptied(turn.stage));
  }
  /// By a lane that reads without the others of its warp.
  TESSERA_DEVICE void release_alone(const Turn& turn) const { mbarrier_arrive(emptied(turn.stage), speaking_lanes); }

 private:
  TESSERA_DEVICE u32 filled(int stage) const { return barriers_ + stage * 16; }
  TESSERA_DEVICE u32 emptied(int stage) const { return filled(stage) + 8; }
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
