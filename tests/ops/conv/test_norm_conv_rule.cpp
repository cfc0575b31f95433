// Which convolutions and batch norms are one operator: the same with and without memory, and whoever has which kernels.
#include <gtest/gtest.h>

#include "ops/conv.h"
#include "ops/norm_conv.h"
#include "ops/ops_check.h"
#include "tessera/nn.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

struct Planes {
  Device device = parse_device("cuda:sm90");
  DType dtype = Float16;
  bool channels_last = true;
  Shape shape{2, 16, 12, 10};
};

Tensor images(const Planes& p) {
  const Shape& s = p.shape;
  if (!p.channels_last) return empty(s, p.dtype, p.device);
  return empty({s[0], s[2], s[3], s[1]}, p.dtype, p.device).permute({0, 3, 1, 2});
}

bool fuses_moments(const Planes& p, const Shape& filters, const Conv2dOptions& options = {}) {
  const Tensor in[] = {images(p), empty(filters, p.dtype, p.device), {}};
  return fuses_norm(conv2d_moments_op, in, conv_attrs(options));
}
bool fuses_normed(const Planes& p, const Shape& filters, bool training, bool relu = true) {
  const Tensor channel = empty({p.shape[1]}, Float32, p.device);
  const Tensor in[] = {images(p), empty(filters, p.dtype, p.device), {}, channel, channel, channel, channel};
  return fuses_norm(norm_conv2d_op, in, NormConvAttrs{{}, {.training = training, .relu = relu}});
}

TEST(FusesNorm, WindowsOfImagesWhoseChannelsLieLastOnHopper) {
  const Shape three{24, 16, 3, 3};
  EXPECT_TRUE(fuses_moments({}, three));
  EXPECT_TRUE(fuses_moments({.dtype = BFloat16}, three));
  EXPECT_FALSE(fuses_moments({.dtype = Float32}, three));
  EXPECT_FALSE(fuses_moments({.channels_last = false}, three));
  EXPECT_FALSE(fuses_moments({.shape = {2, 12, 12, 10}}, {24, 12, 3, 3}));
  EXPECT_FALSE(fuses_moments({}, {20, 16, 3, 3}));
  EXPECT_FALSE(fuses_moments({}, {24, 8, 3, 3}, {.groups = 2}));
  EXPECT_FALSE(fuses_moments({}, three, {.stride = {9, 1}}));
  EXPECT_FALSE(fuses_moments({.shape = {256, 512, 7, 7}}, {512, 512, 3, 3}, {.padding = {1, 1}})) << "too large";
  EXPECT_FALSE(fuses_moments({.shape = {1, 16, 3, 3}}, three)) << "a variance of one window";
  EXPECT_TRUE(fuses_normed({}, three, false));
  EXPECT_FALSE(fuses_normed({}, three, true));
  EXPECT_FALSE(fuses_normed({}, three, false, false)) << "without ReLU";
}

TEST(FusesNorm, PixelsOfPlanesOnHopper) {
  const Planes planes{.channels_last = false, .shape = {2, 5, 6, 8}};
  EXPECT_TRUE(fuses_normed(planes, {7, 5, 1, 1}, true));
  EXPECT_TRUE(fuses_normed(planes, {7, 5, 1, 1}, false, false));
  EXPECT_FALSE(fuses_normed(planes, {7, 5, 3, 1}, true));
  EXPECT_FALSE(fuses_normed(planes, {257, 5, 1, 1}, true));
  EXPECT_FALSE(fuses_normed({.channels_last = false, .shape = {2, 5, 3, 5}}, {7, 5, 1, 1}, true)) << "15 pixels";
  EXPECT_FALSE(fuses_normed({.shape = {2, 5, 6, 8}}, {7, 5, 1, 1}, true)) << "channels last";
}

TEST(FusesNorm, NothingElsewhere) {
  for (const Device device : {cpu(), meta(cpu()), parse_device("cuda:sm80"), parse_device("hip:gfx90a")}) {
    EXPECT_FALSE(fuses_moments({.device = device}, {24, 16, 3, 3})) << to_string(device);
    EXPECT_FALSE(fuses_normed({.device = device, .channels_last = false}, {24, 16, 1, 1}, true)) << to_string(device);
  }
}

TEST(FusesNorm, BatchNormOfKnownStatisticsTakesLinesOfChannels) {
  const auto fuses = [](const Planes& p) {
    const Tensor channel = empty({p.shape[1]}, Float32, p.device);
    const Tensor in[] = {images(p), channel, channel, channel, channel};
    return fuses_norm(batch_norm_known_op, in, NormAttrs{.training = true});
  };
  EXPECT_TRUE(fuses({}));
  EXPECT_TRUE(fuses({.device = parse_device("hip:gfx90a")}));
  EXPECT_FALSE(fuses({.device = cpu()}));
  EXPECT_FALSE(fuses({.channels_last = false}));
  EXPECT_FALSE(fuses({.dtype = Float32}));
  EXPECT_FALSE(fuses({.shape = {2, 12, 12, 10}}));
}

// Modules of which no tensor has memory dispatch what a card would.
TEST(FusesNorm, ModulesFollowItWithoutMemory) {
  const auto operators = [](const char* device, bool channels_last) {
    Generator random(5);
    nn::Conv2d first(16, 40, 3, {.padding = {1, 1}}, true, random), second(40, 24, 1, {}, true, random);
    nn::BatchNorm2d norm(40);
    for (Tensor* t : {&first.weight, &first.bias, &second.weight, &second.bias})
      *t = empty(t->shape(), Float16, parse_device(device));
    for (Tensor* t : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var})
      *t = empty(t->shape(), Float32, parse_device(device));
    const Tensor x = images({.device = parse_device(device), .channels_last = channels_last});
    struct : Observer {
      std::vector<std::string> list;
      void called(const CallSeen& call) override { list.emplace_back(call.op); }
    } seen;
    const Observing guard(seen);
    nn::norm_convolve(norm, Activation::Relu, second, nn::convolve(first, x, true));
    const auto has = [&](const char* op) {
      return std::find(seen.list.begin(), seen.list.end(), op) != seen.list.end();
    };
    return std::array{has("conv2d_moments"), has("batch_norm_known"), has("conv2d")};
  };
  EXPECT_EQ(operators("cuda:sm90", true), (std::array{true, true, false}));
  EXPECT_EQ(operators("cuda:sm80", true), (std::array{false, false, true}));
  EXPECT_EQ(operators("meta(cpu)", true), (std::array{false, false, true}));
}

}  // namespace
}  // namespace tessera
