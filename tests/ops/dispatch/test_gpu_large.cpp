// Operators over more than 2^31 elements, on a GPU that has room: what comes of the first rows, of those around element
// 2^31 and of the last ones is what float64 gives for these rows alone. Sums over all are those over parts of them.
#include "gpu_memory.h"
#include "ops/gpu_against_float64.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

constexpr int64_t two_to_31 = int64_t{1} << 31;
constexpr DType dtype = BFloat16;

using Fn = std::function<Tensor(const Tensors&)>;
struct Operator {
  const char* name;
  Fn fn;
  bool has_gradient = true;
};

class GpuLarge : public GpuAgainstFloat64 {
 protected:
  void SetUp() override {
    GpuAgainstFloat64::SetUp();
    if (IsSkipped()) return;
    if (properties(card()).memory < size_t{60} << 30) GTEST_SKIP() << "needs 60 GB";
    card_.emplace();
  }
  void TearDown() override {
    if (card_) empty_cache(card());
  }

  /// As few rows of this shape as make more than 2^31 elements and a few rows more.
  static Shape with_rows(std::initializer_list<int64_t> row) {
    int64_t elements = 1;
    for (int64_t n : row) elements *= n;
    std::vector<int64_t> shape{two_to_31 / elements + 4};
    shape.insert(shape.end(), row.begin(), row.end());
    return Shape(shape);
  }
  Tensor normal(const Shape& shape) { return randn(shape, generator, dtype, card()); }

  static Tensor rows(const Tensor& t, int64_t first, int64_t count) { return t.slice(0, first, first + count); }
  static Tensor exact(const Tensor& t) { return t.contiguous().to(cpu()).to(Float64); }
  /// The first of two rows that are looked at: at the beginning, around element 2^31, at the end.
  static std::vector<int64_t> places(const Tensor& t) {
    const int64_t count = t.size(0);
    return {0, two_to_31 / (t.numel() / count) - 1, count - 2};
  }

  /// Results and gradients by the large inputs; `small` ones, here in float64, follow them. Each row of a result is of
  /// its row of the inputs alone.
  void check_rows(const Operator& op, const Tensors& large, const Tensors& small = {}, double tolerance = 1.2e-2) {
    SCOPED_TRACE(op.name);
    const auto with_small = [&](Tensors in, bool there) {
      for (const Tensor& t : small) in.push_back(there ? t.to(dtype).to(card()) : t);
      return in;
    };
    Tensors in;
    for (const Tensor& t : large) in.push_back(op.has_gradient ? t.detach().set_requires_grad() : t);
    const Tensor y = op.fn(with_small(in, true));
    const Tensor g = op.has_gradient ? normal(y.shape()) : Tensor();
    const Tensors gradients = op.has_gradient ? grad({y}, in, {g.to(y.dtype())}) : Tensors();
    for (int64_t at : places(large[0])) {
      Tensors part;
      for (const Tensor& t : large) part.push_back(exact(rows(t, at, 2)));
      if (op.has_gradient)
        for (Tensor& t : part) t.set_requires_grad();
      const Tensor want = op.fn(with_small(part, false));
      EXPECT_LE(relative_error(exact(rows(y, at, 2)), want.to(Float64)), tolerance) << "row " << at;
      if (!op.has_gradient) continue;
      const Tensors wanted = grad({want}, part, {exact(rows(g, at, 2))});
      for (size_t i = 0; i < in.size(); ++i)
        EXPECT_LE(relative_error(exact(rows(gradients[i], at, 2)), wanted[i]), 2 * tolerance)
            << "row " << at << " gradient " << i;
    }
  }

 private:
  std::optional<WholeCard> card_;
};

TEST_F(GpuLarge, FunctionsOfOneTensor) {
  const Tensor x = normal(with_rows({8191}));
  const auto of = [](Tensor (*f)(Tensor)) { return [f](const Tensors& in) { return f(in[0]); }; };
  const auto positive = [](Tensor (*f)(Tensor)) { return [f](const Tensors& in) { return f(abs(in[0]) + 1); }; };
  for (const Operator& op : {Operator{"neg", of(neg)},
                             {"abs", of(abs)},
                             {"exp", of(exp)},
                             {"log", positive(log)},
                             {"sqrt", positive(sqrt)},
                             {"rsqrt", positive(rsqrt)},
                             {"reciprocal", positive(reciprocal)},
                             {"square", of(square)},
                             {"sin", of(sin)},
                             {"tanh", of(tanh)},
                             {"sigmoid", of(sigmoid)},
                             {"erf", of(erf)},
                             {"relu", of(relu)},
                             {"gelu", of(gelu)},
                             {"gelu_tanh", of(gelu_tanh)},
                             {"silu", of(silu)},
                             {"softplus", of(softplus)}})
    check_rows(op, {x});
  for (const Operator& op : {Operator{"sign", of(sign), false},
                             {"floor", of(floor), false},
                             {"round", of(round), false},
                             {"isnan", of(isnan), false},
                             {"logical_not", of(logical_not), false},
                             {"cast", [](const Tensors& in) { return cast(in[0], Float16); }, false},
                             {"flip", [](const Tensors& in) { return flip(in[0], {1}); }, false},
                             {"clone", [](const Tensors& in) { return clone(in[0]); }, false}})
    check_rows(op, {x});
}

TEST_F(GpuLarge, FunctionsOfTwoTensors) {
  const Tensor a = normal(with_rows({8191})), b = normal(a.shape());
  const auto of = [](Tensor (*f)(Tensor, Tensor)) { return [f](const Tensors& in) { return f(in[0], in[1]); }; };
  for (const Operator& op : {Operator{"add", of(add)},
                             {"sub", of(sub)},
                             {"mul", of(mul)},
                             {"maximum", of(maximum)},
                             {"div", [](const Tensors& in) { return in[0] / (abs(in[1]) + 1); }},
                             {"where", [](const Tensors& in) { return where(gt(in[0], in[1]), in[0], in[1] * 2); }}})
    check_rows(op, {a, b});
  for (const Operator& op : {Operator{"lt", of(lt), false},
                             {"eq", of(eq), false},
                             {"logical_and", of(logical_and), false},
                             {"concat",
                              [](const Tensors& in) {
                                return concat({in[0], in[1].slice(1, 0, 5)}, 1);
                              },
                              false}})
    check_rows(op, {a, b});
  const Tensor line = normal64({8191}, generator).to(dtype).to(Float64);
  check_rows({"add a line", [](const Tensors& in) { return in[0] + in[1]; }}, {a}, {line});
}

TEST_F(GpuLarge, Rows) {
  const Tensor weight = normal64({4099}, generator).to(dtype).to(Float64),
               bias = normal64({4099}, generator).to(dtype).to(Float64);
  const Tensor x = normal(with_rows({4099}));
  check_rows({"layer_norm", [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }}, {x}, {weight, bias});
  check_rows({"rms_norm", [](const Tensors& in) { return rms_norm(in[0], in[1]); }}, {x}, {weight});
  for (const Operator& op : {Operator{"softmax", [](const Tensors& in) { return softmax(in[0], -1); }},
                             {"log_softmax", [](const Tensors& in) { return log_softmax(in[0], -1); }},
                             {"sum", [](const Tensors& in) { return sum(abs(in[0]), {1}); }},
                             {"mean", [](const Tensors& in) { return mean(abs(in[0]), {1}); }},
                             {"amax", [](const Tensors& in) { return amax(in[0], {1}); }},
                             {"var", [](const Tensors& in) { return var(in[0], {1}); }},
                             {"norm", [](const Tensors& in) { return norm(in[0], {1}); }},
                             {"logsumexp", [](const Tensors& in) { return logsumexp(in[0], {1}); }, false},
                             {"topk", [](const Tensors& in) { return topk(in[0], 3).first; }, false}})
    check_rows(op, {x});
  for (const Operator& op :
       {Operator{"argmin", [](const Tensors& in) { return argmin(in[0], 1); }, false},
        {"any", [](const Tensors& in) { return any(gt(in[0], full({1}, 3.5, in[0].dtype(), in[0].device())), {1}); },
         false},
        {"cumsum", [](const Tensors& in) { return cumsum(abs(in[0]), 1); }, false},
        {"pad",
         [](const Tensors& in) {
           return pad(in[0], {0, 1}, {0, 2}, 3);
         },
         false}})
    check_rows(op, {x});
}

TEST_F(GpuLarge, SumsOverAll) {
  NoGrad guard;
  const Tensor x = normal(with_rows({4099}));
  const int64_t count = x.size(0), half = count / 2;
  const auto in_parts = [&](const std::function<Tensor(const Tensor&)>& f) {
    return exact(f(rows(x, 0, half)).to(Float32)) + exact(f(rows(x, half, count - half)).to(Float32));
  };
  const auto all = [](const Tensor& t) { return sum(abs(t.to(Float32))); };
  EXPECT_LE(relative_error(exact(all(x)), in_parts(all)), 1e-5);
  const auto columns = [](const Tensor& t) { return sum(abs(t), {0}); };
  EXPECT_LE(relative_error(exact(columns(x)), in_parts(columns)), 1.2e-2);
  const auto squares = [](const Tensor& t) { return square(norm(t.to(Float32))); };
  EXPECT_LE(relative_error(exact(squares(x)), in_parts(squares)), 1e-5);
  EXPECT_LE(relative_error(exact(mean(abs(x.to(Float32)))), in_parts(all) / static_cast<double>(x.numel())), 1e-5);
  Tensor last = x.slice(0, count - 1, count).slice(1, 4098, 4099);
  last.fill_(100);
  EXPECT_EQ(amax(x).to(Float32).item(), 100);
  EXPECT_EQ(argmax(x.reshape({x.numel()}), 0).item(), static_cast<double>(x.numel() - 1));
  EXPECT_EQ(argmax(x, 0).slice(0, 4098, 4099).item(), static_cast<double>(count - 1));
}

TEST_F(GpuLarge, PlacesBeyondTwoToThe31) {
  NoGrad guard;
  Tensor x = normal(with_rows({1000}));
  const int64_t count = x.size(0);
  const Tensor index = tensor<int64_t>({count - 1, 0, count - 3, 2147483}, {4});
  const Tensor want = exact(index_select(x, 0, index.to(card())));
  for (int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<int64_t>(index.select(0, i).item());
    EXPECT_EQ(relative_error(want.slice(0, i, i + 1), exact(rows(x, at, 1))), 0) << at;
  }
  EXPECT_EQ(relative_error(exact(embedding(index.to(card()), x)), want), 0);
  const Tensor along = index.reshape({4, 1}).expand({4, 1000}).contiguous().to(card());
  EXPECT_EQ(relative_error(exact(gather(x, 0, along)), want), 0);
  const Tensor more = normal({4, 1000});
  const Tensor added = scatter_add(x, 0, along, more);
  EXPECT_LE(relative_error(exact(index_select(added, 0, index.to(card()))), want + exact(more)), 1.2e-2);
  const Tensor turned = x.transpose(0, 1).contiguous();
  EXPECT_EQ(relative_error(exact(turned.slice(1, count - 2, count)).transpose(0, 1), exact(rows(x, count - 2, 2))), 0);
  const Tensor lower = tril(x, 990 - count);
  EXPECT_EQ(abs(rows(lower, count - 1, 1).slice(1, 990, 1000).to(Float32)).sum().item(), 0);
  EXPECT_EQ(
      relative_error(exact(rows(lower, count - 1, 1).slice(1, 0, 990)), exact(rows(x, count - 1, 1).slice(1, 0, 990))),
      0);
}

TEST_F(GpuLarge, EmbeddingAndItsGradient) {
  const Tensor weight = normal(with_rows({1000})).set_requires_grad();
  const int64_t count = weight.size(0);
  const Tensor index = tensor<int64_t>({count - 1, 5, count - 1}, {3}).to(card());
  const Tensor g = normal({3, 1000});
  const Tensor dweight = grad({embedding(index, weight)}, {weight}, {g})[0];
  const Tensor of = exact(g);
  EXPECT_LE(relative_error(exact(rows(dweight, count - 1, 1)), of.slice(0, 0, 1) + of.slice(0, 2, 3)), 1.2e-2);
  EXPECT_EQ(relative_error(exact(rows(dweight, 5, 1)), of.slice(0, 1, 2)), 0);
  EXPECT_EQ(abs(exact(rows(dweight, count - 2, 1))).sum().item(), 0);
}

TEST_F(GpuLarge, CrossEntropyAndMse) {
  const Tensor x = normal(with_rows({50257}));
  const Tensor target = randint(0, 50257, {x.size(0)}, generator, card());
  const Tensor on = x.detach().set_requires_grad();
  const Tensor loss = cross_entropy(on, target, Reduction::None);
  const Tensor g = normal(loss.shape()).to(loss.dtype());
  const Tensor dx = grad({loss}, {on}, {g})[0];
  for (int64_t at : places(x)) {
    const Tensor part = exact(rows(x, at, 2)).set_requires_grad();
    const Tensor want = cross_entropy(part, rows(target, at, 2).to(cpu()), Reduction::None);
    EXPECT_LE(relative_error(exact(rows(loss, at, 2)), want), 1.2e-2);
    EXPECT_LE(relative_error(exact(rows(dx, at, 2)), grad({want}, {part}, {exact(rows(g, at, 2))})[0]), 2.4e-2);
  }
  NoGrad guard;
  EXPECT_NEAR(mse_loss(x, x + 2).to(Float32).item(), 4, 0.05);
}

TEST_F(GpuLarge, Images) {
  const Tensor x = normal(with_rows({4, 96, 128}));
  const auto values_of = [&](const Shape& shape) { return values(shape, dtype); };
  check_rows({"conv2d",
              [](const Tensors& in) {
                return conv2d(in[0], in[1], in[2], {.padding = {1, 1}});
              }},
             {x}, {values_of({4, 4, 3, 3}), values_of({4})});
  check_rows({"pointwise conv2d", [](const Tensors& in) { return conv2d(in[0], in[1], in[2]); }}, {x},
             {values_of({4, 4, 1, 1}), values_of({4})});
  check_rows({"max_pool2d", [](const Tensors& in) { return max_pool2d(in[0]); }}, {x});
  check_rows({"avg_pool2d", [](const Tensors& in) { return avg_pool2d(in[0]); }}, {x});
  check_rows({"group_norm", [](const Tensors& in) { return group_norm(in[0], 2, in[1], in[2]); }}, {x},
             {values_of({4}), values_of({4})});
  check_rows({"batch_norm",
              [](const Tensors& in) {
                const Tensor mean = full({4}, 0.25, Float32, in[0].device()),
                             var = full({4}, 2, Float32, in[0].device());
                return batch_norm(in[0], in[1], in[2], mean, var, false);
              }},
             {x}, {values_of({4}), values_of({4})});
}

// Kernels of images whose channels lie last: windows by TMA, batch norm by lines.
TEST_F(GpuLarge, ImagesWithTheirChannelsLast) {
  const Tensor x = normal(with_rows({16, 64, 64})).permute({0, 3, 1, 2});
  const int64_t count = x.size(0), half = count / 2;
  const auto values_of = [&](const Shape& shape) { return values(shape, dtype); };
  check_rows({"conv2d",
              [](const Tensors& in) {
                return conv2d(in[0], in[1], in[2], {.padding = {1, 1}});
              }},
             {x}, {values_of({64, 64, 3, 3}), values_of({64})});
  check_rows({"batch_norm",
              [](const Tensors& in) {
                const Tensor mean = full({64}, 0.25, Float32, in[0].device()),
                             var = full({64}, 2, Float32, in[0].device());
                return relu(batch_norm(in[0], in[1], in[2], mean, var, false));
              }},
             {x}, {values_of({64}), values_of({64})});
  const auto gradient = [&](int64_t first, int64_t last) {
    const Tensor w = full({64, 64, 3, 3}, 0.5, dtype, card()).set_requires_grad(), part = x.slice(0, first, last);
    return exact(grad({conv2d(part, w, {}, {.padding = {1, 1}})}, {w}, {part})[0]);
  };
  EXPECT_LE(relative_error(gradient(0, count), gradient(0, half) + gradient(half, count)), 1.2e-2);

  NoGrad guard;
  x.slice(0, count - 1, count).fill_(100);
  const auto sums = [&](int64_t first, int64_t last) {  // of elements, and of their squares
    Tensor mean = zeros({64}, Float32, card()), var = ones({64}, Float32, card());
    batch_norm(x.slice(0, first, last), {}, {}, mean, var, true, 1);
    const auto n = static_cast<double>((last - first) * x.size(2) * x.size(3));
    return Tensors{exact(mean) * n, (exact(var) * (1 - 1 / n) + square(exact(mean))) * n};
  };
  const Tensors all = sums(0, count), low = sums(0, half), high = sums(half, count);
  for (int i = 0; i < 2; ++i) EXPECT_LE(relative_error(all[i], low[i] + high[i]), 1e-4) << i;
}

TEST_F(GpuLarge, GradientsOfWeights) {
  const Tensor x = normal(with_rows({4, 96, 128})), g = normal(x.shape());
  const int64_t count = x.size(0), half = count / 2;
  const auto gradients = [&](int64_t first, int64_t last) {
    const Tensor w = full({4, 4, 3, 3}, 0.5, dtype, card()).set_requires_grad(),
                 b = full({4}, 0, dtype, card()).set_requires_grad();
    const Tensors d =
        grad({conv2d(x.slice(0, first, last), w, b, {.padding = {1, 1}})}, {w, b}, {g.slice(0, first, last)});
    return Tensors{exact(d[0]), exact(d[1])};
  };
  const Tensors all = gradients(0, count), low = gradients(0, half), high = gradients(half, count);
  for (int i = 0; i < 2; ++i) EXPECT_LE(relative_error(all[i], low[i] + high[i]), 1.2e-2) << i;
  const Tensor flat = x.reshape({count * 48, 1024}), of = g.reshape({count * 48, 1024});
  const auto norm_gradients = [&](int64_t first, int64_t last) {
    const Tensor w = full({1024}, 0.5, dtype, card()).set_requires_grad(),
                 b = full({1024}, 0, dtype, card()).set_requires_grad();
    const Tensors d = grad({layer_norm(flat.slice(0, first, last), w, b)}, {w, b}, {of.slice(0, first, last)});
    return Tensors{exact(d[0]), exact(d[1])};
  };
  const Tensors norm_all = norm_gradients(0, count * 48), norm_low = norm_gradients(0, half * 48),
                norm_high = norm_gradients(half * 48, count * 48);
  for (int i = 0; i < 2; ++i)
    EXPECT_LE(relative_error(norm_all[i], norm_low[i] + norm_high[i]), 1.2e-2) << "norm " << i;
}

TEST_F(GpuLarge, Batches) {
  const Tensor x = normal(with_rows({64, 64})), y = normal(x.shape());
  check_rows({"matmul", [](const Tensors& in) { return matmul(in[0], in[1]); }}, {x, y});
  check_rows({"transposed matmul", [](const Tensors& in) { return matmul(in[0].transpose(1, 2), in[1]); }}, {x, y});
  const Tensor heads = normal(with_rows({16, 64, 64}));
  for (bool causal : {false, true})
    check_rows({"attention",
                [causal](const Tensors& in) {
                  return scaled_dot_product_attention(in[0], in[0] * 0.5, in[0], {.causal = causal});
                }},
               {heads});
}

TEST_F(GpuLarge, Draws) {
  NoGrad guard;
  const Tensor x = full(with_rows({8191}), 1, dtype, card());
  const int64_t count = x.size(0);
  const Tensor kept = dropout(x, 0.25, true, generator), uniform = rand(x.shape(), generator, Float32, card());
  for (int64_t at : {int64_t{0}, two_to_31 / 8191 - 50, count - 100}) {
    const Tensor part = exact(rows(kept, at, 100)), drawn = exact(rows(uniform, at, 100));
    EXPECT_NEAR(part.mean().item(), 1, 0.01) << at;
    EXPECT_LE(abs(part * (part - 4. / 3)).sum().item() / static_cast<double>(part.numel()), 1e-2) << at;
    EXPECT_NEAR(drawn.mean().item(), 0.5, 0.005) << at;
    EXPECT_NEAR(var(drawn).item(), 1. / 12, 0.002) << at;
  }
  // Words do not come again 2^31 or 2^32 bytes later.
  EXPECT_GT(relative_error(exact(rows(uniform, count - 2, 2)), exact(rows(uniform, count - 2 - two_to_31 / 8191, 2))),
            0.1);
}

TEST_F(GpuLarge, AStepOfAdamW) {
  if (properties(card()).memory < size_t{75} << 30) GTEST_SKIP() << "needs 75 GB";
  NoGrad guard;
  const int64_t n = two_to_31 + 4099;
  Tensor p = full({n}, 1, Float32, card());
  p.set_requires_grad();
  p.set_grad(full({n}, 0.5, Float32, card()));
  optim::AdamW optimizer({p}, {.lr = 0.125, .weight_decay = 0});
  optimizer.step();
  for (int64_t at : {int64_t{0}, two_to_31 - 2, n - 4})
    for (float v : p.detach().slice(0, at, at + 4).to(cpu()).to_vector<float>()) EXPECT_NEAR(v, 0.875, 1e-5) << at;
}

}  // namespace
}  // namespace tessera
