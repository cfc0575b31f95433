// Descriptors: composition, static lengths, vector widths and cursors.
#include "tile/descriptor.h"

#include "view_check.h"

namespace tessera::tile {
namespace {

constexpr auto matrix = make_strided(tuple(i64{6}, Int<32>{}), tuple(multiple_of<8>(i64{40}), Int<1>{}));

TEST(Descriptor, LengthsKeepTheirStaticTypes) {
  static_assert(is_same_v<decltype(matrix.length<1>()), Int<32>>);
  static_assert(is_same_v<decltype(matrix.length<0>()), i64>);
  constexpr auto d = transform(matrix, pass(), pad(Int<1>{}, Int<3>{}));
  static_assert(is_same_v<decltype(d.length<1>()), Int<36>>);
  constexpr auto u = transform(d, merge<0>(), unmerge(tuple(Int<4>{}, Int<9>{})));
  static_assert(u.rank == 3 && is_same_v<decltype(u.length<2>()), Int<9>>);
  static_assert(sizeof(transform(matrix, pass(), pad(Int<1>{}, Int<3>{}))) <= 64, "constants take little space");
}

TEST(Descriptor, IndicesAreAsWideAsTheLengths) {
  static_assert(is_same_v<decltype(matrix)::Index, i64>);
  using Small = decltype(make_strided(tuple(5, Int<8>{}), tuple(i64{8}, Int<1>{})));
  static_assert(is_same_v<Small::Index, int>, "32-bit coordinates, 64-bit offsets");
  constexpr auto far = make_strided(tuple(70000, 70000), tuple(i64{70000}, Int<1>{}));
  static_assert(far.offset({69999, 69999}) == i64{70000} * 70000 - 1);
}

TEST(Descriptor, TransformsTakeNamedOrNextDimensions) {
  constexpr auto d = make_strided(tuple(2, 3, 4, 5), tuple(60, 20, 5, 1));
  constexpr auto all_next = transform(d, pass(), pass(), pass(), pass());
  static_assert(all_next.offset({1, 2, 3, 4}) == 119);
  constexpr auto mixed = transform(d, merge<3, 0>(), pass(), pass());  // next after 0 is 1
  static_assert(mixed.length<0>() == 10 && mixed.length<1>() == 3 && mixed.length<2>() == 4);
  static_assert(mixed.offset({7, 2, 3}) == 3 * 1 + 1 * 60 + 2 * 20 + 3 * 5);
}

template <class D, class... R>
concept Transformable = requires(const D& d, R... recipes) {
  transform(d, recipes...);
};

TEST(Descriptor, EveryDimensionIsUsedExactlyOnce) {
  using D = decltype(matrix);
  static_assert(Transformable<D, decltype(pass()), decltype(pass())>);
  static_assert(!Transformable<D, decltype(pass())>, "a dimension is missing");
  static_assert(!Transformable<D, decltype(pass<0>()), decltype(pass<0>())>, "a dimension is used twice");
  static_assert(!Transformable<D, decltype(pass<0>()), decltype(pass<2>())>, "there is no third dimension");
  static_assert(!Transformable<D, decltype(merge<0, 1>()), decltype(pass())>, "too many");
}

TEST(Descriptor, VectorWidths) {
  static_assert(matrix.width<1>() == 8, "rows start at multiples of 8");
  static_assert(matrix.width<0>() == 1);
  constexpr auto packed = make_strided(tuple(i64{3}, Int<64>{}), tuple(Int<64>{}, Int<1>{}));
  static_assert(packed.width<1>() == 64);
  static_assert(transform(matrix, pass(), pad(Int<4>{}, Int<8>{})).width<1>() == 4);
  static_assert(transform(matrix, merge<0, 1>()).width<0>() == 8);
  static_assert(transform(matrix, merge<1, 0>()).width<0>() == 1);
  static_assert(transform(matrix, pass(), unmerge(tuple(Int<16>{}, Int<2>{}))).width<2>() == 2);
  static_assert(transform(matrix, fix(3), pass()).width<0>() == 8);
  static_assert(transform(packed, swizzle<0, 1, 8, 8>()).width<1>() == 8);
  constexpr auto unknown = make_strided(tuple(i64{3}, i64{64}), tuple(i64{64}, Int<1>{}));
  static_assert(unknown.width<1>() == 1, "nothing is promised");
}

// A width is a promise about every aligned vector: check it against the elements.
template <class V>
void check_width(const V& view) {
  constexpr int width = V::template width<V::rank - 1>();
  for (auto c : all_coords(view)) {
    if (c[V::rank - 1] % width != 0) continue;
    ASSERT_LE(c[V::rank - 1] + width, view.length(V::rank - 1));
    const auto first = view.offset(c);
    const bool valid = view.valid(c);
    if (valid) {
      ASSERT_EQ(first % width, 0);
    }
    for (int i = 0; i < width; ++i, ++c[V::rank - 1]) {
      ASSERT_EQ(view.valid(c), valid);
      if (valid) {
        ASSERT_EQ(view.offset(c), first + i);
      }
    }
  }
}

TEST(Descriptor, VectorWidthsAreTrue) {
  const auto v = strided(memory, tuple(i64{6}, Int<32>{}), tuple(multiple_of<8>(i64{40}), Int<1>{}));
  check_width(v);
  check_width(transform(v, pass(), pad(Int<4>{}, Int<8>{})));
  check_width(transform(v, pad(1, 2), pass()));
  check_width(transform(v, merge<0, 1>()));
  check_width(transform(v, pass(), slice(Int<4>{}, Int<12>{})));
  check_width(transform(v, swizzle<0, 1, 2, 8>()));
  static_assert(decltype(transform(v, pad(1, 2), pass()))::width<1>() == 8);
}

TEST(Descriptor, DeepCompositionMatchesNaive) {
  const int order[] = {2, -1, 0, 4};
  const auto v = packed(memory, {5, 6, 7});
  const auto a = transform(v, gather(order, 4), pad(2, 1), pass());          // 4, 9, 7
  const auto b = transform(a, pass(), merge<1, 2>());                        // 4, 63
  const auto c = transform(b, pass<1>(), pass<0>());                         // 63, 4
  const auto d = transform(c, unmerge({21, 3}), slice(1, 3), broadcast(2));  // 21, 3, 3, 2
  const Expected<decltype(d)> expected = [&](const auto& at) -> i64 {
    const i64 flat = at[0] * 3 + at[1], row = flat / 7 - 2, page = order[at[2] + 1];
    return row < 0 || row >= 6 || page < 0 ? -1 : page * 42 + row * 7 + flat % 7;
  };
  check_view(d, expected);
  check_cursor(d, 4);
}

TEST(Descriptor, NarrowIndicesMatchWideOnes) {
  const auto v = strided(memory, tuple(5, 6, 7), tuple(42, 7, Int<1>{}));
  const auto t = transform(transform(v, pass(), pad(1, 1), pass()), merge<0, 1, 2>());
  static_assert(is_same_v<decltype(t)::Index, int>);
  check_view(t, [](const auto& at) -> i64 {
    const i64 row = at[0] / 7 % 8 - 1;
    return row < 0 || row >= 6 ? -1 : at[0] / 56 * 42 + row * 7 + at[0] % 7;
  });
  check_cursor(t, 5);
}

}  // namespace
}  // namespace tessera::tile
