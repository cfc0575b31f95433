// The CPU's matrix products.
#include <fmt/format.h>

#include "kernels/cpu/isa_select.h"
#include "kernels/shared/matmul.h"
#include "kernels/shared/panels.h"

namespace tessera::cpu_kernels {
namespace {

void take_workspace(Products& p, Plan& plan) {
  long long bytes = 0;
  p.each([&](const GemmArgs& args) { bytes = std::max(bytes, gemm_table().workspace(args, executor())); });
  p.args().workspace = plan.take(bytes);
}

template <Products (*products)(const Call&)>
void plan_gemm(const Call& call, Plan& plan) {
  Products p = products(call);
  take_workspace(p, plan);
  p.launch(plan);
}

Products times_slope(const Call& call) { return gelu_grad_products(call, Activation::none); }

// The slope is a factor.
void plan_gelu_grad(const Call& call, Plan& plan) {
  const Operand& input = call.in[2];
  Products p = times_slope(call);
  take_workspace(p, plan);
  void* const place = plan.take(static_cast<int64_t>(bytes_of(input.shape(), input.dtype())));
  const Operand slope = operand_at(place, input.shape(), input.dtype(), input.device());
  map(call, plan, MapOp::gelu_tanh_backward, slope, {}, input);
  set_matrix(p, Products::Factor, slope);
  p.launch(plan);
}
constexpr Kernel gelu_grad_list[] = {{.name = "gemm", .plan = plan_gelu_grad}};
constexpr Kernel matmul_list[] = {{.name = "gemm", .plan = plan_gemm<matmul_products>}};
constexpr const auto& matmul_wide_list = matmul_list;
constexpr Kernel matmul_mul_sum_list[] = {{.name = "gemm", .plan = plan_gemm<matmul_mul_sum_products>}};

// Weights of f32: all else is converted as it is packed. Rows of the result are contiguous, or it is computed as its
// transpose.
std::optional<Packing> pack_weight(const Call& call, size_t input) {
  const bool fits = input == 1 && call.in[0].dtype() == Float32 && call.out[0].stride(-1) == 1;
  return fits ? weight_panels(call.in[1]) : std::nullopt;
}
constexpr Kernel linear_list[] = {
    {.name = "gemm", .plan = plan_all<linear_products, plan_gemm<linear_products>>, .pack = pack_weight}};

}  // namespace

std::optional<Packing> weight_panels(const Operand& weight) {
  const GemmTable& table = gemm_table();
  static const std::string* const name =
      packing_named(fmt::format("gemm.b.{}.f32.{}", isa_name(), table.panel_columns));
  const bool is_point = weight.dim() == 4 && weight.size(2) == 1 && weight.size(3) == 1;
  if (table.panel_columns == 0 || weight.dtype() != Float32 || (weight.dim() != 2 && !is_point)) return std::nullopt;
  const int64_t n = weight.size(0), k = weight.size(1);
  if (n < table.panel_columns || k == 0) return std::nullopt;  // as few columns as that are quick as they lie
  return Packing{name, table.panel_bytes(n, k)};
}

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
