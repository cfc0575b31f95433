// Which weights of attention dropout keeps: weight i of all heads, queries and keys takes word i of a random stream.
// Four neighbouring keys of a query are a block of Philox; the weights of one lie with two or four threads, of which
// each makes every second or fourth block and tells the others what becomes of theirs.
#pragma once
#include "../../attention_problem.h"
#include "../../random.h"
#include "ptx.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// For a thread's N registers of sums, bit i % 32 of word i / 32 says that register i is kept.
template <int N>
using KeptWeights = u32[N / 32];

/// Called by all threads of a warpgroup; keys of the problem, and the first, are multiples of four.
class DropoutStream {
 public:
  TESSERA_DEVICE explicit DropoutStream(const AttentionDropout& d)
      : seed_(static_cast<u64>(*d.seed)), first_(static_cast<u64>(*d.block)), threshold_(d.threshold) {}

  /// Of N / 2 keys a row from first_key on: rows are queries from `query` on, counted through all heads.
  template <int N>
  TESSERA_DEVICE void rows(KeptWeights<N>& kept, i64 query, i64 keys, i64 first_key) const {
    const int lane = thread_in_block() % 4, odd = lane % 2;
    const u64 at = block(query + accumulator_row() + odd * 8, keys, first_key + lane / 2 * 4);
#pragma unroll
    for (int word = 0; word < N / 32; ++word) {
      u32 own = 0;  // of the row that is this thread's first or, where it is odd, second; four bits to a block
#pragma unroll 4
      for (int j = 0; j < 8; ++j) own |= nibble(at + word * 16 + j * 2) << j * 4;
      const u32 other = from_lane_xor(own, 1), upper = odd ? own : other, lower = odd ? other : own;
      const int mine = odd * 2;
      kept[word] = (lower >> mine & 0x33333333u) | (upper >> mine & 0x33333333u) << 2;
    }
  }

  /// The same where rows are keys, and columns queries.
  template <int N>
  TESSERA_DEVICE void columns(KeptWeights<N>& kept, i64 query, i64 keys, i64 first_key) const {
    const int mine = thread_in_block() % 16 / 4;  // key of a block, and which of each four this thread makes
    const int key = (accumulator_row() & ~3) + mine / 2 * 8;
    const u64 at = block(query + accumulator_column() + mine % 2, keys, first_key + key),
              step = static_cast<u64>(keys) * 2;
#pragma unroll
    for (int word = 0; word < N / 32; ++word) {
      u32 bits[4] = {};
#pragma unroll 4
      for (int j = 0; j < 8; ++j) bits[0] |= nibble(at + (word * 8 + j) * step) << j * 4;
      unroll<3>([&](auto i) { bits[i + 1] = from_lane_xor(bits[0], (i + 1) * 4); });
      // What thread `mine` ^ i made goes to place i ^ `mine`.
      swap_if(mine & 1, bits[0], bits[1]);
      swap_if(mine & 1, bits[2], bits[3]);
      swap_if(mine & 2, bits[0], bits[2]);
      swap_if(mine & 2, bits[1], bits[3]);
      kept[word] = 0;
      unroll<4>([&](auto i) { kept[word] |= (bits[i] >> mine & 0x11111111u) << i; });
    }
  }

 private:
  TESSERA_DEVICE u64 block(i64 row, i64 keys, i64 key) const {
    return first_ + static_cast<u64>(row * (keys / 4) + key / 4);
  }
  TESSERA_DEVICE u32 nibble(u64 block) const {
    const auto words = philox<u64>(seed_, block);
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= (static_cast<u32>(words.word[i]) >= threshold_ ? 1u : 0u) << i;
    return bits;
  }
  static TESSERA_DEVICE void swap_if(bool condition, u32& a, u32& b) {
    const u32 first = condition ? b : a;
    b = condition ? a : b;
    a = first;
  }

  u64 seed_, first_;
  u32 threshold_;
};

/// Weights that are not kept become 0.
template <int N>
TESSERA_DEVICE void drop(float (&x)[N], const KeptWeights<N>& kept) {
  unroll<N>([&](auto i) { x[i] = kept[i / 32] >> i % 32 & 1 ? x[i] : 0.0f; });
}

}  // namespace sm90
TESSERA_TILE_END
