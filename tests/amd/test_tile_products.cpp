// Products of the tile library (tests/gpu/cdna_gemm.hip), executed: matrix instructions for 32 x 32 and for 16 x 16
// sums of every type of operand, integers exactly. Needs an emulator (docs/amd.md).
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "core/gpu/backend.h"
#include "gpu/gemm_args.h"
#include "ops/ops_check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

struct Product {
  const char* kernel;
  DType type;
  bool turned_a, turned_b;
  int tile_m, tile_n;
};
constexpr Product products[] = {
    {"f16_nn", Float16, false, false, 128, 128},   {"f16_tt", Float16, true, true, 128, 128},
    {"bf16_nn", BFloat16, false, false, 128, 128}, {"f32_nt", Float32, false, true, 128, 128},
    {"i8_nt", Int8, false, true, 128, 128},        {"i8_tn", Int8, true, false, 128, 128},
    {"f16x16_nt", Float16, false, true, 16, 64},   {"bf16x16_nn", BFloat16, false, false, 64, 16},
    {"f32x16_tn", Float32, true, false, 32, 32},   {"i8x16_nt", Int8, false, true, 32, 32},
};

class TileProducts : public testing::TestWithParam<Product> {};

Tensor operand(int64_t rows, int64_t columns, DType type, Generator& generator) {
  if (type == Int8) return (rand({rows, columns}, generator) * 255.9 - 127.95).to(Int8);
  return randn({rows, columns}, generator).to(type);
}

TEST_P(TileProducts, AgreeWithFloat64) {
  const char* home = std::getenv("EMULATOR_HOME");
  if (!home || !*home) GTEST_SKIP() << "kernels do not run without an emulator";
  std::ifstream file(TESSERA_TILE_KERNELS, std::ios::binary);
  ASSERT_TRUE(file) << TESSERA_TILE_KERNELS << " is made by the test gpu.cdna_gemm.compile";
  const std::string code(std::istreambuf_iterator<char>(file), {});

  const Product& p = GetParam();
  gpu::Runtime& runtime = gpu::state(hip()).runtime;
  const gpu::KernelHandle kernel = runtime.find_kernel(runtime.load_module(code.data()), p.kernel);
  ASSERT_NE(kernel, nullptr);
  Generator generator(5);
  for (const auto& [m, n, k] : {std::array<int, 3>{16, 16, 16}, {p.tile_m + 16, 48, 144}, {64, p.tile_n + 32, 400}}) {
    const Tensor a = operand(m, k, p.type, generator), b = operand(k, n, p.type, generator);
    const Tensor left = (p.turned_a ? a.transpose(0, 1) : a).contiguous().to(hip());
    const Tensor right = (p.turned_b ? b.transpose(0, 1) : b).contiguous().to(hip());
    const Tensor d = full({m, n}, NAN, Float32, hip());
    tile::GemmArgs args{left.data_ptr(),    right.data_ptr(),   nullptr, nullptr, d.data_ptr(), m, n, k,
                        p.turned_a ? m : k, p.turned_b ? k : n, n};
    void* arguments[] = {&args};
    const int64_t tiles = (m + p.tile_m - 1) / p.tile_m * ((n + p.tile_n - 1) / p.tile_n);
    runtime.launch(kernel, {tiles, 256, 0}, arguments, gpu::stream_of(gpu::state(hip())).handle);
    const double error = relative_error(d.to(cpu()).to(Float64), matmul(a.to(Float64), b.to(Float64)));
    if (p.type == Int8) EXPECT_EQ(error, 0) << m << " x " << n << " x " << k;
    else EXPECT_LT(error, 1e-6) << m << " x " << n << " x " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TileProducts, testing::ValuesIn(products),
                         [](const auto& info) { return info.param.kernel; });

}  // namespace
}  // namespace tessera
