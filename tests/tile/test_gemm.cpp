// The tile GEMM alone: any views, any epilogue, odd sizes, against sums in double.
#include "tile/kernels/gemm.h"

#include <gtest/gtest.h>

#include <array>

#include "rows_check.h"
#include "tile/kernels/conv.h"

namespace tessera::tile {
namespace {

template <class A, class B>
std::vector<double> product(const A& a, const B& b) {
  std::vector<double> c;
  for (i64 i = 0; i < a.length(0); ++i) {
    for (i64 j = 0; j < b.length(1); ++j) {
      double sum = 0;
      for (i64 k = 0; k < a.length(1); ++k) {
        if (a.valid(i, k) && b.valid(k, j)) {
          sum += convert_element<double>(a.at(i, k)) * convert_element<double>(b.at(k, j));
        }
      }
      c.push_back(sum);
    }
  }
  return c;
}

template <class T>
class Gemm : public testing::Test {};
using Types = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(Gemm, Types);

TYPED_TEST(Gemm, sizes_off_the_tile_in_every_orientation) {
  using T = TypeParam;
  using C = compute_t<T>;
  const ExecutorRef pool(executor());
  for (const auto& [m, n, k] : {std::array<i64, 3>{1, 1, 1},
                                {1, 97, 33},
                                {97, 1, 33},
                                {7, 64, 129},
                                {64, 7, 129},
                                {8, 300, 17},
                                {13, 31, 1},
                                {61, 67, 71},
                                {150, 100, 701}}) {
    const auto x = converted<T>(random_values(m * k, 1)), w = converted<T>(random_values(k * n, 2));
    for (int form = 0; form < 4; ++form) {
      const auto a = strided(x.data(), {m, k}, {form & 1 ? 1 : k, form & 1 ? m : 1});
      const auto b = strided(w.data(), {k, n}, {form & 2 ? 1 : n, form & 2 ? k : 1});
      std::vector<C> y(m * n + 1, C(5));
      gemm(pool, a, b, store(strided(y.data(), {m, n}, {n, 1}), acc));
      EXPECT_EQ(y.back(), C(5)) << "wrote behind the result";
      y.pop_back();
      EXPECT_LE(relative_l2(widened(y), product(a, b)), 3 * tolerance<C>) << m << " " << n << " " << k << " " << form;
    }
  }
}

TEST(gemm, epilogue_of_two_additions_and_gelu) {
  const i64 m = 50, n = 83, k = 400;
  const auto x = converted<float>(random_values(m * k, 1, -0.1, 0.1)), w = converted<float>(random_values(k * n, 2)),
             d = converted<float>(random_values(m * n, 3)), bias = converted<float>(random_values(n, 4));
  const auto a = strided(x.data(), {m, k}, {k, 1}), b = strided(w.data(), {k, n}, {n, 1});
  std::vector<float> y(m * n);
  gemm(ExecutorRef(executor()), a, b,
       store(strided(y.data(), {m, n}, {n, 1}),
             gelu_tanh(acc + load(strided(d.data(), {m, n}, {n, 1})) + load(strided(bias.data(), {m, n}, {0, 1})))));
  auto expected = product(a, b);
  for (i64 i = 0; i < m * n; ++i) expected[i] = gelu_tanh(expected[i] + d[i] + bias[i % n]);
  EXPECT_LE(relative_l2(widened(y), expected), 2e-6);
}

TEST(gemm, any_valid_config_computes_the_same) {
  const i64 m = 61, n = 83, k = 97;
  const auto x = converted<float>(random_values(m * k, 1)), w = converted<float>(random_values(k * n, 2)),
             d = converted<float>(random_values(m * n, 3));
  const auto a = strided(x.data(), {m, k}, {k, 1}), b = strided(w.data(), {k, n}, {n, 1});
  auto expected = product(a, b);
  for (i64 i = 0; i < m * n; ++i) expected[i] += d[i];
  for (const Config& config : {Config{1, 1, 1, 1, 1}, {13, 24, 5, 1, 1}, {64, 16, 96, 1, 1}, {60, 1000, 40, 1, 1}}) {
    std::vector<float> y(m * n), plain(m * n);
    const auto to = strided(y.data(), {m, n}, {n, 1});
    EXPECT_EQ(gemm(ExecutorRef(executor()), a, b, store(to, acc + load(strided(d.data(), {m, n}, {n, 1}))), config),
              Reason::ok);
    EXPECT_LE(relative_l2(widened(y), expected), 2e-6) << config.tile_m;
    const auto at = transform(a, pass<1>(), pass<0>());  // packed, not read in place
    EXPECT_EQ(gemm(ExecutorRef(executor()), transform(b, pass<1>(), pass<0>()), at,
                   store(strided(plain.data(), {n, m}, {1, n}), acc), config),
              Reason::ok);
    for (i64 i = 0; i < m * n; ++i) plain[i] += d[i];
    EXPECT_LE(relative_l2(widened(plain), expected), 2e-6) << config.tile_m;
  }
  std::vector<float> y(m * n, 3.f);
  const auto to = strided(y.data(), {m, n}, {n, 1});
  EXPECT_EQ(gemm(ExecutorRef(executor()), a, b, store(to, acc), Config{64, 16, 96, 4, 1}), Reason::warps);
  for (float v : y) EXPECT_EQ(v, 3.f);
  for (i64 depth : {0, 1, 100, 577, 5000, 1000000}) {
    for (const cpu::Places places : {cpu::Places{}, {true, false}, {false, true}}) {
      for (i64 n : {1000, 300}) {
        const Config config = cpu::default_config<float>({1000, n, depth}, places);
        EXPECT_EQ(validate(config, {1000, n, depth, 4}, Arch::cpu), Reason::ok) << depth;
      }
    }
  }
}

TEST(gemm, packs_the_left_side_for_all_blocks_of_columns_or_for_one) {
  const i64 m = 253, k = 97;  // blocks of rows and of k for each of a few threads, several panels packed together
  for (i64 n : {601, 40}) {
    const auto x = converted<float>(random_values(m * k, 4)), w = converted<float>(random_values(k * n, 5));
    const auto b = strided(w.data(), {k, n}, {n, 1});
    for (const Config& config : {Config{17, 32, 31, 1, 1}, {253, 64, 40, 1, 1}, {253, 64, 97, 1, 1}}) {
      for (bool by_columns : {true, false}) {
        const auto a = strided(x.data(), {m, k}, {by_columns ? 1 : k, by_columns ? m : 1});
        std::vector<float> y(m * n);
        EXPECT_EQ(gemm(ExecutorRef(executor()), a, b, store(strided(y.data(), {m, n}, {n, 1}), acc), config),
                  Reason::ok);
        EXPECT_LE(relative_l2(widened(y), product(a, b)), 2e-6) << n << " " << config.tile_m << " " << by_columns;
      }
    }
  }
}

TEST(gemm, who_computes_a_row_shows_in_no_bit) {
  const int before = num_threads();
  set_num_threads(5);  // more than there may be processors, so that tasks help each other, or go on in turns
  struct Size {
    i64 m, n, k;
    bool by_columns;
  };
  for (const auto& [m, n, k, by_columns] : {Size{701, 96, 83, false},
                                            {701, 300, 83, false},
                                            {301, 60, 700, true},
                                            {1601, 40, 90, true},
                                            {301, 60, 1003, true}}) {
    const auto x = converted<float>(random_values(m * k, 4)), w = converted<float>(random_values(k * n, 5));
    const auto a = strided(x.data(), {m, k}, {by_columns ? 1 : k, by_columns ? m : 1});
    const auto b = strided(w.data(), {k, n}, {n, 1});
    // As it is cut by default, and by a config for which the first task alone has two blocks of rows.
    for (const Config& config : {Config{}, Config{static_cast<int>(m / 5), 32, 1024, 1, 1}}) {
      std::vector<float> first;
      for (int i = 0; i < 20; ++i) {
        std::vector<float> y(m * n);
        const auto result = store(strided(y.data(), {m, n}, {n, 1}), acc);
        if (config.tile_n == 32) gemm(ExecutorRef(executor()), a, b, result, config);
        else gemm(ExecutorRef(executor()), a, b, result);
        if (i == 0) {
          EXPECT_LE(relative_l2(widened(y), product(a, b)), 2e-6) << n;
          first = y;
        }
        EXPECT_EQ(y, first) << n;
      }
    }
  }
  set_num_threads(before);
}

TEST(gemm, accumulates_over_a_long_sum_in_place) {
  const i64 m = 19, n = 40, k = 3000;
  const auto x = converted<float>(random_values(m * k, 1)), w = converted<float>(random_values(k * n, 2));
  const auto b = strided(w.data(), {k, n}, {n, 1});
  for (bool by_columns : {true, false}) {
    const auto a = strided(x.data(), {m, k}, {by_columns ? 1 : k, by_columns ? m : 1});
    std::vector<float> y(m * n, 2.f);
    gemm(ExecutorRef(executor()), a, b, accumulate(strided(y.data(), {m, n}, {n, 1}), acc));
    auto expected = product(a, b);
    for (double& e : expected) e += 2;
    EXPECT_LE(relative_l2(widened(y), expected), 3e-6) << by_columns;
  }
}

TEST(gemm, depth_to_space_as_the_store) {
  const i64 h = 6, w = 5, block = 2, channels = 3, k = 20, m = h * w, n = block * block * channels;
  const auto x = converted<float>(random_values(m * k, 1)), f = converted<float>(random_values(k * n, 2));
  const auto a = strided(x.data(), {m, k}, {k, 1}), b = strided(f.data(), {k, n}, {n, 1});
  std::vector<float> y(m * n);  // (h, block, w, block, channels)
  const auto pixels = packed(y.data(), {h, block, w, block, channels});
  gemm(ExecutorRef(executor()), a, b, store(transform(pixels, merge<0, 2>(), merge<1, 3, 4>()), acc));
  const auto expected = product(a, b);
  std::vector<double> moved(m * n);
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      const i64 row = i / w * block + j / (block * channels), column = i % w * block + j / channels % block;
      moved[(row * w * block + column) * channels + j % channels] = expected[i * n + j];
    }
  }
  EXPECT_LE(relative_l2(widened(y), moved), 2e-6);
}

TEST(gemm, convolution_windows_with_padding_are_never_written) {
  const i64 images = 2, h = 9, w = 11, channels = 5, filters = 7;
  const Window rows{h, 3, 2, 1, 1, 1}, columns{w, 3, 1, 2, 2, 2};
  const auto x = converted<float>(random_values(images * h * w * channels, 1)),
             f = converted<float>(random_values(9 * channels * filters, 2));
  const auto taps = convolution_taps(packed(x.data(), {images, h, w, channels}), rows, columns);
  const auto a = transform(taps, merge<0, 2, 4>(), merge<1, 3, 5>());
  const i64 m = a.length(0), k = a.length(1);
  const auto b = strided(f.data(), {k, filters}, {filters, 1});
  std::vector<float> y(m * filters);
  gemm(ExecutorRef(executor()), a, b, store(strided(y.data(), {m, filters}, {filters, 1}), acc));
  EXPECT_LE(relative_l2(widened(y), product(a, b)), 2e-6);
  std::vector<float> planes(m * filters);  // the same the other way round, as NCHW stores it
  const auto bt = transform(b, pass<1>(), pass<0>());
  const auto at = transform(a, pass<1>(), pass<0>());
  gemm(ExecutorRef(executor()), bt, at, store(strided(planes.data(), {filters, m}, {m, 1}), acc));
  EXPECT_LE(relative_l2(widened(planes), product(bt, at)), 2e-6);
}

TEST(gemm, batches_and_empty_products) {
  const i64 batch = 5, m = 12, n = 9, k = 30;
  const auto x = converted<float>(random_values(batch * m * k, 1)), w = converted<float>(random_values(k * n, 2));
  std::vector<float> y(batch * m * n);
  batched_gemm(ExecutorRef(executor()), batch, [&](i64 i) {
    const auto a = strided(x.data() + i * m * k, {m, k}, {k, 1}), b = strided(w.data(), {k, n}, {n, 1});
    const auto sink = store(strided(y.data() + i * m * n, {m, n}, {n, 1}), acc);
    return GemmProblem<decltype(a), decltype(b), decltype(sink)>{a, b, sink};
  });
  EXPECT_LE(
      relative_l2(widened(y), product(strided(x.data(), {batch * m, k}, {k, 1}), strided(w.data(), {k, n}, {n, 1}))),
      2e-6);
  const auto none = strided(x.data(), {m, 0}, {1, 1}), nothing = strided(w.data(), {0, n}, {1, 1});
  std::vector<float> zero(m * n, 3.f);
  gemm(ExecutorRef(executor()), none, nothing, store(strided(zero.data(), {m, n}, {n, 1}), acc));
  for (float v : zero) EXPECT_EQ(v, 0.f);
  const auto empty = strided(x.data(), {0, k}, {k, 1});
  gemm(ExecutorRef(executor()), empty, strided(w.data(), {k, n}, {n, 1}),
       store(strided(zero.data(), {0, n}, {n, 1}), acc + 1));
  for (float v : zero) EXPECT_EQ(v, 0.f);
}

}  // namespace
}  // namespace tessera::tile
