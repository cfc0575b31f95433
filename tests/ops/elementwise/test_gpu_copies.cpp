// Copies on a GPU that transpose.
#include <fmt/ranges.h>

#include <array>

#include "ops/gpu_against_float64.h"

namespace tessera {
namespace {

using GpuCopies = GpuAgainstFloat64;
using Order = std::array<int64_t, 4>;

Tensor turned(const Tensor& t, const Order& to) { return permute(t, {to[0], to[1], to[2], to[3]}); }

TEST_F(GpuCopies, OfEveryOrderOfDims) {
  const Shape shapes[] = {{1, 8, 8, 1},    {3, 64, 7, 7},   {2, 65, 14, 14}, {2, 200, 9, 13}, {2, 8, 56, 56},
                          {3, 72, 28, 28}, {1, 520, 1, 33}, {64, 64, 16, 1}, {130, 3, 130, 2}};
  const Order orders[] = {{0, 2, 3, 1}, {0, 3, 1, 2}, {3, 2, 1, 0}, {1, 0, 2, 3}, {2, 3, 0, 1}};
  for (DType dtype : {UInt8, Float16, Float32, Float64})
    for (const Shape& shape : shapes) {
      const Tensor exact = (abs(normal64(shape, generator)) * 50.0).to(dtype), there = exact.to(card());
      for (const Order& order : orders) {
        const auto label = fmt::format("{} {} to {}", name(dtype), to_string(shape), fmt::join(order, " "));
        const Tensor want = turned(exact, order).contiguous().to(Float64);
        EXPECT_EQ(error(turned(there, order).contiguous(), want), 0) << label;
        // Into memory that lies in another order, and from and to elements that are not at whole units.
        Tensor to = turned(full(shape, 99.0, dtype, card()), order);
        EXPECT_EQ(error(to.copy_(turned(there, order).contiguous()), want), 0) << label;
        if (shape[3] == 1) continue;
        const auto inner = [&](const Tensor& t) { return turned(t.slice(3, 1, shape[3].value()), order); };
        EXPECT_EQ(error(inner(there).contiguous(), inner(exact).contiguous().to(Float64)), 0) << label;
      }
    }
}

}  // namespace
}  // namespace tessera
