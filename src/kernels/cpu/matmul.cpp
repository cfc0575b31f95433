// The CPU's matrix products.
#include "kernels/shared/matmul.h"

namespace tessera::cpu_kernels {
namespace {

Products times_slope(const Call& call) { return gelu_grad_products(call, Activation::none); }

// The slope is a factor, behind the products' own workspace.
size_t sums_bytes(const Call& call) { return (gemm_bytes<times_slope>(call) + 63) / 64 * 64; }
size_t gelu_grad_bytes(const Call& call) { return sums_bytes(call) + bytes_of(call.in[2].shape(), call.in[2].dtype()); }
void run_gelu_grad(const Call& call) {
  const Tensor& input = call.in[2];
  void* const place = static_cast<std::byte*>(call.workspace) + sums_bytes(call);
  const Tensor slope = tensor_at(place, input.shape(), input.dtype(), input.device());
  map(call, MapOp::gelu_tanh_grad, slope, {}, input);
  Products p = times_slope(call);
  set_matrix(p, Products::Factor, slope);
  p.args().workspace = call.workspace;
  p.run();
}
constexpr Kernel gelu_grad_list[] = {{.name = "gemm", .workspace_bytes = gelu_grad_bytes, .run = run_gelu_grad}};
constexpr Kernel matmul_list[] = {{.name = "gemm", .run = run_gemm<matmul_products>}};
constexpr const auto& matmul_wide_list = matmul_list;
constexpr Kernel matmul_mul_sum_list[] = {
    {.name = "gemm", .workspace_bytes = gemm_bytes<matmul_mul_sum_products>, .run = run_gemm<matmul_mul_sum_products>}};
constexpr Kernel linear_list[] = {{.name = "gemm", .run = run_all<linear_products, run_gemm<linear_products>>}};

}  // namespace

std::span<const KernelTableEntry> matmul_kernels() {
  static constexpr KernelTableEntry entries[] = {{"matmul", matmul_list},
                                                 {"matmul_wide", matmul_wide_list},
                                                 {"matmul_mul_sum", matmul_mul_sum_list},
                                                 {"matmul_gelu_grad", gelu_grad_list},
                                                 {"linear", linear_list},
                                                 {"mlp", mlp_list}};
  return entries;
}

}  // namespace tessera::cpu_kernels
