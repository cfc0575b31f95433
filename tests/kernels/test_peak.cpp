#include "kernels/cpu/peak.h"

#include <gtest/gtest.h>

#include "tessera/error.h"

namespace tessera::cpu_kernels {
namespace {

TEST(FmaPeak, LiesBetweenTheProbes) {
  const FmaPeak mean = between({100, 2}, {300, 3});
  EXPECT_EQ(mean.gflops, 200);
  EXPECT_EQ(mean.clock_ghz, 2.5);
  EXPECT_EQ(mean.share(2), 1.25 * 32 / operations_per_cycle());
}

TEST(FmaPeak, IsThatOfThreadsWhichThereAre) {
  const FmaPeak found = measure_fma_peak(1, brief_probe);
  EXPECT_GT(found.gflops, 0);
  EXPECT_GT(found.clock_ghz, 0);
  EXPECT_THROW(measure_fma_peak(1 << 20, brief_probe), Error);
}

}  // namespace
}  // namespace tessera::cpu_kernels
