// Embeddings with padding, and by bags, against plain loops in float64.
#include "ops/capture.h"
#include "ops/composed_check.h"
#include "tessera/ops_layers.h"

namespace tessera {
namespace {

// Rows of weight that `rows` names, with factors, but for `padding`.
std::vector<double> bag_at(const Tensor& weight, const std::vector<int64_t>& rows, const std::vector<double>& factors,
                           BagMode mode, int64_t padding) {
  const int64_t width = weight.size(1);
  std::vector<double> bag(static_cast<size_t>(width), 0);
  double count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == padding) continue;
    for (size_t k = 0; k < bag.size(); ++k) {
      const double v = weight.data<double>()[rows[i] * width + static_cast<int64_t>(k)] * factors[i];
      bag[k] = mode != BagMode::Max ? bag[k] + v : count == 0 ? v : std::max(bag[k], v);
    }
    ++count;
  }
  if (mode == BagMode::Mean && count > 0)
    for (double& v : bag) v /= count;
  return bag;
}

struct BagCase {
  Tensor index, weight, offsets, factors;
  std::vector<int64_t> starts;  ///< with the end
};
BagCase bag_case() {
  Generator g(3);
  return {indices({11}, 6, g),
          normal64({6, 5}, g),
          tensor<int64_t>({0, 3, 3, 7}, {4}),
          uniform64({11}, g, 0.2, 2),
          {0, 3, 3, 7, 11}};
}

std::vector<double> bags_at(const BagCase& c, BagMode mode, int64_t padding, bool with_factors) {
  std::vector<double> want;
  for (size_t b = 0; b + 1 < c.starts.size(); ++b) {
    std::vector<int64_t> rows;
    std::vector<double> factors;
    for (int64_t i = c.starts[b]; i < c.starts[b + 1]; ++i) {
      rows.push_back(c.index.data<int64_t>()[i]);
      factors.push_back(with_factors ? c.factors.data<double>()[i] : 1);
    }
    for (double v : bag_at(c.weight, rows, factors, mode, padding)) want.push_back(v);
  }
  return want;
}

TEST(EmbeddingBag, ReducesBagsByOffsets) {
  const BagCase c = bag_case();
  for (BagMode mode : {BagMode::Sum, BagMode::Mean, BagMode::Max})
    for (int64_t padding : {-1, 2}) {
      EmbeddingBagOptions o{.mode = mode, .offsets = c.offsets};
      if (padding >= 0) o.padding_idx = padding;
      const auto want = bags_at(c, mode, padding, false);
      expect_elements(embedding_bag(c.index, c.weight, o), want, "embedding_bag");
      expect_elements(embedding_bag(c.index.to(Int32), c.weight.to(Float32), o), want, "embedding_bag");
      expect_gradients([&](const Tensors& in) { return embedding_bag(c.index, in[0], o); }, {c.weight},
                       "embedding_bag");
      o.offsets = tensor<int64_t>(c.starts, {5}).to(Int32);
      o.include_last_offset = true;
      expect_elements(embedding_bag(c.index, c.weight, o), want, "embedding_bag");
      if (padding >= 0) {
        o.padding_idx = padding - 6;
        expect_elements(embedding_bag(c.index, c.weight, o), want, "embedding_bag");
      }
    }
}

TEST(EmbeddingBag, LeavesOutWhatLiesBehindTheLastOffset) {
  BagCase c = bag_case();
  c.starts = {0, 3, 9};
  const EmbeddingBagOptions o{
      .mode = BagMode::Sum, .offsets = tensor<int64_t>(c.starts, {3}), .include_last_offset = true};
  expect_elements(embedding_bag(c.index, c.weight, o), bags_at(c, BagMode::Sum, -1, false), "embedding_bag");
}

TEST(EmbeddingBag, TakesRowsAndFactors) {
  BagCase c = bag_case();
  c.index = reshape(slice(c.index, 0, 0, 10), {2, 5}).clone();
  c.factors = reshape(slice(c.factors, 0, 0, 10), {2, 5}).clone();
  c.starts = {0, 5, 10};
  expect_elements(embedding_bag(c.index, c.weight), bags_at(c, BagMode::Mean, -1, false), "embedding_bag");
  const EmbeddingBagOptions o{.mode = BagMode::Sum, .per_sample_weights = c.factors, .padding_idx = 2};
  expect_elements(embedding_bag(c.index, c.weight, o), bags_at(c, BagMode::Sum, 2, true), "embedding_bag");
  const auto bag = [&](const Tensors& in) {
    return embedding_bag(c.index, in[0], {.mode = BagMode::Sum, .per_sample_weights = in[1], .padding_idx = 2});
  };
  expect_gradients(bag, {c.weight, c.factors}, "embedding_bag");
}

TEST(EmbeddingBag, AddsRowsWhereTheyLie) {
  Generator g(5);
  for (const int64_t width : {1, 16, 37}) {
    const Tensor weight = normal64({7, width}, g), flat = indices({33}, 7, g), index = reshape(flat, {11, 3});
    for (const BagMode mode : {BagMode::Sum, BagMode::Mean}) {
      std::vector<double> want;
      for (int64_t b = 0; b < 11; ++b) {
        const int64_t* const rows = flat.data<int64_t>() + 3 * b;
        for (const double v : bag_at(weight, {rows, rows + 3}, {1, 1, 1}, mode, -1)) want.push_back(v);
      }
      const EmbeddingBagOptions o{.mode = mode};
      const Tensor apart = reshape(stack({weight, weight}, 2), {7, 2 * width}).slice(1, 0, 2 * width, 2);
      for (const Tensor& w : {weight, apart, weight.to(Float32)})
        for (const Tensor& i : {index, index.to(Int32)}) expect_elements(embedding_bag(i, w, o), want, "embedding_bag");
      expect_gradients([&](const Tensors& in) { return embedding_bag(index, in[0], o); }, {weight}, "embedding_bag");
    }
  }
  for (const int64_t row : {-1, 7})
    EXPECT_EQ(error_of([&] {
                embedding_bag(full({2, 2}, static_cast<double>(row), Int64), zeros({7, 5}));
              }),
              "embedding: index " + std::to_string(row) + " is out of range for size 7");
}

TEST(EmbeddingBag, OfNothingIsZero) {
  const Tensor weight = ones({6, 5});
  for (BagMode mode : {BagMode::Sum, BagMode::Mean, BagMode::Max}) {
    const Tensor rows = embedding_bag(zeros({2, 0}, Int64), weight, {.mode = mode});
    const Tensor bags = embedding_bag(zeros({0}, Int64), weight, {.mode = mode, .offsets = zeros({2}, Int64)});
    for (const Tensor* y : {&rows, &bags}) EXPECT_EQ(y->to_vector<float>(), std::vector<float>(10, 0));
  }
}

TEST(EmbeddingBag, IsCaptured) {
  const BagCase c = bag_case();
  const auto bag = [](const Tensors& in) {
    return Tensors{embedding_bag(in[0], in[1], {.offsets = in[2]}),
                   embedding_bag(in[0], in[1], {.mode = BagMode::Max, .offsets = in[2], .padding_idx = 1})};
  };
  const Tensors in{c.index, c.weight, c.offsets}, want = bag(in), got = capture(bag, in)(in);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>());
}

TEST(Embedding, GivesPaddingNoGradient) {
  const Tensor index = tensor<int64_t>({0, 2, 2, 1, 2, 0}, {2, 3});
  for (int64_t padding : {2, -2}) {
    Tensor weight = tensor<double>({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}).set_requires_grad();
    const Tensor y = embedding(index, weight, padding);
    EXPECT_EQ(y.to_vector<double>(), embedding(index, weight).to_vector<double>());
    sum(y).backward();
    EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{2, 2, 1, 1, 0, 0, 0, 0}));
  }
}

TEST(EmbeddingBag, NamesTheRuleThatIsBroken) {
  const BagCase c = bag_case();
  const auto error = [&](const Tensor& index, const EmbeddingBagOptions& o) {
    return error_of([&] { embedding_bag(index, c.weight, o); });
  };
  const auto offsets = [](std::vector<int64_t> v) { return tensor(v, {static_cast<int64_t>(v.size())}); };
  EXPECT_EQ(error(c.index, {}), "embedding_bag: the index [11] is neither [bags, n] nor [n] with offsets");
  EXPECT_EQ(error(zeros({11}), {.offsets = c.offsets}), "embedding_bag: the index is f32[11] on cpu, not i64 or i32");
  EXPECT_EQ(error(c.index, {.offsets = zeros({2})}),
            "embedding_bag: offsets must be i64 or i32 [bags], not f32[2] on cpu");
  EXPECT_EQ(error(c.index, {.offsets = offsets({1, 2})}), "embedding_bag: the first offset is not 0");
  EXPECT_EQ(error(c.index, {.offsets = offsets({0, 5, 3})}), "embedding_bag: offset 3 is not in [5, 11]: they ascend");
  EXPECT_EQ(error(c.index, {.offsets = offsets({0, 12})}), "embedding_bag: offset 12 is not in [0, 11]: they ascend");
  EXPECT_EQ(error(c.index, {.offsets = c.offsets, .per_sample_weights = c.factors}),
            "embedding_bag: per_sample_weights are for sums");
  EXPECT_EQ(error(c.index, {.mode = BagMode::Sum, .offsets = c.offsets, .per_sample_weights = zeros({3})}),
            "embedding_bag: per_sample_weights has shape [3], not [11]");
  EXPECT_EQ(error(c.index, {.offsets = c.offsets, .padding_idx = 6}),
            "embedding_bag: the padding's row 6 is not one of 6 rows");
  EXPECT_EQ(error_of([&] { embedding(c.index, c.weight, -7); }),
            "embedding: the padding's row -7 is not one of 6 rows");
  EXPECT_EQ(error_of([&] { embedding_bag(c.index, zeros({3}), {.offsets = c.offsets}); }),
            "embedding_bag: the weight must be floating [rows, width], not f32[3] on cpu");
}

}  // namespace
}  // namespace tessera
