// Products on NVIDIA's matrix cores: halves, floats as they are and rounded to tf32.
#include "gemm_blocks.h"
#include "tile/arch/sm80/gemm.h"

using namespace product_blocks;
using sm80::Floats;

namespace {

template <class C, Floats Precision>
struct Nvidia {
  using Choice = C;
  static constexpr bool rounds = Precision == Floats::tf32, cuts_chunks = true;
  template <class A, class B>
  using Pipeline = sm80::Gemm<A, B, C, Precision>;
};

TEST(ProductBlocks, Halves) {
  expect_products<f16, Nvidia<Choice<128, 128, 32, 4, 4>, Floats::exact>, 8, true>();
  expect_products<bf16, Nvidia<Choice<64, 64, 32, 4, 4>, Floats::exact>, 8>();
}
TEST(ProductBlocks, FloatsAsTheyAre) {
  expect_products<float, Nvidia<Choice<128, 128, 16, 8, 4>, Floats::exact>, 4, true>();
  expect_products<float, Nvidia<Choice<64, 64, 16, 4, 4>, Floats::exact>, 4>();
}
TEST(ProductBlocks, FloatsRoundedToTf32) {
  expect_products<float, Nvidia<Choice<128, 128, 32, 4, 3>, Floats::tf32>, 4, true>();
  expect_products<float, Nvidia<Choice<64, 64, 32, 4, 3>, Floats::tf32>, 4>();
}

}  // namespace
