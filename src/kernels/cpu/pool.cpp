#include "kernels/shared/pool.h"

namespace tessera::cpu_kernels {
namespace {

constexpr Kernel max_list[] = {windows_kernel<max_pool2d_args, &PoolTable::max>()};
constexpr Kernel max_backward_list[] = {windows_kernel<max_pool2d_backward_args, &PoolTable::max_backward>()};
constexpr Kernel average_list[] = {windows_kernel<avg_pool2d_args, &PoolTable::average>()};
constexpr Kernel average_backward_list[] = {windows_kernel<avg_pool2d_backward_args, &PoolTable::average_backward>()};

}  // namespace

std::span<const KernelTableEntry> pool_kernels() {
  static constexpr KernelTableEntry entries[] = {{"max_pool2d", max_list},
                                                 {"max_pool2d_backward", max_backward_list},
                                                 {"avg_pool2d", average_list},
                                                 {"avg_pool2d_backward", average_backward_list}};
  return entries;
}

}  // namespace tessera::cpu_kernels
