// Images that lie channels last in memory: operators and their gradients keep it, and compute what they do of others.
#include <functional>

#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/models.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

TEST(MemoryFormat, IsALayoutOfTheSameElements) {
  const Tensor x = arange(0, 120).to(Float32).reshape({2, 3, 4, 5}), y = x.to(ChannelsLast);
  EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(y.strides(), (Strides{60, 1, 15, 3}));
  EXPECT_TRUE(y.is_contiguous(ChannelsLast));
  EXPECT_FALSE(y.is_contiguous(Contiguous));
  EXPECT_FALSE(x.is_contiguous(ChannelsLast));
  EXPECT_TRUE(same(y.to(ChannelsLast), y));
  EXPECT_TRUE(same(x.to(Contiguous), x));
  EXPECT_TRUE(y.to(Contiguous).is_contiguous());
  EXPECT_EQ(y.to(Contiguous).to_vector<float>(), x.to_vector<float>());
  EXPECT_FALSE(y.slice(3, 0, 4).is_contiguous(ChannelsLast));
  const Tensor gray = zeros({2, 1, 4, 5});  // lies both ways
  EXPECT_TRUE(gray.is_contiguous(ChannelsLast));
  EXPECT_TRUE(gray.to(ChannelsLast).is_contiguous());
}

TEST(MemoryFormat, HasAGradient) {
  const Tensor x = randn({2, 3, 4, 5}).set_requires_grad(), g = randn({2, 3, 4, 5});
  const Tensor y = x.to(ChannelsLast);
  y.backward(g);
  EXPECT_EQ(x.grad().to_vector<float>(), g.to_vector<float>());
}

TEST(MemoryFormat, ChannelsLastTakesFourDims) {
  EXPECT_EQ(error_of([] {
              zeros({2, 3, 4}).to(ChannelsLast);
            }),
            "to: channels last takes [n, c, h, w], not shape [2, 3, 4]");
  EXPECT_FALSE(zeros({2, 3, 4}).is_contiguous(ChannelsLast));
  EXPECT_TRUE(zeros({2, 3, 4}).to(Contiguous).is_contiguous());
}

struct Case {
  const char* name;
  std::function<Tensor(const Tensors&)> function;
  Tensors inputs;  // those of four dims and as many channels lie channels last
};

std::vector<Case> cases(DType dtype) {
  Generator g(3);
  const auto random = [&](const Shape& shape) { return normal64(shape, g).to(dtype); };
  const Shape small{2, 6, 7, 5}, wide{2, 16, 16, 12};
  const Tensor x = random(small), y = random(small), channel = random({6, 1, 1}), w = random({6}), b = random({6});
  const auto stem = [](const Tensors& in) {
    return conv2d(in[0], in[1], in[2], {.stride = {2, 2}, .padding = {3, 3}});
  };
  const auto same_size = [](const Tensors& in) { return conv2d(in[0], in[1], in[2], {.padding = {1, 1}}); };
  const auto in_groups = [](const Tensors& in) {
    return conv2d(in[0], in[1], {}, {.stride = {1, 2}, .padding = {2, 1}, .dilation = {2, 1}, .groups = 2});
  };
  const auto depthwise = [](int64_t stride) {
    return [stride](const Tensors& in) {
      return conv2d(in[0], in[1], in[2], {.stride = {stride, stride}, .padding = {1, 1}, .groups = 6});
    };
  };
  const auto norm = [](bool training) {
    return [training](const Tensors& in) {
      return batch_norm(in[0], in[1], in[2], zeros({6}, in[0].dtype()), ones({6}, in[0].dtype()), training);
    };
  };
  const Pool2dOptions three{.window = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  return {
      {"relu", [](const Tensors& in) { return relu(in[0]); }, {x}},
      {"gelu", [](const Tensors& in) { return gelu(in[0]); }, {x}},
      {"scale and shift", [](const Tensors& in) { return in[0] * 2 + 1; }, {x}},
      {"square", [](const Tensors& in) { return pow(in[0], 2); }, {x}},
      {"cube", [](const Tensors& in) { return pow(in[0], 3); }, {x}},
      {"clamp", [](const Tensors& in) { return clamp(in[0], -0.5, 0.5); }, {x}},
      {"floor", [](const Tensors& in) { return floor(in[0]) + in[0]; }, {x}},
      {"cast", [](const Tensors& in) { return in[0].to(Float64).to(in[0].dtype()); }, {x}},
      {"add", [](const Tensors& in) { return in[0] + in[1]; }, {x, y}},
      {"add a channel's", [](const Tensors& in) { return in[1] + in[0]; }, {x, channel}},
      {"divide", [](const Tensors& in) { return in[0] / (abs(in[1]) + 1); }, {x, y}},
      {"where", [](const Tensors& in) { return where(gt(in[0], in[1]), in[0], in[1]); }, {x, y}},
      {"stem", stem, {random({2, 3, 19, 17}), random({8, 3, 7, 7}), random({8})}},
      {"winograd", same_size, {random(wide), random({16, 16, 3, 3}), random({16})}},
      {"pointwise", [](const Tensors& in) { return conv2d(in[0], in[1]); }, {x, random({5, 6, 1, 1})}},
      {"groups", in_groups, {x, random({4, 3, 3, 3})}},
      {"depthwise", depthwise(1), {x, random({6, 1, 3, 3}), b}},
      {"depthwise, stride 2", depthwise(2), {x, random({6, 1, 3, 3}), b}},
      {"batch_norm", norm(true), {x, w, b}},
      {"batch_norm, evaluated", norm(false), {x, w, b}},
      {"group_norm", [](const Tensors& in) { return group_norm(in[0], 3, in[1], in[2]); }, {x, w, b}},
      {"max_pool2d", [=](const Tensors& in) { return max_pool2d(in[0], three); }, {x}},
      {"avg_pool2d", [=](const Tensors& in) { return avg_pool2d(in[0], three); }, {x}},
      {"concat",
       [](const Tensors& in) {
         return concat({in[0], in[1]}, 1);
       },
       {x, random({2, 3, 7, 5})}},
      {"concat rows",
       [](const Tensors& in) {
         return concat({in[0], in[1]}, 2);
       },
       {x, random({2, 6, 2, 5})}},
      {"pad channels",
       [](const Tensors& in) {
         return pad(in[0], {2, 0, 0}, {1, 0, 0});
       },
       {x}},
      {"pad",
       [](const Tensors& in) {
         return pad(in[0], {1, 2}, {0, 1}, 3);
       },
       {x}},
      {"flip",
       [](const Tensors& in) {
         return flip(in[0], {3, 1});
       },
       {x}},
      {"every other pixel", [](const Tensors& in) { return relu(in[0].slice(2, 0, 7, 2).slice(3, 0, 5, 2)); }, {x}},
      {"some channels", [](const Tensors& in) { return relu(in[0].slice(1, 1, 5)); }, {x}},
  };
}

bool is_image(const Tensor& t) { return t.dim() == 4 && t.size(0) == 2; }

class ChannelsLastOps : public testing::TestWithParam<DType> {};

TEST_P(ChannelsLastOps, KeepTheLayoutBothWays) {
  const double limit = GetParam() == Float64 ? 1e-13 : GetParam() == Float32 ? 2e-6 : 5e-3;
  for (const auto& [name, function, inputs] : cases(GetParam())) {
    SCOPED_TRACE(name);
    const auto run = [&, &function = function, &inputs = inputs](MemoryFormat format) {
      Tensors leaves;
      for (const Tensor& t : inputs) leaves.push_back((is_image(t) ? t.to(format) : t).detach().set_requires_grad());
      Generator g(5);
      const Tensor y = function(leaves), dy = normal64(y.shape(), g).to(y.dtype()).to(format);
      Tensors out{y};
      for (const Tensor& t : grad({y}, leaves, {dy})) out.push_back(t);
      return out;
    };
    const Tensors want = run(Contiguous), got = run(ChannelsLast);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(relative_error(got[i], want[i]), limit) << (i ? "gradient of input " : "result ") << i;
      if (!is_image(got[i])) continue;
      const bool dense = got[i].is_contiguous(ChannelsLast), view = i > 0 && got[i].stride(1) == 1;
      EXPECT_TRUE(dense || view) << (i ? "gradient of input " : "result ") << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Types, ChannelsLastOps, testing::Values(Float64, Float32, BFloat16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(ChannelsLast, OfEitherOperand) {
  const Tensor x = randn({2, 6, 7, 5}), y = x.to(ChannelsLast);
  EXPECT_TRUE((x + y).is_contiguous(ChannelsLast));
  EXPECT_TRUE((1.0 - y).is_contiguous(ChannelsLast));
  EXPECT_TRUE(gt(y, x).is_contiguous(ChannelsLast));
  EXPECT_TRUE(isnan(y).is_contiguous(ChannelsLast));
  EXPECT_TRUE((x + x).is_contiguous());
}

// Where an operator's result would have other elements in another order, that is as it was.
TEST(ChannelsLast, FiltersDecideForTheirGradientsAlone) {
  const Tensor x = randn({2, 4, 6, 6}), w = randn({5, 4, 3, 3});
  const auto gradients = [](const Tensor& x, const Tensor& w) {
    const Tensors leaves{x.detach().set_requires_grad(), w.detach().set_requires_grad()};
    const Tensor y = conv2d(leaves[0], leaves[1]);
    return grad({y}, leaves, {ones(y.shape())});
  };
  const Tensors by_filters = gradients(x, w.to(ChannelsLast)), by_images = gradients(x.to(ChannelsLast), w);
  EXPECT_TRUE(by_filters[0].is_contiguous());
  EXPECT_TRUE(by_filters[1].is_contiguous(ChannelsLast));
  EXPECT_TRUE(by_images[1].is_contiguous());
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(relative_error(by_filters[i], by_images[i]), 2e-6);
}

// On cards there need be no card to see how their results lie.
TEST(ChannelsLast, IsKeptWithoutMemory) {
  for (const Device device : {meta(cpu()), meta(cuda(0))}) {
    const Tensor x = empty({4, 3, 32, 32}, Float32, device).to(ChannelsLast);
    EXPECT_TRUE(x.is_contiguous(ChannelsLast));
    const Tensor y = relu(conv2d(x, empty({8, 3, 3, 3}, Float32, device)));
    EXPECT_TRUE(y.is_contiguous(ChannelsLast));
    EXPECT_TRUE(max_pool2d(y).is_contiguous(ChannelsLast));
    EXPECT_TRUE(concat({y, y}, 1).is_contiguous(ChannelsLast));
    EXPECT_TRUE(y.to(device == meta(cpu()) ? meta(cuda(0)) : meta(cpu())).is_contiguous(ChannelsLast));
  }
}

TEST(ChannelsLast, IsKeptInCapturedSteps) {
  const Tensor x = randn({2, 3, 6, 6}).to(ChannelsLast), w = randn({4, 3, 3, 3}).to(ChannelsLast).set_requires_grad();
  const auto step = [&](const Tensors& in) {
    const Tensor y = relu(conv2d(in[0], w));
    y.sum().backward();
    return Tensors{y};
  };
  const Tensor want = step({x})[0], gradient = w.grad();
  w.set_grad({});
  const Program program = capture(step, {x});
  const Tensor got = program({x})[0];
  EXPECT_TRUE(got.is_contiguous(ChannelsLast));
  EXPECT_TRUE(w.grad().is_contiguous(ChannelsLast));
  EXPECT_EQ(relative_error(got, want), 0);
  EXPECT_EQ(relative_error(w.grad(), gradient), 0);
}

struct Network : nn::Module {
  explicit Network(Generator& g)
      : stem(add("stem", nn::Conv2d(3, 16, 3, {.padding = {1, 1}}, true, g))),
        first(add("first", models::ResNet20::Block(16, 16, 1, g))),
        second(add("second", models::ResNet20::Block(16, 32, 2, g))),
        out(add("out", nn::Linear(32, 4, true, g))) {}
  Tensors forward(const Tensors& in) const override {
    last = second(first(relu(stem(one_input(in)))));
    return {out(mean(last, {2, 3}))};
  }
  nn::Child<nn::Conv2d> stem;
  nn::Child<models::ResNet20::Block> first, second;
  nn::Child<nn::Linear> out;
  mutable Tensor last;
};

TEST(ChannelsLast, TrainsBlocksOfAResNetAlike) {
  const auto losses = [](MemoryFormat format) {
    Generator g(11);
    Network net(g);
    net.to(format);
    optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
    const Tensor x = randn({4, 3, 16, 16}, g).to(format).set_requires_grad();
    const Tensor labels = tensor<int64_t>({0, 1, 2, 3}, {4});
    std::vector<double> found;
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = cross_entropy(net(x), labels);
      optimizer.zero_grad();
      x.set_grad({});
      loss.backward();
      EXPECT_TRUE(net.last.is_contiguous(format));
      EXPECT_TRUE(x.grad().is_contiguous(format));
      for (const auto& [name, p] : net.named_parameters())
        if (p.dim() == 4) {
          EXPECT_TRUE(p.is_contiguous(format)) << name;
          EXPECT_TRUE(p.grad().is_contiguous(format)) << name;
        }
      optimizer.step();
      found.push_back(loss.item());
    }
    return found;
  };
  const auto want = losses(Contiguous), got = losses(ChannelsLast);
  EXPECT_LT(want.back(), want.front());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5 * want[i]) << "step " << i;
}

}  // namespace
}  // namespace tessera
