// CTC against the sum over all paths, one by one.
#include "ops/capture.h"
#include "ops/composed_check.h"
#include "tessera/ops_loss.h"

namespace tessera {
namespace {

// What a path spells: repeats are one, then blanks vanish.
std::vector<int64_t> spelled(const std::vector<int64_t>& path, int64_t blank) {
  std::vector<int64_t> out;
  for (size_t t = 0; t < path.size(); ++t)
    if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) out.push_back(path[t]);
  return out;
}

double ctc_by_paths(const Tensor& x, int64_t example, int64_t steps, const std::vector<int64_t>& target,
                    int64_t blank) {
  const int64_t n = x.size(1), classes = x.size(2);
  double total = 0;
  std::vector<int64_t> path(static_cast<size_t>(steps), 0);
  for (;;) {
    double log_probability = 0;
    for (int64_t t = 0; t < steps; ++t)
      log_probability += x.data<double>()[(t * n + example) * classes + path[static_cast<size_t>(t)]];
    if (spelled(path, blank) == target) total += std::exp(log_probability);
    size_t at = 0;
    while (at < path.size() && ++path[at] == classes) path[at++] = 0;
    if (at == path.size()) return -std::log(total);
  }
}

struct CtcCase {
  Tensor x, padded, joined, input_lengths, target_lengths;
  std::vector<double> losses;
};
CtcCase ctc_case(int64_t blank) {
  Generator g(3);
  const int64_t a = blank == 0 ? 1 : 0, b = blank == 2 ? 1 : 2;
  const std::vector<std::vector<int64_t>> targets = {{a, b, a}, {a, a}, {}, {b}};
  const std::vector<int64_t> steps = {6, 5, 2, 1};
  CtcCase c{log_softmax(normal64({6, 4, 3}, g), -1), {}, {}, tensor(steps, {4}),
            tensor<int64_t>({3, 2, 0, 1}, {4}),      {}};
  std::vector<int64_t> padded, joined;
  for (size_t i = 0; i < 4; ++i) {
    joined.insert(joined.end(), targets[i].begin(), targets[i].end());
    padded.insert(padded.end(), targets[i].begin(), targets[i].end());
    padded.resize(3 * (i + 1), -7);
    c.losses.push_back(ctc_by_paths(c.x, static_cast<int64_t>(i), steps[i], targets[i], blank));
  }
  c.padded = tensor(padded, {4, 3});
  c.joined = tensor(joined, {6});
  return c;
}

TEST(Ctc, IsTheSumOfAllPaths) {
  for (int64_t blank : {0, 2}) {
    const CtcCase c = ctc_case(blank);
    const auto loss = [&](const Tensor& x, const Tensor& target, Reduction r) {
      return ctc_loss(x, target, c.input_lengths, c.target_lengths.to(Int32), {.blank = blank, .reduction = r});
    };
    expect_elements(loss(c.x, c.padded, Reduction::None), c.losses, "ctc_loss");
    expect_elements(loss(c.x, c.joined, Reduction::None), c.losses, "ctc_loss");
    const Tensor single = loss(c.x.to(Float32), c.joined.to(Int32), Reduction::None);
    EXPECT_EQ(single.dtype(), Float32);
    expect_elements(single, c.losses, "ctc_loss");
    const double sum = c.losses[0] + c.losses[1] + c.losses[2] + c.losses[3];
    EXPECT_NEAR(loss(c.x, c.padded, Reduction::Sum).item(), sum, 1e-12 * sum);
    EXPECT_NEAR(loss(c.x, c.padded, Reduction::Mean).item(),
                (c.losses[0] / 3 + c.losses[1] / 2 + c.losses[2] + c.losses[3]) / 4, 1e-12);
  }
}

TEST(Ctc, HasItsGradientAndNoSecondOne) {
  const CtcCase c = ctc_case(0);
  const auto loss = [&](const Tensors& in) {
    return ctc_loss(in[0], c.padded, c.input_lengths, c.target_lengths, {.reduction = Reduction::None});
  };
  Tensor x = c.x.detach().set_requires_grad();
  expect_gradients(loss, {c.x.clone()}, "ctc_loss");
  const Tensor slope = grad({sum(loss({x}))}, {x}, {}, false, true)[0];
  EXPECT_EQ(error_of([&] { sum(slope).backward(); }).substr(0, 17), "ctc_loss_backward");
}

TEST(Ctc, TakesASingleExample) {
  const CtcCase c = ctc_case(0);
  const Tensor one = ctc_loss(select(c.x, 1, 0), tensor<int64_t>({1, 2, 1}, {3}), full({}, 6, Int64),
                              full({}, 3, Int64), {.reduction = Reduction::None});
  EXPECT_EQ(one.dim(), 0);
  EXPECT_NEAR(one.item(), c.losses[0], 1e-12);
}

TEST(Ctc, IsInfiniteForTargetsThatDoNotFit) {
  Generator g(5);
  Tensor x = log_softmax(normal64({3, 2, 4}, g), -1).detach().set_requires_grad();
  const Tensor target = tensor<int64_t>({1, 1, 1, 2}, {2, 2}), steps = tensor<int64_t>({2, 3}, {2}),
               two = full({2}, 2, Int64);
  const auto all = ctc_loss(x, target, steps, two, {.reduction = Reduction::None}).to_vector<double>();
  EXPECT_EQ(all[0], INFINITY);  // a repeat needs a blank between
  EXPECT_TRUE(std::isfinite(all[1]));
  const Tensor loss = ctc_loss(x, target, steps, two, {.reduction = Reduction::Sum, .zero_infinity = true});
  EXPECT_EQ(loss.item(), all[1]);
  loss.backward();
  const auto gradient = x.grad().to_vector<double>();
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_TRUE(std::isfinite(gradient[i]));
    if (i / 4 % 2 == 0) {
      EXPECT_EQ(gradient[i], 0);
    }
  }
}

TEST(Ctc, IsCaptured) {
  const CtcCase c = ctc_case(0);
  const auto loss = [](const Tensors& in) { return Tensors{ctc_loss(in[0], in[1], in[2], in[3])}; };
  const Tensors in{c.x, c.padded, c.input_lengths, c.target_lengths};
  EXPECT_EQ(capture(loss, in)(in)[0].item(), loss(in)[0].item());
}

TEST(Ctc, NamesTheRuleThatIsBroken) {
  const CtcCase c = ctc_case(0);
  const auto error = [&](const Tensor& x, const Tensor& target, const Tensor& steps, const Tensor& lengths,
                         int64_t blank = 0) {
    return error_of([&] { ctc_loss(x, target, steps, lengths, {.blank = blank}); });
  };
  EXPECT_EQ(error(zeros({4}), c.padded, c.input_lengths, c.target_lengths),
            "ctc_loss: x must be [steps, n, classes] or [steps, classes], not [4]");
  EXPECT_EQ(error(c.x, zeros({3, 3}, Int64), c.input_lengths, c.target_lengths),
            "ctc_loss: target [3, 3] is neither [n, length] nor [sum of lengths] for [6, 4, 3]");
  EXPECT_EQ(error(c.x, c.padded, zeros({3}, Int64), c.target_lengths),
            "ctc_loss: input_lengths has shape [3], not [4]");
  EXPECT_EQ(error(c.x, c.padded, zeros({4}), c.target_lengths), "ctc_loss: f32[4] on cpu is not i64 or i32");
  EXPECT_EQ(error(c.x, c.padded, full({4}, 7, Int64), c.target_lengths),
            "ctc_loss: input length 7 of example 0 is not in [0, 6]");
  EXPECT_EQ(error(c.x, c.padded, c.input_lengths, full({4}, 4, Int64)),
            "ctc_loss: target length 4 of example 0 is not in [0, 3]");
  EXPECT_EQ(error(c.x, c.joined, c.input_lengths, ones({4}, Int64)),
            "ctc_loss: 6 targets, where the lengths add up to 4");
  EXPECT_EQ(error(c.x, c.padded, c.input_lengths, full({4}, 3, Int64)),
            "ctc_loss: target -7 of example 1 is not one of 3 classes");
  EXPECT_EQ(error(c.x, zeros({4, 3}, Int64), c.input_lengths, c.target_lengths),
            "ctc_loss: target 0 of example 0 is the blank");
  EXPECT_EQ(error(c.x, c.padded, c.input_lengths, c.target_lengths, 3),
            "ctc_loss: the blank 3 is not one of 3 classes");
}

}  // namespace
}  // namespace tessera
