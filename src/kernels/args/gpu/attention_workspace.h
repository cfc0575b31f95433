// The room that attention's backward asks for on Hopper's cards: what the lists take and the plugin uses.
#pragma once
#include "kernels/args/attention.h"

namespace tessera::gpu_kernels {

/// Behind the row sums: sums of dq for blocks of `step` queries of a head, a counter for each, and one more; of heads
/// of more than 128 columns that one alone.
struct AttentionRoom {
  long long step, blocks, sums_at, counters_at, bytes;

  explicit AttentionRoom(const AttentionShape& s) {
    constexpr long long elements = 8192, line = 128;
    const long long heads = s.batch * s.heads, widest = s.width > s.value_width ? s.width : s.value_width;
    step = elements / (widest <= 64 ? 64 : 128);
    blocks = widest <= 128 ? heads * ((s.queries + step - 1) / step) : 0;
    sums_at = (heads * s.queries * 4 + line - 1) / line * line;
    counters_at = sums_at + blocks * elements * 4;
    bytes = counters_at + (blocks + 1) * 4;
  }
};

/// The same for cuDNN where it adds up in any order: sums of dq as they lie, behind the row sums.
struct UnorderedRoom {
  long long sums_at, bytes;

  explicit UnorderedRoom(const AttentionShape& s) {
    constexpr long long line = 128;
    const long long rows = s.batch * s.heads * s.queries;
    sums_at = (rows * 4 + line - 1) / line * line;
    bytes = sums_at + rows * s.width * 4;
  }
};

}  // namespace tessera::gpu_kernels
