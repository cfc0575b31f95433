// Types and vectors: conversions against exact arithmetic, lane-wise operations, masked memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tile/vec.h"

namespace {
namespace tile = tessera::tile;
using tile::bf16, tile::f16, tile::Vec;

double f16_value(unsigned bits) {  // straight from the definition of binary16
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

TEST(types, every_f16_widens_exactly_and_returns) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    f16 h;
    h.bits = static_cast<tile::u16>(bits);
    const double expected = f16_value(bits);
    const float value = static_cast<float>(h);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(value))));
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(f16(value).bits, bits);
    }
  }
}

TEST(types, narrowing_rounds_to_nearest_even) {
  for (unsigned bits = 0; bits < 0x7bff; ++bits) {  // every pair of neighbours, about their middle
    const float low = static_cast<float>(f16_value(bits)), high = static_cast<float>(f16_value(bits + 1));
    const float middle = (low + high) / 2;
    ASSERT_EQ(f16(middle).bits, bits % 2 ? bits + 1 : bits);
    ASSERT_EQ(f16(std::nextafter(middle, 0.f)).bits, bits);
    ASSERT_EQ(f16(std::nextafter(middle, 1e9f)).bits, bits + 1);
    ASSERT_EQ(f16(-middle).bits, 0x8000u | (bits % 2 ? bits + 1 : bits));
  }
  EXPECT_EQ(f16(65519.f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(f16(-INFINITY).bits, 0xfc00);
  for (unsigned bits = 0; bits < 0x7f7f; ++bits) {
    const float low = tile::bit_cast<float>(bits << 16), middle = tile::bit_cast<float>((bits << 16) + 0x8000u);
    ASSERT_EQ(bf16(low).bits, bits);
    ASSERT_EQ(bf16(middle).bits, bits % 2 ? bits + 1 : bits);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(NAN))));
  EXPECT_EQ(static_cast<float>(bf16(INFINITY)), INFINITY);
}

template <class V>
class VecTest : public testing::Test {};
using Vectors = testing::Types<float, double, Vec<float, 4>, Vec<float, 8>, Vec<float, 16>, Vec<float, 32>,
                               Vec<double, 2>, Vec<double, 8>, tile::NativeVec<float>, tile::NativeVec<double>>;
TYPED_TEST_SUITE(VecTest, Vectors);

template <class T>
std::vector<T> fresh(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-2, 2);
  std::vector<T> x(n);
  for (T& v : x) v = tile::convert_element<T>(uniform(random));
  return x;
}

TYPED_TEST(VecTest, arithmetic_is_lane_wise) {
  using V = TypeParam;
  using T = tile::element_t<V>;
  constexpr int n = tile::lanes_v<V>;
  const auto a = fresh<T>(n, 1), b = fresh<T>(n, 2), c = fresh<T>(n, 3);
  const V x = tile::load<V>(a.data()), y = tile::load<V>(b.data()), z = tile::load<V>(c.data());
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(tile::get(x + y, i), a[i] + b[i]);
    EXPECT_EQ(tile::get(x - y, i), a[i] - b[i]);
    EXPECT_EQ(tile::get(x * y, i), a[i] * b[i]);
    EXPECT_EQ(tile::get(x / y, i), a[i] / b[i]);
    EXPECT_EQ(tile::get(-x, i), -a[i]);
    EXPECT_EQ(tile::get(tile::min(x, y), i), std::min(a[i], b[i]));
    EXPECT_EQ(tile::get(tile::max(x, y), i), std::max(a[i], b[i]));
    EXPECT_EQ(tile::get(tile::select(x < y, x, z), i), a[i] < b[i] ? a[i] : c[i]);
    EXPECT_EQ(tile::get(tile::sqrt(x * x), i), std::sqrt(a[i] * a[i]));
    EXPECT_NEAR(tile::get(tile::fma(x, y, z), i), std::fma(a[i], b[i], c[i]), 1e-6);
  }
  EXPECT_TRUE(tile::all(x == x));
  EXPECT_FALSE(tile::any(x != x));
  const V nan = V(static_cast<T>(NAN));
  EXPECT_TRUE(std::isnan(tile::get(tile::min(nan, x), 0))) << "the first operand's NaN is kept";
  EXPECT_TRUE(std::isnan(tile::get(tile::max(nan, x), 0)));
}

TYPED_TEST(VecTest, reductions) {
  using V = TypeParam;
  using T = tile::element_t<V>;
  const auto a = fresh<T>(tile::lanes_v<V>, 4);
  const V x = tile::load<V>(a.data());
  double sum = 0;
  T least = a[0], most = a[0];
  for (T v : a) sum += v, least = std::min(least, v), most = std::max(most, v);
  EXPECT_NEAR(tile::reduce_sum(x), sum, 1e-5);
  EXPECT_EQ(tile::reduce_min(x), least);
  EXPECT_EQ(tile::reduce_max(x), most);
}

/// Loads and stores of every count touch exactly that many elements, in each storage type.
template <class V, class S>
void check_masked() {
  constexpr int n = tile::lanes_v<V>;
  for (int count = 0; count <= n; ++count) {
    const std::vector<S> in = fresh<S>(count, 5);  // the sanitizer sees what is read behind it
    const V v = tile::load<V>(in.data(), count);
    std::vector<S> out(n + 1, S(7.f));
    tile::store(out.data(), v, count);
    for (int i = 0; i <= n; ++i) {
      const float got = static_cast<float>(out[i]);
      ASSERT_EQ(got, i < count ? static_cast<float>(in[i]) : 7.f) << count << " of " << n << ", lane " << i;
    }
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(static_cast<float>(tile::get(v, i)), i < count ? static_cast<float>(in[i]) : 0.f);
    }
  }
  const std::vector<S> in = fresh<S>(3 * n, 6);
  const V v = tile::load_strided<V>(in.data(), 3);
  std::vector<S> out(2 * n, S(0.f)), whole(n);
  tile::store_strided(out.data(), 2, v);
  tile::store(whole.data(), v);
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(static_cast<float>(out[2 * i]), static_cast<float>(in[3 * i]));
    EXPECT_EQ(static_cast<float>(whole[i]), static_cast<float>(in[3 * i]));
  }
}
TYPED_TEST(VecTest, masked_memory_in_every_storage_type) {
  check_masked<TypeParam, float>();
  check_masked<TypeParam, double>();
  check_masked<TypeParam, f16>();
  check_masked<TypeParam, bf16>();
}

TEST(vec, vector_halves_convert_as_scalars_do) {
  std::mt19937 random(7);
  using V = tile::NativeVec<float>;
  for (int trial = 0; trial < 20000; ++trial) {
    float in[V::lanes];
    f16 h[V::lanes];
    bf16 b[V::lanes];
    for (float& x : in) x = tile::bit_cast<float>(static_cast<unsigned>(random()));
    const V v = tile::load<V>(static_cast<const float*>(in));
    tile::store(h, v);
    tile::store(b, v);
    for (int i = 0; i < V::lanes; ++i) {
      if (std::isnan(in[i])) {
        ASSERT_TRUE(std::isnan(static_cast<float>(h[i])) && std::isnan(static_cast<float>(b[i])));
      } else {
        ASSERT_EQ(h[i].bits, f16(in[i]).bits);
        ASSERT_EQ(b[i].bits, bf16(in[i]).bits);
      }
    }
  }
}

TEST(vec, integer_lanes) {
  using I = Vec<int, 8>;
  const I i = tile::iota<I>();
  const auto wide = tile::convert<float>(i);
  for (int k = 0; k < 8; ++k) {
    EXPECT_EQ(i[k], k);
    EXPECT_EQ(wide[k], k);
    EXPECT_EQ((i << I(2))[k], 4 * k);
    EXPECT_EQ(tile::convert<int>(wide * 1.5f)[k], static_cast<int>(k * 1.5f));
  }
}

template <class T, int N>
void check_zip() {
  using P = Vec<T, N>;
  const P a = tile::iota<P>(), b = a + P(T(100));
  const auto zipped = tile::zip(a, b);
  const auto back = tile::unzip(zipped.first, zipped.second);
  for (int i = 0; i < 2 * N; ++i) {
    EXPECT_EQ((i < N ? zipped.first : zipped.second)[i % N], (i % 2 == 0 ? a : b)[i / 2]) << i;
  }
  for (int i = 0; i < N; ++i) {
    EXPECT_EQ(back.first[i], a[i]) << i;
    EXPECT_EQ(back.second[i], b[i]) << i;
  }
}
TEST(vec, zip_and_unzip) {
  check_zip<float, 4>();
  check_zip<float, 8>();
  check_zip<float, 16>();
  check_zip<double, 2>();
  check_zip<double, 8>();
  check_zip<int, 8>();
}

}  // namespace
