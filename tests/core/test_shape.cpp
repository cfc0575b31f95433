#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "core/dim_terms.h"
#include "tessera/error.h"

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

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Dim, BoundsOfExpressions) {
  const Dim n = Dim::symbol("n", 2, 12), m = Dim::symbol("m", 0, 3), free = Dim::symbol("free"),
            below = Dim::symbol("below", -4, 5);
  const auto text = [](Dim d) { return std::to_string(d.low()) + ".." + std::to_string(d.high()); };
  EXPECT_EQ(text(7), "7..7");
  EXPECT_EQ(text(n * m + 1), "1..37");
  EXPECT_EQ(text(n - m), "-1..12");
  EXPECT_EQ(text((n - m * 5) / 2), "-7..6");
  EXPECT_EQ(text(below * below), "-20..25");  // each factor by itself
  EXPECT_EQ(text(n / (m + 1)), "0..12");
  EXPECT_EQ(free.low(), 0);
  EXPECT_EQ((free * n).high(), Dim::kUnbounded);
  EXPECT_EQ((Dim(0) - free).low(), INT64_MIN);
  EXPECT_EQ((n / m).high(), Dim::kUnbounded);  // m may be 0
  EXPECT_EQ((n * INT64_MAX).high(), Dim::kUnbounded);
}

TEST(Dim, DivisionsByNumbersAreAsShortAsTheyCanBe) {
  const Dim h = Dim::symbol("h", 1), w = Dim::symbol("w");
  EXPECT_EQ((h * 4 - 1) / 2, h * 2 - 1);
  EXPECT_EQ((h - 1) / 2 + 1, (h + 1) / 2);
  EXPECT_EQ(h * 96 / 64, h * 3 / 2);
  EXPECT_EQ((h * 6 + w * 8 + 3) / 4, w * 2 + (h * 3 + 1) / 2);
  EXPECT_EQ((h * 6 + 3) / 4,
            Dim::parse("floor((3*h + 1)/(2))").substitute(std::vector{std::pair(Dim::symbol("h"), h)}));
  for (int64_t a = -7; a <= 7; ++a)
    for (int64_t b = -9; b <= 9; ++b)
      for (const int64_t n : {2, 3, 4, 6})
        for (int64_t value = 1; value < 8; ++value) {
          const int64_t x = a * value + b, floor = x / n - (x % n < 0);
          EXPECT_EQ(((h * a + b) / n).substitute("h", value), Dim(floor)) << a << " " << b << " " << n;
        }
}

TEST(Dim, TermsAreCoefficientsAndFactors) {
  const Dim h = Dim::symbol("h", 1), w = Dim::symbol("w");
  Dim sum = 0;
  int divisions = 0;
  for (const DimTerm& term : terms_of(h * h * 3 - (h * w / 2) * 2 + 7)) {
    Dim product = term.coefficient;
    for (const DimFactor& f : term.factors) {
      divisions += f.denominator == Dim(2) && f.numerator == h * w;
      product = product * f.self;
    }
    sum = sum + product;
  }
  EXPECT_EQ(sum, h * h * 3 - (h * w / 2) * 2 + 7);
  EXPECT_EQ(divisions, 1);
  EXPECT_EQ(terms_of(7).size(), 1u);
  EXPECT_TRUE(terms_of(0).empty());
}

TEST(Dim, SymbolsOfOneNameHaveTheSameBounds) {
  const Dim n = Dim::symbol("n", 0, 12), wider = Dim::symbol("n", 0, 13), free = Dim::symbol("n");
  EXPECT_TRUE(n == Dim::symbol("n", 0, 12));
  EXPECT_FALSE(n == wider);
  EXPECT_EQ(error_of([&] { n + wider; }), "two dims are named n: one in [0, 12], one in [0, 13]");
  EXPECT_EQ(error_of([&] { (n + 1) / (free * 2 + 3); }), "two dims are named n: one in [0, 12], one in [0, inf]");
  EXPECT_EQ(error_of([&] { n* Dim::count("n", 12, "nonzero"); }),
            "two dims are named n: one in [0, 12], one in [0, 12] of nonzero");
  EXPECT_EQ(error_of([&] { Dim::symbol("n", 3, 2); }), "dim n: no number is in [3, 2]");
  EXPECT_EQ(error_of([&] { Dim::count("n", 5, "nonzero").value(); }),
            "nonzero: the count n depends on values, and here is no memory to read it from");
  // Floor divisions of other symbols are others, too, though they print alike.
  EXPECT_FALSE(n / 2 == wider / 2);
  EXPECT_EQ((n / 2).high(), 6);
}

TEST(Dim, BoundsReadBack) {
  for (const char* text : {"n in [0, 12]", "n in [-3, inf]", "'a b' in [1, 1]", "nonzero_1 in [0, 12] of nonzero"})
    EXPECT_EQ(bounds_text(parse_bounds(text)), text);
  EXPECT_EQ(bounds_text(Dim::symbol("n")), "");
  EXPECT_EQ(bounds_text(Dim::symbol("n", 1, 2) + 1), "");
  for (const char* text :
       {"", "n", "n in", "n in [", "n in [0]", "n in [0, ]", "n in [, 3]", "n in [0, 12", "n in [0, 12] of",
        "n in [0, 12] of ", "n in [0, 12] of a b", "n in [1, 12] of nonzero", "1 in [0, 2]", "2*n in [0, 3]",
        "'n' in [0, 3]", "'n in [0, 3]", "n in [0, 99999999999999999999]", "n in [0, 12] x"})
    EXPECT_NE(error_of([&] { parse_bounds(text); }).find(" bounds no dim"), std::string::npos) << text;
  EXPECT_EQ(error_of([&] { parse_bounds("n in [5, 3]"); }), "dim n: no number is in [5, 3]");
  const Dim n = Dim::symbol("n", 0, 12);
  {
    const DimNames names({n});
    EXPECT_TRUE(Dim::parse("2*n + 1") == n * 2 + 1);
    EXPECT_TRUE(Dim::parse("'n'") == n);
    EXPECT_TRUE(Dim::parse("k") == Dim::symbol("k"));
  }
  EXPECT_TRUE(Dim::parse("n") == Dim::symbol("n"));
}

TEST(Dim, SubstitutesAtOnce) {
  const Dim n = Dim::symbol("n", 0, 12), m = Dim::symbol("m");
  const std::pair<Dim, Dim> swap[] = {{n, m}, {m, n}};
  EXPECT_TRUE((n * 2 + m).substitute(swap) == m * 2 + n);
  EXPECT_TRUE((n / 2).substitute(swap) == m / 2);
  EXPECT_TRUE((n + 1).substitute("n", 4) == Dim(5));
}

/// A new symbol gets the place of one that was forgotten: equal handles show it.
TEST(Dim, TemporaryOnesAreForgotten) {
  const auto temporary = [](const char* name, const std::function<void(TemporaryDims&)>& then) {
    TemporaryDims dims;
    const Dim first = Dim::symbol(name, 1, 77);
    (void)(first * first / Dim::symbol("another", 3, 78) + 1);
    then(dims);
    return first;
  };
  const Dim known = Dim::symbol("known") + 3, forgotten = temporary("a", [](TemporaryDims&) {});
  EXPECT_TRUE(Dim::symbol("after it") == forgotten);
  EXPECT_TRUE(known == Dim::symbol("known") + 3);
  const Dim kept = temporary("b", [](TemporaryDims& dims) { dims.keep(); });
  EXPECT_EQ(kept.to_string(), "b");
  const Dim shared =
      temporary("c", [](TemporaryDims&) { std::thread([] { EXPECT_EQ(Dim::symbol("c", 1, 77).high(), 77); }).join(); });
  EXPECT_EQ(shared.to_string(), "c");
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
