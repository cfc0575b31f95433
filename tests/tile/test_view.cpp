// Views of memory, and the complex operators that are views of simple ones.
#include "tile/view.h"

#include "tile/convolution.h"
#include "view_check.h"

namespace tessera::tile {
namespace {

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

TEST(View, AFlipIsANegativeStride) {
  const auto v = packed(memory, {3, 7});
  const auto flipped = transform(v, pass(), slice(6, 7, -1));
  static_assert(decltype(flipped)::is_strided);
  EXPECT_EQ(flipped.data - v.data, 6);
  check_view(flipped, [](const auto& c) { return c[0] * 7 - c[1]; });
  const auto padded = transform(transform(v, pass(), pad(2, 1)), pass(), slice(9, 10, -1));
  check_view(padded, [](const auto& c) -> i64 { return c[1] < 1 || c[1] > 7 ? -1 : c[0] * 7 + 7 - c[1]; });
  check_cursor(padded, 11);
}

TEST(View, OffsetsAndMergedCoordinatesAre64Bit) {
  const i64 rows = 65536, columns = 50257;  // the logits of a GPT-2 batch: 3.3 billion elements
  const auto logits = packed(memory, {rows, columns});
  EXPECT_EQ(logits.offset(rows - 1, columns - 1), rows * columns - 1);
  const auto flat = transform(logits, merge<0, 1>());
  EXPECT_EQ(flat.length(0), rows * columns);
  EXPECT_EQ(flat.offset(i64{3'200'000'000}), 3'200'000'000);
  const auto pitched = transform(strided(memory, {rows, columns}, {50304, 1}), merge<0, 1>());
  EXPECT_EQ(pitched.offset(rows * columns - 1), (rows - 1) * 50304 + columns - 1);
  EXPECT_EQ(pitched.run({rows * columns - 3}, 0).length, 3);
}

TEST(View, EmptyDimensions) {
  const auto v = packed(memory, {3, 0});
  EXPECT_EQ(transform(v, merge<0, 1>()).length(0), 0);
  const auto padded = transform(v, pass(), pad(2, 1));  // nothing but padding
  check_view(padded, [](const auto&) { return -1; });
}

struct Conv {
  i64 n, h, w, c, r, s, stride, dilation, pad;
  i64 out(i64 length, i64 filter) const { return (length + 2 * pad - dilation * (filter - 1) - 1) / stride + 1; }
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
  const auto taps = convolution_taps(x, {p.h, p.r, p.stride, p.dilation, p.pad, p.pad},
                                     {p.w, p.s, p.stride, p.dilation, p.pad, p.pad});
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

TEST(View, ConvolutionWindowsAcrossChannelsFirst) {
  const Conv p{2, 5, 7, 3, 3, 2, 1, 1, 1};
  const auto nchw = packed(memory, {p.n, p.c, p.h, p.w});
  const auto taps = convolution_taps(transform(nchw, pass<0>(), pass<2>(), pass<3>(), pass<1>()),
                                     {p.h, p.r, 1, 1, 1, 1}, {p.w, p.s, 1, 1, 1, 0});
  const auto a = transform(taps, merge<0, 2, 4>(), merge<5, 1, 3>());  // K = (C, R, S)
  const i64 ho = 5, wo = 7;
  ASSERT_EQ(a.length(0), p.n * ho * wo);
  check_view(a, [&](const auto& at) -> i64 {
    const i64 n = at[0] / (ho * wo), y = at[0] / wo % ho, x = at[0] % wo;
    const i64 c = at[1] / (p.r * p.s), h = y + at[1] / p.s % p.r - 1, w = x + at[1] % p.s - 1;
    return h < 0 || h >= p.h || w < 0 || w >= p.w ? -1 : ((n * p.c + c) * p.h + h) * p.w + w;
  });
}

// Gradients of a convolution with whole numbers, so that sums in any order are equal.
struct Whole {
  std::vector<double> data;
  Whole(i64 size, unsigned seed) : data(size) {
    std::mt19937 random(seed);
    for (auto& x : data) x = static_cast<int>(random() % 19) - 9;
  }
};

// The gradient of the input by scattering: dx[h] += dy[ho] * w[r] where h = ho * stride + r * dilation - pad.
std::vector<double> naive_backward(const Conv& p, i64 k, const Whole& dy, const Whole& weights) {
  std::vector<double> dx(p.n * p.h * p.w * p.c);
  for (i64 n = 0; n < p.n; ++n)
    for (i64 y = 0; y < p.ho(); ++y)
      for (i64 x = 0; x < p.wo(); ++x)
        for (i64 r = 0; r < p.r; ++r)
          for (i64 s = 0; s < p.s; ++s) {
            const i64 h = y * p.stride + r * p.dilation - p.pad, w = x * p.stride + s * p.dilation - p.pad;
            if (h < 0 || h >= p.h || w < 0 || w >= p.w) continue;
            for (i64 o = 0; o < k; ++o)
              for (i64 c = 0; c < p.c; ++c)
                dx[((n * p.h + h) * p.w + w) * p.c + c] += dy.data[((n * p.ho() + y) * p.wo() + x) * k + o] *
                                                           weights.data[((o * p.r + r) * p.s + s) * p.c + c];
          }
  return dx;
}

TEST(View, ConvolutionBackwardDataIsOneProductPerResidue) {
  const Conv more[] = {{1, 12, 9, 2, 3, 4, 2, 2, 1}, {2, 13, 10, 1, 3, 2, 4, 6, 3}, {1, 8, 8, 2, 1, 1, 3, 1, 0}};
  std::vector<Conv> all(std::begin(convs), std::end(convs));
  all.insert(all.end(), std::begin(more), std::end(more));
  for (const Conv& p : all) {
    const i64 k = 3;
    const Whole dy(p.n * p.ho() * p.wo() * k, 5), weights(k * p.r * p.s * p.c, 6);
    std::vector<double> dx(p.n * p.h * p.w * p.c, 1e9);
    const auto grad_out = packed(dy.data.data(), {p.n, p.ho(), p.wo(), k});
    const auto filter = packed(weights.data.data(), {k, p.r, p.s, p.c});
    const auto grad_in = packed(dx.data(), {p.n, p.h, p.w, p.c});
    const Window wh{p.h, p.r, p.stride, p.dilation, p.pad, p.pad}, ww{p.w, p.s, p.stride, p.dilation, p.pad, p.pad};
    ASSERT_EQ(wh.output(), p.ho());
    for (i64 fh = 0; fh < p.stride; ++fh) {
      for (i64 fw = 0; fw < p.stride; ++fw) {
        const auto rh = residue(wh, fh), rw = residue(ww, fw);
        const auto a = transform(backward_taps(grad_out, rh, rw), merge<0, 2, 4>(), merge<1, 3, 5>());
        const auto b = transform(residue_weights(filter, rh, rw), merge<1, 2, 0>(), pass<3>());
        const auto c = transform(residue_positions(grad_in, rh, rw), merge<0, 1, 2>(), pass());
        ASSERT_EQ(a.length(0), c.length(0));
        ASSERT_EQ(a.length(1), b.length(0));
        for (i64 m = 0; m < c.length(0); ++m)
          for (i64 n = 0; n < p.c; ++n) {
            double sum = 0;
            for (i64 i = 0; i < a.length(1); ++i) sum += a.valid(m, i) ? a.at(m, i) * b.at(i, n) : 0;
            c.at(m, n) = sum;
          }
      }
    }
    ASSERT_EQ(dx, naive_backward(p, k, dy, weights));
  }
}

TEST(View, ConvolutionBackwardTapsRunAndMove) {
  const Conv p{2, 9, 7, 1, 3, 3, 2, 1, 1};
  const auto grad_out = packed(memory, {p.n, p.ho(), p.wo(), 3});
  const Window wh{p.h, p.r, p.stride, p.dilation, p.pad, p.pad}, ww{p.w, p.s, p.stride, p.dilation, p.pad, p.pad};
  const auto rh = residue(wh, 0), rw = residue(ww, 1);
  const auto a = transform(backward_taps(grad_out, rh, rw), merge<0, 2, 4>(), merge<1, 3, 5>());
  check_cursor(a, 7);
  check_view(a, [&](const auto& at) -> i64 {
    const i64 n = at[0] / (rh.count * rw.count), h = at[0] / rw.count % rh.count * 2, w = at[0] % rw.count * 2 + 1;
    const i64 r = at[1] / 3 / rw.taps * 2 + rh.tap, s = at[1] / 3 % rw.taps * 2 + rw.tap;
    if ((h + p.pad - r) % 2 != 0 || (w + p.pad - s) % 2 != 0) return -2;
    const i64 y = (h + p.pad - r) / 2, x = (w + p.pad - s) / 2;
    if (y < 0 || y >= p.ho() || x < 0 || x >= p.wo()) return -1;
    return ((n * p.ho() + y) * p.wo() + x) * 3 + at[1] % 3;
  });
}

TEST(View, GroupNormIsARowReduction) {
  const i64 n = 3, c = 6, h = 5, w = 7, groups = 2;
  const auto x = packed(memory, {n, c, h, w});
  const auto split = transform(x, pass(), unmerge({groups, c / groups}), pass(), pass());
  static_assert(decltype(split)::is_strided);
  const auto rows = transform(split, merge<0, 1>(), merge<2, 3, 4>());
  check_view(rows, [&](const auto& at) { return at[0] * (c / groups * h * w) + at[1]; });
  EXPECT_EQ(rows.run({1, 0}, 1).length, c / groups * h * w) << "a packed group is one run";
  check_cursor(rows, 8);

  const auto last = packed(memory, {n, h, w, c});  // channels-last: the elements of a group are scattered
  const auto split_last = transform(last, pass(), pass(), pass(), unmerge({groups, c / groups}));
  check_view(transform(split_last, merge<0, 3>(), merge<1, 2, 4>()), [&](const auto& at) {
    const i64 image = at[0] / groups, group = at[0] % groups, pixel = at[1] / 3, channel = at[1] % 3;
    return (image * h * w + pixel) * c + group * 3 + channel;
  });
}

TEST(View, DepthToSpaceIsAStoreView) {
  const i64 n = 2, h = 3, w = 5, b = 2, c = 3;  // a GEMM's (n h w) x (b b c) goes to (n, h b, w b, c)
  const auto out = packed(memory, {n, h * b, w * b, c});
  const auto split = transform(out, pass(), unmerge({h, b}), unmerge({w, b}), pass());
  const auto store = transform(split, merge<0, 1, 3>(), merge<2, 4, 5>());
  check_view(store, [&](const auto& at) {
    const i64 image = at[0] / (h * w), y = at[0] / w % h, x = at[0] % w;
    const i64 by = at[1] / (b * c), bx = at[1] / c % b, channel = at[1] % c;
    return ((image * h * b + y * b + by) * w * b + x * b + bx) * c + channel;
  });
  EXPECT_EQ(store.run({0, 0}, 1).length, b * c);
  check_cursor(store, 9);
}

TEST(View, PagedAttentionIsAGather) {
  const i64 pages = 7, page = 4, heads = 2, width = 5;
  const int table[] = {3, 6, 2, -1, 0, 1, 5, 4};  // two sequences of up to four pages
  const auto cache = packed(memory, {pages, page, heads, width});
  const auto logical =
      transform(cache, gather(table, tuple(i64{2}, i64{4}), tuple(i64{4}, i64{1})), pass(), pass(), pass());
  const auto keys = transform(logical, fix(0), merge<1, 2>(), fix<3>(1), pass());  // sequence 0, head 1
  check_view(keys, [&](const auto& at) -> i64 {
    const i64 slot = table[at[0] / page];
    return slot < 0 ? -1 : ((slot * page + at[0] % page) * heads + 1) * width + at[1];
  });
  check_cursor(keys, 10);
  const auto second = transform(transform(logical, fix(1), merge<1, 2>(), fix<3>(0), pass()), slice(1, 10), pass());
  check_view(second, [&](const auto& at) -> i64 {
    const i64 slot = table[4 + (at[0] + 1) / page];
    return ((slot * page + (at[0] + 1) % page) * heads) * width + at[1];
  });
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
