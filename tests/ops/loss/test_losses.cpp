// Losses of elements and of classes, against plain loops in float64.
#include <numbers>

#include "ops/capture.h"
#include "ops/composed_check.h"
#include "tessera/ops_loss.h"

namespace tessera {
namespace {

constexpr Reduction kReductions[] = {Reduction::None, Reduction::Mean, Reduction::Sum};

/// A loss of x and target, its value, and the ranges of both.
struct ElementLoss {
  const char* name;
  std::function<Tensor(const Tensor&, const Tensor&, Reduction)> made;
  std::function<double(double, double)> value;
  double low, high, target_low, target_high;
};

double huber_at(double d, double delta) { return std::abs(d) <= delta ? d * d / 2 : delta * (std::abs(d) - delta / 2); }
double log_factorial(double n) { return n > 1 ? n * std::log(n) - n + std::log(2 * std::numbers::pi * n) / 2 : 0; }
double entropy_of(double p, double t) { return -(t * std::log(p) + (1 - t) * std::log(1 - p)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<ElementLoss> element_losses() {
  using T = const Tensor&;
  using R = Reduction;
  return {
      {"l1_loss", l1_loss, [](double x, double t) { return std::abs(x - t); }, -3, 3, -3, 3},
      {"mse_loss", [](T x, T t, R r) { return mse_loss(x, t, r); },
       [](double x, double t) { return (x - t) * (x - t); }, -3, 3, -3, 3},
      {"huber_loss", [](T x, T t, R r) { return huber_loss(x, t, 0.7, r); },
       [](double x, double t) { return huber_at(x - t, 0.7); }, -2, 2, -1, 1},
      {"smooth_l1_loss", [](T x, T t, R r) { return smooth_l1_loss(x, t, 0.7, r); },
       [](double x, double t) { return huber_at(x - t, 0.7) / 0.7; }, -2, 2, -1, 1},
      {"smooth_l1_loss 0", [](T x, T t, R r) { return smooth_l1_loss(x, t, 0, r); },
       [](double x, double t) { return std::abs(x - t); }, -2, 2, -1, 1},
      {"binary_cross_entropy", [](T x, T t, R r) { return binary_cross_entropy(x, t, {}, r); }, entropy_of, 0.1, 0.9, 0,
       1},
      {"binary_cross_entropy_with_logits",
       [](T x, T t, R r) { return binary_cross_entropy_with_logits(x, t, {}, {}, r); },
       [](double x, double t) { return entropy_of(logistic(x), t); }, -4, 4, 0, 1},
      {"kl_div", [](T x, T t, R r) { return kl_div(x, t, false, r); },
       [](double x, double t) { return t * (std::log(t) - x); }, -3, 0, 0.1, 1},
      {"kl_div of logarithms", [](T x, T t, R r) { return kl_div(x, t, true, r); },
       [](double x, double t) { return std::exp(t) * (t - x); }, -3, 0, -3, 0},
      {"poisson_nll_loss", [](T x, T t, R r) { return poisson_nll_loss(x, t, true, true, 1e-8, r); },
       [](double x, double t) { return std::exp(x) - t * x + log_factorial(t); }, -1, 2, 0, 5},
      {"poisson_nll_loss of rates", [](T x, T t, R r) { return poisson_nll_loss(x, t, false, false, 1e-3, r); },
       [](double x, double t) { return x - t * std::log(x + 1e-3); }, 0.3, 2, 0, 5},
      {"soft_margin_loss", soft_margin_loss, [](double x, double t) { return std::log1p(std::exp(-t * x)); }, -4, 4, -1,
       1},
  };
}

double reduced_value(const std::vector<double>& values, Reduction reduction) {
  double sum = 0;
  for (double v : values) sum += v;
  return reduction == Reduction::Mean ? sum / static_cast<double>(values.size()) : sum;
}
// `values` of a loss without reduction.
void expect_reduced(const Tensor& got, const std::vector<double>& values, Reduction reduction, const char* what) {
  expect_elements(got, reduction == Reduction::None ? values : std::vector<double>{reduced_value(values, reduction)},
                  what);
}

TEST(Losses, OfElementsAreTheirFormulas) {
  Generator g(3);
  for (const ElementLoss& loss : element_losses())
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7, 13}, Shape{3, 5, 7}})
      for (DType dtype : {Float64, Float32, Float16, BFloat16}) {
        const Tensor x = uniform64(shape, g, loss.low, loss.high).to(dtype),
                     t = uniform64(shape, g, loss.target_low, loss.target_high).to(dtype);
        const auto xs = x.to_vector<double>(), ts = t.to_vector<double>();
        std::vector<double> want;
        for (size_t i = 0; i < xs.size(); ++i) want.push_back(loss.value(xs[i], ts[i]));
        for (Reduction r : kReductions) {
          const Tensor got = loss.made(x, t, r);
          EXPECT_EQ(got.dtype(), dtype) << loss.name;
          expect_reduced(got, want, r, loss.name);
        }
      }
}

TEST(Losses, OfElementsHaveTheirGradients) {
  Generator g(5);
  for (const ElementLoss& loss : element_losses())
    for (Reduction r : kReductions)
      expect_gradients([&](const Tensors& in) { return loss.made(in[0], in[1], r); },
                       {uniform64({3, 5}, g, loss.low, loss.high),
                        uniform64({3, 5}, g, loss.target_low + 0.05, loss.target_high - 0.05)},
                       loss.name);
}

TEST(Losses, OfElementsAreCapturedAndTakeASymbolicBatch) {
  Generator g(7);
  const Dim n = Dim::symbol("n");
  const Tensor symbolic = empty({n, Dim(5)}, Float32, meta(cpu()));
  for (const ElementLoss& loss : element_losses()) {
    const Tensor x = uniform64({6, 5}, g, loss.low, loss.high),
                 t = uniform64({6, 5}, g, loss.target_low, loss.target_high);
    const Program program =
        capture([&](const Tensors& in) { return Tensors{loss.made(in[0], in[1], Reduction::Mean)}; }, {x, t});
    EXPECT_EQ(program({x, t})[0].item(), loss.made(x, t, Reduction::Mean).item()) << loss.name;
    EXPECT_EQ(to_string(loss.made(symbolic, symbolic, Reduction::None).shape()), "[n, 5]") << loss.name;
  }
}

TEST(Losses, BinaryOnesTakeWeights) {
  Generator g(9);
  const Tensor x = uniform64({3, 5}, g, -4, 4), t = uniform64({3, 5}, g, 0, 1), w = uniform64({3, 1}, g, 0.5, 2),
               positive = uniform64({5}, g, 0.5, 2);
  std::vector<double> logits, probabilities;
  for (int64_t i = 0; i < 15; ++i) {
    const double v = x.data<double>()[i], y = t.data<double>()[i], weight = w.data<double>()[i / 5], p = logistic(v);
    logits.push_back(-weight * (y * positive.data<double>()[i % 5] * std::log(p) + (1 - y) * std::log(1 - p)));
    probabilities.push_back(weight * entropy_of(p, y));
  }
  for (Reduction r : kReductions) {
    expect_reduced(binary_cross_entropy_with_logits(x, t, w, positive, r), logits, r, "logits");
    expect_reduced(binary_cross_entropy(sigmoid(x), t, w, r), probabilities, r, "probabilities");
  }
  expect_gradients([&](const Tensors& in) { return binary_cross_entropy_with_logits(in[0], t, in[1], in[2]); },
                   {x, w, positive}, "logits");
}

TEST(Losses, StayFiniteAtTheEndsOfTheirRanges) {
  const Tensor far = tensor<float>({-200, 200, -200, 200}, {4}), t = tensor<float>({0, 1, 1, 0}, {4});
  EXPECT_EQ(binary_cross_entropy_with_logits(far, t, {}, {}, Reduction::None).to_vector<float>(),
            (std::vector<float>{0, 0, 200, 200}));
  EXPECT_NEAR(binary_cross_entropy_with_logits(full({1}, -50.0), zeros({1})).item(), std::exp(-50), 1e-27);
  Tensor p = tensor<float>({0, 1, 0, 1}, {4}).set_requires_grad();
  const Tensor loss = binary_cross_entropy(p, t, {}, Reduction::None);
  EXPECT_EQ(loss.to_vector<float>(), (std::vector<float>{0, 0, 100, 100}));
  sum(loss).backward();
  const auto slopes = p.grad().to_vector<float>();  // PyTorch's bounds
  EXPECT_NEAR(slopes[0], 1, 1e-6);
  EXPECT_NEAR(slopes[1], -1, 1e-6);
  EXPECT_NEAR(slopes[2], -1e12, 1e6);
  EXPECT_NEAR(slopes[3], 1e12, 1e6);
  EXPECT_TRUE(std::isnan(binary_cross_entropy(full({1}, 1.5), ones({1})).item()));
  EXPECT_EQ(soft_margin_loss(full({1}, -300.0), ones({1})).item(), 300);
  Tensor none = zeros({2}, Float64).set_requires_grad();
  kl_div(none, zeros({2}, Float64), false, Reduction::Sum).backward();
  EXPECT_EQ(none.grad().to_vector<double>(), (std::vector<double>{0, 0}));
}

TEST(Losses, HingesOfPairs) {
  Generator g(11);
  const Tensor x = uniform64({4, 3}, g, -2, 2);
  const Tensor t = tensor<double>({1, -1, 1, -1, -1, 1, 0, 1, 1, -1, -1, 0.5}, {4, 3});
  std::vector<double> want;
  for (int64_t i = 0; i < 12; ++i) {
    const double v = x.data<double>()[i], y = t.data<double>()[i], over = std::max(0.0, 0.8 - v);
    want.push_back(y == 1 ? v : y == -1 ? over : v + over);
  }
  for (Reduction r : kReductions) expect_reduced(hinge_embedding_loss(x, t, 0.8, r), want, r, "hinge");
  expect_gradients([&](const Tensors& in) { return hinge_embedding_loss(in[0], t, 0.8, Reduction::None); }, {x});
}

TEST(Losses, GaussianTakesVariancesOfElementsRowsAndAll) {
  Generator g(13);
  const Tensor x = normal64({4, 3}, g), t = normal64({4, 3}, g);
  const auto expect = [&](const Tensor& variance, auto at) {
    std::vector<double> want;
    for (int64_t i = 0; i < 12; ++i) {
      const double d = x.data<double>()[i] - t.data<double>()[i], v = std::max(variance.data<double>()[at(i)], 0.1);
      want.push_back((std::log(v) + d * d / v + std::log(2 * std::numbers::pi)) / 2);
    }
    for (Reduction r : kReductions)
      expect_reduced(gaussian_nll_loss(x, t, variance, true, 0.1, r), want, r, "gaussian_nll_loss");
    expect_gradients([&](const Tensors& in) { return gaussian_nll_loss(in[0], in[1], in[2] + 0.5); }, {x, t, variance});
  };
  expect(uniform64({4, 3}, g, 0, 2), [](int64_t i) { return i; });
  expect(uniform64({4}, g, 0, 2), [](int64_t i) { return i / 3; });
  expect(uniform64({4, 1}, g, 0, 2), [](int64_t i) { return i / 3; });
  expect(uniform64({1}, g, 0, 2), [](int64_t) { return 0; });
  EXPECT_TRUE(std::isnan(gaussian_nll_loss(x, t, full({1}, -1.0, Float64)).item()));
  Tensor small = full({1}, 0.01, Float64).set_requires_grad();  // the bound does not stop its gradient
  gaussian_nll_loss(full({1}, 2.0, Float64), zeros({1}, Float64), small, false, 0.1).backward();
  EXPECT_NEAR(small.grad().item(), (1 / 0.1 - 4 / 0.01) / 2, 1e-9);
}

// ---- classes

/// Logits and targets [n, classes, d], class weights, and the loss of each example by its definition.
struct ClassLoss {
  Tensor x, target, weight;
  std::vector<double> losses, weights;
};
ClassLoss class_loss(int64_t ignore, double smoothing, bool logarithms) {
  Generator g(15);
  constexpr int64_t n = 3, classes = 5, d = 7;
  ClassLoss c{normal64({n, classes, d}, g), indices({n, d}, classes, g), uniform64({classes}, g, 0.2, 2), {}, {}};
  const auto at = [&](int64_t i, int64_t k, int64_t j) { return c.x.data<double>()[(i * classes + k) * d + j]; };
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < d; ++j) {
      const int64_t label = c.target.data<int64_t>()[i * d + j];
      double total = 0, loss = 0;
      for (int64_t k = 0; k < classes; ++k) total += std::exp(at(i, k, j));
      for (int64_t k = 0; k < classes; ++k) {
        const double wanted = (k == label ? 1 - smoothing : 0) + smoothing / classes;
        loss -= wanted * c.weight.data<double>()[k] * (at(i, k, j) - (logarithms ? 0 : std::log(total)));
      }
      c.losses.push_back(label == ignore ? 0 : loss);
      c.weights.push_back(label == ignore ? 0 : c.weight.data<double>()[label]);
    }
  return c;
}
void expect_class_loss(const Tensor& got, const ClassLoss& c, Reduction r, const char* what) {
  if (r != Reduction::Mean) return expect_reduced(got, c.losses, r, what);
  const double total = reduced_value(c.losses, Reduction::Sum), weights = reduced_value(c.weights, Reduction::Sum);
  expect_elements(got, {total / weights}, what);
}

TEST(Losses, LikelihoodTakesWeightsAndIgnores) {
  const ClassLoss c = class_loss(2, 0, true);
  for (Reduction r : kReductions) {
    expect_class_loss(nll_loss(c.x, c.target, c.weight, 2, r), c, r, "nll_loss");
    expect_class_loss(nll_loss(c.x, c.target.to(Int32), c.weight, 2, r), c, r, "nll_loss");
    expect_gradients([&](const Tensors& in) { return nll_loss(in[0], c.target, c.weight, 2, r); }, {c.x}, "nll_loss");
  }
  const Tensor row = tensor<double>({-1, -2, -3}, {3});
  EXPECT_EQ(nll_loss(row, full({}, 1, Int64)).item(), 2);
  const Tensor never = tensor<double>({-INFINITY, -1}, {1, 2}), ignored = full({1}, -100, Int64);
  EXPECT_EQ(nll_loss(never, ignored, {}, -100, Reduction::Sum).item(), 0);
  EXPECT_TRUE(std::isnan(nll_loss(never, ignored).item()));
}

TEST(Losses, CrossEntropyTakesWeightsSmoothingAndClassesInAnyDim) {
  for (double smoothing : {0.0, 0.3}) {
    const ClassLoss c = class_loss(2, smoothing, false);
    for (Reduction r : kReductions) {
      const auto loss = [&](const Tensor& x, int64_t dim) {
        return cross_entropy(x, c.target, CrossEntropyOptions{c.weight, dim, 2, smoothing, r});
      };
      expect_class_loss(loss(c.x, 1), c, r, "cross_entropy");
      expect_class_loss(loss(permute(c.x, {0, 2, 1}), -1), c, r, "cross_entropy");
      expect_gradients([&](const Tensors& in) { return loss(in[0], 1); }, {c.x}, "cross_entropy");
    }
  }
}

TEST(Losses, CrossEntropyWithoutWeightsIsThatOfTheLastDim) {
  const ClassLoss c = class_loss(2, 0, false);
  for (Reduction r : kReductions)
    EXPECT_LE(relative_error(cross_entropy(c.x, c.target, CrossEntropyOptions{{}, 1, 2, 0.1, r}),
                             cross_entropy(permute(c.x, {0, 2, 1}), c.target, r, 2, 0.1)),
              1e-15);
  const Tensor row = select(select(c.x, 0, 0), 1, 0);
  EXPECT_EQ(cross_entropy(row, full({}, 1, Int64), CrossEntropyOptions{}).item(),
            cross_entropy(row, full({}, 1, Int64)).item());
}

// Without copies whose classes lie last, in parts that a cache holds.
TEST(Losses, CrossEntropyOfPlanesIsThatOfTheLastDim) {
  Generator g(23);
  for (const Shape& shape : {Shape{3, 7, 4, 5}, Shape{5, 1, 17}, Shape{40, 31, 61}}) {
    const Tensor x = normal64(shape, g);
    Shape rows = shape;
    rows.erase(rows.begin() + 1);
    const Tensor target = randint(0, shape[1].value(), rows, g);
    for (Reduction r : kReductions) {
      const CrossEntropyOptions o{.dim = 1, .ignore_index = 2, .reduction = r};
      const auto both = [&](const Tensor& in, const Tensor& t, bool planes) {
        const Tensor leaf = in.detach().set_requires_grad();
        const Tensor y = planes ? cross_entropy(leaf, t, o) : cross_entropy(movedim(leaf, 1, -1), t, r, 2);
        const Tensor dx = grad({sum(square(y))}, {leaf}, {}, false, true)[0];
        return Tensors{y, dx, grad({sum(square(dx))}, {leaf})[0]};
      };
      const Tensors want = both(x, target, false);
      for (const Tensors& got : {both(x, target, true), both(x, target.to(Int32), true)})
        for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-13) << to_string(shape) << i;
      const Tensors single = both(x.to(Float32), target, true);
      for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(single[i], want[i]), 3e-6) << to_string(shape) << i;
    }
  }
  const Tensor x = zeros({2, 3, 4, 4});
  EXPECT_EQ(error_of([&] {
              cross_entropy(x, full({2, 4, 4}, 3, Int64), CrossEntropyOptions{});
            }),
            "cross_entropy: target 3 is not one of 3 classes");
  EXPECT_EQ(error_of([&] {
              cross_entropy(x, zeros({2, 4}, Int64), CrossEntropyOptions{});
            }),
            "cross_entropy: target has shape [2, 4], not [2, 4, 4]");
  EXPECT_EQ(error_of([&] {
              cross_entropy(x, zeros({2, 4, 4}, Bool), CrossEntropyOptions{});
            }),
            "cross_entropy: target must be i64 or i32, not bool[2, 4, 4] on cpu");
}

TEST(Losses, CrossEntropyTakesProbabilities) {
  Generator g(17);
  const Tensor x = normal64({3, 5, 7}, g), t = softmax(normal64({3, 5, 7}, g), 1), w = uniform64({5}, g, 0.2, 2);
  std::vector<double> want;
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 7; ++j) {
      const auto at = [&](const Tensor& y, int64_t k) { return y.data<double>()[(i * 5 + k) * 7 + j]; };
      double total = 0, loss = 0;
      for (int64_t k = 0; k < 5; ++k) total += std::exp(at(x, k));
      for (int64_t k = 0; k < 5; ++k)
        loss -= (at(t, k) * 0.8 + 0.04) * w.data<double>()[k] * (at(x, k) - std::log(total));
      want.push_back(loss);
    }
  for (Reduction r : kReductions) {
    const CrossEntropyOptions o{.weight = w, .label_smoothing = 0.2, .reduction = r};
    expect_reduced(cross_entropy(x, t, o), want, r, "cross_entropy");
    expect_gradients([&](const Tensors& in) { return cross_entropy(in[0], in[1], o); }, {x, t}, "cross_entropy");
  }
  EXPECT_EQ(cross_entropy(x.to(Float16), t, CrossEntropyOptions{.weight = w}).dtype(), Float32);
}

TEST(Losses, MarginsOfClasses) {
  Generator g(19);
  const Tensor x = normal64({5, 7}, g), target = indices({5}, 7, g), w = uniform64({7}, g, 0.2, 2);
  for (int64_t p : {1, 2}) {
    std::vector<double> want;
    for (int64_t i = 0; i < 5; ++i) {
      const int64_t label = target.data<int64_t>()[i];
      double sum = 0;
      for (int64_t k = 0; k < 7; ++k) {
        const double over = std::max(0.0, 0.7 - x.data<double>()[i * 7 + label] + x.data<double>()[i * 7 + k]);
        if (k != label) sum += w.data<double>()[label] * std::pow(over, p) / 7;
      }
      want.push_back(sum);
    }
    for (Reduction r : kReductions)
      expect_reduced(multi_margin_loss(x, target, p, 0.7, w, r), want, r, "multi_margin_loss");
    expect_gradients([&](const Tensors& in) { return multi_margin_loss(in[0], target, p, 0.7, w); }, {x});
    const Tensor one = multi_margin_loss(select(x, 0, 2), select(target, 0, 2), p, 0.7, w, Reduction::None);
    EXPECT_EQ(one.dim(), 0);
    EXPECT_NEAR(one.item(), want[2], 1e-12);
  }
}

TEST(Losses, MarginsOfSeveralClasses) {
  Generator g(21);
  const Tensor x = normal64({3, 5}, g);
  const std::vector<std::vector<int64_t>> labels = {{3, 0, -1, 4, 1}, {-1, 1, 2, 3, 4}, {4, 2, 1, 0, 3}};
  std::vector<int64_t> flat;
  std::vector<double> want, soft;
  for (int64_t i = 0; i < 3; ++i) {
    const auto& row = labels[static_cast<size_t>(i)];
    flat.insert(flat.end(), row.begin(), row.end());
    const auto end = std::find(row.begin(), row.end(), -1);
    const double* v = x.data<double>() + i * 5;
    double sum = 0, entropy = 0;
    for (auto j = row.begin(); j != end; ++j)
      for (int64_t k = 0; k < 5; ++k)
        if (std::find(row.begin(), end, k) == end) sum += std::max(0.0, 1 - v[*j] + v[k]) / 5;
    for (int64_t k = 0; k < 5; ++k)
      entropy += entropy_of(logistic(v[k]), k % 2 ? 1 : 0) * (1.0 + static_cast<double>(k)) / 5;
    want.push_back(sum);
    soft.push_back(entropy);
  }
  const Tensor target = tensor(flat, {3, 5}),
               some = tensor<double>({0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0}, {3, 5});
  const Tensor w = tensor<double>({1, 2, 3, 4, 5}, {5});
  for (Reduction r : kReductions) {
    expect_reduced(multilabel_margin_loss(x, target, r), want, r, "multilabel_margin_loss");
    expect_reduced(multilabel_soft_margin_loss(x, some, w, r), soft, r, "multilabel_soft_margin_loss");
  }
  expect_gradients([&](const Tensors& in) { return multilabel_margin_loss(in[0], target); }, {x});
  expect_gradients([&](const Tensors& in) { return multilabel_soft_margin_loss(in[0], some, in[1]); }, {x, w});
}

TEST(Losses, NameTheRuleThatIsBroken) {
  const Tensor x = zeros({3, 5}), t = zeros({3}), labels = zeros({3}, Int64);
  EXPECT_EQ(error_of([&] { l1_loss(x, t); }), "l1_loss: shapes differ: [3, 5] and [3]");
  EXPECT_EQ(error_of([&] { l1_loss(labels, labels); }), "l1_loss: takes floating-point tensors, not i64[3] on cpu");
  EXPECT_EQ(error_of([&] { huber_loss(x, x, 0); }), "huber_loss: delta is 0, not positive");
  EXPECT_EQ(error_of([&] { smooth_l1_loss(x, x, -1); }), "smooth_l1_loss: beta is -1, negative");
  EXPECT_EQ(error_of([&] {
              binary_cross_entropy(x, x, zeros({2, 3, 5}));
            }),
            "binary_cross_entropy: the weight [2, 3, 5] does not broadcast to [3, 5]");
  EXPECT_EQ(error_of([&] { gaussian_nll_loss(x, x, x, false, 0); }), "gaussian_nll_loss: eps is 0, not positive");
  EXPECT_EQ(error_of([&] { nll_loss(x, t); }), "nll_loss: target must be i64 or i32, not f32[3] on cpu");
  EXPECT_EQ(error_of([&] { nll_loss(x, zeros({4}, Int64)); }), "nll_loss: target has shape [4], not [3]");
  EXPECT_EQ(error_of([&] { nll_loss(x, labels, t); }),
            "nll_loss: the weight [3] is not one number for each of 5 classes");
  EXPECT_EQ(error_of([&] { nll_loss(x, full({3}, 5, Int64)); }), "gather: index 5 is out of range for size 5");
  EXPECT_EQ(error_of([&] { cross_entropy(x, t, CrossEntropyOptions{}); }),
            "cross_entropy: target has shape [3], not [3, 5]");
  EXPECT_EQ(error_of([&] { cross_entropy(x, labels, CrossEntropyOptions{.label_smoothing = 2}); }),
            "cross_entropy: label smoothing 2 is not between 0 and 1");
  EXPECT_EQ(error_of([&] { multi_margin_loss(x, labels, 3); }), "multi_margin_loss: p is 3, neither 1 nor 2");
  EXPECT_EQ(error_of([&] {
              multi_margin_loss(zeros({1, 2, 3}), labels);
            }),
            "multi_margin_loss: x must have 1 or 2 dims, not shape [1, 2, 3]");
  EXPECT_EQ(error_of([&] { multilabel_margin_loss(x, labels); }),
            "multilabel_margin_loss: target has shape [3], not [3, 5]");
  EXPECT_EQ(error_of([&] { multilabel_soft_margin_loss(x, t); }),
            "multilabel_soft_margin_loss: shapes differ: [3, 5] and [3]");
}

}  // namespace
}  // namespace tessera
