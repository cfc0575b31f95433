#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/fake_runtime.h"
#include "core/gpu/backend.h"
#include "ops/autocast.h"
#include "ops/capture.h"
#include "ops/lower_copy.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autocast.h"

namespace tessera {
namespace {

Tensor uniform(const Shape& shape, Generator& g, DType dtype = Float32) { return uniform64(shape, g).to(dtype); }
Tensor parameter(const Shape& shape, Generator& g) { return uniform(shape, g).set_requires_grad(); }

constexpr DType kLower[] = {Float16, BFloat16};
double unit_of(DType dtype) { return dtype == Float16 ? 1e-3 : 8e-3; }

// ---- the table of docs/amp.md

struct Row {
  std::string policy, pytorch;  // ours; PyTorch's on CUDA
};

std::map<std::string, Row> documented_policies() {
  std::ifstream file(TESSERA_SOURCE_DIR "/docs/amp.md");
  std::map<std::string, Row> out;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    std::string columns[4];
    std::stringstream rest(line);
    for (std::string& column : columns) std::getline(rest, column, '|');  // the first is what precedes the table
    for (std::string& text : {std::ref(columns[2]), std::ref(columns[3])}) std::erase(text, ' ');
    std::stringstream ops(columns[1]);
    for (std::string op; ops >> op;) {
      std::erase(op, '`');
      EXPECT_TRUE(out.emplace(op, Row{columns[2], columns[3]}).second) << op << " is listed twice";
    }
  }
  return out;
}

std::string policy_of(const Op& op) {
  constexpr const char* names[] = {"none", "lower", "f32", "norm", "promote"};
  return names[static_cast<int>(op.autocast)];
}

// Those of elementwise operators are in docs/operators.md, which is made of the operators.
TEST(Autocast, DocumentsThePolicyOfEveryOperator) {
  auto documented = documented_policies();
  const auto elementwise = elementwise_ops();
  for (const Op* op : op_table()) {
    EXPECT_TRUE(!op->in_place || op->autocast == Autocast::None) << op->name;
    if (std::find(elementwise.begin(), elementwise.end(), op) != elementwise.end()) continue;
    const auto row = documented.extract(std::string(op->name));  // what is not listed runs as it is given
    EXPECT_EQ(row.empty() ? "none" : row.mapped().policy, policy_of(*op)) << op->name;
  }
  for (const auto& [name, row] : documented) ADD_FAILURE() << name << " is no operator, or an elementwise one";
}

// What PyTorch 2.11 casts on CUDA, of the operators that are here by that name or under the second one: its op
// reference (docs.pytorch.org/docs/stable/amp.html) and aten/src/ATen/autocast_mode.h.
TEST(Autocast, PoliciesAreThoseOfPyTorch) {
  const std::map<std::string, std::vector<std::string>> lists{
      {"lower",
       {"matmul", "linear", "conv2d", "conv2d_moments", "conv_transpose2d", "scaled_dot_product_attention",
        "attention_qkv"}},
      {"f32",
       {"sum", "cumsum", "prod", "norm", "logsumexp", "softmax", "log_softmax", "layer_norm", "group_norm",
        "cross_entropy"}},
      {"promote", {"scatter_add"}}};
  std::map<std::string, std::string> pytorch;
  for (const auto& [policy, names] : lists)
    for (const std::string& name : names) pytorch[name] = policy;
  // Reads logits as they are and computes in f32; products that are no operators there; a composition there; promotes
  // by itself there.
  const std::set<std::string> differ{"cross_entropy", "matmul_mul_sum", "mlp",           "conv2d_act", "lstm_layer",
                                     "gru_layer",     "rnn_layer",      "recurrent_net", "rms_norm",   "concat"};
  for (const auto& [name, row] : documented_policies()) {
    const std::string there = pytorch.contains(name) ? pytorch[name] : "none";
    EXPECT_EQ(row.pytorch, there == "none" ? "-" : there) << name;
    EXPECT_EQ((row.policy == "norm" ? "f32" : row.policy) == there, !differ.contains(name)) << name;
    pytorch.erase(name);
  }
  for (const auto& [name, policy] : pytorch) ADD_FAILURE() << name << " is not in the table";
}

// All of PyTorch's list that computes element by element, whether it is here or not; powers have three names here.
TEST(Autocast, ElementwisePoliciesAreThoseOfPyTorch) {
  const std::set<std::string_view> f32{"acos", "asin",  "cosh", "erfinv",   "exp",        "expm1",
                                       "log",  "log10", "log2", "log1p",    "reciprocal", "rsqrt",
                                       "sinh", "tan",   "pow",  "softplus", "square",     "pow_scalar"};
  for (const Op* op : elementwise_ops()) EXPECT_EQ(policy_of(*op), f32.contains(op->name) ? "f32" : "none") << op->name;
}

// ---- dtypes

TEST(Autocast, ProductsAreLowSumsAreAsGiven) {
  Generator g(1);
  const Tensor x = uniform({1024, 1}, g), y = uniform({1024, 1}, g);
  amp::Autocast guard(Float16);
  EXPECT_EQ(matmul(x, y.transpose(0, 1)).dtype(), Float16);
  EXPECT_EQ((x + y).dtype(), Float32);
}

TEST(Autocast, EachPolicyGivesItsDtype) {
  Generator g(2);
  for (DType low : kLower) {
    SCOPED_TRACE(name(low));
    const Tensor x = uniform({4, 6}, g), h = uniform({4, 6}, g, low), w = uniform({5, 6}, g), b = uniform({5}, g);
    const Tensor index = tensor<int64_t>({0, 1, 2, 3}, {4});
    amp::Autocast guard(low);
    EXPECT_EQ(linear(x, w, b).dtype(), low);
    EXPECT_EQ(linear_act(h, w, b, Activation::GeluTanh).dtype(), low);
    EXPECT_EQ(matmul(x, h.transpose(0, 1)).dtype(), low);
    EXPECT_EQ(conv2d(uniform({1, 2, 5, 5}, g), uniform({3, 2, 3, 3}, g), uniform({3}, g)).dtype(), low);
    const Tensor q = uniform({1, 2, 3, 4}, g), mask = zeros({3, 3});
    EXPECT_EQ(scaled_dot_product_attention(q, q.to(low), q, {.mask = mask}).dtype(), low);
    EXPECT_EQ(attention_qkv(uniform({1, 3, 24}, g), 2).dtype(), low);
    for (const Tensor& t : {x, h}) {
      EXPECT_EQ(exp(t).dtype(), Float32);
      EXPECT_EQ(pow(t, 2).dtype(), Float32);
      EXPECT_EQ(pow(t, 3).dtype(), Float32);
      EXPECT_EQ(sum(t).dtype(), Float32);
      EXPECT_EQ(softmax(t, -1).dtype(), Float32);
      EXPECT_EQ(layer_norm(t, ones({6}), zeros({6})).dtype(), Float32);
      EXPECT_EQ(rms_norm(t, ones({6})).dtype(), Float32);
      EXPECT_EQ(cross_entropy(t, index).dtype(), Float32);
      EXPECT_EQ(mse_loss(t, h).dtype(), Float32);
      EXPECT_EQ(relu(t).dtype(), t.dtype());
      EXPECT_EQ(mean(t).dtype(), t.dtype());
      EXPECT_EQ(gelu(t).dtype(), t.dtype());
      EXPECT_EQ(dropout(t, 0.5).dtype(), t.dtype());
    }
    EXPECT_EQ((x + h).dtype(), Float32);
    EXPECT_EQ(concat({h, h}, 0).dtype(), low);
    EXPECT_EQ(concat({h, x}, 0).dtype(), Float32);
    const Tensor places = zeros({4, 6}, Int64);
    EXPECT_EQ(scatter_add(h, 0, places, x).dtype(), Float32);
    EXPECT_EQ(scatter_add(h, 0, places, h).dtype(), low);
    const Tensor image = uniform({2, 6, 3, 3}, g, low);
    EXPECT_EQ(group_norm(image, 2, ones({6}), zeros({6})).dtype(), Float32);
    for (bool training : {true, false})
      EXPECT_EQ(batch_norm(image, ones({6}), zeros({6}), zeros({6}), ones({6}), training).dtype(), low);
  }
}

TEST(Autocast, LeavesIntegersF64AndInPlaceAlone) {
  Generator g(3);
  const Tensor x64 = uniform({3, 3}, g, Float64), i = tensor<int64_t>({1, 2, 3}, {3});
  amp::Autocast guard(BFloat16);
  EXPECT_EQ(matmul(x64, x64).dtype(), Float64);
  EXPECT_EQ(exp(x64).dtype(), Float64);
  EXPECT_EQ(sum(i).dtype(), Int64);
  Tensor h = uniform({3, 3}, g, BFloat16), f = uniform({3, 3}, g);
  EXPECT_EQ(h.add_(f).dtype(), BFloat16);
  EXPECT_EQ(f.mul_(h).dtype(), Float32);
  EXPECT_EQ(h.copy_(f).dtype(), BFloat16);
}

TEST(Autocast, RegionsNestAndEnd) {
  Generator g(4);
  const Tensor x = uniform({3, 3}, g);
  auto product = [&] { return matmul(x, x).dtype(); };
  EXPECT_FALSE(amp::autocast_enabled());
  {
    amp::Autocast outer(Float16);
    EXPECT_TRUE(amp::autocast_enabled());
    EXPECT_EQ(amp::autocast_dtype(), Float16);
    {
      amp::Autocast inner(BFloat16, cpu());
      EXPECT_EQ(product(), BFloat16);
      amp::Autocast off(BFloat16, {.enabled = false});
      EXPECT_EQ(product(), Float32);
      amp::Autocast on(Float16, DeviceType::CPU);
      EXPECT_EQ(product(), Float16);
    }
    EXPECT_EQ(product(), Float16);
    {
      amp::NoAutocast plain;
      EXPECT_EQ(product(), Float32);
    }
    {
      amp::Autocast elsewhere(BFloat16, DeviceType::CUDA, {.enabled = false});
      EXPECT_EQ(product(), Float16);
      EXPECT_FALSE(amp::autocast_enabled(DeviceType::CUDA));
    }
    EXPECT_THROW(matmul(x, uniform({2, 3}, g)), Error);
    EXPECT_EQ(product(), Float16);
    std::thread([&] { EXPECT_EQ(product(), Float32); }).join();
  }
  EXPECT_EQ(product(), Float32);
  try {
    amp::Autocast guard(Float16);
    throw Error("out");
  } catch (const Error&) {
  }
  EXPECT_EQ(product(), Float32);
  amp::Autocast elsewhere(Float16, DeviceType::CUDA);
  EXPECT_EQ(product(), Float32);
}

TEST(Autocast, OptionsAreThoseOfTheirDevices) {
  Generator g(17);
  const Tensor x = uniform({2, 4}, g);
  amp::Autocast outer(BFloat16, {.lower_residual = true});
  {
    amp::Autocast elsewhere(Float16, DeviceType::CUDA);
    amp::Autocast off(BFloat16, DeviceType::HIP, {.enabled = false});
    EXPECT_EQ(layer_norm(x).dtype(), BFloat16);
  }
  amp::Autocast here(BFloat16, cpu());
  EXPECT_EQ(layer_norm(x).dtype(), Float32);
}

TEST(Autocast, RefusesOtherDtypes) {
  for (DType dtype : {Int32, Float32, Float64, Bool})
    EXPECT_EQ(error_of([&] { amp::Autocast guard(dtype); }),
              "Autocast: " + std::string(name(dtype)) + " is no lower precision: f16 or bf16");
  EXPECT_FALSE(amp::autocast_enabled());
}

// ---- gradients and values

TEST(Autocast, GradientsHaveTheirInputsDtypes) {
  Generator g(5);
  for (DType low : kLower) {
    Tensor x = parameter({3, 4}, g), h = uniform({4, 4}, g, low).set_requires_grad(), w = parameter({5, 4}, g);
    Tensor weight = parameter({4}, g), bias = parameter({4}, g);
    Tensor loss;
    {
      amp::Autocast guard(low);
      loss = mean(linear(layer_norm(matmul(x, h), weight, bias), w));
      EXPECT_EQ(loss.dtype(), low);
      loss.backward();  // without autocast, also here
    }
    EXPECT_EQ(x.grad().dtype(), Float32);
    EXPECT_EQ(h.grad().dtype(), low);
    EXPECT_EQ(w.grad().dtype(), Float32);
    EXPECT_EQ(weight.grad().dtype(), Float32);
    EXPECT_EQ(bias.grad().dtype(), Float32);
  }
}

// Sums that end in a f32 gradient are not rounded on their way.
TEST(Autocast, GradientsOfWeightsAndBiasesKeepTheirSums) {
  Generator g(15);
  for (DType low : kLower) {
    const Tensor x = normal64({57, 24}, g).to(low), dy = normal64({57, 40}, g).to(low);
    for (bool hidden : {false, true}) {
      Tensor w = parameter({40, 24}, g), up = parameter({24, 24}, g), bias = parameter({40}, g);
      {
        amp::Autocast guard(low);
        const Tensor y = hidden ? mlp(x, up, {}, Activation::None, w, bias) : linear(x, w, bias);
        sum(cast(y * dy, Float32)).backward();
      }
      const Tensor seen = hidden ? linear(x, up.detach().to(low)) : x;
      const Tensor want = matmul(transpose(dy.to(Float64), 0, 1), seen.to(Float64));
      EXPECT_EQ(w.grad().dtype(), Float32);
      EXPECT_TRUE(w.grad().is_contiguous());
      EXPECT_LE(relative_error(w.grad(), want), 1e-6) << name(low) << hidden;
      EXPECT_EQ(bias.grad().dtype(), Float32);
      EXPECT_LE(relative_error(bias.grad(), sum(dy.to(Float64), {0})), 1e-6) << name(low) << hidden;
    }
  }
}

// A block of a transformer with a loss, as a function of everything that has a gradient.
Tensor small_model(const Tensors& p) {
  const Tensor y = linear_act(attention_qkv(linear(layer_norm(p[0], p[1], p[2]), p[3]), 2, {.causal = true}), p[4], {},
                              Activation::None, p[0]);
  const Tensor z = linear_act(rms_norm(y, p[5]), p[6], p[7], Activation::GeluTanh);
  return cross_entropy(linear_act(z, p[8], {}, Activation::None, y), tensor<int64_t>({1, 0, 3, 2, 6, 5}, {2, 3}));
}
Tensors small_parameters(Generator& g) {
  Tensors out;
  for (const Shape& s : {Shape{2, 3, 8}, {8}, {8}, {24, 8}, {8, 8}, {8}, {13, 8}, {13}, {8, 13}})
    out.push_back(uniform(s, g));
  return out;
}

TEST(Autocast, IsNearF32) {
  Generator g(6);
  const Tensors exact = small_parameters(g);
  for (DType low : kLower)
    for (bool lower_residual : {false, true}) {
      SCOPED_TRACE(name(low));
      auto mixed = [&](const Tensors& p) {
        amp::Autocast guard(low, {.lower_residual = lower_residual});
        return small_model(p);
      };
      EXPECT_LE(relative_error(mixed(exact), small_model(exact)), 2 * unit_of(low));
      const Tensors got = gradients_of(mixed, exact, false), want = gradients_of(small_model, exact, false);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), Float32);
        EXPECT_LE(relative_error(got[i], want[i]), 6 * unit_of(low)) << "gradient " << i;
      }
    }
}

TEST(Autocast, ComposedBackwardAgreesWithFused) {
  Generator g(7);
  const Tensors exact = small_parameters(g);
  auto mixed = [&](const Tensors& p) {
    amp::Autocast guard(Float16, {.lower_residual = true});
    return small_model(p);
  };
  const Tensors fused = gradients_of(mixed, exact, false), composed = gradients_of(mixed, exact, true);
  for (size_t i = 0; i < fused.size(); ++i) EXPECT_LE(relative_error(fused[i], composed[i]), 1e-2) << i;
}

TEST(Autocast, ResidualStreamsKeepTheirDtypeUnlessTold) {
  Generator g(8);
  const Tensor x = uniform({3, 8}, g), w = uniform({8, 8}, g);
  {
    amp::Autocast guard(BFloat16);
    const Tensor y = linear_act(x, w, {}, Activation::Relu, x);
    EXPECT_EQ(y.dtype(), Float32);
    EXPECT_EQ(relative_error(y, x + linear_act(x, w, {}, Activation::Relu)), 0);
  }
  amp::Autocast guard(BFloat16, {.lower_residual = true});
  const Tensor y = linear_act(x, w, {}, Activation::Relu, x);
  EXPECT_EQ(y.dtype(), BFloat16);
  EXPECT_EQ(layer_norm(y, ones({8}), zeros({8})).dtype(), BFloat16);
  EXPECT_EQ(layer_norm(x, ones({8}), zeros({8})).dtype(), BFloat16);
}

// ---- norms of halves with f32 weights

TEST(MixedNorms, KeepTheDtypeOfXAndAreExact) {
  Generator g(9);
  const Tensor x = uniform({3, 6, 5, 7}, g, Float16), w = uniform({6}, g), b = uniform({6}, g), last = uniform({7}, g);
  using Norm = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;
  auto check = [&](const Norm& norm, const Tensor& w, const Tensor& b) {
    auto all = [&](const Tensors& in) { return norm(in[0], in[1], in[2]); };
    const Tensors mixed = {x, w, b}, wide = {x.to(Float64), w.to(Float64), b.to(Float64)};
    const Tensor y = all(mixed);
    EXPECT_EQ(y.dtype(), Float16);
    EXPECT_LE(relative_error(y, all(wide)), 5e-4);
    for (bool composed : {false, true}) {
      const Tensors got = gradients_of(all, mixed, composed), want = gradients_of(all, wide, composed);
      EXPECT_EQ(got[0].dtype(), Float16);
      EXPECT_EQ(got[1].dtype(), Float32);
      EXPECT_EQ(got[2].dtype(), Float32);
      for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(got[i], want[i]), composed ? 1e-2 : 1e-3) << i;
    }
  };
  check([](const Tensor& x, const Tensor& w, const Tensor& b) { return layer_norm(x, w, b); }, last, last);
  check([](const Tensor& x, const Tensor& w, const Tensor& b) { return group_norm(x, 3, w, b); }, w, b);
  check([](const Tensor& x, const Tensor& w, const Tensor& b) { return batch_norm(x, w, b, {}, {}, true); }, w, b);
  EXPECT_EQ(error_of([&] { batch_norm(x, w, b.to(Float16), {}, {}, true); }),
            "batch_norm: dtypes differ: weight f32[6] on cpu and bias f16[6] on cpu");
  EXPECT_EQ(error_of([&] { layer_norm(x.to(Float32), last.to(Float16)); }),
            "layer_norm: dtypes differ: f32[3, 6, 5, 7] on cpu and f16[7] on cpu");
}

// ---- the cache of weights

int64_t memory() { return memory_stats().allocated; }

TEST(WeightCache, CastsAParameterOnce) {
  Generator g(10);
  Tensor w = parameter({64, 64}, g);
  const Tensor x = uniform({1, 64}, g, BFloat16);
  const int64_t before = memory(), copy = 2 * 64 * 64;
  {
    NoGrad plain;
    amp::Autocast guard(BFloat16);
    linear(x, w);
    EXPECT_EQ(memory(), before + copy);
    {
      amp::Autocast inner(BFloat16);
      linear(x, w);
      matmul(x, w);
      EXPECT_EQ(memory(), before + copy);
    }
    linear(x, w.detach());  // no parameter
    EXPECT_EQ(memory(), before + copy);
  }
  EXPECT_EQ(memory(), before);
  NoGrad plain;
  amp::Autocast guard(BFloat16, {.cache_weights = false});
  linear(x, w);
  EXPECT_EQ(memory(), before);
}

TEST(WeightCache, SeesChangesOfAParameter) {
  Generator g(11);
  Tensor w = parameter({4, 4}, g);
  const Tensor x = uniform({2, 4}, g);
  amp::Autocast guard(BFloat16);
  const Tensor before = linear(x, w);
  {
    NoGrad plain;
    w.mul_(2);
  }
  EXPECT_EQ(relative_error(linear(x, w), before * 2), 0);
  amp::Autocast inner(Float16);
  EXPECT_EQ(linear(x, w).dtype(), Float16);
}

TEST(WeightCache, ServesOneStreamUntilAGraphIsReplayed) {
  gpu::install(DeviceType::HIP, plugin_of(*new FakeRuntime));
  {
    const Device device = hip(0);
    const Tensor w = empty({4, 4}, Float32, device).set_requires_grad(), x = empty({2, 4}, BFloat16, device);
    const auto owner = share_lower_copy(w);
    const auto renew = [&] { owner->keep(w, empty({4, 4}, BFloat16, device)); };
    const auto cast_of = [&] {
      Tensors in{x, w};
      amp::autocast(find_op("linear"), in);
      return in[1].data_ptr();
    };
    amp::Autocast guard(BFloat16);
    renew();
    const void* const first = cast_of();
    renew();
    EXPECT_EQ(cast_of(), first);
    const Stream side(device);
    {
      const StreamGuard other(side);
      renew();
      EXPECT_NE(cast_of(), first);
    }
    renew();
    const void* const before = cast_of();
    DeviceGraph graph;
    graph.capture(device, [] {});
    graph.replay();
    renew();
    EXPECT_NE(cast_of(), before);
  }
  gpu::install(DeviceType::HIP, nullptr);
}

TEST(WeightCache, IsNoneOfACapturedFunctions) {
  Generator g(14);
  Tensor w = parameter({4, 4}, g);
  const Tensor x = uniform({2, 4}, g);
  amp::Autocast guard(BFloat16);
  NoGrad plain;
  const auto eager = [&] { return linear(x, w); };
  eager();
  const Program program = capture([&](const Tensors& in) { return Tensors{linear(in[0], w)}; }, {x});
  EXPECT_EQ(relative_error(eager(), program({x})[0]), 0);
  w.mul_(2.0);
  EXPECT_EQ(relative_error(program({x})[0], eager()), 0);
  const Program again = capture(
      [&](const Tensors& in) {
        amp::Autocast inner(BFloat16);
        return Tensors{linear(in[0], w) + linear(in[0], w)};
      },
      {x});
  EXPECT_EQ(relative_error(again({x})[0], eager() * 2.0), 0);
}

TEST(WeightCache, DoesNotCutTheGraph) {
  Generator g(12);
  Tensor w = parameter({4, 4}, g);
  const Tensor x = uniform({2, 4}, g);
  amp::Autocast guard(BFloat16);
  {
    NoGrad plain;
    linear(x, w);
  }
  Tensor first = sum(linear(x, w)), second = sum(linear(x, w));
  first.backward();
  const Tensor once = w.grad().clone();
  second.backward();  // through the same copy of w
  sum(linear(x, w)).backward();
  EXPECT_EQ(relative_error(w.grad(), once * 3), 0);
}

TEST(WeightCache, ServesTiedWeights) {
  Generator g(13);
  Tensor w = parameter({7, 4}, g);
  const Tensor index = tensor<int64_t>({1, 6, 2}, {3});
  auto loss = [&] { return cross_entropy(linear(embedding(index, w), w), index); };
  loss().backward();
  const Tensor want = w.grad();
  w.set_grad({});
  {
    amp::Autocast guard(BFloat16);
    loss().backward();
  }
  EXPECT_LE(relative_error(w.grad(), want), 2e-2);
}

TEST(Autocast, PassesNanAndInfOn) {
  for (DType low : kLower) {
    amp::Autocast guard(low);
    for (double bad : {NAN, INFINITY, -INFINITY}) {
      const Tensor x = full({2, 2}, bad), one = ones({2, 2});
      EXPECT_FALSE(std::isfinite(matmul(x, one).to_vector<double>()[0]));
      EXPECT_FALSE(std::isfinite(linear(one, x).to_vector<double>()[3]));
      EXPECT_FALSE(std::isfinite(mse_loss(x, one).item()));
      EXPECT_TRUE(std::isnan(layer_norm(x, ones({2})).to_vector<double>()[0]));
    }
    EXPECT_EQ(std::isfinite(matmul(full({1, 1}, 1e5), ones({1, 1})).item()), low == BFloat16);
  }
}

}  // namespace
}  // namespace tessera
