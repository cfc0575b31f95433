// Small integers for numbers, and exact products of them.
#include "ops/composed_check.h"
#include "tessera/ops_quantize.h"

namespace tessera {
namespace {

TEST(Quantize, RoundsToEvenAndCutsToTheRange) {
  const Tensor x = tensor<float>({-1000, -2.5f, -0.5f, 0.5f, 1.5f, 2.5f, 300}, {7});
  const Tensor one = full({}, 1), three = full({}, 3, UInt8);
  EXPECT_EQ(quantize(x, one).to_vector<int64_t>(), (std::vector<int64_t>{-128, -2, 0, 0, 2, 2, 127}));
  EXPECT_EQ(quantize(x, one, three, UInt8).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 3, 3, 5, 5, 255}));
}

TEST(Quantize, ByAxisAndByBlock) {
  const Tensor x = tensor<float>({2, 4, 6, 8, 10, 12}, {2, 3});
  const Tensor scale = tensor<float>({1, 2, 3}, {3});
  const Tensor q = quantize(x, scale);
  EXPECT_EQ(q.to_vector<int64_t>(), (std::vector<int64_t>{2, 2, 2, 8, 5, 4}));
  EXPECT_EQ(dequantize(q, scale).to_vector<float>(), (std::vector<float>{2, 4, 6, 8, 10, 12}));
  const Tensor blocks = tensor<float>({1, 2, 2, 4}, {2, 2});
  EXPECT_EQ(quantize(x, blocks, {}, Int8, 1, 2).to_vector<int64_t>(), (std::vector<int64_t>{2, 4, 3, 4, 5, 3}));
  EXPECT_EQ(error_of([&] {
              quantize(x, tensor<float>({1, 2}, {2}));
            }),
            "quantize: f32[2] on cpu for 3 parts of f32[2, 3] on cpu");
  EXPECT_EQ(error_of([&] { quantize(x, scale, {}, Int64); }), "quantize: gives i8, u8, i16 or u16, not i64");
}

TEST(Quantize, ByItsRange) {
  const Quantized q = dynamic_quantize(tensor<float>({-1, 0, 1, 4.1f}, {4}));
  EXPECT_FLOAT_EQ(static_cast<float>(q.scale.item()), 5.1f / 255);
  EXPECT_EQ(q.zero_point.item(), 50);
  EXPECT_EQ(q.values.to_vector<int64_t>(), (std::vector<int64_t>{0, 50, 100, 255}));
  const Quantized none = dynamic_quantize(zeros({3}));
  EXPECT_EQ(none.scale.item(), 1);
  EXPECT_EQ(none.values.to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0}));
}

TEST(IntegerProducts, AreExact) {
  Generator g(3);
  const Tensor a = randint(-128, 128, {5, 700}, g).to(Int8), b = randint(0, 256, {700, 3}, g).to(UInt8);
  const Tensor rows = randint(-5, 5, {5}, g).to(Int8), point = full({}, 7, UInt8);
  const auto av = a.to_vector<int64_t>(), bv = b.to_vector<int64_t>(), rv = rows.to_vector<int64_t>();
  std::vector<int64_t> want;
  for (size_t i = 0; i < 5; ++i)
    for (size_t j = 0; j < 3; ++j) {
      int64_t sum = 0;
      for (size_t k = 0; k < 700; ++k) sum += (av[i * 700 + k] - rv[i]) * (bv[k * 3 + j] - 7);
      want.push_back(sum);
    }
  const Tensor y = integer_matmul(a, b, rows, point);
  EXPECT_EQ(y.dtype(), Int32);
  EXPECT_EQ(y.to_vector<int64_t>(), want);
  EXPECT_EQ(error_of([&] { integer_matmul(a.to(Int64), b); }),
            "integer_matmul: takes integers of 8 bits, not i64[5, 700] on cpu");
}

TEST(IntegerProducts, OfWindows) {
  const Tensor x = tensor<int64_t>({1, 2, 3, 4}, {1, 1, 4}).to(UInt8),
               w = tensor<int64_t>({1, -1, 2, 2}, {2, 1, 2}).to(Int8);
  const Tensor y = integer_conv(x, w, full({}, 1, UInt8), tensor<int64_t>({0, 1}, {2}).to(Int8));
  EXPECT_EQ(y.to_vector<int64_t>(), (std::vector<int64_t>{-1, -1, -1, 1, 3, 5}));
}

// Sums that f32 would round: where all products have one sign, and where weights are too large for one pass.
TEST(IntegerProducts, OfWindowsAreExact) {
  struct Case {
    Shape x, weight;
    int64_t groups;
    int64_t least;  // of the weights, which reach 127
  };
  for (const Case& c : {Case{{2, 32, 9, 11}, {17, 32, 3, 3}, 1, -128}, Case{{1, 64, 12, 12}, {16, 64, 3, 3}, 1, 120},
                        Case{{2, 7, 5, 6}, {14, 1, 3, 3}, 7, -128}, Case{{1, 300, 4, 3}, {3, 300, 1, 1}, 1, 100},
                        Case{{1, 700, 4, 5}, {2, 700, 2, 3}, 1, 100}}) {
    Generator g(5);
    const Tensor x = randint(200, 256, c.x, g).to(UInt8), w = randint(c.least, 128, c.weight, g).to(Int8),
                 zero = randint(-5, 5, {c.weight[0].value()}, g).to(Int8), x_zero = full({}, 3, UInt8);
    ConvOptions options;
    options.groups = c.groups;
    options.low = options.high = {1, 1};
    Shape per_filter{c.weight[0].value(), 1, 1, 1};
    const Tensor want = conv(sub(x.to(Float64), x_zero.to(Float64)),
                             sub(w.to(Float64), reshape(zero, per_filter).to(Float64)), {}, options);
    const Tensor got = integer_conv(x, w, x_zero, zero, options);
    EXPECT_EQ(got.dtype(), Int32);
    EXPECT_EQ(got.to_vector<int64_t>(), want.to_vector<int64_t>()) << to_string(c.weight);
  }
}

TEST(IntegerProducts, TakeStacksAndVectors) {
  Generator g(9);
  const Tensor a = randint(0, 256, {3, 5, 600}, g).to(UInt8), b = randint(-128, 128, {3, 600, 4}, g).to(Int8);
  const auto exact = [](const Tensor& x, const Tensor& y) { return matmul(x.to(Float64), y.to(Float64)); };
  EXPECT_EQ(integer_matmul(a, b).to_vector<int64_t>(), exact(a, b).to_vector<int64_t>());
  const Tensor matrix = select(b, 0, 0), row = select(select(a, 0, 0), 0, 0), column = select(matrix, 1, 0);
  EXPECT_EQ(integer_matmul(row, matrix).to_vector<int64_t>(), exact(row, matrix).to_vector<int64_t>());
  EXPECT_EQ(integer_matmul(row, column).to_vector<int64_t>(), exact(row, column).to_vector<int64_t>());
  EXPECT_EQ(integer_matmul(slice(a, 1, 0, 0), b).shape(), (Shape{3, 0, 4}));
  EXPECT_EQ(integer_matmul(slice(a, 2, 0, 0), slice(b, 1, 0, 0)).to_vector<int64_t>(), std::vector<int64_t>(60, 0));
  EXPECT_NE(error_of([&] { integer_matmul(a, slice(b, 1, 0, 599)); }).find("inner dimensions differ"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
