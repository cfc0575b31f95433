// Cross-entropy of long rows on Hopper: a ring streams them.
#include "kernels/gpu/device/runtime/launch_early.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "losses_by_ring.h"
#include "norm.h"

namespace tessera::gpu_kernels {
namespace {

template <class T>
TESSERA_KERNEL(LossesByRing<T>::threads + 32, LossesByRing<T>::blocks)
void losses_kernel(const __grid_constant__ LossesWork<T> work) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::launch_dependent_grids();
  LossesByRing<T>(work, shared).run();
}

/// Launched before the losses are there, for which it waits.
TESSERA_KERNEL(256)
void losses_total_kernel(float* to, const Sums<float>* parts, int count, bool mean) {
  tile::sm90::wait_on_dependent_grids();
  Sums<double> sum{0, 0};
  for (int i = tile::thread_in_block(); i < count; i += 256)
    sum = sum + Sums<double>{static_cast<double>(parts[i].first), static_cast<double>(parts[i].second)};
  sum = join_block<256>(sum, Plus{});
  if (tile::thread_in_block() == 0) *to = static_cast<float>(mean ? sum.first / sum.second : sum.first);
}

}  // namespace

bool cross_entropy_sm90(const CrossEntropyArgs& a, Executor& executor) {
  if (!is_hopper() || a.type == Scalar::f64 || a.label_smoothing > 0 || a.rows == 0 || a.classes <= 4096 ||
      a.classes >= 1 << 30)
    return false;
  const i64 blocks = tile::min<i64>(a.rows, executor.multiprocessors * i64{LossesByRing<float>::blocks});
  Sums<float>* const parts = static_cast<Sums<float>*>(a.parts);
  const auto losses = [&](auto type) {
    using T = typename decltype(type)::type;
    using Losses = LossesByRing<T>;
    const LossesWork<T> work{a.rows,
                             a.ignore_index,
                             static_cast<int>(a.classes),
                             rows_of<const T>(a.logits),
                             a.targets,
                             static_cast<float*>(a.losses),
                             static_cast<float*>(a.lse),
                             parts,
                             executor.fault,
                             a.op};
    (void)cudaFuncSetAttribute(losses_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, Losses::shared_bytes);
    launch("cross_entropy", losses_kernel<T>, blocks, Losses::threads + 32, Losses::shared_bytes, executor, work);
  };
  if (a.type == Scalar::f32) losses(Type<float>{});
  else if (a.type == Scalar::f16) losses(Type<f16>{});
  else losses(Type<bf16>{});
  if (a.total)
    launch_early("cross_entropy", losses_total_kernel, 1, 256, 0, 1, executor, static_cast<float*>(a.total), parts,
                 static_cast<int>(blocks), static_cast<bool>(a.mean));
  return true;
}

}  // namespace tessera::gpu_kernels
