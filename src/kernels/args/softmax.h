// Softmax and cross-entropy per instruction set, over contiguous rows of f32, f64, f16 or bf16. Losses, log-sum-exps
// and scales are f32 (f64 with f64).
#pragma once

#include "norm.h"

namespace tessera::TESSERA_KERNELS {

struct SoftmaxArgs {
  Scalar type;
  bool log;  // log-softmax
  long long rows, n;
  RowArg y, x;  // y may be x
};

struct SoftmaxBackwardArgs {
  Scalar type;
  bool log;
  long long rows, n;
  RowArg dx, dy, y;  // dx may be dy
};

struct CrossEntropyArgs {
  Scalar type;
  long long rows, classes, ignore_index;
  double label_smoothing;
  RowArg logits;
  const long long* targets;
  void *losses, *lse;  // [rows]
  void* total;         // the sum of losses, or with `mean` their mean over targets that count; may be missing
  bool mean;
  void* parts;     // room for two more numbers a row
  const char* op;  // whose call this is, for errors that a device finds
};

/// dlogits = scale[r * scale_step] * d loss[r] / d logits; dlogits may be logits.
struct CrossEntropyBackwardArgs {
  Scalar type;
  long long rows, classes, ignore_index;
  double label_smoothing;
  RowArg dlogits, logits;
  const long long* targets;
  const void *lse, *scale;
  long long scale_step;  // 1, or 0 for one scale
};

/// The mean loss of targets that count, and over the logits the gradients of losses times *scale.
struct CrossEntropyOverwriteArgs {
  Scalar type;
  long long rows, classes, ignore_index;
  double label_smoothing;
  RowArg logits;
  const long long* targets;
  const void* scale;
  void *mean, *parts;  // one; room for two numbers a row
  const char* op;
};

/// *to = *from / how many targets are not ignored; both f32, or f64 where that is the type.
struct DivideByTargetsArgs {
  Scalar type;
  long long rows, ignore_index;
  const long long* targets;
  const void* from;
  void* to;
};

struct SoftmaxTable {
  void (*softmax)(const SoftmaxArgs& args, Executor& executor);
  void (*softmax_backward)(const SoftmaxBackwardArgs& args, Executor& executor);
  /// Returns the first row whose target is neither a class nor ignored, and then computes nothing; otherwise -1. A GPU
  /// does not wait to know: it returns -1, and its Fault tells.
  long long (*cross_entropy)(const CrossEntropyArgs& args, Executor& executor);
  void (*cross_entropy_backward)(const CrossEntropyBackwardArgs& args, Executor& executor);
  void (*divide_by_targets)(const DivideByTargetsArgs& args, Executor& executor);
  /// Both passes in one; false where that does not take the rows. Null on CPUs.
  bool (*cross_entropy_overwrite)(const CrossEntropyOverwriteArgs& args, Executor& executor) = nullptr;
};

#define TESSERA_SOFTMAX_TABLE(isa)         \
  namespace isa {                          \
  extern const SoftmaxTable softmax_table; \
  }
TESSERA_SOFTMAX_TABLE(baseline)
TESSERA_SOFTMAX_TABLE(avx2)
TESSERA_SOFTMAX_TABLE(avx512)
#undef TESSERA_SOFTMAX_TABLE

}  // namespace tessera::TESSERA_KERNELS
