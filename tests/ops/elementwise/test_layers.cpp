// Activations with noise, dropout of channels and bilinear maps.
#include "ops/composed_check.h"
#include "tessera/ops_layers.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

TEST(Layers, ActivationsAreTheirFormulas) {
  Generator g(3);
  const Tensor x = uniform64({3, 5, 7}, g, -3, 3);
  const auto of_elements = [&](auto f) {
    std::vector<double> want;
    for (double v : x.to_vector<double>()) want.push_back(f(v));
    return want;
  };
  expect_elements(threshold(x, 0.4, -7), of_elements([](double v) { return v > 0.4 ? v : -7; }), "threshold");
  expect_elements(rrelu(x, 0.1, 0.3), of_elements([](double v) { return v > 0 ? v : 0.2 * v; }), "rrelu");
  expect_gradients([](const Tensors& in) { return threshold(in[0], 0.4, -7); }, {x}, "threshold");
  expect_gradients([](const Tensors& in) { return rrelu(in[0]); }, {x}, "rrelu");
  EXPECT_LE(relative_error(softmin(x, 1), exp(-x) / sum(exp(-x), {1}, true)), 1e-14);
}

TEST(Layers, RandomSlopesLieBetweenTheirBounds) {
  Generator g(5), drawn(1);
  const Tensor x = uniform64({101, 97}, g, -3, 3);
  const auto slopes = (rrelu(x, 0.1, 0.3, true, drawn) / x).to_vector<double>();
  double low = 1, high = 0;
  for (size_t i = 0; i < slopes.size(); ++i) {
    if (x.data<double>()[i] > 0) {
      EXPECT_EQ(slopes[i], 1);
      continue;
    }
    low = std::min(low, slopes[i]), high = std::max(high, slopes[i]);
  }
  EXPECT_TRUE(low >= 0.1 - 1e-12 && low < 0.102 && high > 0.298 && high <= 0.3 + 1e-12) << low << " " << high;
}

TEST(Layers, GumbelDrawsBySoftmax) {
  Generator g(7);
  const Tensor logits = tensor<double>({0.5, -1, 2, 0}, {4}), many = expand(logits, {20000, 4});
  const Tensor hard = gumbel_softmax(many, 0.7, true, -1, g);
  EXPECT_LE(relative_error(sum(hard, {1}), ones({20000}, Float64)), 1e-14);
  EXPECT_LE(relative_error(amax(hard, {1}), ones({20000}, Float64)), 1e-14);
  EXPECT_LE(relative_error(mean(hard, {0}), softmax(logits, 0)), 0.02);
  const Tensor soft = gumbel_softmax(permute(many, {1, 0}), 0.7, false, 0, g);
  EXPECT_LE(relative_error(sum(soft, {0}), ones({20000}, Float64)), 1e-14);

  Tensor x = logits.detach().set_requires_grad(), y = logits.detach().set_requires_grad();
  const Tensor weights = tensor<double>({1, 2, 3, 4}, {4});
  Generator one(9), same(9);
  sum(gumbel_softmax(x, 0.7, true, 0, one) * weights).backward();
  sum(gumbel_softmax(y, 0.7, false, 0, same) * weights).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), y.grad().to_vector<double>());
}

// Every plane of x [n, c, ...] is wholly one of two values.
TEST(Layers, DropoutOfChannelsTakesWholeOnes) {
  Generator g(11);
  const Tensor x = ones({40, 50, 3, 2});
  for (bool alpha : {false, true}) {
    const Tensor y = alpha ? feature_alpha_dropout(x, 0.3, true, g) : feature_dropout(x, 0.3, true, g);
    const auto low = amin(y, {2, 3}).to_vector<double>(), high = amax(y, {2, 3}).to_vector<double>();
    EXPECT_EQ(low, high);
    const double kept = *std::max_element(high.begin(), high.end()),
                 dropped = *std::min_element(low.begin(), low.end());
    if (!alpha) {
      EXPECT_NEAR(kept, 1 / 0.7, 1e-6);
      EXPECT_EQ(dropped, 0);
    }
    const auto count = std::count(low.begin(), low.end(), dropped);
    EXPECT_EQ(count + std::count(low.begin(), low.end(), kept), 2000);
    EXPECT_NEAR(static_cast<double>(count), 600, 80);
  }
}

TEST(Layers, AlphaDropoutKeepsMeanAndVariance) {
  Generator g(13);
  const Tensor x = normal64({1000, 100}, g), y = alpha_dropout(x, 0.2, true, g);
  EXPECT_NEAR(mean(y).item(), 0, 0.02);
  EXPECT_NEAR(var(y).item(), 1, 0.03);
  EXPECT_EQ(sum(abs(alpha_dropout(x, 1, true, g))).item(), 0);
  Tensor leaf = ones({1000}).set_requires_grad();
  const Tensor dropped = alpha_dropout(leaf, 0.2, true, g);
  sum(dropped).backward();
  const auto values = dropped.to_vector<float>(), slopes = leaf.grad().to_vector<float>();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(slopes[i] == 0, values[i] < 0);
}

TEST(Layers, DropoutOutsideOfTrainingDoesNothing) {
  Generator g(15);
  const Tensor x = normal64({3, 4, 5}, g);
  for (auto* f : {&feature_dropout, &alpha_dropout, &feature_alpha_dropout})
    EXPECT_EQ(f(x, 0.5, false, g).to_vector<double>(), x.to_vector<double>());
}

TEST(Layers, BilinearMaps) {
  Generator g(17);
  const Tensor a = normal64({2, 3, 5}, g), b = normal64({2, 3, 4}, g), w = normal64({7, 5, 4}, g),
               bias = normal64({7}, g);
  std::vector<double> want;
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t k = 0; k < 7; ++k) {
      double sum = bias.data<double>()[k];
      for (int64_t p = 0; p < 5; ++p)
        for (int64_t q = 0; q < 4; ++q)
          sum += a.data<double>()[i * 5 + p] * w.data<double>()[(k * 5 + p) * 4 + q] * b.data<double>()[i * 4 + q];
      want.push_back(sum);
    }
  const Tensor y = bilinear(a, b, w, bias);
  EXPECT_EQ(to_string(y.shape()), "[2, 3, 7]");
  expect_elements(y, want, "bilinear");
  EXPECT_LE(relative_error(bilinear(select(select(a, 0, 0), 0, 0), select(select(b, 0, 0), 0, 0), w),
                           select(select(y, 0, 0), 0, 0) - bias),
            1e-13);
  expect_gradients([](const Tensors& in) { return bilinear(in[0], in[1], in[2], in[3]); }, {a, b, w, bias}, "bilinear");
}

TEST(Layers, NameTheRuleThatIsBroken) {
  const Tensor x = zeros({3}), whole = zeros({3, 4}, Int64);
  EXPECT_EQ(error_of([&] { rrelu(x, 0.5, 0.1); }), "rrelu: 0.5 is not below 0.1");
  EXPECT_EQ(error_of([&] { gumbel_softmax(x, 0); }), "gumbel_softmax: tau is 0, not positive");
  EXPECT_EQ(error_of([&] { feature_dropout(x); }), "feature_dropout: [3] has no channels");
  EXPECT_EQ(error_of([&] { feature_dropout(whole); }),
            "feature_dropout: takes floating-point tensors, not i64[3, 4] on cpu");
  EXPECT_EQ(error_of([&] { alpha_dropout(x, 1.5); }), "alpha_dropout: the probability is 1.5, not between 0 and 1");
  EXPECT_EQ(error_of([&] { feature_alpha_dropout(x); }), "feature_alpha_dropout: [3] has no channels");
  EXPECT_EQ(error_of([&] {
              bilinear(x, x, zeros({2, 3, 4}));
            }),
            "bilinear: [3] and [3] do not fit the weight [2, 3, 4]");
}

}  // namespace
}  // namespace tessera
