#include <gtest/gtest.h>

#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera {
namespace {

TEST(Dim, IntegersAreIntegers) {
  EXPECT_EQ(Dim(6) / Dim(4), Dim(1));
  EXPECT_EQ(Dim(-7) / Dim(2), Dim(-4));  // floor
  EXPECT_EQ((Dim(3) + Dim(4) * Dim(5)).value(), 23);
  EXPECT_THROW(Dim(1) / Dim(0), Error);
}

TEST(Dim, ExpressionsAreCanonical) {
  Dim b = Dim::symbol("b"), t = Dim::symbol("t");
  EXPECT_EQ(b * t + b, b * (t + 1));
  EXPECT_EQ((b + t) * (b - t), b * b - t * t);
  EXPECT_EQ(b - b, Dim(0));
  EXPECT_EQ((b * t * 12) / (t * 4), b * 3);
  EXPECT_EQ((b * 6 + t * 4) / 2, b * 3 + t * 2);
  EXPECT_FALSE(b == t);
  EXPECT_FALSE(b == Dim(5));
  EXPECT_THROW(b.value(), Error);
}

TEST(Dim, SubstitutesThroughFloorDivision) {
  Dim h = Dim::symbol("h");
  Dim out = (h + 2 * 1 - 3) / 2 + 1;  // a strided convolution
  EXPECT_TRUE(out.is_symbolic());
  for (int64_t value : {1, 2, 7, 56}) EXPECT_EQ(out.substitute("h", value), Dim((value - 1) / 2 + 1)) << value;
  EXPECT_EQ(out.substitute("other", 3), out);
}

TEST(Dim, RefusesWhatItCannotHold) {
  const Dim most = INT64_MAX, least = -(int64_t(1) << 62), h = Dim::symbol("h");
  EXPECT_EQ(least + most, Dim((int64_t(1) << 62) - 1));
  EXPECT_THROW(Dim(least.value() - 1), Error);
  EXPECT_THROW(Shape({INT64_MIN}), Error);
  EXPECT_THROW(most + 1, Error);
  EXPECT_THROW(least - 1, Error);
  EXPECT_THROW(most * 2, Error);
  EXPECT_THROW(h * most * 2, Error);
  EXPECT_THROW(h * most + h, Error);
}

TEST(Shape, BroadcastsAsNumPyDoes) {
  EXPECT_EQ(to_string(broadcast_shapes("op", {4, 1, 3}, {5, 1})), "[4, 5, 3]");
  EXPECT_EQ(to_string(broadcast_shapes("op", {}, {2})), "[2]");
  EXPECT_EQ(to_string(broadcast_shapes("op", {0}, {1})), "[0]");
  Dim b = Dim::symbol("b");
  EXPECT_EQ(to_string(broadcast_shapes("op", Shape{b, Dim(1)}, Shape{Dim(7)})), "[b, 7]");
  try {
    broadcast_shapes("add", {2, 3}, {4});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "add: shapes do not broadcast: [2, 3] and [4]");
  }
}

TEST(Shape, CountsOverflow) {
  EXPECT_EQ((Shape{3, 5}).numel(), Dim(15));
  EXPECT_EQ(Shape{}.numel(), Dim(1));
  EXPECT_THROW((Shape{int64_t(1) << 40, int64_t(1) << 40}).numel(), Error);
  EXPECT_THROW(contiguous_strides({0, int64_t(1) << 40, int64_t(1) << 40}), Error);
}

TEST(Shape, NormalizesDims) {
  EXPECT_EQ(normalize_dim("op", -1, {2, 3}), 1);
  EXPECT_THROW(normalize_dim("op", 2, {2, 3}), Error);
  EXPECT_THROW(normalize_dim("op", -3, {2, 3}), Error);
}

TEST(SmallVector, MovesBetweenInlineAndHeap) {
  SmallVector<std::string, 2> v{"a", "b"};
  v.push_back(std::string(100, 'c'));
  SmallVector<std::string, 2> moved = std::move(v);
  EXPECT_TRUE(v.empty());
  ASSERT_EQ(moved.size(), 3u);
  EXPECT_EQ(moved[2].size(), 100u);
  moved.erase(moved.begin());
  moved.insert(moved.begin(), "z");
  EXPECT_EQ(moved[0] + moved[1], "zb");
  v = moved;
  EXPECT_EQ(v, moved);
}

}  // namespace
}  // namespace tessera
