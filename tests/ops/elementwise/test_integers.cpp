// Integers of 16 bits, and unsigned ones: each operator against C++'s own arithmetic on numbers at the ends of each
// type.
#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_math.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

template <class T>
std::vector<T> odd_numbers() {
  using Limits = std::numeric_limits<T>;
  constexpr T most = Limits::max(), least = Limits::min(), half = most / 2;
  return {0,    1,         2, 3,    7, 63, 100, most, static_cast<T>(most - 1), half, static_cast<T>(half + 1),
          half, least + 1, 5, least};
}
template <class T>
Tensor row_of(const std::vector<T>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())});
}

template <class T>
class Integers : public testing::Test {
 public:
  const std::vector<T> numbers = odd_numbers<T>();
  const Tensor row = row_of(numbers), column = reshape(row, {static_cast<int64_t>(numbers.size()), 1});

  /// got[i, j] is want(numbers[i], numbers[j]).
  template <class F>
  void expect_pairs(const Tensor& got, const F& want) {
    using R = decltype(want(T(), T()));
    ASSERT_EQ(got.dtype(), dtype_of<R>);
    const auto all = got.to_vector<R>();
    ASSERT_EQ(all.size(), numbers.size() * numbers.size());
    for (size_t i = 0, n = numbers.size(); i < n; ++i)
      for (size_t j = 0; j < n; ++j)
        EXPECT_EQ(all[i * n + j], want(numbers[i], numbers[j])) << +numbers[i] << ", " << +numbers[j];
  }
  template <class F>
  void expect_each(const Tensor& got, const F& want) {
    using R = decltype(want(T()));
    ASSERT_EQ(got.dtype(), dtype_of<R>);
    const auto all = got.to_vector<R>();
    ASSERT_EQ(all.size(), numbers.size());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], want(numbers[i])) << +numbers[i];
  }
};
using Types = testing::Types<int16_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(Integers, Types);

template <class T, class F>
T wrapped(const F& f, T a, T b = 0) {
  return static_cast<T>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
}

TYPED_TEST(Integers, SumsAndProductsWrap) {
  using T = TypeParam;
  const auto &a = this->column, &b = this->row;
  this->expect_pairs(add(a, b), [](T x, T y) { return wrapped<T>(std::plus<>(), x, y); });
  this->expect_pairs(sub(a, b), [](T x, T y) { return wrapped<T>(std::minus<>(), x, y); });
  this->expect_pairs(mul(a, b), [](T x, T y) { return wrapped<T>(std::multiplies<>(), x, y); });
  this->expect_each(neg(b), [](T x) { return wrapped<T>(std::minus<>(), 0, x); });
  this->expect_each(square(b), [](T x) { return wrapped<T>(std::multiplies<>(), x, x); });
  this->expect_each(b + 3.0, [](T x) { return wrapped<T>(std::plus<>(), x, 3); });
  this->expect_each(b * 5.0, [](T x) { return wrapped<T>(std::multiplies<>(), x, 5); });
  this->expect_each(pow(b, full({}, 3, dtype_of<T>)),
                    [](T x) { return wrapped<T>(std::multiplies<>(), x, wrapped<T>(std::multiplies<>(), x, x)); });
  this->expect_each(pow(b, 3), [](T x) { return wrapped<T>([](auto u, auto) { return u * u * u; }, x); });
  Tensor in_place = b.clone();
  in_place.add_(b, 2).mul_(b);
  this->expect_each(in_place, [](T x) { return wrapped<T>([](auto u, auto) { return u * 3 * u; }, x); });
}

TYPED_TEST(Integers, DivisionsRoundDown) {
  using T = TypeParam;
  const auto quotient = [](T x, T y) -> T {
    if (y == static_cast<T>(-1) && std::is_signed_v<T>) return wrapped<T>(std::minus<>(), 0, x);
    const T q = static_cast<T>(x / y);
    return static_cast<T>(q - (x % y != 0 && (x < 0) != (y < 0)));
  };
  const auto& a = this->column;
  const Tensor divisor = where(eq(this->row, full({}, 0, dtype_of<T>)), full({}, 1, dtype_of<T>), this->row);
  const auto by = [&](const auto& fn) { return [=](T x, T y) { return fn(x, y == 0 ? static_cast<T>(1) : y); }; };
  this->expect_pairs(floor_div(a, divisor), by(quotient));
  this->expect_pairs(remainder(a, divisor), by([&](T x, T y) { return static_cast<T>(x - quotient(x, y) * y); }));
  const auto truncated = [](T x, T y) { return static_cast<T>(y == 0 ? x : x / y); };
  this->expect_pairs(div_trunc(a, divisor), truncated);
  this->expect_pairs(tessera::fmod(a, divisor), [](T x, T y) { return static_cast<T>(y == 0 ? 0 : x % y); });
  this->expect_each(div(this->row, full({}, 2, dtype_of<T>)), [](T x) { return static_cast<float>(x) / 2; });
}

TYPED_TEST(Integers, Compare) {
  using T = TypeParam;
  const auto &a = this->column, &b = this->row;
  this->expect_pairs(lt(a, b), [](T x, T y) { return x < y; });
  this->expect_pairs(le(a, b), [](T x, T y) { return x <= y; });
  this->expect_pairs(gt(a, b), [](T x, T y) { return x > y; });
  this->expect_pairs(ge(a, b), [](T x, T y) { return x >= y; });
  this->expect_pairs(eq(a, b), [](T x, T y) { return x == y; });
  this->expect_pairs(ne(a, b), [](T x, T y) { return x != y; });
  this->expect_pairs(logical_and(a, b), [](T x, T y) { return x && y; });
  this->expect_pairs(maximum(a, b), [](T x, T y) { return std::max(x, y); });
  this->expect_pairs(minimum(a, b), [](T x, T y) { return std::min(x, y); });
  this->expect_pairs(where(lt(a, b), a, b), [](T x, T y) { return std::min(x, y); });
  for (const Tensor& rounded : {floor(b), ceil(b), round(b), trunc(b)})
    this->expect_each(rounded, [](T x) { return x; });
  this->expect_each(abs(b), [](T x) { return static_cast<T>(x < 0 ? -x : x); });
  this->expect_each(sign(b), [](T x) { return static_cast<T>(x < 0 ? -1 : x > 0); });
  this->expect_each(relu(b), [](T x) { return std::max<T>(x, 0); });
  this->expect_each(clamp(b, 5, INFINITY), [](T x) { return std::max<T>(x, 5); });
  this->expect_each(clamp(b, -INFINITY, 100), [](T x) { return std::min<T>(x, 100); });
  this->expect_each(logical_not(b), [](T x) { return x == 0; });
}

TYPED_TEST(Integers, Bits) {
  using T = TypeParam;
  const auto &a = this->column, &b = this->row;
  this->expect_pairs(bitwise_and(a, b), [](T x, T y) { return static_cast<T>(x & y); });
  this->expect_pairs(bitwise_or(a, b), [](T x, T y) { return static_cast<T>(x | y); });
  this->expect_pairs(bitwise_xor(a, b), [](T x, T y) { return static_cast<T>(x ^ y); });
  this->expect_each(bitwise_not(b), [](T x) { return static_cast<T>(~x); });
  const int bits = 8 * sizeof(T);
  for (int n = 0; n <= bits; ++n) {
    const Tensor count = full({}, n, dtype_of<T>);
    this->expect_each(left_shift(b, count),
                      [&](T x) { return static_cast<T>(n == bits ? 0 : static_cast<uint64_t>(x) << n); });
    this->expect_each(right_shift(b, count),
                      [&](T x) { return static_cast<T>(n == bits ? (x < 0 ? -1 : 0) : x >> n); });
  }
  EXPECT_EQ(error_of([&] { bitcast(b, Bool); }).substr(0, 8), "bitcast:");
  EXPECT_EQ(bitcast(bitcast(b, std::is_signed_v<T> ? UInt16 : dtype_of<std::make_signed_t<T>>), dtype_of<T>)
                .template to_vector<T>(),
            this->numbers);
}

TYPED_TEST(Integers, Reduce) {
  using T = TypeParam;
  const std::vector<T>& v = this->numbers;
  const auto& x = this->row;
  const auto largest = std::max_element(v.begin(), v.end()), smallest = std::min_element(v.begin(), v.end());
  using Wide = std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>;
  uint64_t total = 0, product = 1;
  for (const T n : v) total += static_cast<uint64_t>(n), product *= n ? static_cast<uint64_t>(n) : 1;
  EXPECT_EQ(sum(x).dtype(), dtype_of<Wide>);
  EXPECT_EQ(sum(x).template item<Wide>(), static_cast<Wide>(total));
  EXPECT_EQ(prod(where(eq(x, full({}, 0, dtype_of<T>)), full({}, 1, dtype_of<T>), x)).template item<Wide>(),
            static_cast<Wide>(product));
  EXPECT_EQ(amax(x).template item<uint64_t>(), static_cast<uint64_t>(*largest));
  EXPECT_EQ(amin(x).template item<uint64_t>(), static_cast<uint64_t>(*smallest));
  EXPECT_EQ(amax(x).dtype(), dtype_of<T>);
  EXPECT_EQ(argmax(x, 0).template item<int64_t>(), largest - v.begin());
  EXPECT_EQ(argmin(x, 0).template item<int64_t>(), smallest - v.begin());
  EXPECT_EQ(any(x).item(), 1);
  EXPECT_EQ(all(x).item(), 0);
  double mean_of = 0;
  for (const T n : v) mean_of += static_cast<double>(n) / static_cast<double>(v.size());
  EXPECT_NEAR(mean(x).item(), mean_of, 1e-6 * std::abs(mean_of) + 1e-6);
  std::vector<Wide> sums;
  uint64_t so_far = 0;
  for (const T n : v) sums.push_back(static_cast<Wide>(so_far += static_cast<uint64_t>(n)));
  EXPECT_EQ(cumsum(x, 0).template to_vector<Wide>(), sums);
}

TYPED_TEST(Integers, Sort) {
  using T = TypeParam;
  std::vector<T> up = this->numbers, down;
  std::sort(up.begin(), up.end());
  down.assign(up.rbegin(), up.rend());
  const auto& x = this->row;
  EXPECT_EQ(sort(x).first.template to_vector<T>(), up);
  EXPECT_EQ(sort(x, 0, true).first.template to_vector<T>(), down);
  EXPECT_EQ(index_select(x, 0, argsort(x)).template to_vector<T>(), up);
  EXPECT_EQ(topk(x, 3).first.template to_vector<T>(), std::vector<T>(down.begin(), down.begin() + 3));
  EXPECT_EQ(median(x).template item<uint64_t>(), static_cast<uint64_t>(up[(up.size() - 1) / 2]));
  std::vector<T> running(up.size());
  std::partial_sum(this->numbers.begin(), this->numbers.end(), running.begin(),
                   [](T a, T b) { return std::max(a, b); });
  EXPECT_EQ(cummax(x, 0).first.template to_vector<T>(), running);
  up.erase(std::unique(up.begin(), up.end()), up.end());
  EXPECT_EQ(unique_along(x, 0).values.template to_vector<T>(), up);
  EXPECT_EQ(searchsorted(row_of(up), row_of(up)).template to_vector<int64_t>(),
            arange(0, static_cast<double>(up.size())).template to_vector<int64_t>());
}

TYPED_TEST(Integers, MoveAsTheyAre) {
  using T = TypeParam;
  std::vector<T> v(60);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<T>(i * static_cast<uint64_t>(0x9e3779b97f4a7c15u) >> 5);
  const Tensor x = tensor(v, {3, 4, 5});
  const auto at = [&](int64_t i, int64_t j, int64_t k) { return v[static_cast<size_t>((i * 4 + j) * 5 + k)]; };
  const auto expect_at = [&](const Tensor& got, const Shape& shape, const auto& element) {
    ASSERT_EQ(describe(got), fmt::format("{}{} on cpu", name(dtype_of<T>), to_string(shape)));
    const auto all = got.template to_vector<T>();
    size_t n = 0;
    for (int64_t i = 0; i < shape[0].value(); ++i)
      for (int64_t j = 0; j < shape[1].value(); ++j)
        for (int64_t k = 0; k < shape[2].value(); ++k) ASSERT_EQ(all[n++], element(i, j, k));
  };
  expect_at(permute(x, {2, 0, 1}), {5, 3, 4}, [&](auto i, auto j, auto k) { return at(j, k, i); });
  expect_at(slice(x, 2, 1, 5, 2), {3, 4, 2}, [&](auto i, auto j, auto k) { return at(i, j, 1 + 2 * k); });
  expect_at(flip(x, {0, 2}), {3, 4, 5}, [&](auto i, auto j, auto k) { return at(2 - i, j, 4 - k); });
  expect_at(concat({x, x}, 1), {3, 8, 5}, [&](auto i, auto j, auto k) { return at(i, j % 4, k); });
  expect_at(roll(x, {1}, {2}), {3, 4, 5}, [&](auto i, auto j, auto k) { return at(i, j, (k + 4) % 5); });
  expect_at(index_select(x, 1, tensor<int64_t>({3, 0}, {2})), {3, 2, 5},
            [&](auto i, auto j, auto k) { return at(i, j ? 0 : 3, k); });
  expect_at(triu(x), {3, 4, 5}, [&](auto i, auto j, auto k) { return k >= j ? at(i, j, k) : T(0); });
  expect_at(x.select(0, 1).unsqueeze(0).expand({2, 4, 5}).contiguous(), {2, 4, 5},
            [&](auto, auto j, auto k) { return at(1, j, k); });
  const Tensor index = tensor<int64_t>({2, 0, 2, 1, 1}, {1, 1, 5});
  expect_at(gather(x, 0, index), {1, 1, 5}, [&](auto, auto, auto k) {
    return at(std::array{2, 0, 2, 1, 1}[static_cast<size_t>(k)], 0, k);
  });
  EXPECT_EQ(nonzero(tensor<T>({0, std::numeric_limits<T>::max(), 0}, {3})).template to_vector<int64_t>(),
            (std::vector<int64_t>{1}));
  Tensor written = x.clone();
  written.slice(1, 0, 1).copy_(x.slice(1, 1, 2));
  EXPECT_EQ(written.select(1, 0).template to_vector<T>(), x.select(1, 1).template to_vector<T>());
}

TYPED_TEST(Integers, Scatter) {
  using T = TypeParam;
  constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::min();
  const Tensor x = tensor<T>({3, 4, 5}, {3}), index = tensor<int64_t>({1, 1, 2}, {3}),
               source = tensor<T>({most, 2, least}, {3});
  const auto written = [&](ScatterReduction how, bool self) {
    return scatter_reduce(x, 0, index, source, how, self).template to_vector<T>();
  };
  EXPECT_EQ(scatter(x, 0, index, source).template to_vector<T>(), (std::vector<T>{3, 2, least}));
  const T sums = wrapped<T>(std::plus<>(), most, 2), products = wrapped<T>(std::multiplies<>(), most, 2);
  EXPECT_EQ(written(ScatterReduction::Sum, false), (std::vector<T>{3, sums, least}));
  EXPECT_EQ(written(ScatterReduction::Prod, false), (std::vector<T>{3, products, least}));
  EXPECT_EQ(written(ScatterReduction::Max, true), (std::vector<T>{3, most, 5}));
  EXPECT_EQ(written(ScatterReduction::Max, false), (std::vector<T>{3, most, least}));
  EXPECT_EQ(written(ScatterReduction::Min, true), (std::vector<T>{3, 2, least}));
  const Tensor large = tensor<T>({most, most}, {2});
  EXPECT_EQ(
      scatter_reduce(x, 0, tensor<int64_t>({0, 0}, {2}), large, ScatterReduction::Min, false).template to_vector<T>(),
      (std::vector<T>{most, 4, 5}));
}

template <class From, class To>
void expect_cast(const std::vector<From>& values) {
  const auto got = row_of(values).to(dtype_of<To>).template to_vector<To>();
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(got[i], static_cast<To>(values[i])) << name(dtype_of<From>) << " to " << name(dtype_of<To>);
}
template <class From>
void expect_casts_from() {
  const std::vector<From> values = odd_numbers<From>();
  expect_cast<From, bool>(values);
  expect_cast<From, uint8_t>(values);
  expect_cast<From, int8_t>(values);
  expect_cast<From, int16_t>(values);
  expect_cast<From, uint16_t>(values);
  expect_cast<From, int32_t>(values);
  expect_cast<From, uint32_t>(values);
  expect_cast<From, int64_t>(values);
  expect_cast<From, uint64_t>(values);
  expect_cast<From, float>(values);
  expect_cast<From, double>(values);
  const auto halves = row_of(values).to(Float16).template to_vector<float>();
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(halves[i], static_cast<float>(f16(static_cast<float>(values[i])))) << +values[i];
}
TEST(Integers, CastToAndFromEachOther) {
  expect_casts_from<uint8_t>();
  expect_casts_from<int8_t>();
  expect_casts_from<int16_t>();
  expect_casts_from<uint16_t>();
  expect_casts_from<int32_t>();
  expect_casts_from<uint32_t>();
  expect_casts_from<int64_t>();
  expect_casts_from<uint64_t>();
  expect_cast<bool, uint64_t>({true, false});
  expect_cast<double, uint64_t>({0, 1.9, 0x1p53, 0x1p63, 0x1.fffffp63});
  expect_cast<float, uint32_t>({0, 1.9f, 0x1p31f, 0x1.fffffep31f});
}
/// The same in each part of a run, whatever instructions it takes.
TEST(Integers, CastsOfNegativeFloatsWrap) {
  const Tensor x = full({101}, -5.5);
  EXPECT_EQ(x.to(UInt64).to_vector<uint64_t>(), std::vector<uint64_t>(101, ~uint64_t{4}));
  EXPECT_EQ(x.to(UInt32).to_vector<uint32_t>(), std::vector<uint32_t>(101, ~uint32_t{4}));
  EXPECT_EQ(x.to(UInt16).to_vector<uint16_t>(), std::vector<uint16_t>(101, 0xfffb));
}

TEST(Integers, NumbersPast2To63) {
  const Tensor x = tensor<uint64_t>({0, 1, uint64_t{1} << 63, ~uint64_t{0}}, {4});
  EXPECT_EQ(to_string(x), "[0, 1, 9223372036854775808, 18446744073709551615]");
  EXPECT_EQ(x.select(0, 3).item<uint64_t>(), ~uint64_t{0});
  EXPECT_EQ(x.select(0, 2).item(), 0x1p63);
  EXPECT_EQ((x + 0x1p63).to_vector<uint64_t>(),
            (std::vector<uint64_t>{uint64_t{1} << 63, (uint64_t{1} << 63) + 1, 0, ~uint64_t{0} >> 1}));
  EXPECT_EQ(clamp(x, 2, 0x1p63).to_vector<uint64_t>(),
            (std::vector<uint64_t>{2, 2, uint64_t{1} << 63, uint64_t{1} << 63}));
  EXPECT_EQ(full({2}, 0x1p63, UInt64).to_vector<uint64_t>(), std::vector<uint64_t>(2, uint64_t{1} << 63));
}

/// Long enough for vectors, and lying apart.
TEST(Integers, LongAndStridedTensors) {
  std::vector<uint64_t> a(1000), b(1000), larger, quotient;
  for (size_t i = 0; i < a.size(); ++i) a[i] = i * 0x9e3779b97f4a7c15u, b[i] = (i * i + 1) * 0xd1342543de82ef95u;
  const Tensor x = row_of(a), y = row_of(b);
  for (size_t i = 0; i < a.size(); i += 2) larger.push_back(std::max(a[i], b[i])), quotient.push_back(a[i] / b[i]);
  const Tensor p = slice(x, 0, 0, 1000, 2), q = slice(y, 0, 0, 1000, 2);
  EXPECT_EQ(maximum(p, q).to_vector<uint64_t>(), larger);
  EXPECT_EQ(floor_div(p, q).to_vector<uint64_t>(), quotient);
  EXPECT_EQ(amax(x).item<uint64_t>(), *std::max_element(a.begin(), a.end()));
  EXPECT_EQ(amin(reshape(y, {20, 50}), {0}).select(0, 3).item<uint64_t>(), [&] {
    uint64_t least = b[3];
    for (size_t i = 3; i < b.size(); i += 50) least = std::min(least, b[i]);
    return least;
  }());
}

TEST(Integers, MeansOfIntegersHaveFractions) {
  for (DType dtype : {UInt8, Int8, Int16, UInt16, Int32, UInt32, Int64, UInt64})
    EXPECT_EQ(mean(tensor<int64_t>({1, 2}, {2}).to(dtype)).item(), 1.5) << name(dtype);
}

TEST(Integers, MixedTypes) {
  const Tensor u16 = full({2}, 60000, UInt16), i16 = full({2}, -30000, Int16), u32 = full({2}, 4e9, UInt32);
  EXPECT_EQ(describe(mul(u16, i16)), "i32[2] on cpu");
  EXPECT_EQ(mul(u16, i16).to_vector<int64_t>(), std::vector<int64_t>(2, -1800000000));
  EXPECT_EQ(sub(i16, u32).to_vector<int64_t>(), std::vector<int64_t>(2, -4000030000));
  EXPECT_EQ(add(u16, full({}, 10000, Int64)).dtype(), UInt16);  // a number does not widen
  EXPECT_EQ(add(full({2}, 1, UInt64), i16).dtype(), Float64);
  EXPECT_EQ(lt(i16, full({2}, 1, UInt64)).to_vector<bool>(), std::vector<bool>(2, true));
  EXPECT_EQ(add(u16, full({2}, 0.5, Float16)).dtype(), Float16);
}

TEST(Integers, WhatDoesNotTakeThemSaysSo) {
  const Tensor x = ones({2, 3}, UInt16);
  EXPECT_EQ(error_of([&] { matmul(x, x); }).find("u16") == std::string::npos, false);
  EXPECT_EQ(error_of([&] { gather(x, 0, x); }).find("u16") == std::string::npos, false);
  EXPECT_EQ(error_of([&] { x.data<int16_t>(); }), "data: u16[2, 3] on cpu read as i16");
  EXPECT_EQ(error_of([&] { Tensor(x).set_requires_grad(); }).find("u16") == std::string::npos, false);
  EXPECT_EQ(error_of([&] { bitwise_and(ones({2}, UInt64), ones({2}, Int64)); }),
            "bitwise_and: takes integers and bools, not f64");
}

TEST(Integers, OnGpusOnlyLieAndMove) {
  const Tensor x = empty({2, 3}, UInt32, parse_device("cuda:sm90"));
  const Tensors in = {x, transpose(transpose(x, 0, 1), 0, 1)};
  const auto operands = operands_of({in.data(), in.size()});
  const Attrs none;
  const Call call{find_op("add"), {operands.data(), 2}, none, {operands.data(), 1}};
  EXPECT_EQ(error_of([&] { pick_kernel(call); }), "add: u32[2, 3] on cuda:sm90: only the CPU computes with u32");
}

}  // namespace
}  // namespace tessera
