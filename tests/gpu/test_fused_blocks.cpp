// The kernel of fused_gemm() on NVIDIA cards, run block by block on a simulated card and compared with float64: one and
// four columns at a time, addends of every layout, odd sizes, a permuted store; nothing beside the result is written.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tile/arch/gpu/fused_gemm.h"
#include "tile/arch/gpu/gemm.h"
#include "tile/arch/sm80/gemm.h"

using namespace tessera::tile;

namespace {

/// Random elements with a pitch, aligned to 16 bytes, among others that are no numbers.
template <class T>
struct Rows {
  std::vector<T> memory;
  T* start;
  i64 pitch;
  Rows(int rows, int columns, int pitch, bool random = true)
      : memory(static_cast<size_t>(rows) * pitch + 32, T(NAN)), pitch(pitch) {
    static std::mt19937 generator(5);
    std::normal_distribution<float> normal;
    start = memory.data() + 8;
    while (reinterpret_cast<std::uintptr_t>(start) % 16) ++start;
    for (int i = 0; random && i < rows; ++i)
      for (int j = 0; j < columns; ++j) start[i * pitch + j] = T(normal(generator));
  }
  double at(int i, int j) const { return static_cast<float>(start[i * pitch + j]); }
};

/// y = relu(a b + d0) * d1 - d2 for a matrix d0, a row d1 and a column d2 of f32.
template <int Lanes>
void expect_result(int m, int n, int k) {
  if (!can_simulate) GTEST_SKIP() << "coroutines under a sanitizer";
  constexpr int unit = Lanes == 1 ? 1 : 8;
  const auto pitch = [](int length) { return (length + unit - 1) / unit * unit + unit; };
  const Rows<f16> a(m, k, pitch(k)), b(k, n, pitch(n)), d0(m, n, pitch(n)), d1(1, n, pitch(n));
  const Rows<float> d2(m, 1, 1);
  Rows<f16> y(m, n, pitch(n), false);
  FusedGemmArgs args{};
  args.a = {a.start, a.pitch, 1};
  args.b = {b.start, b.pitch, 1};
  args.y = {y.start, y.pitch, 1};
  args.m = m, args.n = n, args.k = k;
  args.d[0] = {d0.start, d0.pitch, 1};
  args.d[1] = {d1.start, 0, 1};
  args.d[2] = {d2.start, 1, 0};

  using C = Choice<64, 64, 32, 4, 2>;
  const auto left = matrix<f16, unit, false>(args.a.data, m, k, args.a.row);
  const auto right = matrix<f16, unit, false>(args.b.data, k, n, args.b.row);
  const auto e0 = result_matrix<const f16, any_stride, 1, Lanes>(args, args.d[0]);
  const auto e1 = result_matrix<const f16, 0, 1, Lanes>(args, args.d[1]);
  const auto e2 = result_matrix<const float, 1, 0, Lanes>(args, args.d[2]);
  const auto epilogue =
      store(result_matrix<f16, any_stride, 1, Lanes>(args, args.y), relu(acc + load(e0)) * load(e1) - load(e2));
  using Pipeline = sm80::Gemm<decltype(left), ByColumn<decltype(right)>, C>;
  alignas(128) static char shared[Pipeline::shared_bytes];
  for (int block = 0; block < ceil_div(m, 64) * ceil_div(n, 64); ++block)
    simulated::run_block(block, Pipeline::threads,
                         [&] { gemm_block<Pipeline, Lanes>(left, right, epilogue, reinterpret_cast<f16*>(shared)); });

  double error = 0, norm = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = d0.at(i, j);
      for (int p = 0; p < k; ++p) sum += a.at(i, p) * b.at(p, j);
      const double want = std::max(sum, 0.0) * d1.at(0, j) - d2.at(i, 0), difference = y.at(i, j) - want;
      error += std::isfinite(difference) ? difference * difference : INFINITY;
      norm += want * want;
      y.start[i * y.pitch + j] = f16(NAN);
    }
  EXPECT_LT(std::sqrt(error / norm), 1e-3) << m << " x " << n << " x " << k;
  for (const f16 x : y.memory) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
}

TEST(FusedBlocks, OneColumnAtATime) {
  expect_result<1>(1, 1, 1);
  expect_result<1>(65, 67, 33);
  expect_result<1>(40, 130, 0);
}
TEST(FusedBlocks, FourColumnsAtATime) {
  expect_result<4>(64, 64, 64);
  expect_result<4>(70, 129, 37);  // one column beyond a tile
  expect_result<4>(3, 190, 8);
  expect_result<4>(33, 12, 100);
}

/// Heads: rows of [batch * time, heads * width] go to [batch, heads, time, width], each place once.
TEST(FusedBlocks, PermutedStore) {
  if (!can_simulate) GTEST_SKIP() << "coroutines under a sanitizer";
  constexpr int batch = 3, heads = 5, time = 29, width = 19, k = 24, m = batch * time, n = heads * width;
  const Rows<f16> a(m, k, 32), b(k, n, 96);
  Rows<f16> y(batch * heads * time, width, width, false);
  const auto left = matrix<f16, 8, false>(a.start, m, k, a.pitch);
  const auto right = matrix<f16, 8, false>(b.start, k, n, b.pitch);
  const auto places =
      strided(y.start, tuple(batch, heads, time, width), tuple(heads * time * width, time * width, width, 1));
  const auto epilogue = store(transform(places, merge<0, 2>(), merge<1, 3>()), acc * 2);
  using Pipeline = sm80::Gemm<decltype(left), ByColumn<decltype(right)>, Choice<64, 64, 32, 4, 2>>;
  alignas(128) static char shared[Pipeline::shared_bytes];
  for (int block = 0; block < ceil_div(m, 64) * ceil_div(n, 64); ++block)
    simulated::run_block(block, Pipeline::threads,
                         [&] { gemm_block<Pipeline>(left, right, epilogue, reinterpret_cast<f16*>(shared)); });
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int p = 0; p < k; ++p) sum += a.at(i, p) * b.at(p, j);
      const int row = (i / time * heads + j / width) * time + i % time;
      EXPECT_NEAR(y.at(row, j % width), 2 * sum, 2e-2) << i << ", " << j;
      y.start[row * width + j % width] = f16(NAN);
    }
  for (const f16 x : y.memory) EXPECT_TRUE(std::isnan(static_cast<float>(x)));
}

}  // namespace
