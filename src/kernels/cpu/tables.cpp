#include "kernels/shared/tables.h"

#include <fstream>
#include <vector>

#include "kernels/cpu/isa_select.h"

namespace tessera {

std::string cpu_description() {
  std::string text = cpu_kernels::isa_name() + (", " + std::to_string(num_threads())) + " threads", line;
  std::ifstream processors("/proc/cpuinfo");
  while (std::getline(processors, line))
    if (line.starts_with("model name") && line.find(": ") != line.npos)
      return text + ", " + line.substr(line.find(": ") + 2);
  return text;
}

void* cpu_executor() { return &executor(); }

std::span<const KernelTableEntry> cpu_kernel_table() {
  using namespace cpu_kernels;
  static const std::vector<KernelTableEntry> table = [] {
    std::vector<KernelTableEntry> all;
    for (auto family : {creation_kernels(), elementwise_kernels(), reduction_kernels(), shape_kernels(),
                        indexing_kernels(), matmul_kernels(), conv_kernels(), norm_kernels(), softmax_kernels(),
                        loss_kernels(), attention_kernels(), random_kernels(), optim_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
