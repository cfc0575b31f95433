#include <gtest/gtest.h>

#include "io/io_check.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/nn.h"

namespace tessera {
namespace {

using namespace nn;

struct Tied : Module {
  explicit Tied(Generator& g) : in(add("in", Embedding(7, 3, g))), mid(add("mid", Linear(3, 3, true, g))) {
    out = add_parameter("out.weight", in->weight);
    counter = add_buffer("counter", zeros({2}, Int64));
  }
  Tensor operator()(const Tensor& x) const { return linear(mid(in(x)), out); }
  Child<Embedding> in;
  Child<Linear> mid;
  Tensor out, counter;
};

using Names = std::vector<std::string>;
Names names(const NamedTensors& list) {
  Names out;
  for (const auto& [name, t] : list) out.push_back(name);
  return out;
}

TEST(Module, ListsParametersOnceInOrder) {
  Generator g(1);
  const Tied m(g);
  EXPECT_EQ(names(m.named_parameters()), (Names{"out.weight", "mid.weight", "mid.bias"}));
  EXPECT_EQ(names(m.named_buffers()), (Names{"counter"}));
  EXPECT_EQ(m.parameter_count(), 21 + 9 + 3);
  for (const Tensor& p : m.parameters()) EXPECT_TRUE(p.requires_grad());
}

TEST(Module, CopiesShareEverything) {
  Generator g(1);
  Tied a(g);
  Tied b = a;
  b.mid->bias.detach().fill_(5);
  EXPECT_EQ(a.mid->bias.to_vector<float>(), (std::vector<float>{5, 5, 5}));
  b.eval();
  EXPECT_FALSE(a.training());
  EXPECT_FALSE(a.mid->training());
  {
    EvalMode nested(a);
    a.train();
  }
  EXPECT_FALSE(b.training());
}

TEST(Module, NamesAreUnique) {
  struct Twice : Module {
    Twice() {
      add("a", ReLU());
      add("a", ReLU());
    }
  };
  EXPECT_EQ(error_of([] { Twice(); }), "Module: the name \"a\" is empty or taken");
}

TEST(Module, BackwardReachesTiedWeightsOnce) {
  Generator g(2);
  Tied m(g);
  m(tensor<int64_t>({0, 3, 6}, {3})).sum().backward();
  ASSERT_TRUE(m.in->weight.grad().defined());
  EXPECT_TRUE(same(m.in->weight.grad(), m.out.grad()));
  m.zero_grad();
  EXPECT_FALSE(m.in->weight.grad().defined());
}

TEST(Module, HooksSeeAndChangeCalls) {
  Generator g(1);
  const auto inner = std::make_shared<Linear>(3, 3, true, g);
  Sequential model;
  model.append(Child<Linear>(inner));
  model.append(ReLU());  // one pass with the layer before
  const Tensor x = randn({2, 3}, g);
  const auto plain = model(x).to_vector<float>();

  std::vector<std::string> seen;
  const int64_t before = inner->register_forward_pre_hook([&](const Module&, const Tensors& in) {
    seen.push_back("in " + std::to_string(in.size()));
    return std::optional<Tensors>();
  });
  const int64_t after = inner->register_forward_hook([&](const Module& module, const Tensors&, const Tensors& out) {
    seen.push_back(module.name() + " gave " + std::to_string(out[0].numel()));
    return std::optional<Tensors>();
  });
  EXPECT_TRUE(inner->has_hooks());
  EXPECT_EQ(model(x).to_vector<float>(), plain);
  EXPECT_EQ(seen, (std::vector<std::string>{"in 1", "0 gave 6"}));

  const int64_t twice = inner->register_forward_hook(
      [](const Module&, const Tensors&, const Tensors& out) { return std::optional<Tensors>({mul(out[0], 2)}); });
  const auto doubled = model(x).to_vector<float>();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(doubled[i], 2 * plain[i]);

  for (const int64_t number : {before, after, twice, twice, int64_t{77}}) inner->remove_hook(number);
  seen.clear();
  EXPECT_FALSE(inner->has_hooks());
  EXPECT_EQ(model(x).to_vector<float>(), plain);
  EXPECT_TRUE(seen.empty());
  EXPECT_THROW(inner->register_forward_hook({}), Error);
}

TEST(StateDict, RoundTripsThroughAFile) {
  TemporaryFolder folder;
  Generator g(3);
  Tied a(g), b(g);
  a.counter.copy_(tensor<int64_t>({4, 5}, {2}));
  save_safetensors(folder / "m", a.state_dict());
  b.load_state_dict(load_safetensors(folder / "m"));
  EXPECT_EQ(a.in->weight.to_vector<float>(), b.in->weight.to_vector<float>());
  EXPECT_EQ(a.mid->bias.to_vector<float>(), b.mid->bias.to_vector<float>());
  EXPECT_EQ(b.counter.to_vector<int64_t>(), (std::vector<int64_t>{4, 5}));
  EXPECT_TRUE(same(b.in->weight, b.out));  // still tied
}

TEST(StateDict, ATiedWeightMayHaveAnyOfItsNames) {
  Generator g(4);
  Tied m(g);
  StateDict dict = m.state_dict();
  const Tensor fresh = full({7, 3}, 2);
  dict.erase("out.weight");
  dict["in.weight"] = fresh;
  m.load_state_dict(dict);
  EXPECT_EQ(m.out.to_vector<float>(), fresh.to_vector<float>());
  dict["out.weight"] = fresh;
  m.load_state_dict(dict);
  dict["out.weight"] = full({7, 3}, 3);
  EXPECT_EQ(error_of([&] { m.load_state_dict(dict); }),
            "load_state_dict: mismatched: out.weight and in.weight are tied here and differ there");
}

TEST(StateDict, StrictListsEveryDifferenceAndChangesNothing) {
  Generator g(5);
  Tied m(g);
  const std::vector<float> before = m.mid->weight.to_vector<float>();
  StateDict dict = m.state_dict();
  dict["mid.weight"] = zeros({3, 3});
  dict.erase("mid.bias");
  dict.erase("out.weight");
  dict["counter"] = zeros({3}, Int64);
  dict["head"] = zeros({1});
  EXPECT_EQ(
      error_of([&] { m.load_state_dict(dict); }),
      "load_state_dict: missing: out.weight, mid.bias; unexpected: head; mismatched: counter is i64[2] here and i64[3] "
      "there");
  EXPECT_EQ(m.mid->weight.to_vector<float>(), before);
  dict.erase("counter");
  m.load_state_dict(dict, /*strict=*/false);
  EXPECT_EQ(m.mid->weight.to_vector<float>(), std::vector<float>(9, 0));
  dict["counter"] = zeros({2});
  EXPECT_EQ(error_of([&] { m.load_state_dict(dict, false); }),
            "load_state_dict: mismatched: counter is i64[2] here and f32[2] there");
  dict["counter"] = empty({2}, Int64, meta(cpu()));
  dict["mid.weight"] = ones({3, 3});
  EXPECT_EQ(error_of([&] { m.load_state_dict(dict, false); }),
            "load_state_dict: mismatched: counter has no memory there");
  EXPECT_EQ(m.mid->weight.to_vector<float>(), std::vector<float>(9, 0));
}

TEST(Module, ToConvertsInPlace) {
  Generator g(6);
  Tied m(g);
  const std::vector<float> before = m.in->weight.to_vector<float>();
  const Tensor handle = m.in->weight;
  m.to(Float64);
  EXPECT_EQ(handle.dtype(), Float64);
  EXPECT_EQ(m.out.dtype(), Float64);
  EXPECT_EQ(m.counter.dtype(), Int64);
  EXPECT_EQ(handle.to_vector<float>(), before);
  EXPECT_TRUE(handle.requires_grad());
  const StateDict dict = m.state_dict();  // floating dtypes convert on loading
  m.to(Float32);
  m.load_state_dict(dict);
  EXPECT_EQ(handle.dtype(), Float32);
  EXPECT_EQ(handle.to_vector<float>(), before);
  EXPECT_THROW(m.to(Int64), Error);
}

TEST(Module, ToLaysFiltersChannelsLast) {
  Generator g(7);
  struct Net : Module {
    explicit Net(Generator& g)
        : conv(add("conv", Conv2d(3, 4, 3, {}, true, g))), out(add("out", Linear(5, 6, true, g))) {}
    Child<Conv2d> conv;
    Child<Linear> out;
  } m(g), other(g);
  const Tensor handle = m.conv->weight;
  const std::vector<float> before = handle.to_vector<float>();
  m.to(ChannelsLast);
  EXPECT_TRUE(handle.is_contiguous(ChannelsLast) && !handle.is_contiguous());
  EXPECT_EQ(handle.to_vector<float>(), before);
  EXPECT_TRUE(m.out->weight.is_contiguous());
  TemporaryFolder folder;  // files are row-major
  save_safetensors(folder / "m", m.state_dict());
  other.load_state_dict(load_safetensors(folder / "m"));
  EXPECT_EQ(other.conv->weight.to_vector<float>(), before);
  m.to(Float64);
  EXPECT_TRUE(handle.is_contiguous(ChannelsLast));
  m.load_state_dict(other.state_dict());
  EXPECT_TRUE(handle.is_contiguous(ChannelsLast));
  m.to(Contiguous);
  EXPECT_TRUE(handle.is_contiguous());
  EXPECT_EQ(handle.to_vector<float>(), before);
}

}  // namespace
}  // namespace tessera
