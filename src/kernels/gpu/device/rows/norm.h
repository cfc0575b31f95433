// What the files of normalisations share.
#pragma once
#include "rows.h"

namespace tessera::gpu_kernels {

void layer_norm(const LayerNormArgs& args, Executor& executor);
void layer_norm_backward(const LayerNormBackwardArgs& args, Executor& executor);
long long layer_norm_backward_workspace(Scalar type, long long rows, long long n);
void group_norm(const GroupNormArgs& args, Executor& executor);
void group_norm_backward(const GroupNormBackwardArgs& args, Executor& executor);
long long group_norm_backward_workspace(long long batch, long long channels);
long long plane_parts_workspace(long long sets, long long elements);
long long batch_norm_workspace(long long channels, long long elements);
void batch_norm(const BatchNormArgs& args, Executor& executor);
void batch_norm_backward(const BatchNormBackwardArgs& args, Executor& executor);
void move_estimates(const EstimatesArgs& args, Executor& executor);

/// Slices of the workspace that clusters of blocks fill, at most; a multiple of the 8 ways in which rows of halves
/// begin.
inline i64 most_row_slices(i64 n) { return tile::max<i64>(40, tile::min<i64>(1056, (i64{1} << 21) / n / 8 * 8)); }
#if defined(__HIP__)
inline bool layer_norm_sm90(const LayerNormArgs&, Executor&) { return false; }
inline bool softmax_backward_sm90(const SoftmaxBackwardArgs&, Executor&) { return false; }
inline bool layer_norm_backward_sm90(const LayerNormBackwardArgs&, Executor&) { return false; }
inline bool cross_entropy_sm90(const CrossEntropyArgs&, Executor&) { return false; }
inline bool batch_norm_sm90(const BatchNormArgs&, Executor&) { return false; }
inline bool batch_norm_backward_sm90(const BatchNormBackwardArgs&, Executor&) { return false; }
inline bool move_estimates_sm90(const EstimatesArgs&, Executor&) { return false; }
#else
/// By clusters of Hopper's blocks, which share long rows; false: they do not take these.
bool layer_norm_sm90(const LayerNormArgs& args, Executor& executor);
bool softmax_backward_sm90(const SoftmaxBackwardArgs& args, Executor& executor);
/// The same with sums for the weights, in at most most_row_slices() slices of the workspace.
bool layer_norm_backward_sm90(const LayerNormBackwardArgs& args, Executor& executor);
/// By a ring; false: it does not take these.
bool cross_entropy_sm90(const CrossEntropyArgs& args, Executor& executor);
/// Kernels that begin early; false: on other cards, and of elements that do not lie in packs of 16 bytes.
bool batch_norm_sm90(const BatchNormArgs& args, Executor& executor);
bool batch_norm_backward_sm90(const BatchNormBackwardArgs& args, Executor& executor);
bool move_estimates_sm90(const EstimatesArgs& args, Executor& executor);
#endif

/// Element i, or `otherwise` of an array that is missing.
template <class C, class T>
TESSERA_DEVICE C entry(const T* values, i64 i, C otherwise) {
  return values ? tile::convert_element<C>(values[i]) : otherwise;
}

}  // namespace tessera::gpu_kernels
