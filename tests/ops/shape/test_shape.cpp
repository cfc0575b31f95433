#include "ops/op_table.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

bool shares(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

TEST(Shape, ViewsShareTheirStorage) {
  Tensor x = arange(0, 24).reshape({2, 3, 4});
  EXPECT_TRUE(shares(x.transpose(0, 2), x));
  EXPECT_TRUE(shares(x.slice(1, 0, 2), x));
  EXPECT_TRUE(shares(x.select(0, 1), x));
  EXPECT_TRUE(shares(x.reshape({6, 4}), x));
  EXPECT_TRUE(shares(x.slice(2, 0, 2).reshape({6, 2}), x));
  EXPECT_TRUE(shares(x.transpose(0, 1).unsqueeze(1).squeeze(1), x));
  EXPECT_TRUE(shares(x.contiguous(), x));
  EXPECT_FALSE(shares(x.transpose(0, 1).reshape({24}), x));
  EXPECT_FALSE(shares(x.transpose(0, 1).contiguous(), x));
  EXPECT_FALSE(shares(x.clone(), x));
  EXPECT_EQ(x.transpose(0, 2).reshape({24}).to_vector<int64_t>()[1], 12);
}

TEST(Shape, ReshapesInfer) {
  Tensor x = zeros({6, 4});
  EXPECT_EQ(to_string(reshape(x, {-1}).shape()), "[24]");
  EXPECT_EQ(to_string(reshape(x, {2, -1, 4}).shape()), "[2, 3, 4]");
  EXPECT_EQ(to_string(reshape(zeros({0, 4}), {4, -1}).shape()), "[4, 0]");
  EXPECT_EQ(to_string(flatten(zeros({2, 3, 4, 5}), 1, 2).shape()), "[2, 12, 5]");
  EXPECT_EQ(to_string(flatten(zeros({}), 0, -1).shape()), "[1]");
  Dim batch = Dim::symbol("batch");
  TensorMeta meta{{batch, 6}, Float32, {}};
  const Op& op = find_op("reshape");
  EXPECT_EQ(to_string(op.infer({&meta, 1}, ShapeAttrs{DimList({-1, 3})})[0].shape), "[2*batch, 3]");
  EXPECT_EQ(to_string(op.infer({&meta, 1}, ShapeAttrs{DimList(Shape{batch * 6})})[0].shape), "[6*batch]");
  EXPECT_NE(error_of([&] { op.infer({&meta, 1}, ShapeAttrs{DimList({12})}); }), "no error");
}

TEST(Shape, SlicesOfSymbolicDims) {
  Dim n = Dim::symbol("n");
  TensorMeta meta{{n, 6}, Float32, {}};
  auto sliced = [&](Dim start, Dim end) {
    return find_op("slice").infer({&meta, 1}, SliceAttrs{0, start, end, 1})[0].shape[0];
  };
  EXPECT_EQ(sliced(0, INT64_MAX), n);
  EXPECT_EQ(sliced(2, INT64_MAX), n - 2);
  EXPECT_EQ(sliced(-3, INT64_MAX), Dim(3));
  EXPECT_EQ(sliced(0, n - 1), n - 1);
}

TEST(Shape, SplitsAndJoins) {
  Tensor x = arange(0, 14).reshape({7, 2});
  Tensors parts = split(x, 3, 0);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].size(0), 1);
  EXPECT_EQ(concat(parts, 0).to_vector<int64_t>(), x.to_vector<int64_t>());
  EXPECT_EQ(chunk(x, 4, 0).size(), 4u);
  EXPECT_EQ(to_string(stack({x, x, x}, -1).shape()), "[7, 2, 3]");
  EXPECT_EQ(stack({x, x}, 0).select(0, 1).to_vector<int64_t>(), x.to_vector<int64_t>());
  EXPECT_EQ(concat({ones({2}, Int32), ones({1})}, 0).dtype(), Float32);
  Tensors many;
  for (int i = 0; i < 40; ++i) many.push_back(full({1}, i, Float64).set_requires_grad());
  Tensor joined = concat(many, 0);
  (joined * joined).backward(ones({40}, Float64));
  EXPECT_EQ(many[39].grad().item(), 78);
}

TEST(Shape, PadsTheLastDims) {
  Tensor x = ones({2, 2}, Int64);
  EXPECT_EQ(pad(x, {1}, {0}, 7).to_vector<int64_t>(), (std::vector<int64_t>{7, 1, 1, 7, 1, 1}));
  EXPECT_EQ(to_string(pad(x, {1, 0}, {2, 3}).shape()), "[5, 5]");
}

TEST(Shape, TakesExtremeArguments) {
  const int64_t far = INT64_MAX, low = INT64_MIN;
  Tensor x = arange(0, 6, 1, Float64).reshape({3, 2}).clone().set_requires_grad();
  for (int64_t bound : {low, low + 5, -far / 2}) {
    EXPECT_EQ(slice(x, 0, bound, 5).size(0), 3);
    EXPECT_EQ(slice(x, 0, 0, bound).size(0), 0);
    EXPECT_THROW(reshape(x, {bound}), Error);
    EXPECT_THROW(expand(x, {bound}), Error);
    EXPECT_THROW(select(x, 0, bound), Error);
    EXPECT_THROW(empty({bound}), Error);
    EXPECT_THROW(empty({0, bound}), Error);
  }
  EXPECT_EQ(slice(x, 0, far, low).size(0), 0);
  EXPECT_THROW(select(x, 0, far), Error);
  Tensor step = slice(x, 0, 1, far, far);
  EXPECT_EQ(step.to_vector<double>(), (std::vector<double>{2, 3}));
  step.backward(ones({1, 2}, Float64));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(chunk(x, far, 0).size(), 3u);
  EXPECT_EQ(split(x, far, 0).size(), 1u);
  EXPECT_EQ(sum(tril(x, far)).item(), 15);
  EXPECT_EQ(sum(triu(x, far)).item(), 0);
  EXPECT_EQ(sum(tril(x, low)).item(), 0);
  EXPECT_THROW(pad(x, {int64_t{1} << 46}, {1}), OutOfMemoryError);
  EXPECT_EQ(error_of([&] { pad(x, {far}, {far}); }),
            "pad: padding of [3, 2] by 9223372036854775807 and 9223372036854775807 exceeds 2^48");
}

TEST(Shape, GradientsFlowThroughViews) {
  Tensor x = arange(0, 12, 1, Float64).reshape({3, 4}).clone().set_requires_grad();
  Tensor y = x.transpose(0, 1).slice(0, 1, 4, 2).select(1, 2) * 3.0;  // x[2][1], x[2][3]
  y.backward(tensor<double>({1, 10}, {2}));
  std::vector<double> want(12, 0);
  want[9] = 3;
  want[11] = 30;
  EXPECT_EQ(x.grad().to_vector<double>(), want);
  EXPECT_TRUE(x.grad().is_contiguous());
}

TEST(Shape, NamesTheRuleThatIsBroken) {
  Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] { reshape(x, {4}); }), "reshape: [2, 3] has 6 elements, which do not fill [4]");
  EXPECT_EQ(error_of([&] { reshape(x, {4, -1}); }), "reshape: [2, 3] has 6 elements, which do not fill [4, -1]");
  EXPECT_EQ(error_of([&] { reshape(x, {-1, -1}); }), "reshape: more than one -1 in [-1, -1]");
  EXPECT_EQ(error_of([&] { reshape(x, {-2, -3}); }), "reshape: negative size in [-2, -3]");
  EXPECT_EQ(error_of([&] { reshape(zeros({0}), {0, -1}); }), "reshape: -1 in [0, -1] could be any size");
  EXPECT_EQ(error_of([&] { permute(x, {0, 0}); }), "permute: the dims must name each of [2, 3] once");
  EXPECT_EQ(error_of([&] { transpose(x, 0, 2); }), "transpose: dim 2 is out of range for [2, 3]");
  EXPECT_EQ(error_of([&] { expand(x, {2, 4}); }), "expand: [2, 3] does not expand to [2, 4]");
  EXPECT_EQ(error_of([&] { expand(x, {3}); }), "expand: [2, 3] does not expand to [3]");
  EXPECT_EQ(error_of([&] { squeeze(x, 0); }), "squeeze: dim 0 of [2, 3] is not 1");
  EXPECT_EQ(error_of([&] { slice(x, 0, 0, 2, 0); }), "slice: the step is 0, not positive");
  EXPECT_EQ(error_of([&] { select(x, 1, 3); }), "select: index 3 is out of range for dim 1 of [2, 3]");
  EXPECT_EQ(error_of([&] { select(x, 1, -4); }), "select: index -4 is out of range for dim 1 of [2, 3]");
  EXPECT_EQ(error_of([&] { concat({}, 0); }), "concat: no tensors");
  EXPECT_EQ(error_of([&] {
              concat({x, zeros({3, 3})}, 1);
            }),
            "concat: shapes differ outside of dim 1: [2, 3] and [3, 3]");
  EXPECT_EQ(error_of([&] { stack({x, zeros({3})}, 0); }), "stack: shapes differ: [2, 3] and [3]");
  EXPECT_EQ(error_of([&] { split(x, 0, 0); }), "split: parts of 0 elements");
  EXPECT_EQ(error_of([&] { pad(x, {-1}, {0}); }), "pad: negative padding of [2, 3]");
  EXPECT_EQ(error_of([&] { pad(x, {1, 1, 1}, {0, 0, 0}); }), "pad: more paddings than dims of [2, 3]");
  EXPECT_EQ(error_of([&] { flip(x, {0, -2}); }), "flip: dim -2 of [2, 3] is named twice");
  EXPECT_EQ(error_of([&] { tril(zeros({3})); }), "tril: [3] has fewer than two dims");
  EXPECT_EQ(error_of([&] { clone(Tensor()); }), "clone: input 0 is undefined");
  EXPECT_EQ(error_of([&] { reshape(Tensor(), {1}); }), "the tensor is undefined");
}

TEST(Dims, AreMadeAtRunTime) {
  const Tensor x = arange(0, 24).reshape({2, 3, 4});
  std::vector<int64_t> order;
  for (int64_t d = x.dim(); d-- > 0;) order.push_back(d);
  EXPECT_EQ(x.permute(order).to_vector<int64_t>(), x.transpose(0, 2).to_vector<int64_t>());
  EXPECT_EQ(permute(x, std::span<const int64_t>(order)).shape(), (Shape{4, 3, 2}));
  const Dims last{1, 2};
  EXPECT_EQ(sum(x, last).to_vector<int64_t>(), (std::vector<int64_t>{66, 210}));
  EXPECT_EQ(amax(x, IntList{-1, -2}).to_vector<int64_t>(), (std::vector<int64_t>{11, 23}));
  EXPECT_EQ(mean(x, SmallVector<int64_t, 4>{0}).shape(), (Shape{3, 4}));
  EXPECT_EQ(sum(x, std::vector<int64_t>()).item<int64_t>(), 276);  // none: all
  Dims reversed;
  reversed.push_back(2);
  EXPECT_EQ(flip(x, reversed).select(0, 0).select(0, 0).to_vector<int64_t>(), (std::vector<int64_t>{3, 2, 1, 0}));
  EXPECT_EQ(pad(x, std::vector<int64_t>{1}, std::vector<int64_t>{2}).shape(), (Shape{2, 3, 7}));
}

TEST(Dims, AreAtMostEight) {
  const Tensor x = zeros({2, 3});
  const std::vector<int64_t> nine(9, 0);
  const std::string rest = ": a list of 9 dims: at most 8 are supported";
  EXPECT_EQ(error_of([&] { x.permute(nine); }), "permute" + rest);
  EXPECT_EQ(error_of([&] { sum(x, nine); }), "sum" + rest);
  EXPECT_EQ(error_of([&] { std_dev(x, nine); }), "std_dev" + rest);
  EXPECT_EQ(error_of([&] { logsumexp(x, nine); }), "logsumexp" + rest);
  EXPECT_EQ(error_of([&] { flip(x, nine); }), "flip" + rest);
  EXPECT_EQ(error_of([&] { pad(x, nine, nine); }), "pad: 9 low and 9 high paddings for [2, 3]");
  EXPECT_EQ(error_of([&] {
              as_strided(x.storage(), {1, 1, 1, 1, 1, 1, 1, 1, 1}, Strides(9), 0, Float32).transpose(0, 1);
            }),
            "transpose" + rest);
}

TEST(TensorMethods, MoveAndPrint) {
  Tensor x = tensor<float>({1, 2.5, -3, 1e9}, {2, 2});
  EXPECT_TRUE(same(x.to(cpu()), x));
  EXPECT_TRUE(same(x.to(Float32), x));
  EXPECT_EQ(error_of([&] { x.to(cuda(99)); }).substr(0, 33), "device cuda:99 is not available: ");
  EXPECT_EQ(to_string(x), "[[1, 2.5], [-3, 1e+09]]");
  EXPECT_EQ(to_string(arange(0, 100)), "[0, 1, 2, 3, ..., 96, 97, 98, 99]");
  EXPECT_EQ(to_string(ones({2}, Bool)), "[true, true]");
  EXPECT_EQ(to_string(full({}, 7, Int64)), "7");
  EXPECT_EQ(to_string(zeros({0, 3})), "[]");
  EXPECT_EQ(to_string(Tensor()), "undefined");
  EXPECT_EQ(x.transpose(0, 1).to_vector<double>(), (std::vector<double>{1, -3, 2.5, 1e9}));
}

TEST(Creation, CountsAndRefuses) {
  EXPECT_EQ(arange(0, 1, 0.25, Float64).to_vector<double>(), (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(arange(5, 0, -2).to_vector<int64_t>(), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_EQ(arange(3, 3).numel(), 0);
  EXPECT_EQ(arange(3, 0).numel(), 0);
  EXPECT_EQ(error_of([&] { arange(0, 3, 0); }), "arange: no finite number of steps of 0 from 0 to 3");
  EXPECT_EQ(error_of([&] { zeros({-1}); }), "empty: negative size in [-1]");
  EXPECT_EQ(error_of([&] { zeros({2}, Float32, hip(99)); }).substr(0, 32), "device hip:99 is not available: ");
  EXPECT_THROW(zeros({int64_t{1} << 40}), OutOfMemoryError);
}

}  // namespace
}  // namespace tessera
