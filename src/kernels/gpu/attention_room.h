// The room that attention's backward asks for on Hopper's cards: what the lists take and the plugin uses.
#pragma once
#include "kernels/cpu/isa/attention.h"

namespace tessera::gpu_kernels {

/// Behind the row sums: sums of dq for blocks of `step` queries of a head, a counter for each, and one more.
struct AttentionRoom {
  long long step, blocks, sums_at, counters_at, bytes;

  explicit AttentionRoom(const AttentionShape& s) {
    constexpr long long elements = 8192, line = 128;
    const long long heads = s.batch * s.heads, widest = s.width > s.value_width ? s.width : s.value_width;
    step = elements / (widest <= 64 ? 64 : 128);
    blocks = heads * ((s.queries + step - 1) / step);
    sums_at = (heads * s.queries * 4 + line - 1) / line * line;
    counters_at = sums_at + blocks * elements * 4;
    bytes = counters_at + (blocks + 1) * 4;
  }
};

}  // namespace tessera::gpu_kernels
