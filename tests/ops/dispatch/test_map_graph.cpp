// Functions of elements run as one operator: with the bits of the operators that they call, forward and backward.
#include "core/gpu_check.h"
#include "ops/capture.h"
#include "ops/composed_check.h"
#include "ops/gradient.h"
#include "ops/map_graph.h"
#include "ops/op_table.h"
#include "ops/precise.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"
#include "tessera/ops_loss.h"
#include "tessera/ops_math.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

Tensor length_of(const Tensor& a, const Tensor& b) {
  return map_in_single(a, b, [](const Tensor& x, const Tensor& y) { return sqrt(square(x) + square(y)); });
}

using UnaryFunction = Tensor (*)(const Tensor&);
struct Unary {
  const char* name;
  UnaryFunction f;
};
constexpr Unary kUnary[] = {
    {"asinh", asinh},
    {"digamma", digamma},
    {"lgamma", lgamma},
    {"mish", mish},
    {"softsign", softsign},
    {"elu", [](const Tensor& x) { return elu(x); }},
    {"softshrink", [](const Tensor& x) { return softshrink(x); }},
    {"length", [](const Tensor& x) { return length_of(x, x * 0.5); }},
    {"isclose", [](const Tensor& x) { return isclose(x, x + 1e-9); }},
    {"nan_to_num", [](const Tensor& x) { return nan_to_num(x / 0.0 * 0.0, 3); }},
    {"binary_cross_entropy", [](const Tensor& x) { return binary_cross_entropy(x, x * 0.5, {}, Reduction::None); }},
};

Tensors with_gradient(UnaryFunction f, const Tensor& x, const Tensor& weight) {
  const GradMode recorded(true);
  const Tensor leaf = x.detach().set_requires_grad(), y = f(leaf);
  return y.requires_grad() ? Tensors{y, grad({y}, {leaf}, {cast(weight, y.dtype())})[0]} : Tensors{y};
}

void expect_same(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].dtype(), want[i].dtype()) << what;
    const auto a = got[i].to_vector<double>(), b = want[i].to_vector<double>();
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t j = 0; j < a.size(); ++j)
      ASSERT_TRUE(a[j] == b[j] || (a[j] != a[j] && b[j] != b[j]))
          << what << " result " << i << " element " << j << ": " << a[j] << ", not " << b[j];
  }
}

/// The operators that f calls, in their order.
std::vector<std::string> calls_of(const std::function<void()>& f) {
  struct Seen : Observer {
    std::vector<std::string> list;
    void called(const CallSeen& call) override { list.emplace_back(call.op); }
  } seen;
  const Observing guard(seen);
  f();
  return seen.list;
}
using Names = std::vector<std::string>;

// In strips or by one kernel, by a launch for each operator, and captured, where the function calls its operators one
// by one.
void expect_bits_of_operators(Device device) {
  for (const Unary& u : kUnary) {
    const bool by_vendor = std::string_view(u.name) == "lgamma" || std::string_view(u.name) == "asinh";
    if (device.is_gpu() && by_vendor) continue;
    for (const DType dtype : {Float32, Float64, Float16, BFloat16})
      for (const int64_t n : {1, 2, 63, 64, 65, 1000, 4099}) {
        const std::string what = std::string(u.name) + " " + std::string(name(dtype)) + " " + std::to_string(n);
        Generator g(3);
        const Tensor x = uniform64({n}, g, 0.05, 0.95).to(dtype).to(device);
        const Tensor weight = normal64({n}, g).to(dtype).to(device);
        const auto run = [&](const Tensors& in) { return with_gradient(u.f, in[0], in[1]); };
        const Tensors got = run({x, weight});
        expect_same(capture(run, {x, weight})({x, weight}), got, what + ", captured");
        const ForceKernel calls("map_graph", "calls");
        expect_same(run({x, weight}), got, what + ", by calls");
      }
  }
}
TEST(MapGraph, HasTheBitsOfItsOperators) { expect_bits_of_operators(cpu()); }
TEST(GpuMapGraph, HasTheBitsOfItsOperators) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  expect_bits_of_operators(card());
}

// Rows of other pitches, numbers and columns that repeat: by the kernel for any layout.
TEST(GpuMapGraph, TakesAnyLayout) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  Generator g(5);
  const Tensor wide = uniform64({40, 2, 36}, g).to(Float32), x = wide.transpose(0, 2), rows = slice(wide, 2, 3, 4);
  for (const auto& [a, b] : {std::pair(x, x), std::pair(wide, rows), std::pair(slice(wide, 0, 1, 39), full({}, 0.3))})
    expect_same({length_of(a.to(card()), b.to(card())).to(cpu())}, {length_of(a, b)}, to_string(a.shape()));
}

TEST(GpuMapGraph, IsOneKernel) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  const Tensor x = full({1000}, 0.5, Float32, card());
  softsign(x);  // traced
  EXPECT_EQ(calls_of([&] { softsign(x); }), Names{"map_graph"});
  const ForceKernel compiled("map_graph", "compiled");
  EXPECT_NEAR(softsign(x).to(cpu()).to_vector<double>()[999], 0.5 / 1.5, 1e-6);
}

TEST(MapGraph, IsOneCallForwardAndOneBackward) {
  const Tensor x = full({1000}, 0.5).set_requires_grad();
  Tensor y;
  asinh(x);  // traced
  EXPECT_EQ(calls_of([&] { y = asinh(x); }), Names{"map_graph"});
  grad({asinh(x)}, {x}, {x.detach()});
  EXPECT_EQ(calls_of([&] { grad({y}, {x}, {x.detach()}); }), Names{"map_graph"});
}

// With the bits of what the vjp calls, which is what is recorded where gradients are wanted of gradients.
TEST(MapGraph, GradientsOfMapsAreOneCall) {
  Generator g(31);
  using Binary = Tensor (*)(Tensor, Tensor);
  const auto two = [](Binary f) { return [f](const Tensors& in) { return f(in[0], in[1]); }; };
  const auto one = [](Tensor (*f)(Tensor)) { return [f](const Tensors& in) { return f(in[0]); }; };
  const std::pair<const char*, std::function<Tensor(const Tensors&)>> functions[] = {
      {"tan", one(tan)},     {"atan", one(atan)},      {"asin", one(asin)}, {"erfinv", one(erfinv)},
      {"rsqrt", one(rsqrt)}, {"div", two(div)},        {"pow", two(pow)},   {"atan2", two(atan2)},
      {"hypot", two(hypot)}, {"maximum", two(maximum)}};
  for (const auto& [name, f] : functions)
    for (const DType dtype : {Float32, Float64, BFloat16})
      for (const Shape& shape : {Shape({40, 30}), Shape({30})}) {
        const Tensor a = uniform64({40, 30}, g, 0.1, 0.9).to(dtype), b = uniform64(shape, g, 0.1, 0.9).to(dtype);
        const Tensor weight = normal64({40, 30}, g).to(dtype);
        const Tensors leaves{a.detach().set_requires_grad(), b.detach().set_requires_grad()};
        const auto slopes = [&](bool recorded) { return grad({f(leaves)}, leaves, {weight}, false, recorded, true); };
        Tensors fast = slopes(false), walked = slopes(true);  // traced here
        if (!fast[1].defined()) fast.pop_back(), walked.pop_back();
        expect_same(fast, walked, name);
        const Tensor y = f(leaves);
        const Names called = calls_of([&] { grad({y}, leaves, {weight}, false, false, true); });
        EXPECT_EQ(called.front(), "map_graph") << name;
        EXPECT_TRUE(called.size() == 1 || shape.rank() == 1) << name;  // a sum of what repeats follows
      }
}

// Where there is no memory, autocast says in what operators run, or no element is there.
TEST(MapGraph, IsLeftToItsOperatorsElsewhere) {
  const auto is_left = [](const Tensor& x) {
    const Names called = calls_of([&] { softsign(x); });
    return called.size() > 1 && std::find(called.begin(), called.end(), "map_graph") == called.end();
  };
  softsign(full({4}, 0.5));
  EXPECT_FALSE(is_left(full({4}, 0.5)));
  EXPECT_TRUE(is_left(empty({4}, Float32, meta(cpu()))));
  EXPECT_TRUE(is_left(empty({Dim::symbol("n"), Dim(4)}, Float32, meta(cpu()))));
  EXPECT_TRUE(is_left(empty({3, 0})));
  const amp::Autocast lower(BFloat16);
  EXPECT_TRUE(is_left(full({4}, 0.5)));
}

TEST(MapGraph, KeepsNumbersApart) {
  const Tensor x = full({3}, -1.0);
  const auto elu_of = [&](double alpha) { return elu(x, alpha).to_vector<double>()[0]; };
  const double once = elu_of(1);
  for (int i = 1; i <= 20; ++i) EXPECT_FLOAT_EQ(elu_of(i), once * i) << i;
  EXPECT_EQ(elu_of(1), once);
}

TEST(MapGraph, BroadcastsAndGoesBackThroughIt) {
  Generator g(11);
  const auto f = [](const Tensors& in) { return length_of(in[0], in[1]); };
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{4, 5}, {5}}, {{4, 5}, {}}, {{}, {4, 5}}, {{4, 1}, {1, 5}}, {{2, 3, 4, 5}, {3, 1, 1}}, {{}, {}}})
    expect_gradients(f, {normal64(a, g), normal64(b, g)}, to_string(b).c_str());
  const Tensor x = normal64({6, 8}, g), y = normal64({8, 6}, g);
  expect_gradients(f, {x, y.transpose(0, 1)}, "transposed");
  const Tensor turned = normal64({2, 3, 4, 5}, g).permute({0, 3, 1, 2});
  EXPECT_EQ(to_string(asinh(turned).shape()), to_string(turned.shape()));
  expect_gradients([](const Tensors& in) { return asinh(in[0]); }, {turned}, "channels last");
}

// Runs of one element that are longer than a strip, and ends of such runs within one.
TEST(MapGraph, RepeatsChannels) {
  Generator g(21);
  for (const DType dtype : {Float32, Float64})
    for (const int64_t length : {63, 64, 4099, 9000}) {
      const Tensor x = normal64({2, 3, length}, g).to(dtype), weight = normal64({3}, g).to(dtype);
      const auto f = [&] { return Tensors{prelu(x, weight), length_of(x, reshape(weight, {3, 1}))}; };
      const Tensors got = f();
      const ForceKernel calls("map_graph", "calls");
      expect_same(f(), got, std::to_string(length));
    }
}

TEST(MapGraph, IsDifferentiatedTwice) {
  Generator g(12);
  const auto slope = [](const Tensors& in) {
    const GradMode recorded(true);
    Tensors leaves;
    for (const Tensor& t : in) leaves.push_back(t.requires_grad() ? t : t.detach().set_requires_grad());
    const Tensor y = length_of(leaves[0], leaves[1]);
    const Tensors first = grad({y}, leaves, {ones(y.shape(), Float64)}, false, true);
    return first[0] * 2.0 + first[1];
  };
  expect_gradients(slope, {normal64({3, 4}, g), normal64({3, 4}, g)});
}

// What a bound stops is not the gradient.
TEST(MapGraph, KnowsWhatIsDetached) {
  const Tensor x = full({5}, 0.3, Float64).set_requires_grad(), variance = full({5}, 1e-9, Float64).set_requires_grad();
  const auto loss = [&] { return gaussian_nll_loss(x, x.detach() + 1.0, variance, false, 1e-2); };
  const Tensor got = grad({loss()}, {variance})[0];
  const amp::Autocast region(BFloat16);  // f64 is left alone there, and operators run one by one
  expect_same({got}, {grad({loss()}, {variance})[0]}, "gradient of a bounded variance");
  EXPECT_NE(got.to_vector<double>()[0], 0);
}

// Results that go past the caches.
TEST(MapGraph, HasTheBitsOfItsOperatorsInLargeTensors) {
  Generator g(14);
  const Tensor x = uniform64({2'000'003}, g, 0.05, 0.95).to(Float32), weight = normal64({2'000'003}, g).to(Float32);
  for (const Unary& u : {kUnary[6], kUnary[7], kUnary[8]}) {
    const Tensors got = with_gradient(u.f, x, weight);
    const ForceKernel calls("map_graph", "calls");
    expect_same(with_gradient(u.f, x, weight), got, std::string(u.name) + ", by calls");
  }
}

// Choices that choices decide, masks that several read and that are results, and more values at once than the stack
// of a chain holds.
TEST(MapGraph, KeepsMasksAndDeepTreesApart) {
  constexpr auto f = [](const Tensor* in, const double*) {
    const Tensor &a = in[0], &b = in[1], zero = number_like(a, 0);
    const Tensor low = lt(a, zero), both = logical_and(low, gt(b, zero)), none = logical_not(logical_or(low, isnan(b)));
    const Tensor deep = (a + b) * (a - b) + ((a * b + a) * (b * b - a) - (a + a * b) * (b - abs(a)));
    const Tensor chosen = where(both, where(none, a, deep), where(low, b * deep, maximum(a, deep)));
    return where(logical_xor(both, none), chosen, chosen - cast(low, a.dtype()));
  };
  constexpr auto is_low = [](const Tensor* in, const double*) {
    return logical_or(lt(in[0] + in[1], in[0]), ge(in[0] * in[1], in[1]));
  };
  const Op& op = find_op("map_graph");
  for (const DType dtype : {Float32, Float64})
    for (const int64_t n : {1, 63, 64, 1000, 4099}) {
      Generator g(15);
      Tensor a = normal64({n}, g).to(dtype), b = normal64({n}, g).to(dtype);
      if (n > 5) slice(b, 0, 3, 5).copy_(full({2}, NAN, dtype));
      const DType types[] = {dtype, dtype};
      for (const MapFunction& function : {MapFunction{f, dtype, dtype, {}}, MapFunction{is_low, dtype, Bool, {}}}) {
        const Attrs attrs = FunctionAttrs{trace(function, types)};
        expect_same(dispatch(op, {a, b}, attrs), {function({a, b})}, std::to_string(n));
      }
    }
}

// A mask that several chains read, which a map that is no link keeps apart, also one of a single step.
constexpr auto kParted = [](const Tensor* in, const double*) {
  const Tensor &a = in[0], &b = in[1], low = lt(a * b, b), x = log(abs(a) + 1.0), y = where(low, x, b);
  const Tensor z = exp(-abs(y)), both = logical_and(low, gt(z, y));
  return exp(where(low, exp(b), a)) + where(both, z, where(low, a, log(abs(y) + 0.5)));
};
// A tree as high as it is wide, and one with a long stem.
Tensor tree_of(const Tensor& a, const Tensor& b, int height, double& leaf) {
  if (height == 0) return a + (leaf += 0.37);
  const Tensor left = tree_of(a, b, height - 1, leaf), right = tree_of(b, a, height - 1, leaf);
  return height % 3 == 0 ? left * right : height % 3 == 1 ? minimum(left, right) : where(lt(left, right), right, a);
}
constexpr auto kHigh = [](const Tensor* in, const double*) {
  double leaf = -3;
  return tree_of(in[0], in[1], 7, leaf);
};
constexpr auto kLong = [](const Tensor* in, const double*) {
  Tensor stem = in[0];
  for (int i = 0; i < 70; ++i)
    stem = where(gt(stem, in[1]), abs(stem - in[1]) * 0.9, (in[0] - stem * 0.3) * (in[1] + i));
  return stem;
};
TEST(MapGraph, ChainsHaveSharedMasksAndBounds) {
  const Op& op = find_op("map_graph");
  for (const DType dtype : {Float32, Float64})
    for (const int64_t n : {1, 63, 65, 2051}) {
      Generator g(19);
      const Tensor a = normal64({n}, g).to(dtype), b = normal64({n}, g).to(dtype);
      const DType types[] = {dtype, dtype};
      for (const auto f : {+kParted, +kHigh, +kLong}) {
        const MapFunction function{f, dtype, dtype, {}};
        expect_same(dispatch(op, {a, b}, FunctionAttrs{trace(function, types)}), {function({a, b})}, std::to_string(n));
      }
    }
}

TEST(MapGraph, IsSharedByThreads) {
  Generator g(13);
  const Tensor x = normal64({300'007}, g).to(Float32);
  const int before = num_threads();
  set_num_threads(1);
  const Tensor want = mish(x);
  set_num_threads(3);
  expect_same({mish(x)}, {want}, "three threads");
  set_num_threads(before);
}

TEST(MapGraph, RefusesWhatItWasNotTracedFor) {
  constexpr auto f = [](const Tensor* in, const double*) { return exp(in[0]) + in[1]; };
  const DType types[] = {Float32, Float32};
  const Attrs attrs = FunctionAttrs{trace({f, Float32, Float32, {}}, types)};
  const Op& op = find_op("map_graph");
  const Tensor x = full({3}, 1);
  EXPECT_EQ(error_of([&] { dispatch(op, {x}, attrs); }), "map_graph: 1 inputs for a function of 2");
  EXPECT_EQ(error_of([&] { dispatch(op, {x, x.to(Float64)}, attrs); }), "map_graph: input 1 is f64, not f32");
  EXPECT_EQ(error_of([&] {
              dispatch(op, {x, full({4}, 1)}, attrs);
            }),
            "map_graph: shapes do not broadcast: [3] and [4]");
  EXPECT_EQ(error_of([&] { dispatch(op, {x, x}, op.attrs()); }), "map_graph: it has no graph, which text cannot hold");
}

// What calls something else than maps is not traced.
TEST(MapGraph, IsMadeOfMapsAlone) {
  constexpr auto sums = [](const Tensor* in, const double*) { return in[0] / sum(in[0]); };
  constexpr auto one = [](const Tensor* in, const double*) { return exp(in[0]); };
  const DType types[] = {Float32};
  EXPECT_FALSE(trace({sums, Float32, Float32, {}}, types));
  EXPECT_FALSE(trace({one, Float32, Float32, {}}, types)) << "a single map is an operator already";
}

}  // namespace
}  // namespace tessera
