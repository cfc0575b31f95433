// How products whose epilogue is text are cut on Hopper's cards.
#include <gtest/gtest.h>

#include <set>

#include "core/gpu/backend.h"
#include "kernels/gpu/fused_gemm.h"
#include "one_round.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

TEST(FusedPlan, BlocksOfOneTileOfEachWidth) {
  const Device card = cuda();
  if (!why_unavailable(card).empty()) GTEST_SKIP() << "no GPU: " << why_unavailable(card);
  if (properties(card).architecture != "sm_90") GTEST_SKIP() << "tiles of wgmma are Hopper's";
  gpu::begin_call(card);
  std::set<int> widths;
  for (const auto& [m, n, k] : sizes_of_one_round) {
    const auto make = [&](int64_t rows, int64_t columns) { return empty({rows, columns}, Float16, card); };
    const Tensor a = make(m, k), b = make(k, n), y = make(m, n);
    gpu_kernels::Sm90FusedPlan plan{};
    ASSERT_TRUE(gpu_kernels::plan_fused(a, b, y, &y, {}, plan));
    EXPECT_TRUE(plan.once) << m << 'x' << n << 'x' << k;
    widths.insert(plan.width);
  }
  EXPECT_EQ(widths, (std::set{64, 96, 128}));
}

}  // namespace
}  // namespace tessera
