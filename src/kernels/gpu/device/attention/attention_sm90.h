// Attention of halves by Hopper's pipeline: what its kernels are launched with.
#pragma once
#include "attention_launch.h"
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "tile/arch/sm90/attention.h"

namespace tessera::gpu_kernels {

using tile::sm90::TensorMap;

/// Rows of heads as TMA sees them, in boxes of so many rows.
inline TensorMap heads_map(const AttentionShape& s, const HeadsArg& a, i64 heads, i64 rows, i64 width, int box_rows) {
  const i64 lengths[] = {width, rows, heads, s.batch};
  i64 steps[3];
  for (int d = 0; d < 3; ++d) steps[d] = lengths[d + 1] > 1 ? a.strides[2 - d] : 8;  // of one, of no account
  return encode_map<4>(s.type, a.data, lengths, steps, {tile::sm90::line_elements, box_rows, 1, 1});
}

inline tile::AttentionDropout dropout_of(const AttentionShape& s) {
  return {s.seed, s.block, static_cast<u32>(s.dropout * 0x1p32), static_cast<float>(1 / (1 - s.dropout))};
}

/// The order of the tiles of `rows` rows of all heads, each with `bytes` of operands that `sharing` heads share. So
/// many heads go together that `megabytes` hold those: of a cache of 50 MB in two halves, 20 keep what all blocks read.
inline tile::sm90::HeadTiles head_tiles(i64 heads, i64 rows, int tile_rows, i64 bytes, i64 sharing, bool last_longest,
                                        i64 megabytes) {
  const i64 rounds = tile::ceil_div(tile::max<i64>(heads / sharing * bytes, 1), megabytes << 20);
  return {static_cast<int>(tile::ceil_div<i64>(rows, tile_rows)), static_cast<int>(heads),
          static_cast<int>(tile::ceil_div(heads, rounds)), last_longest};
}

/// launch_attention_kernel for kernels that wait for the one before themselves.
template <class... P, class... A>
void launch_attention_early(const char* what, void (*kernel)(P...), i64 blocks, int threads, int bytes,
                            Executor& executor, const A&... args) {
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  launch_early(what, kernel, blocks, threads, static_cast<size_t>(bytes), 1, executor, args...);
}

}  // namespace tessera::gpu_kernels
