#include "kernels/cpu/tables.h"

#include <vector>

namespace tessera {

std::span<const KernelTableEntry> cpu_kernel_table() {
  using namespace cpu_kernels;
  static const std::vector<KernelTableEntry> table = [] {
    std::vector<KernelTableEntry> all;
    for (auto family : {creation_kernels(), elementwise_kernels(), reduction_kernels(), shape_kernels(),
                        indexing_kernels(), matmul_kernels(), conv_kernels(), norm_kernels(), loss_kernels(),
                        attention_kernels(), random_kernels(), optim_kernels(), transfer_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
