// Distances, and losses of pairs and triplets, against plain loops in float64.
#include "ops/capture.h"
#include "ops/composed_check.h"
#include "tessera/autocast.h"
#include "tessera/ops_loss.h"

namespace tessera {
namespace {

constexpr double kPowers[] = {0, 0.5, 1, 2, 3, INFINITY};

double length_at(const std::vector<double>& v, double p) {
  double total = 0;
  for (double e : v) {
    if (std::isinf(p)) total = std::max(total, std::abs(e));
    else total += p == 0 ? e != 0 : std::pow(std::abs(e), p);
  }
  return std::isinf(p) || p == 0 ? total : std::pow(total, 1 / p);
}
// Of row i of a and row j of b, which have the width of the last dim.
double distance_at(const Tensor& a, int64_t i, const Tensor& b, int64_t j, double p, double eps = 0) {
  const int64_t width = a.size(-1);
  std::vector<double> v;
  for (int64_t k = 0; k < width; ++k)
    v.push_back(a.data<double>()[i * width + k] - b.data<double>()[j * width + k] + eps);
  return length_at(v, p);
}

TEST(Distances, OfPairs) {
  Generator g(3);
  const Tensor a = normal64({7, 5}, g), b = normal64({7, 5}, g);
  for (double p : kPowers) {
    std::vector<double> want, pairs;
    for (int64_t i = 0; i < 7; ++i) {
      want.push_back(distance_at(a, i, b, i, p, 1e-6));
      for (int64_t j = i + 1; j < 7; ++j) pairs.push_back(distance_at(a, i, a, j, p));
    }
    expect_elements(pairwise_distance(a, b, p), want, "pairwise_distance");
    EXPECT_EQ(to_string(pairwise_distance(a, b, p, 1e-6, true).shape()), "[7, 1]");
    expect_elements(pdist(a, p), pairs, "pdist");
    if (p == 0) continue;
    expect_gradients([&](const Tensors& in) { return pairwise_distance(in[0], in[1], p); }, {a, b},
                     "pairwise_distance");
    expect_gradients([&](const Tensors& in) { return pdist(in[0], p); }, {a}, "pdist");
  }
  EXPECT_EQ(pdist(zeros({1, 3})).numel(), 0);
}

TEST(Distances, OfAllPairs) {
  Generator g(5);
  for (int64_t rows : {3, 31})
    for (double p : kPowers) {
      const Tensor a = normal64({2, rows, 5}, g), b = normal64({1, 4, 5}, g);
      std::vector<double> want;
      for (int64_t i = 0; i < 2 * rows; ++i)
        for (int64_t j = 0; j < 4; ++j) want.push_back(distance_at(a, i, b, j, p));
      const Tensor got = cdist(a, b, p);
      ASSERT_EQ(to_string(got.shape()), to_string(Shape{2, rows, 4}));
      EXPECT_LE(relative_error(got, tensor(want, got.shape())), 1e-12) << p;
      EXPECT_LE(relative_error(cdist(a.to(Float32), b.to(Float32), p), got), 2e-6) << p;
      if (rows == 3 && p > 0)
        expect_gradients([&](const Tensors& in) { return cdist(in[0], in[1], p); }, {a, b}, "cdist");
    }
}

// Where the formula divides by 0.
TEST(Distances, OfEqualRowsHaveNoSlope) {
  for (double p : {0.5, 1.0, 2.0, 3.0})
    for (int64_t rows : {2, 40}) {
      Tensor x = ones({rows, 3}, Float64).set_requires_grad();
      const Tensor d = cdist(x, ones({2, 3}, Float64), p);
      EXPECT_EQ(sum(d).item(), 0);
      sum(d).backward();
      for (double slope : x.grad().to_vector<double>()) EXPECT_EQ(slope, 0) << p;
    }
}

TEST(Distances, OfDirections) {
  Generator g(7);
  const Tensor a = normal64({3, 5, 2}, g), b = normal64({1, 5, 2}, g);
  std::vector<double> cosines, units;
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      double ab = 0, aa = 0, bb = 0;
      for (int64_t k = 0; k < 5; ++k) {
        const double x = a.data<double>()[(i * 5 + k) * 2 + j], y = b.data<double>()[k * 2 + j];
        ab += x * y, aa += x * x, bb += y * y;
      }
      cosines.push_back(ab / std::sqrt(aa * bb));
    }
  expect_elements(cosine_similarity(a, b), cosines, "cosine_similarity");
  expect_gradients([](const Tensors& in) { return cosine_similarity(in[0], in[1]); }, {a, b}, "cosine_similarity");
  EXPECT_EQ(cosine_similarity(zeros({2, 3}), ones({2, 3})).to_vector<float>(), (std::vector<float>{0, 0}));
  for (double p : {0.5, 1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
    units.clear();
    for (int64_t i = 0; i < 15; ++i)
      for (int64_t j = 0; j < 2; ++j) {
        const double* row = a.data<double>() + i * 2;
        units.push_back(row[j] / length_at({row[0], row[1]}, p));
      }
    expect_elements(normalize(a, p, -1), units, "normalize");
    expect_gradients([&](const Tensors& in) { return normalize(in[0], p, -1); }, {a}, "normalize");
  }
  EXPECT_EQ(normalize(zeros({1, 3})).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  expect_half_precision_close([](const Tensors& in) { return cosine_similarity(in[0], in[1]); }, {a, b}, 4e-3);
}

TEST(Distances, LossesOfPairs) {
  Generator g(9);
  const Tensor a = normal64({6, 3}, g), b = normal64({6, 3}, g), t = tensor<double>({1, -1, 1, -1, -1, 1}, {6});
  std::vector<double> cosines, ranks;
  for (int64_t i = 0; i < 6; ++i) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t k = 0; k < 3; ++k) {
      const double x = a.data<double>()[i * 3 + k], y = b.data<double>()[i * 3 + k];
      ab += x * y, aa += x * x, bb += y * y;
      ranks.push_back(std::max(0.0, 0.3 - t.data<double>()[i] * (x - y)));
    }
    const double cosine = ab / std::sqrt(aa * bb);
    cosines.push_back(t.data<double>()[i] == 1 ? 1 - cosine : std::max(0.0, cosine - 0.1));
  }
  const auto cosine = [&](const Tensors& in, Reduction r) { return cosine_embedding_loss(in[0], in[1], t, 0.1, r); };
  const auto rank = [&](const Tensors& in, Reduction r) {
    return margin_ranking_loss(in[0], in[1], unsqueeze(t, 1), 0.3, r);
  };
  EXPECT_LE(relative_error(cosine({a, b}, Reduction::None), tensor(cosines, {6})), 1e-11);
  EXPECT_LE(relative_error(rank({a, b}, Reduction::None), tensor(ranks, {6, 3})), 1e-12);
  for (Reduction r : {Reduction::Mean, Reduction::Sum}) {
    const auto reduce = [&](const Tensor& x) { return r == Reduction::Mean ? mean(x) : sum(x); };
    EXPECT_LE(relative_error(cosine({a, b}, r), reduce(tensor(cosines, {6}))), 1e-11);
    EXPECT_LE(relative_error(rank({a, b}, r), reduce(tensor(ranks, {6, 3}))), 1e-12);
    expect_gradients([&](const Tensors& in) { return cosine(in, r); }, {a, b}, "cosine_embedding_loss");
    expect_gradients([&](const Tensors& in) { return rank(in, r); }, {a, b}, "margin_ranking_loss");
  }
  EXPECT_NEAR(cosine_embedding_loss(select(a, 0, 1), select(b, 0, 1), full({}, -1.0), 0.1).item(), cosines[1], 1e-11);
}

TEST(Distances, LossesOfTriplets) {
  Generator g(11);
  const Tensor a = normal64({5, 3}, g), p = normal64({5, 3}, g), n = normal64({5, 3}, g);
  for (bool swap : {false, true})
    for (double power : {1.0, 2.0}) {
      std::vector<double> want;
      for (int64_t i = 0; i < 5; ++i) {
        double apart = distance_at(a, i, n, i, power, 1e-6);
        if (swap) apart = std::min(apart, distance_at(p, i, n, i, power, 1e-6));
        want.push_back(std::max(0.0, 0.6 + distance_at(a, i, p, i, power, 1e-6) - apart));
      }
      const TripletOptions o{.margin = 0.6, .p = power, .swap = swap, .reduction = Reduction::None};
      expect_elements(triplet_margin_loss(a, p, n, o), want, "triplet_margin_loss");
      expect_gradients([&](const Tensors& in) { return triplet_margin_loss(in[0], in[1], in[2], o); }, {a, p, n});
    }
  const TripletOptions own{.distance = [](const Tensor& x, const Tensor& y) { return sum(abs(x - y), {-1}); }};
  const TripletOptions plain{.p = 1, .eps = 0};
  EXPECT_NEAR(triplet_margin_loss(a, p, n, own).item(), triplet_margin_loss(a, p, n, plain).item(), 1e-12);
}

TEST(Distances, AreCaptured) {
  Generator g(13);
  const Tensor a = normal64({6, 3}, g), b = normal64({6, 3}, g);
  const auto all = [](const Tensors& in) {
    return Tensors{cdist(in[0], in[1], 3), pdist(in[0]), cosine_similarity(in[0], in[1]),
                   triplet_margin_loss(in[0], in[1], in[1] * 0.5)};
  };
  const Tensors want = all({a, b}), got = capture(all, {a, b})({a, b});
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>());
  const Tensor symbolic = empty({Dim::symbol("n"), Dim(3)}, Float32, meta(cpu()));
  EXPECT_EQ(to_string(cdist(symbolic, empty({6, 3}, Float32, meta(cpu()))).shape()), "[n, 6]");
}

TEST(Distances, AndLossesAreF32UnderAutocast) {
  Generator g(15);
  const Tensor a = normal64({30, 3}, g).to(BFloat16), b = normal64({30, 3}, g).to(BFloat16);
  const auto all = [](const Tensor& x, const Tensor& y) {
    return Tensors{cdist(x, y),
                   pdist(x),
                   pairwise_distance(x, y),
                   cosine_similarity(x, y),
                   l1_loss(x, y),
                   kl_div(x, y, true),
                   triplet_margin_loss(x, y, x),
                   margin_ranking_loss(x, y, x),
                   nll_loss(x, zeros({30}, Int64)),
                   cosine_embedding_loss(x, y, ones({30}))};
  };
  const Tensors want = all(a.to(Float32), b.to(Float32)), low = all(a, b);
  const amp::Autocast guard(BFloat16);
  const Tensors got = all(a, b);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(low[i].dtype(), BFloat16) << i;
    EXPECT_EQ(got[i].dtype(), Float32) << i;
    EXPECT_LE(relative_error(got[i], want[i]), 1e-6) << i;
  }
}

TEST(Distances, NameTheRuleThatIsBroken) {
  const Tensor x = zeros({3, 5}), y = zeros({3, 4}), whole = zeros({3, 5}, Int64);
  EXPECT_EQ(error_of([&] { pairwise_distance(x, y); }),
            "pairwise_distance: shapes do not broadcast: [3, 5] and [3, 4]");
  EXPECT_EQ(error_of([&] { cdist(x, y); }), "cdist: [3, 5] and [3, 4] are not rows of one width");
  EXPECT_EQ(error_of([&] { cdist(x, x, -1); }), "cdist: p is -1, negative");
  EXPECT_EQ(error_of([&] { cdist(x, whole); }), "cdist: takes floating-point tensors, not i64[3, 5] on cpu");
  EXPECT_EQ(error_of([&] { pdist(zeros({2, 3, 5})); }), "pdist: x must have 2 dims, not shape [2, 3, 5]");
  EXPECT_EQ(error_of([&] { cosine_similarity(x, x, 2); }), "cosine_similarity: dim 2 is out of range for [3, 5]");
  EXPECT_EQ(error_of([&] { normalize(whole); }), "normalize: takes floating-point tensors, not i64[3, 5] on cpu");
  EXPECT_EQ(error_of([&] { margin_ranking_loss(x, y, x); }),
            "margin_ranking_loss: shapes do not broadcast: [3, 5] and [3, 4]");
  EXPECT_EQ(error_of([&] { cosine_embedding_loss(x, y, zeros({3})); }),
            "cosine_embedding_loss: shapes [3, 5] and [3, 4] are not one of 1 or 2 dims");
  EXPECT_EQ(error_of([&] { cosine_embedding_loss(x, x, zeros({5})); }),
            "cosine_embedding_loss: target has shape [5], not [3]");
  EXPECT_EQ(error_of([&] { triplet_margin_loss(x, x, y); }),
            "triplet_margin_loss: shapes differ: [3, 5], [3, 5] and [3, 4]");
}

}  // namespace
}  // namespace tessera
