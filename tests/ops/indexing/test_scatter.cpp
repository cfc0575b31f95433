// Writing to computed places, against plain loops.
#include "ops/composed_check.h"
#include "tessera/ops_indexing.h"

namespace tessera {
namespace {

using enum ScatterReduction;

Tensor places(std::vector<int64_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return tensor(values, {n});
}

// scatter_reduce along dim 0 of [rows, columns].
std::vector<double> reduced(const Tensor& x, const Tensor& index, const Tensor& source, ScatterReduction how,
                            bool include_self) {
  const int64_t rows = x.size(0), columns = x.size(1);
  std::vector<double> out = x.to_vector<double>();
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> all;
      if (include_self) all.push_back(out[static_cast<size_t>(r * columns + c)]);
      const size_t own = all.size();
      for (int64_t i = 0; i < index.size(0); ++i)
        if (index.data<int64_t>()[i * columns + c] == r) all.push_back(source.data<double>()[i * columns + c]);
      if (all.size() == own) continue;
      double value = all[0];
      for (size_t i = 1; i < all.size(); ++i)
        value = how == Prod  ? value * all[i]
                : how == Max ? std::max(value, all[i])
                : how == Min ? std::min(value, all[i])
                             : value + all[i];
      out[static_cast<size_t>(r * columns + c)] = how == Mean ? value / static_cast<double>(all.size()) : value;
    }
  return out;
}

TEST(Scatter, CombinesWhatMeetsAtAPlace) {
  Generator g(3);
  const Tensor x = uniform64({7, 3}, g), index = indices({11, 3}, 5, g), source = uniform64({11, 3}, g);
  for (ScatterReduction how : {Sum, Mean, Prod, Max, Min})
    for (bool self : {true, false}) {
      expect_elements(scatter_reduce(x, 0, index, source, how, self), reduced(x, index, source, how, self), "reduced");
      expect_gradients([&](const Tensors& in) { return scatter_reduce(in[0], 0, index, in[1], how, self); },
                       {x, source}, "scatter_reduce");
    }
}

TEST(Scatter, CombinesIntegers) {
  const Tensor x = tensor<int32_t>({5, -7, 9}, {3}), at = places({0, 0, 1}), source = tensor<int32_t>({2, 4, -2}, {3});
  const auto of = [&](ScatterReduction how, bool self) {
    return scatter_reduce(x, 0, at, source, how, self).to_vector<int64_t>();
  };
  EXPECT_EQ(of(Max, false), (std::vector<int64_t>{4, -2, 9}));
  EXPECT_EQ(of(Min, false), (std::vector<int64_t>{2, -2, 9}));
  EXPECT_EQ(of(Prod, true), (std::vector<int64_t>{40, 14, 9}));
  EXPECT_EQ(of(Mean, true), (std::vector<int64_t>{3, -5, 9}));
}

// Zeros among the factors of a product.
TEST(Scatter, GradientsOfProductsWithZeros) {
  const Tensor x = tensor<double>({0, 2, 3, 0}, {4}), at = places({0, 1, 1, 2, 3}),
               source = tensor<double>({5, 0, 7, 2, 0}, {5});
  expect_gradients([&](const Tensors& in) { return scatter_reduce(in[0], 0, at, in[1], Prod); }, {x, source}, "zeros");
}

TEST(Scatter, TheLastWriteStays) {
  Generator g(5);
  for (int64_t dim : {0, 1, 2}) {
    const Tensor x = uniform64({5, 4, 3}, g), index = indices({5, 4, 3}, 3, g), source = uniform64({5, 4, 3}, g);
    expect_gradients([&](const Tensors& in) { return scatter(in[0], dim, index, in[1]); }, {x, source});
  }
  EXPECT_EQ(scatter(zeros({3}, Int64), 0, places({1, 2, 1}), places({5, 6, 7})).to_vector<int64_t>(),
            (std::vector<int64_t>{0, 7, 6}));
}

TEST(Scatter, NamesTheRuleThatIsBroken) {
  const Tensor x = ones({3, 4});
  EXPECT_EQ(error_of([&] {
              scatter(x, 0, zeros({3, 4}, Int64), ones({2, 4}));
            }),
            "scatter: the source must be like the index [3, 4] and of dtype f32, not f32[2, 4] on cpu");
  EXPECT_EQ(error_of([&] { scatter(x, 0, full({3, 4}, 3, Int64), x); }), "scatter: index 3 is out of range for size 3");
  EXPECT_EQ(error_of([&] {
              scatter_reduce(x, 0, zeros({3, 4}), x, Max);
            }),
            "scatter_amax: the index is f32, not i64 or i32");
}

// ---- several dims at once

TEST(Places, OfSeveralDims) {
  Generator g(7);
  const Tensor x = uniform64({3, 4, 5}, g);
  const Tensor index = tensor<int64_t>({0, 1, 2, -1, -3, 3}, {3, 2});
  std::vector<double> want;
  for (auto [a, b] : {std::pair{0, 1}, {2, 3}, {0, 3}})
    for (int64_t c = 0; c < 5; ++c) want.push_back(x.data<double>()[(a * 4 + b) * 5 + c]);
  expect_elements(gather_nd(x, index), want, "gather_nd");
  expect_gradients([&](const Tensors& in) { return gather_nd(in[0], index); }, {x}, "gather_nd");
  EXPECT_EQ(to_string(gather_nd(x, reshape(index, {3, 1, 2})).shape()), "[3, 1, 5]");
  EXPECT_EQ(gather_nd(x, tensor<int32_t>({1, 2, 3}, {3})).item(), x.data<double>()[(1 * 4 + 2) * 5 + 3]);

  const Tensor batched = tensor<int64_t>({3, -4, 1}, {3, 1});
  want.clear();
  for (auto [a, b] : {std::pair{0, 3}, {1, 0}, {2, 1}})
    for (int64_t c = 0; c < 5; ++c) want.push_back(x.data<double>()[(a * 4 + b) * 5 + c]);
  expect_elements(gather_nd(x, batched, 1), want, "batched");
}

TEST(Places, AreWrittenTo) {
  Generator g(9);
  const Tensor x = uniform64({3, 4, 5}, g), index = tensor<int64_t>({0, 1, 2, 3, -3, 1}, {3, 2}),
               source = uniform64({3, 5}, g);
  std::vector<double> last = x.to_vector<double>(), sums = last;
  for (size_t i = 0; i < 3; ++i)
    for (size_t c = 0; c < 5; ++c) {
      const size_t at = (i == 1 ? 2 * 4 + 3 : 1) * 5 + c;
      last[at] = source.data<double>()[i * 5 + c];
      sums[at] += source.data<double>()[i * 5 + c];
    }
  expect_elements(scatter_nd(x, index, source), last, "scatter_nd");
  expect_elements(scatter_nd(x, index, source, Sum), sums, "scatter_nd");
  expect_gradients([&](const Tensors& in) { return scatter_nd(in[0], index, in[1]); }, {x, source}, "scatter_nd");

  const Tensor rows = tensor<int64_t>({0, 2, -3}, {3}), columns = tensor<int64_t>({1, 3, 1}, {3});
  expect_elements(index_put(x, {rows, columns}, source), last, "index_put");
  expect_elements(index_put(x, {rows, columns}, source, true), sums, "index_put");
  EXPECT_EQ(sum(index_put(zeros({3, 4}), {reshape(rows, {3, 1}), columns}, full({}, 1.0))).item(), 4);
  expect_gradients([&](const Tensors& in) { return index_put(in[0], {rows, columns}, in[1], true); }, {x, source});
}

TEST(Places, AlongOneDim) {
  Generator g(11);
  const Tensor x = uniform64({3, 4}, g), best = argmax(x, 1, true);
  EXPECT_EQ(take_along_dim(x, best, 1).to_vector<double>(), amax(x, {1}).to_vector<double>());
  EXPECT_EQ(take_along_dim(x, tensor<int64_t>({-1, 0}, {1, 2}), 1).to_vector<double>(),
            concat({slice(x, 1, 3, 4), slice(x, 1, 0, 1)}, 1).to_vector<double>());

  const Tensor at = tensor<int64_t>({1, 1, 0}, {3}), source = uniform64({3, 3}, g);
  std::vector<double> want = x.to_vector<double>();
  for (size_t r = 0; r < 3; ++r)
    for (size_t i = 0; i < 3; ++i)
      want[r * 4 + static_cast<size_t>(at.data<int64_t>()[i])] += 0.5 * source.data<double>()[r * 3 + i];
  expect_elements(index_add(x, 1, at, source, 0.5), want, "index_add");
  expect_gradients([&](const Tensors& in) { return index_add(in[0], 1, at, in[1], 0.5); }, {x, source}, "index_add");
}

TEST(Places, NameTheRuleThatIsBroken) {
  const Tensor x = ones({3, 4});
  EXPECT_EQ(error_of([&] {
              gather_nd(x, zeros({2, 3}, Int64));
            }),
            "gather_nd: an index [2, 3] does not name places of [3, 4] behind 0 dims that they share");
  EXPECT_EQ(error_of([&] {
              gather_nd(x, tensor<int64_t>({0, 4}, {1, 2}));
            }),
            "index_select: index -1 is out of range for size 12");
  EXPECT_EQ(error_of([&] {
              scatter_nd(x, tensor<int64_t>({0}, {1, 1}), ones({1, 3}));
            }),
            "scatter_nd: the source must be of shape [1, 4] and dtype f32, not f32[1, 3] on cpu");
  EXPECT_EQ(error_of([&] { take_along_dim(x, zeros({3}, Int64), 0); }),
            "take_along_dim: the index [3] has not as many dims as [3, 4]");
  EXPECT_EQ(error_of([&] { index_put(x, {}, ones({})); }), "index_put: 0 indices for [3, 4]");
  EXPECT_EQ(error_of([&] { index_put(x, {zeros({2}, Int64)}, ones({3})); }),
            "index_put: shapes do not broadcast: [2, 4] and [3]");
  EXPECT_EQ(error_of([&] {
              index_add(x, 0, zeros({2}, Int64), ones({2, 3}));
            }),
            "index_add: [2] does not add [2, 3] to dim 0 of [3, 4]");
}

}  // namespace
}  // namespace tessera
