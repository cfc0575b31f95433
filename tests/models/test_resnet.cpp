#include <gtest/gtest.h>

#include "io/io_check.h"
#include "nn/nn_check.h"
#include "tessera/autograd.h"
#include "tessera/models.h"

namespace tessera {
namespace {

using models::ResNet20, models::ResNet50;

TEST(ResNet20, HasTheNamesOfPublishedWeights) {
  Generator g(1);
  const ResNet20 net(g);
  EXPECT_EQ(net.parameter_count(), 269722);  // 0.27 M in table 6 of the paper
  const StateDict dict = net.state_dict();
  for (const char* name : {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer3.2.bn2.running_mean",
                           "linear.weight", "linear.bias"})
    EXPECT_TRUE(dict.contains(name)) << name;
  EXPECT_EQ(dict.size(), 19u * 5 + 2);
}

TEST(ResNet20, BlocksSubsampleAndPadTheirShortcut) {
  Generator g(2);
  ResNet20::Block block(4, 6, 2, g);
  block.eval();
  NoGrad guard;
  block.conv2->weight.fill_(0);  // leaves relu(shortcut)
  const Tensor x = randn({2, 4, 8, 6}, g), y = block(x);
  ASSERT_EQ(to_string(y.shape()), "[2, 6, 4, 3]");
  const auto in = x.to_vector<float>(), out = y.to_vector<float>();
  for (size_t n = 0; n < 2; ++n)
    for (size_t c = 0; c < 6; ++c)
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 3; ++j) {
          const bool inside = c >= 1 && c < 5;
          const float expected = inside ? in[((n * 4 + c - 1) * 8 + 2 * i) * 6 + 2 * j] : 0;
          EXPECT_FLOAT_EQ(out[((n * 6 + c) * 4 + i) * 3 + j], std::max(expected, 0.0f));
        }
}

TEST(ResNet20, TrainsOnAFewImages) {
  Generator g(3);
  ResNet20 net(g);
  const Tensor x = randn({4, 3, 32, 32}, g), y = tensor<int64_t>({1, 5, 0, 9}, {4});
  double first = 0, last = 0;
  for (int i = 0; i < 8; ++i) {
    net.zero_grad();
    const Tensor loss = cross_entropy(net(x), y);
    last = loss.item();
    if (i == 0) first = last;
    loss.backward();
    NoGrad guard;
    for (const Tensor& p : net.parameters()) p.detach().add_(p.grad(), -0.05);
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(ResNet50, HasThePublishedNames) {
  const DeviceGuard guard(meta(cpu()));
  const ResNet50 net;
  EXPECT_EQ(net.parameter_count(), 25557032);
  const StateDict dict = net.state_dict();
  for (const char* name :
       {"conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight", "layer1.0.downsample.1.bias",
        "layer4.2.conv3.weight", "layer2.3.bn3.running_mean", "fc.weight", "fc.bias"})
    EXPECT_TRUE(dict.contains(name)) << name;
  EXPECT_FALSE(dict.contains("layer1.1.downsample.0.weight"));
  EXPECT_EQ(dict.size(), 53u * 5 + 2);
  EXPECT_EQ(to_string(dict.at("layer2.0.conv2.weight").shape()), "[128, 128, 3, 3]");
  EXPECT_EQ(to_string(net(zeros({2, 3, 224, 224})).shape()), "[2, 1000]");
}

// Its strides, shortcuts and norms, with memory: a block on few images against what it is made of.
TEST(ResNet50, BlocksAddTheirShortcut) {
  Generator g(4);
  const ResNet50::Block block(8, 4, 2, g);
  const Tensor x = randn({2, 8, 6, 6}, g), y = block(x);
  ASSERT_EQ(to_string(y.shape()), "[2, 16, 3, 3]");
  const auto norm = [](const Tensor& t) { return batch_norm(t, {}, {}, {}, {}, true); };
  Tensor h = relu(norm(conv2d(x, block.conv1->weight)));
  h = relu(norm(conv2d(h, block.conv2->weight, {}, {.stride = {2, 2}, .padding = {1, 1}})));
  h = norm(conv2d(h, block.conv3->weight));
  const auto& shortcut = dynamic_cast<const nn::Conv2d&>((**block.downsample)[0].module());
  const Tensor want = relu(h + norm(conv2d(x, shortcut.weight, {}, {.stride = {2, 2}})));
  const auto a = y.to_vector<float>(), b = want.to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
}

}  // namespace
}  // namespace tessera
