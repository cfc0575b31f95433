// Blocks of a card on the host, for tests of device code: threads are coroutines that hand over to each other at
// barriers and at instructions of a whole warp or wave, which compute what the manuals say ("PTX ISA": cp.async,
// ldmatrix, mma; "Instinct MI200 ISA": v_mfma). Copies take place no earlier than their wait, so that one that is
// missing shows.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tile/matrix_layout.h"
#include "tile/types.h"

#define TESSERA_DEVICE inline
#define TESSERA_KERNEL(...) inline
#define __shared__ static  // one block runs at a time

struct Dimensions {
  unsigned x;
};
inline Dimensions blockDim, gridDim;
#define TESSERA_SHARED static  // blocks run one after the other

struct uint4 {
  unsigned x, y, z, w;
};

// Address sanitizers lose track of stacks that change hands.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool can_simulate = false;
#else
inline constexpr bool can_simulate = true;
#endif

namespace simulated {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "simulated GPU: %s\n", what);
  std::abort();
}
inline bool is_aligned(const void* p, int bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

struct Copy {
  void* to;
  const void* from;
  int bytes, count;  // written, read
  void run() const {
    if (count) std::memcpy(to, from, count);
    std::memset(static_cast<char*>(to) + count, 0, bytes - count);
  }
};

struct Thread {
  ucontext_t context;
  bool done = false;
  std::vector<Copy> open;                // cp.async since the last commit
  std::deque<std::vector<Copy>> groups;  // not waited for
};

/// The threads that meet at a barrier or an instruction.
struct Meeting {
  int arrived = 0, rounds = 0;
  void* arguments[64];
};

struct Block {
  long long index;
  std::function<void()> body;
  std::vector<Thread> threads;
  std::vector<Meeting> warps, waves;  // of 32 threads on NVIDIA's cards, of 64 on AMD's
  Meeting barrier;
  int current = 0;
  ucontext_t caller;
};
inline Block* block;
inline int blocks_in_grid = 1;

/// Goes on with the next thread that is not done; back to the caller after the last.
inline void hand_over() {
  Block& b = *block;
  const int from = b.current, count = static_cast<int>(b.threads.size());
  for (int i = 1; i <= count; ++i) {
    const int next = (from + i) % count;
    if (b.threads[next].done) continue;
    require(next != from, "a thread waits and all others have ended");
    b.current = next;
    swapcontext(&b.threads[from].context, &b.threads[next].context);
    return;
  }
  swapcontext(&b.threads[from].context, &b.caller);
}

inline void run_thread() {
  block->body();
  Thread& self = block->threads[block->current];
  for (auto& group : self.groups)
    for (const Copy& copy : group) copy.run();
  for (const Copy& copy : self.open) copy.run();
  self.done = true;
  hand_over();
}

/// Runs `body` as every thread of a block.
inline void run_block(long long index, int threads, const std::function<void()>& body) {
  Block b{index,
          body,
          std::vector<Thread>(threads),
          std::vector<Meeting>(threads / 32),
          std::vector<Meeting>(threads / 64),
          {},
          0,
          {}};
  block = &b;
  constexpr size_t stack_bytes = 256 << 10;
  static std::vector<std::unique_ptr<char[]>> stacks;  // of every block
  while (static_cast<int>(stacks.size()) < threads) stacks.emplace_back(new char[stack_bytes]);
  for (size_t i = 0; i < b.threads.size(); ++i) {
    Thread& t = b.threads[i];
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = stacks[i].get();
    t.context.uc_stack.ss_size = stack_bytes;
    makecontext(&t.context, run_thread, 0);
  }
  swapcontext(&b.caller, &b.threads[0].context);
}

/// Waits until `count` threads have come; the last one runs op.
template <class Op>
void meet(Meeting& meeting, int count, const Op& op) {
  const int round = meeting.rounds;
  if (++meeting.arrived == count) {
    meeting.arrived = 0;
    ++meeting.rounds;
    op();
  } else {
    while (meeting.rounds == round) hand_over();
  }
}

/// One instruction of this warp of Lanes: op(arguments of its lanes).
template <int Lanes = 32, class Argument, class Op>
void warp_instruction(Argument& argument, const Op& op) {
  Meeting& warp = (Lanes == 64 ? block->waves : block->warps)[block->current / Lanes];
  warp.arguments[block->current % Lanes] = &argument;
  meet(warp, Lanes, [&] {
    Argument* lanes[Lanes];
    for (int l = 0; l < Lanes; ++l) lanes[l] = static_cast<Argument*>(warp.arguments[l]);
    op(lanes);
  });
}

}  // namespace simulated

TESSERA_TILE_BEGIN

inline int thread_in_block() { return simulated::block->current; }
inline i64 block_in_grid() { return simulated::block->index; }
inline int threads_in_block() { return static_cast<int>(simulated::block->threads.size()); }
inline int blocks_in_grid() { return simulated::blocks_in_grid; }
inline void sync_block() {
  simulated::meet(simulated::block->barrier, static_cast<int>(simulated::block->threads.size()), [] {});
}
inline void sync_warp() {
  int nothing = 0;
  simulated::warp_instruction(nothing, [](int**) {});
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_log2(float x) { return std::log2(x); }

template <class T>
T from_lane_xor(T x, int mask) {
  struct Lane {
    T given, taken;
    int mask;
  } self{x, 0, mask};
  const auto exchange = [](Lane** lanes, int count) {
    for (int l = 0; l < count; ++l) lanes[l]->taken = lanes[l ^ lanes[l]->mask]->given;
  };
  if (mask < 32) simulated::warp_instruction(self, [&](Lane** lanes) { exchange(lanes, 32); });
  else simulated::warp_instruction<64>(self, [&](Lane** lanes) { exchange(lanes, 64); });
  return self.taken;
}

namespace sm80 {

template <int Bytes>
void copy_async(void* shared, const void* global, bool valid) {
  simulated::require(simulated::is_aligned(shared, Bytes) && (!valid || simulated::is_aligned(global, Bytes)),
                     "cp.async: address is not aligned");
  simulated::block->threads[simulated::block->current].open.push_back({shared, global, Bytes, valid ? Bytes : 0});
}
inline void commit_copies() {
  simulated::Thread& self = simulated::block->threads[simulated::block->current];
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}
template <int N>
void wait_copies() {
  auto& groups = simulated::block->threads[simulated::block->current].groups;
  for (; static_cast<int>(groups.size()) > N; groups.pop_front())
    for (const simulated::Copy& copy : groups.front()) copy.run();
}

template <bool Transposed>
void load_matrices(u32 (&r)[4], const void* row) {
  struct Lane {
    u32* r;
    const u16* row;
  } self{r, static_cast<const u16*>(row)};
  simulated::require(simulated::is_aligned(row, 16), "ldmatrix: address is not aligned");
  simulated::warp_instruction(self, [](Lane** lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      int banks = 0;  // of 16 bytes
      for (int l = 0; l < 8; ++l) banks |= 1 << reinterpret_cast<std::uintptr_t>(lanes[matrix * 8 + l]->row) / 16 % 8;
      simulated::require(banks == 255, "ldmatrix: rows meet in a bank");
      for (int l = 0; l < 32; ++l) {
        const auto element = [&](int i, int j) {
          return static_cast<u32>(Transposed ? lanes[matrix * 8 + j]->row[i] : lanes[matrix * 8 + i]->row[j]);
        };
        lanes[l]->r[matrix] = element(l / 4, l % 4 * 2) | element(l / 4, l % 4 * 2 + 1) << 16;
      }
    }
  });
}

template <class T>
void multiply_add(float* c, const u32* a, const u32* b) {
  struct Lane {
    float* c;
    const u32 *a, *b;
  } self{c, a, b};
  simulated::warp_instruction(self, [](Lane** lanes) {
    const auto element = [](const u32* words, int e) {
      T x;
      x.bits = static_cast<u16>(words[e / 2] >> e % 2 * 16);
      return static_cast<float>(x);
    };
    float left[16][16], right[16][8];
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 8; ++e)
        left[l / 4 + 8 * (e / 2 % 2)][l % 4 * 2 + e % 2 + 8 * (e / 4)] = element(lanes[l]->a, e);
      for (int e = 0; e < 4; ++e) right[l % 4 * 2 + e % 2 + 8 * (e / 2)][l / 4] = element(lanes[l]->b, e);
    }
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k) lanes[l]->c[e] += left[l / 4 + 8 * (e / 2)][k] * right[k][l % 4 * 2 + e % 2];
  });
}

inline void multiply_add_tf32(float* c, const u32* a, const u32* b) {
  struct Lane {
    float* c;
    const u32 *a, *b;
  } self{c, a, b};
  simulated::warp_instruction(self, [](Lane** lanes) {
    const auto element = [](u32 bits) {
      simulated::require((bits & 0x1fff) == 0, "mma: an operand was not rounded to tf32");
      return bit_cast<float>(bits);
    };
    float left[16][8], right[8][8];
    for (int l = 0; l < 32; ++l) {
      for (int e = 0; e < 4; ++e) left[l / 4 + 8 * (e % 2)][l % 4 + 4 * (e / 2)] = element(lanes[l]->a[e]);
      for (int e = 0; e < 2; ++e) right[l % 4 + 4 * e][l / 4] = element(lanes[l]->b[e]);
    }
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8; ++k) lanes[l]->c[e] += left[l / 4 + 8 * (e / 2)][k] * right[k][l % 4 * 2 + e % 2];
  });
}
inline u32 round_tf32(u32 bits) { return (bits + 0x1000) & ~0x1fffu; }

template <class T>
u32 pack(float low, float high) {
  return static_cast<u32>(T(low).bits) | static_cast<u32>(T(high).bits) << 16;
}

}  // namespace sm80

namespace cdna {

inline int uniform(int value) { return value; }
inline int thread_anew() { return thread_in_block(); }
inline void keep_order() {}

/// Element e of a: row l % Edge, k held (l / Edge) + e; of b: column l % Edge, same k; of the result: row
/// 256 / Edge (e / 4) + 4 (l / Edge) + e % 4, column l % Edge (Instinct MI200 ISA, 7.1.4).
template <class T, int Edge = 32>
struct MatrixCore {
  static constexpr int held = sizeof(T) == 4 ? 1 : 4;
  using Layout = Mfma<Edge, held>;
  struct Sums {
    float at[Edge * Edge / 64] = {};
    float operator[](int i) const { return at[i]; }
  };

  static Sums multiply_add(const T* a, const T* b, Sums c) {
    struct Lane {
      const T *a, *b;
      Sums* c;
    } self{a, b, &c};
    simulated::warp_instruction<64>(self, [](Lane** lanes) {
      for (int l = 0; l < 64; ++l)
        for (int e = 0; e < Edge * Edge / 64; ++e)
          for (int k = 0; k < held * 64 / Edge; ++k) {
            const int row = 256 / Edge * (e / 4) + 4 * (l / Edge) + e % 4, from = Edge * (k / held);
            lanes[l]->c->at[e] += static_cast<float>(lanes[row + from]->a[k % held]) *
                                  static_cast<float>(lanes[l % Edge + from]->b[k % held]);
          }
    });
    return c;
  }
};

}  // namespace cdna
TESSERA_TILE_END
