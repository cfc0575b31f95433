// Rows whose columns have owners: each thread has four neighbouring columns (or several such fours) of a few rows at a
// time, so that sums down the columns stay with it, and what rows share is summed over the block.
#pragma once
#include "held_rows.h"
#include "norm.h"

namespace tessera::gpu_kernels {

/// Threads of a block, at most, that have so many fours of columns.
constexpr int most_owners(int fours) { return fours == 1 ? 256 : 512; }
inline constexpr int owner_teams = most_owners(2) / team_lanes;

/// v becomes its sum over the block, in the same order whatever the threads do; whoever calls this twice in a row gives
/// another room.
template <int count>
TESSERA_DEVICE void sum_over_owners(float (&v)[count], float (&room)[owner_teams][count]) {
  static_assert((count & (count - 1)) == 0 && count <= team_lanes);
  const int lane = tile::thread_in_block() % team_lanes, warps = static_cast<int>(blockDim.x) / team_lanes;
  float part[count];
  tile::unroll<count>([&](auto i) { part[i] = v[i]; });
  int index = 0;
  // Each step halves what a lane has left to sum, and what its partner takes over.
#pragma unroll
  for (int mask = team_lanes / 2, left = count / 2; mask > 0; mask /= 2, left /= 2) {
    if (left > 0) {
      const bool upper = lane & mask;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float keep = upper ? part[i + left] : part[i], give = upper ? part[i] : part[i + left];
        part[i] = keep + from_lane(give, mask);
      }
      index += upper ? left : 0;
    } else {
      part[0] += from_lane(part[0], mask);
    }
  }
  if (lane % (team_lanes / count) == 0) room[tile::thread_in_block() / team_lanes][index] = part[0];
  tile::sync_block();
  tile::unroll<count>([&](auto i) { v[i] = room[0][i]; });
  for (int w = 1; w < warps; ++w) tile::unroll<count>([&](auto i) { v[i] += room[w][i]; });
}

template <class T>
using Quad = Pack<T, 4>;

/// Four elements from `column` on; zeros where they are not there.
template <class T>
TESSERA_DEVICE Quad<T> load_quad(const T* row, i64 column, bool inside) {
  if (inside) return *reinterpret_cast<const Quad<T>*>(row + column);
  Quad<T> none;
  tile::unroll<4>([&](auto j) { none.lane[j] = tile::convert_element<T>(0.0f); });
  return none;
}
template <class T>
TESSERA_DEVICE void store_quad(T* row, i64 column, const float (&value)[4]) {
  Quad<T> quad;
  tile::unroll<4>([&](auto j) { quad.lane[j] = tile::convert_element<T>(value[j]); });
  store_at_once(row + column, quad);
}
template <class T>
TESSERA_DEVICE void widen_quad(const void* data, i64 column, float (&to)[4]) {
  const auto quad = *reinterpret_cast<const Quad<T>*>(static_cast<const T*>(data) + column);
  tile::unroll<4>([&](auto j) { to[j] = tile::convert_element<float>(quad.lane[j]); });
}
/// The same of an array of floats or halves, which only the call knows; `otherwise` where it is missing.
TESSERA_DEVICE void load_any_quad(const void* data, Scalar type, i64 column, bool inside, float otherwise,
                                  float (&to)[4]) {
  for (float& value : to) value = otherwise;
  if (!data || !inside) return;
  if (type == Scalar::f32) widen_quad<float>(data, column, to);
  else if (type == Scalar::f16) widen_quad<f16>(data, column, to);
  else widen_quad<bf16>(data, column, to);
}

/// fn(Int<fours>, threads) with the fewest columns a thread for rows of n.
template <class Fn>
void with_owners(i64 n, const Fn& fn) {
  const auto threads = [&](i64 each) { return static_cast<int>(tile::ceil_div<i64>(n, each * 32) * 32); };
  if (n <= 4 * most_owners(1)) return fn(tile::Int<1>{}, threads(4));
  fn(tile::Int<2>{}, threads(8));
}

}  // namespace tessera::gpu_kernels
