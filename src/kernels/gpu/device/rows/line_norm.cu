// Batch norm on any card, and of elements of any type and place.
#include "line_norm.h"

namespace tessera::gpu_kernels {

void batch_norm(const BatchNormArgs& args, Executor& executor) {
  if (!batch_norm_sm90(args, executor)) line_norm_by<InTurn, true>(args, executor);
}
void move_estimates(const EstimatesArgs& args, Executor& executor) {
  if (!move_estimates_sm90(args, executor)) move_estimates_by<InTurn>(args, executor);
}
long long batch_norm_workspace(long long channels, long long elements) {
  return (most_line_parts(channels, elements) + 1) * channels * static_cast<long long>(sizeof(Sums<double>));
}

}  // namespace tessera::gpu_kernels
