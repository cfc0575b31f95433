#include "kernels/gpu/fused_gemm.h"

#include "kernels/args/gpu/fused_table.h"
#include "kernels/shared/products.h"

namespace tessera::gpu_kernels {

bool plan_fused(const Operand& a, const Operand& b, const Operand& y, const Operand* input,
                const tile::FusedGemmArgs& args, Sm90FusedPlan& plan) {
  const auto* const sm90 = static_cast<const Sm90FusedTable*>(tables().sm90_gemm);
  if (!sm90) return false;
  Products products(a.size(0), b.size(1), a.size(1));
  const auto set = [&](Products::Role which, const Operand& t) { products.set(which, t, t.stride(0), t.stride(1), 0); };
  set(Products::A, a);
  set(Products::B, b);
  set(Products::C, y);
  if (input) set(Products::Addend, *input);
  bool planned = false;
  products.each([&](const GemmArgs& product) { planned = sm90->plan(product, args, executor(), plan); });
  return planned;
}

}  // namespace tessera::gpu_kernels
