// Product pipelines of GPUs, run block by block on a simulated card and compared with float64, in every orientation, on
// odd sizes and parts of k.
#pragma once
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tile/arch/gpu/gemm.h"

namespace product_blocks {
using namespace tessera::tile;

inline std::mt19937 random_numbers(77);
template <class T>
T random_element() {
  if constexpr (is_same_v<T, i8>) return static_cast<i8>(random_numbers() % 255 - 127);
  else return T(std::normal_distribution<float>()(random_numbers));
}
template <class T>
T spoiling_element() {
  if constexpr (is_same_v<T, i8>) return -128;
  else return T(std::nanf(""));
}

/// A matrix of random elements, contiguous along its rows or its columns; around it lies what would spoil every sum.
template <class T, bool Turned>
struct Matrix {
  int rows, columns, pitch;
  std::vector<T> memory;

  Matrix(int rows, int columns, int pitch) : rows(rows), columns(columns), pitch(pitch) {
    memory.assign(static_cast<size_t>(Turned ? columns : rows) * pitch + 64, spoiling_element<T>());
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) start()[place(i, j)] = random_element<T>();
  }
  T* start() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (16 - address % 16) % 16 / sizeof(T) + 16;
  }
  int place(int i, int j) const { return Turned ? j * pitch + i : i * pitch + j; }
  float at(int i, int j) { return static_cast<float>(start()[place(i, j)]); }
  template <int Width>
  auto view() {
    const T* data = start();
    if constexpr (Turned)
      return strided(data, tuple(multiple_of<Width>(rows), columns), tuple(Int<1>{}, multiple_of<Width>(pitch)));
    else return strided(data, tuple(rows, multiple_of<Width>(columns)), tuple(multiple_of<Width>(pitch), Int<1>{}));
  }
};

inline float rounded(float x) {
  const auto bits = (bit_cast<unsigned>(x) + 0x1000) & ~0x1fffu;
  return bit_cast<float>(bits);
}

/// The tile at (row, column), summed up from begin to end; error relative to what operands of the precision give.
template <class T, class Product, int Width, bool TurnedA, bool TurnedB>
void expect_tile(int m, int n, int k, int row, int column, int begin, int end) {
  constexpr int step = Width == 1 ? 1 : std::max(Width, 8);
  if (!Product::cuts_chunks)
    for (int* length : {&m, &n, &k, &end}) *length = round_up(*length, Width);
  const auto pitch = [](int length) { return (length + step - 1) / step * step + 2 * step; };
  Matrix<T, TurnedA> a(m, k, pitch(TurnedA ? m : k));
  Matrix<T, TurnedB> b(k, n, pitch(TurnedB ? k : n));
  const auto left = a.template view<Width>();
  const auto right = by_column(b.template view<Width>());
  using Pipeline = typename Product::template Pipeline<remove_cvref_t<decltype(left)>, remove_cvref_t<decltype(right)>>;
  using C = typename Product::Choice;
  using Sums = typename Pipeline::Sums;
  constexpr int tile_m = C::config.tile_m, tile_n = C::config.tile_n;
  std::vector<double> got(tile_m * tile_n, std::nan(""));
  alignas(128) static char shared[Pipeline::shared_bytes];
  simulated::run_block(0, Pipeline::threads, [&] {
    Pipeline pipeline;
    pipeline.run(left, right, row, column, begin, end, reinterpret_cast<T*>(shared));
    constexpr auto layout = Sums::layout();
    for (int r = 0; r < layout.registers(); ++r) {
      const auto at = layout.coords(thread_in_block(), r);
      got[at[0] * tile_n + at[1]] = pipeline.sum(r);
    }
  });
  double error = 0, norm = 1e-30;
  for (int i = 0; i < tile_m; ++i)
    for (int j = 0; j < tile_n; ++j) {
      double want = 0;
      for (int p = begin; p < std::min(end, k) && row + i < m && column + j < n; ++p) {
        const float x = a.at(row + i, p), y = b.at(p, column + j);
        want += Product::rounds ? double(rounded(x)) * rounded(y) : double(x) * y;
      }
      const double difference = got[i * tile_n + j] - want;
      error += std::isfinite(difference) ? difference * difference : INFINITY;
      norm += want * want;
    }
  EXPECT_LT(std::sqrt(error / norm), 1e-6) << m << " x " << n << " x " << k << " at " << row << ", " << column
                                           << " from " << begin << " to " << end << ", turned: " << TurnedA << TurnedB;
}

template <class T, class Product, int Width, bool InPairs>
void expect_orientations(int m, int n, int k, int row, int column, int begin, int end) {
  expect_tile<T, Product, Width, false, true>(m, n, k, row, column, begin, end);
  expect_tile<T, Product, Width, true, false>(m, n, k, row, column, begin, end);
  if constexpr (InPairs) {
    expect_tile<T, Product, Width, false, false>(m, n, k, row, column, begin, end);
    expect_tile<T, Product, Width, true, true>(m, n, k, row, column, begin, end);
  }
}

/// What every pipeline must get right: tiles inside and at the edges, lines that end within a chunk, parts of k, none.
/// InPairs: in all four orientations; else each operand in both.
template <class T, class Product, int Wide, bool InPairs = false>
void expect_products() {
  if (!can_simulate) GTEST_SKIP() << "coroutines under a sanitizer";
  constexpr int tile_m = Product::Choice::config.tile_m, tile_n = Product::Choice::config.tile_n;
  constexpr auto orientations = expect_orientations<T, Product, Wide, InPairs>;
  orientations(tile_m, tile_n, 64, 0, 0, 0, 64);
  orientations(tile_m + 37, tile_n + 13, 75, tile_m, tile_n, 0, 75);
  orientations(tile_m - 5, tile_n - 9, 131, 0, 0, 64, 128);
  orientations(33, 40, 131, 0, 0, 128, 131);
  orientations(33, 40, 32, 0, 0, 32, 32);
  if constexpr (sizeof(T) == 1) return;  // bytes are not loaded one by one
  else {
    expect_tile<T, Product, 1, false, false>(tile_m + 3, tile_n + 1, 37, tile_m, 0, 0, 37);
    expect_tile<T, Product, 1, false, false>(1, 1, 1, 0, 0, 0, 1);
  }
}

}  // namespace product_blocks
