// Products on AMD's matrix cores, of integers, too; and the matrix instructions, in the layouts of the tile library.
#include "gemm_blocks.h"
#include "tile/arch/cdna/gemm.h"

#define __shared__ static  // of kernels that do not run here
#include "tile/arch/gpu/simt.h"

using namespace product_blocks;

namespace {

template <class C>
struct Amd {
  using Choice = C;
  static constexpr bool rounds = false, cuts_chunks = false;  // lines end with a chunk
  template <class A, class B>
  using Pipeline = cdna::Gemm<A, B, C>;
};

TEST(ProductBlocks, OnAmdCores) {
  expect_products<bf16, Amd<Choice<64, 64, 32, 4, 2>>, 8, true>();
  expect_products<float, Amd<Choice<128, 128, 16, 4, 2>>, 4, true>();
  expect_products<i8, Amd<Choice<128, 64, 64, 4, 2>>, 16, true>();
}
TEST(ProductBlocks, SixteenSquaredOnAmdCores) {
  expect_products<bf16, Amd<Choice<16, 64, 128, 4, 2>>, 8>();
  expect_products<f16, Amd<Choice<64, 16, 128, 4, 2>>, 8>();
  expect_products<float, Amd<Choice<32, 32, 32, 4, 2>>, 4>();
  expect_products<i8, Amd<Choice<32, 32, 128, 4, 2>>, 16>();
}

/// c + a b' by one instruction, operands and sums where its layout has them.
template <class T, int Edge>
void expect_instruction() {
  if (!can_simulate) GTEST_SKIP() << "coroutines under a sanitizer";
  using Core = cdna::MatrixCore<T, Edge>;
  using A = typename Core::Layout::A;
  using C = typename Core::Layout::C;
  constexpr int depth = A::layout().length(1);
  std::mt19937 random(5);
  double a[Edge][depth], b[Edge][depth], c[Edge][Edge], got[Edge][Edge];
  const auto number = [&] { return static_cast<double>(static_cast<int>(random() % 255) - 127); };
  for (int i = 0; i < Edge; ++i) {
    for (int k = 0; k < depth; ++k) a[i][k] = number(), b[i][k] = number();
    for (int j = 0; j < Edge; ++j) c[i][j] = number();
  }
  simulated::run_block(0, 64, [&] {
    T x[Core::held], y[Core::held];
    typename Core::Sums sums;
    const auto at = thread_coords<A>(thread_in_block()), to = thread_coords<C>(thread_in_block());
    for (int e = 0; e < Core::held; ++e) {
      x[e] = T(static_cast<float>(a[at[0]][at[1] + e]));
      y[e] = T(static_cast<float>(b[at[0]][at[1] + e]));
    }
    unroll<C::layout().registers()>([&](auto r) {
      constexpr auto place = register_coords<C>(r);
      sums.at[r] = static_cast<float>(c[to[0] + place[0]][to[1] + place[1]]);
    });
    sums = Core::multiply_add(x, y, sums);
    unroll<C::layout().registers()>([&](auto r) {
      constexpr auto place = register_coords<C>(r);
      got[to[0] + place[0]][to[1] + place[1]] = sums.at[r];
    });
  });
  for (int i = 0; i < Edge; ++i)
    for (int j = 0; j < Edge; ++j) {
      double want = c[i][j];
      for (int k = 0; k < depth; ++k) want += a[i][k] * b[j][k];
      EXPECT_EQ(got[i][j], want) << i << ", " << j;
    }
}
TEST(AmdInstructions, Layouts) {
  expect_instruction<f16, 32>();
  expect_instruction<f16, 16>();
  expect_instruction<bf16, 32>();
  expect_instruction<bf16, 16>();
  expect_instruction<float, 32>();
  expect_instruction<float, 16>();
  expect_instruction<i8, 32>();
  expect_instruction<i8, 16>();
}

template <class... Layouts>
void expect_no_bank_asked_twice() {
  for (const bool meets_none : {Layouts::meets_no_bank_twice()...}) EXPECT_TRUE(meets_none);
}
TEST(SharedMemoryOfAmd, TilesOfOrdinaryCoresAndLinesMeetNoBankTwice) {
  expect_no_bank_asked_twice<SimtSums<float, 64>, SimtSums<float, 128>, SimtSums<double, 64>>();
  expect_no_bank_asked_twice<SharedLine<float, 1>, SharedLine<float, 4>, SharedLine<float, 8>, SharedLine<double, 1>,
                             SharedLine<double, 2>, SharedLine<double, 4>, SharedLine<double, 8>>();
}

}  // namespace
