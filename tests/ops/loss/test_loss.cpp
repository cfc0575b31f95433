#include "core/gpu_check.h"
#include "ops/loss.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

TEST(CrossEntropy, NamesTheRuleThatIsBroken) {
  Tensor logits = zeros({3, 5});
  auto target = [](std::vector<int64_t> v) { return tensor(v, {static_cast<int64_t>(v.size())}); };
  EXPECT_EQ(error_of([&] { cross_entropy(logits, target({0, 1})); }), "cross_entropy: target has shape [2], not [3]");
  EXPECT_EQ(error_of([&] { cross_entropy(logits, zeros({3})); }),
            "cross_entropy: target must be i64 or i32, not f32[3] on cpu");
  EXPECT_EQ(error_of([&] {
              cross_entropy(zeros({3, 0}), target({0, 1, 2}));
            }),
            "cross_entropy: no classes in logits [3, 0]");
  EXPECT_EQ(error_of([&] {
              cross_entropy(logits, target({0, 1, 2}), -100, 1.5);
            }),
            "cross_entropy: label smoothing 1.5 is not between 0 and 1");
  EXPECT_EQ(error_of([&] {
              cross_entropy(logits, target({0, 5, 2}));
            }),
            "cross_entropy: target 5 is not one of 5 classes");
  EXPECT_EQ(error_of([&] {
              cross_entropy(logits, target({0, -1, 2}));
            }),
            "cross_entropy: target -1 is not one of 5 classes");
}

TEST(CrossEntropy, IgnoresAnyIndexAskedFor) {
  Generator g(1);
  Tensor logits = normal64({4, 7}, g);
  Tensor with = tensor<int64_t>({3, -100, 6, -100}, {4}), kept = index_select(logits, 0, tensor<int64_t>({0, 2}, {2}));
  EXPECT_LE(relative_error(cross_entropy(logits, with), cross_entropy(kept, tensor<int64_t>({3, 6}, {2}))), 1e-14);
  EXPECT_TRUE(std::isnan(cross_entropy(logits, full({4}, -100, Int64)).item()));
  Tensor leaf = logits.detach().set_requires_grad();
  cross_entropy(leaf, with).backward();
  auto gradient = leaf.grad().to_vector<double>();
  for (int64_t c = 0; c < 7; ++c) EXPECT_EQ(gradient[7 + c], 0);
}

TEST(CrossEntropy, OverwritesOnlyLogitsThatAreGivenAway) {
  Generator g(5);
  const Tensor x = normal64({257, 1031}, g).to(Float32), target = randint(0, 1031, {257}, g);
  const int64_t logits_bytes = x.numel() * 4;
  auto run = [&](bool give, bool hold, bool retain) {
    Tensor leaf = x.clone().set_requires_grad(true);
    reset_peak_memory(cpu());
    const int64_t before = memory_stats(cpu()).allocated;
    Tensor logits = leaf * 2, held = hold ? logits : Tensor();
    Tensor loss = give ? cross_entropy_overwriting(std::exchange(logits, {}), target)
                       : cross_entropy(std::exchange(logits, {}), target);
    loss.backward({}, retain);
    const int64_t peak = memory_stats(cpu()).peak_allocated - before;
    if (hold) {
      EXPECT_EQ(relative_error(held, x * 2) == 0, !give || retain) << "whoever looks";
    }
    if (retain) loss.backward();
    return std::pair{retain ? leaf.grad() * 0.5 : leaf.grad(), peak};
  };
  const auto [want, with_both] = run(false, true, false);
  for (bool hold : {false, true}) {
    EXPECT_EQ(relative_error(run(false, hold, false).first, want), 0);
    const auto [got, peak] = run(true, hold, false);
    EXPECT_EQ(relative_error(got, want), 0);
    EXPECT_LE(peak, with_both - logits_bytes);
    EXPECT_EQ(relative_error(run(true, hold, true).first, want), 0);
  }
}

TEST(CrossEntropy, OverwritingTellsWhoNeedsTheLogitsStill) {
  Tensor leaf = zeros({3, 5}).set_requires_grad(true);
  EXPECT_EQ(error_of([&] {
              cross_entropy_overwriting(tanh(leaf), tensor<int64_t>({0, 1, 2}, {3})).backward();
            }),
            "tanh: a tensor needed by backward (f32[3, 5] on cpu) was changed in place (version 1, saved at 0)");
}

TEST(CrossEntropy, GradientsOfOverlappingLogitsAreTheirOwn) {
  Generator g(6);
  const Tensor x = normal64({1, 37}, g), target = randint(0, 37, {29}, g);
  auto gradient = [&](bool give) {
    Tensor leaf = x.clone().set_requires_grad(true);
    const Tensor logits = (leaf * 2).expand({29, 37});
    (give ? cross_entropy_overwriting(logits, target) : cross_entropy(logits, target)).backward();
    return leaf.grad();
  };
  EXPECT_EQ(relative_error(gradient(false), gradient(true)), 0);
}

TEST(CrossEntropy, IsExactFarFromZero) {
  Tensor logits = tensor<float>({1e4f, 1e4f - 1, 0}, {1, 3});
  EXPECT_NEAR(cross_entropy(logits, tensor<int64_t>({1}, {1})).item(), 1 + std::log1p(std::exp(-1.0)), 1e-3);
}

TEST(CrossEntropy, IsCloseInHalfPrecision) {
  Generator g(2);
  Tensor target = indices({11}, 37, g);
  expect_half_precision_close([&](const Tensors& in) { return cross_entropy(in[0], target); }, {normal64({11, 37}, g)},
                              1e-3);
}

// Rows as they lie in memory, aligned and not, of lengths that one pass takes, and shorter and longer ones; f16 and f32
// go in two passes anywhere.
void check_overwritten_logits(Device device) {
  Generator g(7);
  for (const DType dtype : {Float32, Float16, BFloat16})
    for (const auto& [rows, classes] : {std::pair<int64_t, int64_t>{37, 50257},
                                        {3, 4096},
                                        {133, 4097},
                                        {1, 57344},
                                        {3, 57345},
                                        {19, 53},
                                        {7, 1},
                                        {0, 5000}})
      for (const int64_t padding : {int64_t{0}, int64_t{7}, 8 - classes % 8}) {
        const Tensor memory = (randn({rows, classes + padding}, g) * 3.0).to(dtype);
        const Tensor logits = memory.to(device).slice(1, 0, classes);
        Tensor target = randint(0, classes, {rows}, g);
        if (rows > 5) {
          target.data<int64_t>()[1] = -100;
          target.data<int64_t>()[2] = classes - 1;
        }
        const Tensor exact = memory.slice(1, 0, classes).to(Float64).contiguous().detach().set_requires_grad();
        const Tensor want = cross_entropy(exact, target);
        const double weight = dtype == Float16 ? 100 : 0.3;
        const Tensor there = target.to(device);
        const Tensor got = cross_entropy_and_gradient_(logits, there, full({}, weight, Float32, device));
        const std::string where = to_string(Shape{rows, classes, padding}) + " " + std::string(name(dtype));
        if (rows == 0) {
          EXPECT_TRUE(std::isnan(got.item())) << where;
          continue;
        }
        EXPECT_NEAR(got.item(), want.item(), 2e-5 * std::max(1.0, want.item())) << where;
        const Tensor gradient = grad({want * weight}, {exact})[0];
        EXPECT_LE(relative_error(logits.contiguous().to(cpu()).to(Float64), gradient), dtype == Float32   ? 1e-5
                                                                                       : dtype == Float16 ? 1e-2
                                                                                                          : 4e-3)
            << where;
      }
}

TEST(CrossEntropy, MayOverwriteTheLogitsAtOnce) { check_overwritten_logits(cpu()); }
class GpuCrossEntropy : public GpuTest {};
TEST_F(GpuCrossEntropy, MayOverwriteTheLogitsAtOnce) { check_overwritten_logits(card()); }

TEST(CrossEntropy, OverwritingChecksWhatItIsGiven) {
  const Tensor target = tensor<int64_t>({0, 1, 2}, {3}), one = full({}, 1.0);
  EXPECT_EQ(error_of([&] {
              cross_entropy_and_gradient_(zeros({3, 5}), target, full({1}, 1.0));
            }),
            "cross_entropy_and_gradient_: weight has shape [1], not []");
  EXPECT_EQ(error_of([&] {
              cross_entropy_and_gradient_(zeros({3, 5}, Float64), target, one);
            }),
            "cross_entropy_and_gradient_: weight is f32 for logits of f64");
  EXPECT_EQ(error_of([&] {
              cross_entropy_and_gradient_(zeros({3, 2}), target, one);
            }),
            "cross_entropy: target 2 is not one of 2 classes");
}

TEST(MseLoss, IsTheMeanOfSquares) {
  Generator g(3);
  Tensor x = normal64({3, 5}, g), y = normal64({3, 5}, g);
  EXPECT_LE(relative_error(mse_loss(x, y), mean(square(x - y))), 1e-15);
  EXPECT_EQ(error_of([&] { mse_loss(zeros({3}), zeros({1})); }), "mse_loss: shapes differ: [3] and [1]");
}

}  // namespace
}  // namespace tessera
