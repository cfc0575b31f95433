// Views of memory, and the complex operators that are views of simple ones.
#include "tile/view.h"

#include "view_check.h"

namespace tessera::tile {
namespace {

constexpr float memory[1]{};

TEST(View, StridedIsTheFastCase) {
  const auto v = strided(memory, {5, 7}, {9, 1});
  static_assert(decltype(v)::is_strided && decltype(v)::rank == 2);
  EXPECT_EQ(v.stride(0), 9);
  EXPECT_EQ(v.length(1), 7);
  check_view(v, [](const auto& c) { return c[0] * 9 + c[1]; });
  check_cursor(v, 1);
}

TEST(View, PackedIsRowMajor) {
  check_view(packed(memory, {3, 1, 5}), [](const auto& c) { return c[0] * 5 + c[1] * 5 + c[2]; });
}

TEST(View, StridesAreFoldedWhereNothingElseChanges) {
  const auto v = strided(memory, {6, 8}, {8, 1});
  const auto t = transform(v, pass<1>(), slice<0>(1, 2, 3), broadcast(4));
  static_assert(decltype(t)::is_strided);
  EXPECT_EQ(t.data - v.data, 8);
  check_view(t, [](const auto& c) { return c[0] + c[1] * 24; });
  const auto u = transform(v, fix(2), unmerge({2, 4}));
  static_assert(decltype(u)::is_strided);
  EXPECT_EQ(u.data - v.data, 16);
  check_view(u, [](const auto& c) { return c[0] * 4 + c[1]; });
}

struct Conv {
  i64 n, h, w, c, r, s, stride, dilation, pad;
  i64 out(i64 length, i64 filter) const {
    return (length + 2 * pad - dilation * (filter - 1) - 1) / stride + 1;
  }
  i64 ho() const { return out(h, r); }
  i64 wo() const { return out(w, s); }
};

const Conv convs[] = {{2, 5, 7, 3, 3, 3, 1, 1, 1},
                      {1, 7, 5, 2, 3, 2, 2, 1, 1},
                      {3, 9, 6, 1, 2, 3, 1, 2, 2},
                      {1, 1, 1, 5, 1, 1, 1, 1, 0},
                      {2, 11, 4, 4, 3, 3, 3, 1, 1}};

// The left matrix of a convolution, M = (N, Ho, Wo) and K = (R, S, C), from an input with the given strides.
auto windows(const Conv& p, i64 sn, i64 sh, i64 sw, i64 sc) {
  const auto x = strided(memory, {p.n, p.h, p.w, p.c}, {sn, sh, sw, sc});
  const auto padded = transform(x, pass(), pad(p.pad, p.pad), pad(p.pad, p.pad), pass());
  const auto taps = transform(padded, pass(), embed({p.r, p.ho()}, {p.dilation, p.stride}),
                              embed({p.s, p.wo()}, {p.dilation, p.stride}), pass());
  return transform(taps, merge<0, 2, 4>(), merge<1, 3, 5>());
}

void check_windows(const Conv& p, i64 sn, i64 sh, i64 sw, i64 sc) {
  const auto a = windows(p, sn, sh, sw, sc);
  ASSERT_EQ(a.length(0), p.n * p.ho() * p.wo());
  ASSERT_EQ(a.length(1), p.r * p.s * p.c);
  check_view(a, [&](const auto& at) -> i64 {
    const i64 n = at[0] / (p.ho() * p.wo()), y = at[0] / p.wo() % p.ho(), x = at[0] % p.wo();
    const i64 r = at[1] / (p.s * p.c), s = at[1] / p.c % p.s, c = at[1] % p.c;
    const i64 h = y * p.stride + r * p.dilation - p.pad, w = x * p.stride + s * p.dilation - p.pad;
    if (h < 0 || h >= p.h || w < 0 || w >= p.w) return -1;
    return n * sn + h * sh + w * sw + c * sc;
  });
  check_cursor(a, 2);
}

TEST(View, ConvolutionWindowsChannelsLast) {
  for (const Conv& p : convs) check_windows(p, p.h * p.w * p.c, p.w * p.c, p.c, 1);
}

TEST(View, ConvolutionWindowsNchw) {
  for (const Conv& p : convs) check_windows(p, p.c * p.h * p.w, p.w, 1, p.h * p.w);
}

TEST(View, RunsJoinAcrossMergedDimensions) {
  // Unpadded 1 x 1 windows of a packed channels-last image are one matrix: a column is one run.
  const Conv p{2, 5, 7, 3, 1, 1, 1, 1, 0};
  const auto a = windows(p, p.h * p.w * p.c, p.w * p.c, p.c, 1);
  const auto run = a.run({0, 1}, 0);
  EXPECT_EQ(run.length, 70);
  EXPECT_EQ(run.stride, 3);
  EXPECT_EQ(a.run({0, 1}, 0, 16).length, 16);
}

}  // namespace
}  // namespace tessera::tile
