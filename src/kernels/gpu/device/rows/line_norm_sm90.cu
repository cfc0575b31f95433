// The same on Hopper, where each kernel is launched before the one before it has ended.
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "line_norm_backward.h"

namespace tessera::gpu_kernels {
namespace {

struct Early {
  static TESSERA_DEVICE void begin() {
    tile::sm90::launch_dependent_grids();
    tile::sm90::wait_on_dependent_grids();
  }
  template <class Work>
  static void launch(const char* what, void (*kernel)(Work), i64 blocks, int threads, const Work& work,
                     Executor& executor) {
    if (blocks > 0) launch_early(what, kernel, blocks, threads, 0, 1, executor, work);
  }
};

}  // namespace

bool batch_norm_sm90(const BatchNormArgs& args, Executor& executor) {
  return is_hopper() && line_norm_by<Early, false>(args, executor);
}
bool batch_norm_backward_sm90(const BatchNormBackwardArgs& args, Executor& executor) {
  return is_hopper() && line_norm_backward_by<Early, false>(args, executor);
}
bool move_estimates_sm90(const EstimatesArgs& args, Executor& executor) {
  if (!is_hopper()) return false;
  move_estimates_by<Early>(args, executor);
  return true;
}

}  // namespace tessera::gpu_kernels
