// The blocks of a cluster on the host: shared memory of each, and messages that count for barriers ("PTX ISA":
// mbarrier, mapa, st.async). A message arrives only once its receiver waits, so that a wait that is missing shows.
#pragma once
#include "simulated_gpu.h"

#include <map>

namespace simulated {

class Cluster {
 public:
  Cluster(int blocks, size_t shared_bytes) : shared_bytes_(shared_bytes), blocks_(blocks) {
    for (BlockMemory& b : blocks_) b.shared.assign(shared_bytes / 8 + 2 + kGuard, kPoison);
  }
  char* shared(int rank) { return reinterpret_cast<char*>(blocks_[static_cast<size_t>(rank)].shared.data()); }
  bool is_whole_outside() const {
    for (const BlockMemory& b : blocks_)
      for (size_t i = shared_bytes_ / 8 + 1; i < b.shared.size(); ++i)
        if (b.shared[i] != kPoison) return false;
    return true;
  }

  void init(int rank, unsigned barrier, int arrivals) {
    require(barrier % 8 == 0, "mbarrier: address is not aligned");
    blocks_[static_cast<size_t>(rank)].barriers[barrier] = {arrivals, arrivals, 0, 0, {}};
  }
  void expect(int rank, unsigned barrier, unsigned bytes) {
    Barrier& b = at(rank, barrier);
    b.bytes += bytes;
    --b.pending;
    b.settle();
  }
  void send(int rank, unsigned to, const float* x, int count, unsigned barrier) {
    require(to % (4 * static_cast<unsigned>(count)) == 0, "st.async: address is not aligned");
    Message m{to, {}};
    m.x.assign(x, x + count);
    at(rank, barrier).under_way.push_back(std::move(m));
  }
  void wait(int rank, unsigned barrier, unsigned parity) {
    while (static_cast<unsigned>(at(rank, barrier).phase & 1) == parity) {
      Barrier& b = at(rank, barrier);
      if (b.under_way.empty()) {
        hand_over();
        continue;
      }
      const Message m = std::move(b.under_way.front());
      b.under_way.pop_front();
      std::memcpy(shared(rank) + m.to, m.x.data(), 4 * m.x.size());
      b.bytes -= static_cast<long long>(4 * m.x.size());
      b.settle();
    }
  }

 private:
  static constexpr size_t kGuard = 8;
  static constexpr std::uint64_t kPoison = 0x7ff4dead7ff4dead;
  struct Message {
    unsigned to;
    std::vector<float> x;
  };
  struct Barrier {
    int arrivals, pending;
    long long bytes;
    int phase;
    std::deque<Message> under_way;
    void settle() {
      if (pending || bytes) return;
      ++phase;
      pending = arrivals;
    }
  };
  struct BlockMemory {
    std::vector<std::uint64_t> shared;
    std::map<unsigned, Barrier> barriers;
  };
  Barrier& at(int rank, unsigned barrier) { return blocks_[static_cast<size_t>(rank)].barriers.at(barrier); }

  size_t shared_bytes_;
  std::vector<BlockMemory> blocks_;
};
inline Cluster* cluster;

}  // namespace simulated

TESSERA_TILE_BEGIN
namespace sm90 {

inline u32 shared_address(const void* shared) {
  return static_cast<u32>(static_cast<const char*>(shared) - simulated::cluster->shared(simulated::block->rank()));
}
inline void mbarrier_init(u32 barrier, int arrivals) {
  simulated::cluster->init(simulated::block->rank(), barrier, arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  simulated::cluster->expect(simulated::block->rank(), barrier, bytes);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
  simulated::cluster->wait(simulated::block->rank(), barrier, parity);
}
inline void cluster_sync() {
  simulated::meet(simulated::block->cluster, static_cast<int>(simulated::block->threads.size()), [] {});
}
inline void wait_on_dependent_grids() {}
inline void send_float(u32 shared, float x, u32 barrier, u32 rank) {
  simulated::cluster->send(static_cast<int>(rank), shared, &x, 1, barrier);
}
inline void send_four(u32 shared, const float (&x)[4], u32 barrier, u32 rank) {
  simulated::cluster->send(static_cast<int>(rank), shared, x, 4, barrier);
}

}  // namespace sm90
TESSERA_TILE_END
