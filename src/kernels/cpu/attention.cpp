// Attention's kernel lists.
#include "kernels/cpu/attention_math.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu_kernels {
namespace {

constexpr Kernel forward_list[] = {staged_kernel<attention_math>("math")};
constexpr Kernel backward_list[] = {staged_kernel<attention_math_backward>("math")};
constexpr KernelTableEntry entries[] = {
    {"scaled_dot_product_attention", forward_list},
    {"scaled_dot_product_attention_backward", backward_list},
    {"attention_qkv", forward_list},
    {"attention_qkv_backward", backward_list},
};

}  // namespace

std::span<const KernelTableEntry> attention_kernels() { return entries; }

}  // namespace tessera::cpu_kernels
