// Batch norm of images whose channels lie last, on any card.
#include "line_norm.h"

namespace tessera::gpu_kernels {
namespace {

struct InTurn {
  static TESSERA_DEVICE void begin() {}
  template <class Work>
  static void launch(const char* what, void (*kernel)(Work), i64 blocks, const Work& work, Executor& executor) {
    gpu_kernels::launch(what, kernel, blocks, plane_threads, 0, executor, work);
  }
};

}  // namespace

void line_norm(const BatchNormArgs& args, Executor& executor) {
  if (!line_norm_sm90(args, executor)) line_norm_by<InTurn>(args, executor);
}
void line_norm_backward(const BatchNormBackwardArgs& args, Executor& executor) {
  if (!line_norm_backward_sm90(args, executor)) line_norm_backward_by<InTurn>(args, executor);
}
void move_estimates(const EstimatesArgs& args, Executor& executor) {
  if (!move_estimates_sm90(args, executor)) move_estimates_by<InTurn>(args, executor);
}

}  // namespace tessera::gpu_kernels
