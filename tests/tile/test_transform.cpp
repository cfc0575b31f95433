// Each transform alone: lower index, incremental update, validity, safe vector width and motion, at compile
// time.
#include "tile/transform.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::tile {
namespace {

template <int N>
using Index = Array<i64, N>;

template <int N>
constexpr bool same(const Index<N>& a, const Index<N>& b) {
  for (int i = 0; i < N; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

// The transform that a recipe makes over lower dimensions of these lengths.
template <class R, class... L>
constexpr auto over(R recipe, L... lengths) {
  return recipe.make(lengths...);
}

template <class Op, int U, int L>
constexpr Motion<i64> motion(const Op& op, const Index<U>& u, const Index<L>& l, int dim, i64 step, i64 limit = 1000) {
  Motion<i64> m{dim, step, limit};
  op.motion(u, l, dim, m);
  return m;
}
constexpr bool moves(const Motion<i64>& m, int dim, i64 step, i64 limit) {
  return m.dim == dim && m.step == step && m.limit == limit;
}

TEST(Transform, Pass) {
  constexpr auto op = over(pass(), i64{7});
  static_assert(op.is_linear && op.length<0>() == 7);
  static_assert(same(op.lower(Index<1>{5}), {5}));
  static_assert(same(op.update(Index<1>{5}, Index<1>{-2}, Index<1>{7}), {-2}));
  static_assert(op.valid(Index<1>{0}));
  static_assert(op.width<0>({8}) == 1, "the length is not known");
  static_assert(over(pass(), Int<48>{}).width<0>({64}) == 16);
  static_assert(moves(motion(op, Index<1>{5}, Index<1>{5}, 0, 3), 0, 3, 1000));
}

TEST(Transform, Pad) {
  constexpr auto op = over(pad(2, 3), i64{7});
  static_assert(!op.is_linear && op.length<0>() == 12);
  static_assert(same(op.lower(Index<1>{1}), {-1}) && same(op.lower(Index<1>{9}), {7}));
  static_assert(same(op.update(Index<1>{5}, Index<1>{4}, Index<1>{-1}), {4}));
  static_assert(!op.valid(Index<1>{-1}) && op.valid(Index<1>{0}) && op.valid(Index<1>{6}) && !op.valid(Index<1>{7}));
  static_assert(over(pad(Int<8>{}, Int<4>{}), i64{7}).width<0>({16}) == 4);
  static_assert(op.width<0>({16}) == 1);
  static_assert(moves(motion(op, Index<1>{0}, Index<1>{-2}, 0, 1), 0, 1, 2), "invalid until it enters");
  static_assert(moves(motion(op, Index<1>{3}, Index<1>{1}, 0, 4), 0, 4, 2), "1 and 5 are inside");
  static_assert(moves(motion(op, Index<1>{9}, Index<1>{7}, 0, 1), 0, 1, 1000), "invalid to the end");
  static_assert(moves(motion(op, Index<1>{8}, Index<1>{6}, 0, -3), 0, -3, 3));
  static_assert(moves(motion(op, Index<1>{11}, Index<1>{9}, 0, -2), 0, -2, 2), "9 and 7 are outside");
}

TEST(Transform, Affine) {
  constexpr auto op = over(affine(tuple(i64{3}, i64{5}), tuple(i64{2}, Int<1>{}), Int<4>{}), i64{20});
  static_assert(op.is_linear && op.length<0>() == 3 && op.length<1>() == 5);
  static_assert(same(op.lower(Index<2>{2, 3}), {11}));
  static_assert(same(op.update(Index<2>{2, 3}, Index<2>{1, -1}, Index<1>{10}), {1}));
  static_assert(op.width<0>({8}) == 1 && op.width<1>({8}) == 1);
  constexpr auto aligned =
      over(affine(tuple(i64{3}, Int<32>{}), tuple(multiple_of<8>(i64{2}), Int<1>{}), Int<4>{}), i64{20});
  static_assert(aligned.width<1>({16}) == 4);
  static_assert(moves(motion(op, Index<2>{0, 0}, Index<1>{4}, 0, 2), 0, 4, 1000));
  static_assert(moves(motion(op, Index<2>{0, 0}, Index<1>{4}, 1, 2), 0, 2, 1000));
}

TEST(Transform, Merge) {
  constexpr auto op = over(merge<0, 1, 2>(), i64{4}, i64{3}, i64{5});
  static_assert(!op.is_linear && op.length<0>() == 60);
  static_assert(same(op.lower(Index<1>{38}), {2, 1, 3}));
  static_assert(same(op.update(Index<1>{38}, Index<1>{1}, Index<3>{2, 1, 2}), {0, 0, 1}), "no carry");
  static_assert(same(op.update(Index<1>{0}, Index<1>{2}, Index<3>{0, 2, 4}), {1, -2, -3}), "carries twice");
  static_assert(same(op.update(Index<1>{0}, Index<1>{-1}, Index<3>{2, 0, 0}), {-1, 2, 4}), "borrows");
  static_assert(op.width<0>({1, 2, 4}) == 4);
  static_assert(moves(motion(op, Index<1>{1}, Index<3>{0, 0, 1}, 0, 1), 2, 1, 4));
  static_assert(moves(motion(op, Index<1>{1}, Index<3>{0, 0, 1}, 0, 2), 2, 2, 2));
  static_assert(moves(motion(op, Index<1>{3}, Index<3>{0, 0, 3}, 0, -1), 2, -1, 4));
  static_assert(same(over(merge<0>(), i64{9}).lower(Index<1>{8}), {8}));
}

TEST(Transform, MergeUpdatesAsItEvaluates) {
  std::mt19937 random(3);
  const auto op = over(merge<0, 1, 2, 3>(), i64{3}, i64{1}, i64{7}, i64{11});
  for (int i = 0; i < 1000; ++i) {
    const i64 from = random() % 231, to = random() % 231;
    const auto low = op.lower(Index<1>{from}), moved = op.update(Index<1>{to}, Index<1>{to - from}, low);
    Index<4> sum = low;
    for (int d = 0; d < 4; ++d) sum[d] += moved[d];
    ASSERT_TRUE(same(sum, op.lower(Index<1>{to}))) << from << " to " << to;
  }
}

TEST(Transform, Unmerge) {
  constexpr auto op = over(unmerge({4, 3, 5}), i64{60});
  static_assert(op.is_linear && op.length<1>() == 3);
  static_assert(same(op.lower(Index<3>{2, 1, 3}), {38}));
  static_assert(same(op.update(Index<3>{2, 1, 3}, Index<3>{1, -1, 0}, Index<1>{28}), {10}));
  static_assert(over(unmerge(tuple(i64{4}, Int<8>{})), i64{32}).width<1>({16}) == 8);
  static_assert(moves(motion(op, Index<3>{}, Index<1>{}, 0, 1), 0, 15, 1000));
}

TEST(Transform, Slice) {
  constexpr auto op = over(slice(3, 4, 2), i64{11});
  static_assert(op.is_linear && op.length<0>() == 4 && same(op.lower(Index<1>{3}), {9}));
  static_assert(over(slice(Int<8>{}, Int<12>{}), i64{20}).width<0>({32}) == 4);
  static_assert(op.width<0>({32}) == 1, "every second element is not a vector");
  static_assert(moves(motion(op, Index<1>{}, Index<1>{}, 0, 1), 0, 2, 1000));
}

TEST(Transform, Fix) {
  constexpr auto op = over(fix(i64{6}), i64{11});
  static_assert(op.is_linear && op.upper_rank == 0 && same(op.lower(Index<0>{}), {6}));
  static_assert(same(op.update(Index<0>{}, Index<0>{}, Index<1>{6}), {0}));
}

TEST(Transform, Broadcast) {
  constexpr auto op = over(broadcast(i64{5}));
  static_assert(op.is_linear && op.lower_rank == 0 && op.length<0>() == 5 && op.width<0>({}) == 1);
  static_assert(moves(motion(op, Index<1>{2}, Index<0>{}, 0, 1), -1, 0, 1000), "nothing moves below");
}

TEST(Transform, Swizzle) {
  constexpr auto op = over(swizzle<0, 1, 4, 8>(), i64{16}, i64{32});
  static_assert(same(op.lower(Index<2>{3, 5}), {3, 5 ^ 12}) && same(op.lower(Index<2>{11, 5}), {11, 5 ^ 12}));
  static_assert(same(op.update(Index<2>{3, 5}, Index<2>{1, 1}, op.lower(Index<2>{2, 4})), {1, (5 ^ 12) - (4 ^ 8)}));
  static_assert(op.width<1>({64, 64}) == 4 && op.width<0>({64, 64}) == 1);
  static_assert(moves(motion(op, Index<2>{3, 5}, Index<2>{}, 1, 1), 1, 1, 3));
  static_assert(moves(motion(op, Index<2>{3, 5}, Index<2>{}, 0, 1), 0, 1, 1));
  constexpr auto slow = over(swizzle<0, 1, 4, 8, 2>(), i64{16}, i64{32});
  static_assert(same(slow.lower(Index<2>{3, 5}), {3, 5 ^ 4}));
  bool seen[32]{};
  for (i64 column = 0; column < 32; ++column) seen[op.lower(Index<2>{5, column})[1]] = true;
  for (bool hit : seen) EXPECT_TRUE(hit) << "a row is permuted within itself";
}

TEST(Transform, Gather) {
  static constexpr int pages[] = {4, 0, -1, 2};
  constexpr auto op = over(gather(pages, i64{4}), i64{5});
  static_assert(!op.is_linear && op.length<0>() == 4);
  static_assert(same(op.lower(Index<1>{0}), {4}) && same(op.lower(Index<1>{3}), {2}));
  static_assert(op.valid(Index<1>{2}) && !op.valid(op.lower(Index<1>{2})), "a negative entry is invalid");
  static_assert(!op.valid(op.lower(Index<1>{-1})) && !op.valid(op.lower(Index<1>{4})), "never reads outside the table");
  static_assert(same(op.update(Index<1>{3}, Index<1>{2}, Index<1>{0}), {2}));
  static_assert(op.width<0>({16}) == 1);
  static_assert(moves(motion(op, Index<1>{0}, Index<1>{4}, 0, 1), 0, 1, 1));
  constexpr auto two = over(gather(pages, tuple(i64{2}, i64{2}), tuple(i64{2}, i64{1})), i64{5});
  static_assert(same(two.lower(Index<2>{1, 1}), {2}) && same(two.lower(Index<2>{0, 1}), {0}));
}

}  // namespace
}  // namespace tessera::tile
