// Strided copies against plain loops: permutations of odd sizes, gaps, conversions, every element size.
#include "tile/kernels/transpose.h"

#include "rows_check.h"

namespace tessera::tile {
namespace {

template <class To, class From>
void check_copies() {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}};
  const i64 shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {2, 64, 48}, {1, 131, 67}, {33, 4, 70}, {40, 300, 5}};
  for (const auto& n : shapes) {
    for (const auto& order : orders) {
      for (const i64 gap : {1, 2}) {
        const auto x = converted<From>(random_values(n[0] * n[1] * n[2] * gap, 1, -100, 100));
        std::vector<To> y(n[0] * n[1] * n[2] + 1, To(99));
        i64 strides[3], stride = gap;
        for (int k = 2; k >= 0; stride *= n[order[k--]]) strides[order[k]] = stride;
        const auto in = strided(x.data(), {n[0], n[1], n[2]}, strides);
        copy_view(executor(), packed(y.data(), {n[0], n[1], n[2]}), in);
        for (i64 i = 0, at = 0; i < n[0]; ++i)
          for (i64 j = 0; j < n[1]; ++j)
            for (i64 k = 0; k < n[2]; ++k, ++at) {
              ASSERT_EQ(convert_element<double>(y[at]), convert_element<double>(convert_element<To>(in.at(i, j, k))));
            }
        ASSERT_EQ(convert_element<double>(y.back()), 99);
      }
    }
  }
}

TEST(Transpose, CopiesOfEverySize) {
  check_copies<float, float>();
  check_copies<double, double>();
  check_copies<bf16, bf16>();
  check_copies<i8, i8>();
}

TEST(Transpose, CopiesWithConversion) {
  check_copies<float, bf16>();
  check_copies<f16, float>();
  check_copies<i32, double>();
}

// Copies of many bytes, which go past the caches: short runs, long ones, backwards, and one element for all.
TEST(Transpose, CopiesThatNoCacheHolds) {
  const i64 rows = 1207, columns = 1501, n = rows * columns;
  ASSERT_GE(n * static_cast<i64>(sizeof(float)), cpu::streamed_bytes);
  const auto x = converted<float>(random_values(2 * n, 3));
  struct Case {
    i64 a, b, first, second, from;
  };
  for (const auto& [a, b, first, second, from] : {Case{rows, columns, columns, 1, 0},
                                                  {rows, columns, columns + 5, 1, 3},
                                                  {n / 3, 3, 6, 2, 0},
                                                  {n / 7, 7, 9, 1, 1},
                                                  {1, n, 0, -1, n - 1},
                                                  {n / 40, 40, 1, 0, 0},
                                                  {1, n, 0, 0, 5}}) {
    std::vector<float> y(n + 2, 99);
    const auto in = strided(x.data() + from, {a, b}, {first, second});
    copy_view(executor(), packed(y.data() + 1, {a, b}), in);
    for (i64 i = 0; i < a; ++i)
      for (i64 j = 0; j < b; ++j) ASSERT_EQ(y[1 + i * b + j], in.at(i, j)) << a << ' ' << b << ": " << i << ' ' << j;
    ASSERT_EQ(y.front(), 99);
    ASSERT_EQ(y[1 + a * b], 99);
  }
}

}  // namespace
}  // namespace tessera::tile
