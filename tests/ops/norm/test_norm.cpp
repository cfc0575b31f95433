#include "ops/batch_norm.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

TEST(Norm, NamesTheRuleThatIsBroken) {
  Tensor x = zeros({2, 6, 5});
  EXPECT_EQ(error_of([&] { layer_norm(x, zeros({4})); }), "layer_norm: weight has shape [4], not [5]");
  EXPECT_EQ(error_of([&] { layer_norm(x, zeros({5}), zeros({4})); }), "layer_norm: bias has shape [4], not [5]");
  EXPECT_EQ(error_of([&] { layer_norm(x, {}, zeros({5})); }), "layer_norm: a bias without a weight is not supported");
  EXPECT_EQ(error_of([&] { layer_norm(zeros({3, 0})); }), "layer_norm: nothing to normalise over in [3, 0]");
  EXPECT_EQ(error_of([&] { layer_norm(zeros({3}, Int64)); }),
            "layer_norm: takes floating-point tensors, not i64[3] on cpu");
  EXPECT_EQ(error_of([&] { rms_norm(x, zeros({6, 5})); }), "rms_norm: weight must have 1 dims, not shape [6, 5]");
  EXPECT_EQ(error_of([&] { group_norm(x, 4); }), "group_norm: 6 channels do not split into 4 groups");
  EXPECT_EQ(error_of([&] { group_norm(x, 0); }), "group_norm: 6 channels do not split into 0 groups");
  EXPECT_EQ(error_of([&] { group_norm(x, 2, zeros({5})); }), "group_norm: weight has shape [5], not [6]");
  EXPECT_EQ(error_of([&] { batch_norm(x, {}, {}, {}, {}, false); }), "batch_norm: inference needs running statistics");
  EXPECT_EQ(error_of([&] { batch_norm(x, {}, {}, zeros({5}), zeros({6}), true); }),
            "batch_norm: running statistics of shape [5] for x [2, 6, 5]");
  EXPECT_EQ(error_of([&] {
              batch_norm(zeros({1, 6}), {}, {}, {}, {}, true);
            }),
            "batch_norm: training needs more than one value per channel: [1, 6]");
  EXPECT_EQ(error_of([&] { softmax(x, 3); }), "softmax: dim 3 is out of range for [2, 6, 5]");
}

TEST(Norm, BatchNormKeepsRunningStatistics) {
  Generator g(1);
  Tensor x = uniform64({5, 3, 7}, g, -1, 4), mean0 = normal64({3}, g), var0 = uniform64({3}, g, 0.5, 2);
  Tensor running_mean = mean0.clone(), running_var = var0.clone();
  batch_norm(x, {}, {}, running_mean, running_var, true, 0.25);
  EXPECT_LE(relative_error(running_mean, mean0 * 0.75 + mean(x, {0, 2}) * 0.25), 1e-13);
  EXPECT_LE(relative_error(running_var, var0 * 0.75 + var(x, {0, 2}) * 0.25), 1e-13);
  Tensor w = normal64({3}, g), b = normal64({3}, g);
  Tensor want =
      (x - reshape(mean0, {3, 1})) / sqrt(reshape(var0, {3, 1}) + 1e-5) * reshape(w, {3, 1}) + reshape(b, {3, 1});
  EXPECT_LE(relative_error(batch_norm(x, w, b, mean0, var0, false), want), 1e-13);
}

TEST(Norm, BatchNormInferenceIsDifferentiatedAfterItsEstimatesMoved) {
  Generator g(3);
  Tensor x = normal64({4, 3, 5}, g), w = normal64({3}, g), running_mean = normal64({3}, g),
         running_var = ones({3}, Float64);
  const auto gradient = [&](bool moves) {
    Tensor leaf = x.detach().set_requires_grad(), mean = running_mean.clone(), var = running_var.clone();
    Tensor y = sum(square(batch_norm(leaf, w, {}, mean, var, false)));
    if (moves) batch_norm(x, w, {}, mean, var, true);
    return grad({y}, {leaf})[0];
  };
  EXPECT_EQ(gradient(true).to_vector<double>(), gradient(false).to_vector<double>());
}

TEST(Norm, BatchNormInferenceGivesItsEstimatesGradients) {
  Generator g(4);
  Tensor x = normal64({4, 3, 5}, g), w = normal64({3}, g), b = normal64({3}, g);
  Tensor mean = normal64({3}, g).set_requires_grad(), var = uniform64({3}, g, 0.5, 2).set_requires_grad();
  const auto by_hand = [&] {
    return relu((x - reshape(mean, {3, 1})) / sqrt(reshape(var, {3, 1}) + 1e-5) * reshape(w, {3, 1}) +
                reshape(b, {3, 1}));
  };
  const Tensors want = grad({sum(square(by_hand()))}, {mean, var});
  Tensor y = batch_norm(x, w, b, mean, var, false, 0.1, 1e-5, Activation::Relu);
  const Tensors got = grad({sum(square(y))}, {mean, var});
  for (int i : {0, 1}) EXPECT_LE(relative_error(got[i], want[i]), 1e-12);
}

TEST(Norm, BatchNormAddsAResidual) {
  Generator g(5);
  const Tensor x = normal64({4, 3, 5}, g), residual = normal64({4, 3, 5}, g), w = normal64({3}, g),
               b = normal64({3}, g), dy = normal64({4, 3, 5}, g);
  for (const bool training : {true, false})
    for (const Activation activation : {Activation::None, Activation::Relu}) {
      const auto run = [&](const auto& norm) {
        Tensors leaves;
        for (const Tensor& t : {x, residual, w, b}) leaves.push_back(t.detach().set_requires_grad());
        Tensor mean = full({3}, 0.5, Float64), var = full({3}, 2, Float64);
        const Tensor y = norm(leaves, mean, var);
        Tensors out = grad({y}, leaves, {dy});
        for (const Tensor& t : {y, mean, var}) out.push_back(t);
        return out;
      };
      const Tensors got = run([&](const Tensors& in, Tensor& mean, Tensor& var) {
        return batch_norm_add(in[0], in[1], in[2], in[3], mean, var, training, 0.1, 1e-5, activation);
      });
      const Tensors want = run([&](const Tensors& in, Tensor& mean, Tensor& var) {
        const Tensor sum = batch_norm(in[0], in[2], in[3], mean, var, training) + in[1];
        return activation == Activation::Relu ? relu(sum) : sum;
      });
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << i << (training ? " training" : "");
    }
}

TEST(Norm, BatchNormCutsReluOff) {
  Generator g(6);
  const Tensor x = normal64({4, 3, 5}, g), w = uniform64({3}, g, 4, 8), dy = normal64({4, 3, 5}, g);
  for (const bool training : {true, false}) {
    const auto run = [&](const auto& norm) {
      const Tensors leaves{x.detach().set_requires_grad(), w.detach().set_requires_grad()};
      const Tensor y = norm(leaves, zeros({3}, Float64), ones({3}, Float64));
      Tensors out = grad({y}, leaves, {dy});
      out.push_back(y);
      return out;
    };
    const Tensors got = run([&](const Tensors& in, const Tensor& mean, const Tensor& var) {
      return batch_norm_add(in[0], {}, in[1], {}, mean, var, training, 0.1, 1e-5, Activation::Relu, 6);
    });
    const Tensors want = run([&](const Tensors& in, const Tensor& mean, const Tensor& var) {
      return clamp(batch_norm(in[0], in[1], {}, mean, var, training), 0, 6);
    });
    EXPECT_EQ(amax(got[2]).item<double>(), 6);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << i << training;
  }
}

TEST(Norm, BatchNormRefusesOtherResiduals) {
  const Tensor x = zeros({4, 3, 5}), statistic = ones({3});
  const auto add = [&](const Tensor& residual, bool training) {
    return error_of(
        [&] { batch_norm_add(x, residual, {}, {}, statistic, statistic, training, 0.1, 1e-5, Activation::Relu); });
  };
  EXPECT_EQ(add(zeros({4, 3, 4}), true), "batch_norm_add: residual has shape [4, 3, 4], not [4, 3, 5]");
  EXPECT_EQ(add(zeros({4, 3, 4}), false), "batch_norm_inference: residual has shape [4, 3, 4], not [4, 3, 5]");
  EXPECT_EQ(add(zeros({4, 3, 5}, Float64), true),
            "batch_norm_add: dtypes differ: x f32[4, 3, 5] on cpu and residual f64[4, 3, 5] on cpu");
  EXPECT_EQ(error_of([&] { batch_norm_add(x, x, {}, {}, {}, {}, true, 0.1, 1e-5, Activation::Relu, 6); }),
            "batch_norm_add: a highest value after a residual is not supported");
  EXPECT_EQ(error_of([&] {
              dispatch(find_op("batch_norm_backward"), {x, x, {}, statistic, statistic, {}, x}, NormAttrs{});
            }),
            "batch_norm_backward: y is for what relu followed");
}

TEST(Norm, IsCloseInHalfPrecision) {
  Generator g(2);
  Tensor x = uniform64({9, 6, 37}, g, -1, 3), w = normal64({37}, g), b = normal64({37}, g), c = normal64({6}, g);
  expect_half_precision_close([](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }, {x, w, b}, 1e-3);
  expect_half_precision_close([](const Tensors& in) { return rms_norm(in[0], in[1]); }, {x, w}, 1e-3);
  expect_half_precision_close([](const Tensors& in) { return group_norm(in[0], 3, in[1], in[2]); }, {x, c, c}, 1e-3);
  expect_half_precision_close([](const Tensors& in) { return batch_norm(in[0], in[1], in[2], {}, {}, true); },
                              {x, c, c}, 1e-3);
}

TEST(Norm, SoftmaxTakesInfinities) {
  const double inf = INFINITY;
  Tensor x = tensor<float>({-INFINITY, 1, 1, 200, 1000, -1000}, {2, 3});
  std::vector<double> want = {0, 0.5, 0.5, 0, 1, 0};
  EXPECT_EQ(softmax(x, -1).to_vector<double>(), want);
  EXPECT_EQ(log_softmax(x, -1).to_vector<double>()[0], -inf);
}

}  // namespace
}  // namespace tessera
