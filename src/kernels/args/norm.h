// Normalisations per instruction set. Every tensor of a call but the statistics has one type: f32, f64, f16 or bf16;
// statistics are f32 (f64 with f64). Null pointers leave out what a comment calls optional. On GPUs, weights and biases
// and their gradients may have a type of their own, that of x or of the statistics.
#pragma once

#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// Contiguous rows of n elements, `pitch` elements apart.
struct RowArg {
  void* data;
  long long pitch;
};

/// Layer norm, or RMS norm where `rms` is set: then there are neither bias nor mean.
struct LayerNormArgs {
  Scalar type;
  bool rms;
  long long rows, n;
  RowArg y, x;
  const void *weight, *bias;  // [n], optional
  void *mean, *rstd;          // [rows]
  double eps;
  // GPUs alone, where takes_columns(): types of their own, and x + branch + branch_bias, kept in `sum`, instead of x
  Scalar weight_type, y_type;  // of weight and bias; of y and branch
  RowArg sum, branch;          // data is optional
  const void* branch_bias;     // optional
  Scalar branch_bias_type;
};

struct LayerNormBackwardArgs {
  Scalar type;
  bool rms;
  long long rows, n;
  RowArg dx, dy, x;       // dx may be dy; its data is optional
  RowArg addend;          // to dx; its data is optional
  const void* weight;     // optional
  void *dweight, *dbias;  // optional
  const void *mean, *rstd;
  void* workspace;  // layer_norm_backward_workspace() bytes
  // GPUs alone, where takes_columns()
  Scalar weight_type, y_type;  // of weight and its gradients; of dy and branch
  RowArg dbranch;              // dx once more; data is optional
  void* dbranch_bias;          // [n], the sum of dx over the rows, optional
  Scalar branch_bias_type;
};

/// Whether a GPU's kernels with types of their own take rows of n elements; each must begin at whole 16 bytes.
inline bool takes_columns(long long n) { return n % 8 == 0 && n <= 4096; }

/// [batch, channels, size] whose planes of `size` elements are contiguous; strides in elements.
struct PlanesArg {
  void* data;
  long long batch_stride, channel_stride;
};

struct GroupNormArgs {
  Scalar type, weight_type;
  long long batch, channels, size, groups;
  PlanesArg y, x;
  const void *weight, *bias;  // [channels], optional
  void *mean, *rstd;          // [batch, groups]
  double eps;
  void* workspace;  // plane_parts_workspace(batch * groups, elements of each) bytes
};

struct GroupNormBackwardArgs {
  Scalar type, weight_type;
  long long batch, channels, size, groups;
  PlanesArg dx, dy, x;    // dx.data is optional
  const void* weight;     // optional
  void *dweight, *dbias;  // optional
  const void *mean, *rstd;
  void* workspace;  // group_norm_backward_workspace() bytes
};

/// Training: mean and rstd [channels] are results, running estimates move by `momentum` (1: all the way, whatever they
/// were) and are optional. Otherwise the running estimates are used, and mean and rstd are ignored. With `relu`, y is
/// what that makes of it, at most `high`. Of `lines`, channels lie last and all is dense. A residual may be added
/// before, on the CPU to lines alone.
struct BatchNormArgs {
  Scalar type, weight_type;
  bool training, relu, lines;
  long long batch, channels, size;
  PlanesArg y, x, residual;
  const void *weight, *bias;  // [channels], optional
  void *running_mean, *running_variance;
  double correction;  // of that variance without training, on GPUs: 1, or (n - 1) / n where it is the batch's own
  double momentum;
  void *mean, *rstd;
  double eps, high;
  void* workspace;  // batch_norm_workspace(channels, elements of each) bytes
};

/// Without training, mean and rstd are those of the running estimates and count as constants. With `relu`, dy is the
/// gradient of what that made of y. On GPUs, the gradient may be a plane of dy times the filter's weight of the
/// channel, where one filter has followed; dfilter becomes the filter's own gradient. Where a residual was added, y
/// tells what relu let through, and dresidual is a result. `lines` as in BatchNormArgs.
struct BatchNormBackwardArgs {
  Scalar type, weight_type;
  bool training, relu, lines;
  long long batch, channels, size;
  PlanesArg dx, dy, x;        // dx.data is optional
  PlanesArg y, dresidual;     // optional
  const void *weight, *bias;  // optional; the bias counts with relu alone, or with a filter
  void *dweight, *dbias;      // optional
  const void* filter;         // [channels] of `type`, optional
  void* dfilter;
  const void *mean, *rstd;
  double high;      // of relu
  void* workspace;  // batch_norm_workspace(channels, elements of each) bytes
};

/// Running estimates [channels] of f32 or f64 move towards what a batch has by `momentum`.
struct EstimatesArgs {
  Scalar type;
  long long channels;
  void *mean, *variance;
  const void *batch_mean, *batch_variance;
  double momentum;
};

struct NormTable {
  void (*layer_norm)(const LayerNormArgs& args, Executor& executor);
  void (*layer_norm_backward)(const LayerNormBackwardArgs& args, Executor& executor);
  long long (*layer_norm_backward_workspace)(Scalar type, long long rows, long long n);
  void (*group_norm)(const GroupNormArgs& args, Executor& executor);
  void (*group_norm_backward)(const GroupNormBackwardArgs& args, Executor& executor);
  long long (*group_norm_backward_workspace)(long long batch, long long channels);
  long long (*plane_parts_workspace)(long long sets, long long elements);
  long long (*batch_norm_workspace)(long long channels, long long elements);
  void (*batch_norm)(const BatchNormArgs& args, Executor& executor);
  void (*batch_norm_backward)(const BatchNormBackwardArgs& args, Executor& executor);
  void (*move_estimates)(const EstimatesArgs& args, Executor& executor);
};

#define TESSERA_NORM_TABLE(isa)      \
  namespace isa {                    \
  extern const NormTable norm_table; \
  }
TESSERA_NORM_TABLE(baseline)
TESSERA_NORM_TABLE(avx2)
TESSERA_NORM_TABLE(avx512)
#undef TESSERA_NORM_TABLE

}  // namespace tessera::TESSERA_KERNELS
