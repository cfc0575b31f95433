// Images that lie channels last in memory: operators and their gradients keep it, and compute what they do of others.
#include "ops/ops_check.h"

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

}  // namespace
}  // namespace tessera
