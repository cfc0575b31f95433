// Products whose epilogue is text on a real GPU, where there is one: results against float64.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/gpu/backend.h"
#include "core/gpu_check.h"
#include "kernels/gpu/fused_gemm.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

class FusedGemmDevice : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::string error = error_of([&] { fused_gemm(make({1, 1}, Float16), make({1, 1}, Float16), "acc"); });
    if (error.find("was not found") != error.npos) GTEST_SKIP() << error;
  }
  static Tensor wide(const Tensor& t) { return t.to(cpu()).to(Float64); }
  Tensor make(const Shape& shape, DType dtype) { return randn(shape, generator).to(dtype).to(card()); }
  /// Memory that comes next holds NaN.
  void poison(const Shape& shape, DType dtype) { full(shape, NAN, dtype, card()); }
  Generator generator{17};
};

TEST_F(FusedGemmDevice, AgreesWithFloat64) {
  constexpr int64_t sizes[][3] = {{1, 1, 1}, {7, 13, 29}, {64, 64, 64}, {129, 257, 401}, {130, 72, 40}, {3, 200, 0}};
  for (DType dtype : {Float16, BFloat16, Float32})
    for (const auto& [m, n, k] : sizes)
      for (int turned = 0; turned < 4; ++turned) {
        Tensor a = turned & 1 ? make({k, m}, dtype).transpose(0, 1) : make({m, k}, dtype);
        Tensor b = turned & 2 ? make({n, k}, dtype).transpose(0, 1) : make({k, n}, dtype);
        Tensor d0 = make({m, n}, dtype), d1 = make({n}, Float32), d2 = make({m, 1}, BFloat16);
        poison({m, n}, dtype);
        Tensor y = fused_gemm(a, b, "gelu_tanh(acc + load(d0) + load(d1)) * load(d2)", {d0, d1, d2});
        Tensor expected = gelu_tanh(matmul(wide(a), wide(b)) + wide(d0) + wide(d1)) * wide(d2);
        EXPECT_LE(relative_error(y.to(cpu()), expected), dtype == Float32   ? 5e-6
                                                         : dtype == Float16 ? 1e-3
                                                                            : 5e-3)
            << name(dtype) << ' ' << m << 'x' << n << 'x' << k << ' ' << turned;
      }
}

/// Sizes that Hopper's pipeline takes: off its tiles, a second tile for each block, few tiles. Addends through its
/// boxes and around them.
TEST_F(FusedGemmDevice, AgreesWithFloat64OnLargeOnes) {
  constexpr int64_t sizes[][3] = {{128, 128, 64},    {131, 136, 72},   {300, 1032, 520},
                                  {20000, 1160, 72}, {67584, 384, 64}, {129, 257, 401}};
  for (DType dtype : {Float16, BFloat16})
    for (const auto& [m, n, k] : sizes)
      for (int turned = 0; turned < (m > 2000 ? 1 : 4); ++turned) {
        Tensor a = turned & 1 ? make({k, m}, dtype).transpose(0, 1) : make({m, k}, dtype);
        Tensor b = turned & 2 ? make({n, k}, dtype).transpose(0, 1) : make({k, n}, dtype);
        const DType other = dtype == Float16 ? BFloat16 : Float16;
        Tensor whole = make({m, n}, other), row = make({n}, dtype), wide_row = make({n}, Float32),
               column = make({m, 1}, Float32), crossed = make({n, m}, dtype).transpose(0, 1);
        Tensor sum = matmul(wide(a), wide(b));
        const auto check = [&](const char* epilogue, const Tensors& addends, const Tensor& expected) {
          poison({m, n}, dtype);
          EXPECT_LE(relative_error(fused_gemm(a, b, epilogue, addends).to(cpu()), expected),
                    dtype == Float16 ? 1e-3 : 5e-3)
              << epilogue << ' ' << name(dtype) << ' ' << m << 'x' << n << 'x' << k << ' ' << turned;
        };
        check("gelu_tanh(acc + load(d0) + load(d1))", {whole, row}, gelu_tanh(sum + wide(whole) + wide(row)));
        if (turned == 3 || m > 2000) continue;
        check("acc", {}, sum);
        check("relu(acc * 0.5 + load(d0)) - load(d1)", {wide_row, column},
              relu(sum * 0.5 + wide(wide_row)) - wide(column));
        check("load(d1) - gelu_tanh(acc * 0.1) * gelu_tanh(load(d0)) / 2", {whole, row},
              wide(row) - gelu_tanh(sum * 0.1) * gelu_tanh(wide(whole)) / 2);
        check("gelu_erf(acc) * load(d0) + load(d1)", {whole, crossed}, gelu(sum) * wide(whole) + wide(crossed));
        check("apply([](auto x) { return x * x; }, acc)", {}, sum * sum);
      }
}

/// Products of which an H100 has a multiprocessor for each tile: sums longer and shorter than the stages.
constexpr int64_t sizes_of_one_round[][3] = {{300, 1032, 456}, {300, 3000, 456}, {300, 5000, 136}, {300, 4000, 64}};

TEST_F(FusedGemmDevice, AgreesWithFloat64InOneRound) {
  for (DType dtype : {Float16, BFloat16})
    for (const auto& [m, n, k] : sizes_of_one_round)
      for (int turned = 0; turned < 4; ++turned) {
        Tensor a = turned & 1 ? make({k, m}, dtype).transpose(0, 1) : make({m, k}, dtype);
        Tensor b = turned & 2 ? make({n, k}, dtype).transpose(0, 1) : make({k, n}, dtype);
        Tensor whole = make({m, n}, dtype), row = make({n}, dtype), sum = matmul(wide(a), wide(b));
        const auto check = [&](const char* epilogue, const Tensors& addends, const Tensor& expected) {
          poison({m, n}, dtype);
          EXPECT_LE(relative_error(fused_gemm(a, b, epilogue, addends).to(cpu()), expected),
                    dtype == Float16 ? 1e-3 : 5e-3)
              << epilogue << ' ' << name(dtype) << ' ' << m << 'x' << n << 'x' << k << ' ' << turned;
        };
        check("gelu_tanh(acc + load(d0) + load(d1))", {whole, row}, gelu_tanh(sum + wide(whole) + wide(row)));
        if (turned % 3 == 0) check("relu(acc) + load(d0)", {row}, relu(sum) + wide(row));
      }
}

/// They are of blocks of one tile, of all three widths.
TEST_F(FusedGemmDevice, PlansARoundOfTilesOfEachWidth) {
  if (properties(card()).architecture != "sm_90" || properties(card()).multiprocessors < 132)
    GTEST_SKIP() << "tiles of wgmma, as an H100 has room for";
  gpu::begin_call(card());
  std::set<int> widths;
  for (const auto& [m, n, k] : sizes_of_one_round) {
    const Tensor a = make({m, k}, Float16), b = make({k, n}, Float16), y = make({m, n}, Float16);
    gpu_kernels::Sm90FusedPlan plan{};
    const Operand result(y);
    ASSERT_TRUE(gpu_kernels::plan_fused(Operand(a), Operand(b), result, &result, {}, plan));
    EXPECT_TRUE(plan.one_wave) << m << 'x' << n << 'x' << k;
    widths.insert(plan.width);
  }
  EXPECT_EQ(widths, (std::set{64, 96, 128}));
}

/// Sums that f16 does not hold, and none.
TEST_F(FusedGemmDevice, GeluOfLargeSums) {
  for (DType dtype : {Float16, BFloat16}) {
    const auto sum = [&](double a, double added) {
      const Tensor left = full({128, 64}, a, dtype, card()), right = full({64, 136}, 256, dtype, card());
      return wide(fused_gemm(left, right, "gelu_tanh(acc + load(d0))", {full({128, 136}, added, dtype, card())}))
          .sum()
          .item();
    };
    EXPECT_EQ(sum(256, 0), dtype == Float16 ? INFINITY : 64.0 * 65536 * 128 * 136);
    EXPECT_NEAR(sum(-256, 0), 0, 1e-30);
    EXPECT_TRUE(std::isnan(sum(1, NAN)));  // an addend: the emulator's matrix instructions take NaN in f16 for a number
  }
}

TEST_F(FusedGemmDevice, TakesConfigsOutsideOfTheShippedSet) {
  const int stages = card().type == DeviceType::HIP ? 2 : 3;
  Tensor a = make({300, 520}, BFloat16), b = make({520, 264}, BFloat16);
  Tensor expected = matmul(wide(a), wide(b));
  std::vector<GemmConfig> configs = {
      {128, 64, 64, 4, stages}, {64, 128, 32, 4, stages}, {128, 128, 64, 8, stages}, {}, {.tile_m = 128, .tile_k = 64}};
  // By matrix instructions for 16 x 16 sums, which AMD's cards take for narrow products.
  if (card().type == DeviceType::HIP) configs.push_back({16, 64, 128, 4, 2});
  for (const GemmConfig& config : configs)
    EXPECT_LE(relative_error(fused_gemm(a, b, "acc", {}, config).to(cpu()), expected), 5e-3);
  Tensor wide_a = make({300, 520}, Float32), wide_b = make({520, 264}, Float32);
  for (int edge : {0, 64, 128})
    EXPECT_LE(relative_error(fused_gemm(wide_a, wide_b, "acc", {}, GemmConfig{edge, edge}).to(cpu()),
                             matmul(wide(wide_a), wide(wide_b))),
              2e-6);
}

TEST_F(FusedGemmDevice, TakesAnyStrides) {
  for (DType dtype : {Float16, Float32}) {
    Tensor a = make({70, 96}, dtype).slice(1, 1, 96, 3), b = make({64, 200}, dtype).slice(0, 0, 64, 2);
    Tensor d = make({50}, dtype).slice(0, 0, 50, 5).unsqueeze(1).expand({10, 70}).transpose(0, 1);
    Tensor y = fused_gemm(a, b.slice(1, 3, 13), "acc - load(d0)", {d});
    EXPECT_LE(relative_error(y.to(cpu()), matmul(wide(a), wide(b.slice(1, 3, 13))) - wide(d)), 2e-3) << name(dtype);
  }
}

TEST_F(FusedGemmDevice, RunsInAGraph) {
  Tensor a = make({64, 64}, Float16), b = make({64, 64}, Float16), y;
  fused_gemm(a, b, "relu(acc)");
  DeviceGraph graph;
  graph.capture(card(), [&] { y = fused_gemm(a, b, "relu(acc)"); });
  graph.replay();
  EXPECT_LE(relative_error(y.to(cpu()), relu(matmul(wide(a), wide(b)))), 1e-3);
}

}  // namespace
}  // namespace tessera
