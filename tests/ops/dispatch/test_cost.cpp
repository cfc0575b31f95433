// What calls cost: FLOPs and bytes.
#include "ops/cost.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "ops/call_plan.h"
#include "ops/op_table.h"

namespace tessera {
namespace {

Cost cost(std::string_view op, const std::vector<Shape>& in, const Attrs& attrs, DType dtype = Float32) {
  const Op& found = find_op(op);
  SmallVector<TensorMeta, 4> metas;
  for (const Shape& s : in) metas.push_back(s.empty() ? absent_meta() : TensorMeta{s, dtype, cpu()});
  const Metas out = infer_outputs(found, {metas.data(), metas.size()}, attrs, cpu(), false);
  return cost_of(found, {metas.data(), metas.size()}, {out.data(), out.size()}, attrs);
}

TEST(Cost, IsThatOfProductsAndOperands) {
  const Cost product = cost("matmul", {{5, 7, 11}, {11, 3}}, NoAttrs{});
  EXPECT_EQ(product.flops, 2 * 5 * 7 * 11 * 3);
  EXPECT_EQ(product.bytes, 4 * (5 * 7 * 11 + 11 * 3 + 5 * 7 * 3));
  EXPECT_EQ(cost("linear", {{4, 8}, {16, 8}, {16}, {}}, LinearAttrs{Activation::Relu}, BFloat16).flops, 2 * 4 * 8 * 16);
  EXPECT_EQ(cost("mlp", {{3, 8}, {32, 8}, {}, {8, 32}, {}, {}}, LinearAttrs{}).flops, 2 * 3 * 2 * 8 * 32);
  EXPECT_EQ(cost("add", {{6}, {6}}, NoAttrs{}).flops, 6);
  EXPECT_EQ(cost("matmul", {{3, 0}, {0, 5}}, NoAttrs{}).flops, 0);
  EXPECT_EQ(cost("clone", {{6}}, NoAttrs{}).flops, 0);
  EXPECT_EQ(cost("concat", {{6}, {7}}, DimAttrs{0}).flops, 0);
}

TEST(Cost, CountsEachElementOnce) {
  const TensorMeta row{{64, 8}, Float32, cpu(), {0, 1}}, x{{64, 8}, Float32, cpu()};
  EXPECT_EQ(cost_of(find_op("add"), std::array{x, row}, std::array{x}, NoAttrs{}).bytes, 4 * (64 * 8 + 8 + 64 * 8));
}

TEST(Cost, IsThatOfConvolutionsBothWays) {
  ConvAttrs a;
  a.stride[0] = a.stride[1] = 2;
  a.padding[0] = a.padding[1] = 1;
  a.groups = 2;
  const double each = 2.0 * (2 * 8 * 5 * 5) * (3 * 3 * 3);
  EXPECT_EQ(cost("conv2d", {{2, 6, 9, 9}, {8, 3, 3, 3}, {}}, a).flops, each);
  a.size[0] = a.size[1] = 9;
  EXPECT_EQ(cost("conv2d_input_grad", {{2, 8, 5, 5}, {8, 3, 3, 3}}, a).flops, each);
  a.size[0] = a.size[1] = 3;
  EXPECT_EQ(cost("conv2d_weight_grad", {{2, 6, 9, 9}, {2, 8, 5, 5}, {}}, a).flops, each);
}

TEST(Cost, IsThatOfPairsThatAttend) {
  const std::vector<Shape> in = {{2, 3, 4, 8}, {2, 3, 6, 8}, {2, 3, 6, 5}, {}, {}};
  EXPECT_EQ(cost("scaled_dot_product_attention", in, AttentionAttrs{}).flops, 2.0 * 6 * 4 * 6 * (8 + 5));
  EXPECT_EQ(cost("scaled_dot_product_attention", in, AttentionAttrs{.causal = true}).flops, 2.0 * 6 * 10 * (8 + 5));
  const AttentionAttrs packed{.causal = true, .heads = 3};
  EXPECT_EQ(cost("attention_qkv", {{2, 7, 72}, {}, {}}, packed).flops, 2.0 * 2 * 2 * 28 * 24);
  EXPECT_EQ(cost("attention_qkv_backward", {{2, 7, 24}, {2, 7, 24}, {2, 3, 7}, {2, 7, 72}, {}, {}}, packed).flops,
            2.0 * 5 * 2 * 28 * 24);
}

}  // namespace
}  // namespace tessera
