// Attention per instruction set.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// [batch, heads, rows, width]; strides in elements.
struct HeadsArg {
  void* data;
  long long strides[4];
};

struct AttentionShape {
  Scalar type;  // f32, f64, f16 or bf16, of every tensor but lse and a boolean mask
  long long batch, heads, kv_heads, queries, keys;
  long long width, value_width;  // at most 256
  double scale;
  bool causal;  // query i sees keys 0 to i
  enum class Mask : unsigned char { none, allowed /* bool: which keys are seen */, added } mask_kind;
  const void* mask;           // of bool or of `type`
  long long mask_strides[4];  // batch, head, query, key, in elements; 0 broadcasts
  double alibi;               // the largest exponent of the slopes; 0: none
  // GPUs alone
  bool whole_units;  // halves whose rows are all 16-byte vectors in memory
  double dropout;    // of weights, by Hopper's pipeline alone, where keys are a multiple of four
  const long long *seed, *block;
};

/// lse, [batch, heads, queries] of f32 (f64 with f64), is what the backward needs; it may be null. A query that sees
/// nothing gives zeros and an lse of -inf.
struct AttentionArgs {
  AttentionShape shape;
  HeadsArg y, q, k, v;
  void* lse;
};

/// dq, dk, dv may not overlap the inputs. GPUs: row_sums is room for [batch, heads, queries] and, on Hopper and where
/// shares of dq are added up in any order, for more behind it (kernels/gpu/attention_room.h).
struct AttentionBackwardArgs {
  AttentionShape shape;
  HeadsArg dq, dk, dv, dy, q, k, v, y;
  const void* lse;
  float* row_sums;
  bool in_any_order = false;
};

/// Null: the device has no such kernel. On GPUs, flash takes whole_units; mem_efficient f32, f16 and bf16,
/// beside flash in whole_units alone, else at any strides; both widths up to 128.
struct AttentionTable {
  void (*flash)(const AttentionArgs& args, Executor& executor);
  void (*flash_backward)(const AttentionBackwardArgs& args, Executor& executor);
  void (*mem_efficient)(const AttentionArgs& args, Executor& executor) = nullptr;
  void (*mem_efficient_backward)(const AttentionBackwardArgs& args, Executor& executor) = nullptr;
};

#define TESSERA_ATTENTION_TABLE(isa)           \
  namespace isa {                              \
  extern const AttentionTable attention_table; \
  }
TESSERA_ATTENTION_TABLE(baseline)
TESSERA_ATTENTION_TABLE(avx2)
TESSERA_ATTENTION_TABLE(avx512)
#undef TESSERA_ATTENTION_TABLE

}  // namespace tessera::TESSERA_KERNELS
