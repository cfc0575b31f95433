// Weights that are packed once: what reads them, and what everything else says.
#include "tessera/packing.h"

#include <fmt/format.h>

#include "core/kernel.h"
#include "ops/call_plan.h"
#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autocast.h"

namespace tessera {
namespace {

bool same_elements(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.to_vector<float>() == b.to_vector<float>();
}

/// Where the instruction set has no wide vectors, weights stay as they are.
class PackedWeights : public testing::Test {
 protected:
  void SetUp() override {
    weight = randn({67, 131}, g);
    packed = pack_linear(weight);
    if (!packed.is_packed()) GTEST_SKIP() << "weights are read as they lie";
  }
  // As another instruction set, or a later version, would lay it out.
  Tensor foreign() const {
    const Tensor other = packed.clone();
    other.storage()->packing = packing_named("gemm.b.other.f32.7");
    return as_strided(other.storage(), other.shape(), other.strides(), 0, Float32);
  }
  NoGrad guard;
  Generator g{5};
  Tensor weight, packed;
};

TEST(PackLinear, LeavesWhatNoKernelWants) {
  NoGrad guard;
  Generator g(6);
  for (const Tensor& weight : {randn({64, 64}, g).to(Float64), randn({64, 64}, g).to(BFloat16), randn({3, 64}, g),
                               randn({64, 1}, g).slice(1, 0, 0)}) {
    EXPECT_TRUE(same(pack_linear(weight), weight)) << describe(weight);
  }
  EXPECT_EQ(error_of([&] {
              pack_linear(randn({2, 64, 64}, g));
            }),
            "pack_linear: the weight has two dims, [out, in], not f32[2, 64, 64] on cpu");
  EXPECT_EQ(error_of([] { pack_linear({}); }), "pack_linear: the weight has two dims, [out, in], not undefined");
}

TEST_F(PackedWeights, SaysSo) {
  EXPECT_FALSE(weight.is_packed());
  EXPECT_FALSE(packed.is_contiguous());
  EXPECT_EQ(describe(packed), "f32[67, 131] on cpu packed for " + *packed.storage()->packing);
  EXPECT_EQ(packed.storage()->packing->find("gemm.b.avx"), 0u);
  EXPECT_TRUE(same(pack_linear(packed), packed));
}

TEST_F(PackedWeights, ReadsBackAsItWas) {
  EXPECT_TRUE(same_elements(packed.contiguous(), weight));
  EXPECT_TRUE(same_elements(packed.clone(), weight));
  EXPECT_EQ(packed.to_vector<double>(), weight.to_vector<double>());
  EXPECT_EQ(to_string(packed), to_string(weight));
  const Tensor strided = randn({131, 67}, g).transpose(0, 1);
  EXPECT_TRUE(same_elements(pack_linear(strided).contiguous(), strided.contiguous()));
}

TEST_F(PackedWeights, LinearReadsIt) {
  for (int64_t m : {1, 2, 3, 5, 8, 9, 16, 33, 100})
    for (int form = 0; form < 6; ++form) {
      const auto activation = static_cast<Activation>(form);
      const Tensor x = randn({m, 131}, g), bias = form & 1 ? randn({67}, g) : Tensor(),
                   residual = form & 2 ? randn({m, 67}, g) : Tensor();
      const Tensor plain = linear_act(x, weight, bias, activation, residual),
                   fast = linear_act(x, packed, bias, activation, residual);
      if (m > 8) EXPECT_TRUE(same_elements(fast, plain)) << m << ", form " << form;
      else EXPECT_LE(relative_error(fast, plain), 1e-6) << m << ", form " << form;
    }
  const Tensor strided = randn({131, 2, 5}, g).permute({2, 1, 0}), none = randn({0, 131}, g);
  EXPECT_LE(relative_error(linear(strided, packed), linear(strided, weight)), 1e-6);
  EXPECT_EQ(to_string(linear(none, packed).shape()), "[0, 67]");
}

TEST_F(PackedWeights, MlpReadsBothEitherOrNone) {
  const Tensor down = randn({131, 67}, g), down_packed = pack_linear(down);
  const Tensor bias = randn({67}, g), x = randn({19, 131}, g), residual = randn({19, 131}, g);
  const Tensor want = mlp(x, weight, bias, Activation::GeluTanh, down, {}, residual);
  for (const Tensor& first : {weight, packed})
    for (const Tensor& second : {down, down_packed})
      EXPECT_TRUE(same_elements(mlp(x, first, bias, Activation::GeluTanh, second, {}, residual), want));
}

TEST_F(PackedWeights, EverythingElseRefuses) {
  const std::string what = describe(packed), end = ", which it does not read; contiguous() gives the plain tensor";
  const Tensor x = randn({4, 131}, g);
  EXPECT_EQ(error_of([&] { matmul(x, packed); }).find("matmul: inner dimensions differ"), 0u);
  EXPECT_EQ(error_of([&] { matmul(packed, weight.transpose(0, 1)); }), "matmul: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { add(weight, packed); }), "add: input 1 is " + what + end);
  EXPECT_EQ(error_of([&] { exp(packed); }), "exp: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.transpose(0, 1); }), "permute: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.slice(0, 0, 8); }), "slice: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.to(Float64); }), "cast: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.copy_(weight); }), "copy_: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.fill_(1); }), "fill_: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { linear(packed, randn({9, 131}, g)); }), "linear: input 0 is " + what + end);
  EXPECT_EQ(error_of([&] { packed.data<float>(); }),
            "data: " + what + " has no plain elements; contiguous() gives the plain tensor");
  EXPECT_EQ(error_of([&] {
              linear(randn({4, 130}, g), packed);
            }),
            "linear: the last dim of x is not the weight's: [4, 130] and [67, 131]");
  amp::Autocast halves(BFloat16);
  EXPECT_EQ(error_of([&] { linear(x, packed); }), "cast: input 0 is " + what + end);
}

TEST_F(PackedWeights, IsForOneInstructionSet) {
  const Tensor x = randn({4, 131}, g), other = foreign();
  const std::string what =
      "f32[67, 131] on cpu packed for gemm.b.other.f32.7, which it does not read; contiguous() "
      "gives the plain tensor";
  EXPECT_EQ(error_of([&] { linear(x, other); }), "linear: input 1 is " + what);
  EXPECT_EQ(error_of([&] { mlp(x, other, {}, Activation::Relu, randn({9, 67}, g), {}); }), "mlp: input 1 is " + what);
  EXPECT_EQ(error_of([&] { other.contiguous(); }), "clone: input 0 is " + what);
  EXPECT_EQ(sentence(Reason::Packing), "knows no such packed layout");
}

TEST_F(PackedWeights, OpTakesKnownLayoutsAlone) {
  const Op& op = find_op("pack");
  const int64_t bytes = static_cast<int64_t>(packed.storage()->bytes);
  const std::string& name = *packed.storage()->packing;
  EXPECT_TRUE(same_elements(dispatch_one(op, {weight}, PackAttrs{name, bytes}), weight));
  EXPECT_TRUE(same_elements(dispatch_one(op, {packed.contiguous()}, PackAttrs{}), weight));
  EXPECT_EQ(error_of([&] {
              dispatch_one(op, {weight}, PackAttrs{name, 100});
            }),
            "pack: f32[67, 131] on cpu does not fit into 100 bytes");
  const std::string end =
      " bytes is no layout in which kernels of this device and instruction set want "
      "f32[67, 131] on cpu";
  EXPECT_EQ(error_of([&] {
              dispatch_one(op, {weight}, PackAttrs{name, bytes + 64});
            }),
            fmt::format("pack: {} of {}{}", name, bytes + 64, end));
  EXPECT_EQ(error_of([&] {
              dispatch_one(op, {weight}, PackAttrs{"gemm.b.other.f32.7", bytes});
            }),
            fmt::format("pack: gemm.b.other.f32.7 of {}{}", bytes, end));
  EXPECT_EQ(error_of([&] { dispatch_one(op, {packed}, PackAttrs{}); }).find("pack: input 0 is f32[67, 131]"), 0u);
}

TEST_F(PackedWeights, GivesNoGradients) {
  const GradMode grad(true);
  const Tensor x = randn({4, 131}, g).set_requires_grad();
  EXPECT_EQ(
      error_of([&] { linear(x, packed); }),
      "linear: " + describe(packed) + " has no gradients, and gives none to others; use NoGrad, or the plain tensor");
  EXPECT_FALSE(pack_linear(randn({67, 131}, g).set_requires_grad()).requires_grad());
}

TEST_F(PackedWeights, TensorsWithoutMemoryLieAlike) {
  const Device device = meta(cpu());
  const Tensor twin = pack_linear(empty({67, 131}, Float32, device));
  EXPECT_TRUE(twin.is_packed());
  EXPECT_EQ(twin.storage()->bytes, packed.storage()->bytes);
  const Tensor x = empty({4, 131}, Float32, device);
  EXPECT_EQ(describe(linear(x, twin)), "f32[4, 67] on meta(cpu)");
  EXPECT_EQ(describe(twin.contiguous()), "f32[67, 131] on meta(cpu)");
  EXPECT_EQ(error_of([&] { exp(twin); }).find("exp: input 0 is f32[67, 131] on meta(cpu) packed for gemm"), 0u);
  EXPECT_EQ(error_of([&] { twin.transpose(0, 1); }).find("permute: input 0 is"), 0u);
}

TEST_F(PackedWeights, IsCapturedPrintedAndReadBack) {
  const Tensor x = randn({16, 131}, g);
  const Program inside =
      capture([](const Tensors& in) { return Tensors{linear(in[0], pack_linear(in[1]))}; }, {x, weight});
  const Program closed = capture([&](const Tensors& in) { return Tensors{linear(in[0], packed)}; }, {x});
  for (const Program* p : {&inside, &closed}) {
    const std::string text = p->graph->text();
    EXPECT_NE(text.find("f32[67, 131]<" + *packed.storage()->packing + ">"), std::string::npos) << text;
    EXPECT_TRUE(parse_graph(text)->equals(*p->graph)) << text;
  }
  EXPECT_TRUE(same_elements(inside({x, weight})[0], linear(x, weight)));
  EXPECT_TRUE(same_elements(closed({x})[0], linear(x, weight)));
  EXPECT_EQ(error_of([&] { run(*closed.graph, {x, weight}); }).find("run: input 1 is f32[67, 131] on cpu, not"), 0u);
  EXPECT_EQ(error_of([&] { capture([&](const Tensors&) { return Tensors{exp(packed)}; }, {}); }).find("exp: input 0"),
            0u);
  std::string text = closed.graph->text();
  text.replace(text.find('<'), text.find('>') - text.find('<') + 1, "<>");
  EXPECT_NE(error_of([&] { parse_graph(text); }).find("names no layout"), std::string::npos);
}

TEST_F(PackedWeights, ExplainsItself) {
  const Tensor x = randn({4, 131}, g);
  const Operand in[] = {Operand(x), Operand(foreign()), {}, {}}, out[] = {Operand(empty({4, 67})), {}};
  EXPECT_NE(explain({find_op("linear"), in, LinearAttrs{}, out}).find("knows no such packed layout"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
