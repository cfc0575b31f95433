// A device's kernel lists, a table per op family.
#pragma once
#include "kernels/args/common.h"
#include "kernels/kernel_lists.h"

namespace tessera::TESSERA_KERNELS {

std::span<const KernelTableEntry> creation_kernels();
std::span<const KernelTableEntry> elementwise_kernels();
std::span<const KernelTableEntry> map_graph_kernels();
std::span<const KernelTableEntry> reduction_kernels();
std::span<const KernelTableEntry> shape_kernels();
std::span<const KernelTableEntry> indexing_kernels();
std::span<const KernelTableEntry> bit_kernels();
std::span<const KernelTableEntry> matmul_kernels();
std::span<const KernelTableEntry> fused_gemm_kernels();  // GPUs' alone
std::span<const KernelTableEntry> conv_kernels();
std::span<const KernelTableEntry> pool_kernels();
std::span<const KernelTableEntry> norm_kernels();
std::span<const KernelTableEntry> softmax_kernels();
std::span<const KernelTableEntry> loss_kernels();
std::span<const KernelTableEntry> attention_kernels();
std::span<const KernelTableEntry> recurrent_kernels();
std::span<const KernelTableEntry> recurrent_net_kernels();  // GPUs' alone
std::span<const KernelTableEntry> line_kernels();
std::span<const KernelTableEntry> plane_kernels();
std::span<const KernelTableEntry> sample_kernels();
std::span<const KernelTableEntry> random_kernels();
std::span<const KernelTableEntry> optim_kernels();

}  // namespace tessera::TESSERA_KERNELS
