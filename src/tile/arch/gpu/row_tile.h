// Operators on rows that threads share: load, map, reduce and store, as tile.h has them, of rows of any length. A tile
// is `height` rows of n columns, of which a thread has packs of 16 bytes and, beside them, single elements, in
// registers, in shared memory or nowhere yet: whoever holds rows (block_rows.h, arch/sm90/cluster_rows.h) says where.
//
//   auto x = rows.tile(in);
//   while (rows.load(x)) {
//     const auto sum = reduce_tile(rows, x);  // one value a row
//     store_tile(rows, out, map_tile([](auto v, auto s) { return v / s; }, x, sum));
//   }
//
// A map is worked out where it is reduced or stored, so that what no register holds is in the same kernel what one
// holds. Values of a row and values of a column (a norm's weights) are tiles, too, the same along the other dimension.
#pragma once
#include "../../rows.h"
#include "group.h"
#include "pack.h"

TESSERA_TILE_BEGIN

// ---- places: a thread's k-th pack of a row, or its element beside packs

/// In the place of a pack's number.
struct Edge {};
/// `width` neighbours from `column` on.
template <int width_, class K, class Index>
struct Place {
  static constexpr int width = width_;
  K k;
  Index column;
};

/// Nothing, to fetch for instance: a tile's fetch(h, place) asks memory for what value(h, place, fetched) needs of row
/// h, so that several places of rows that nobody holds are under way at once.
struct None {
  template <class Holder>
  TESSERA_DEVICE void load(const Holder&) {}
};

/// What has all in hand.
struct InHand {
  template <class H, class At>
  TESSERA_DEVICE None fetch(H, const At&) const {
    return {};
  }
};

// ---- values of rows, of columns and of maps

/// The same in each place.
template <class C>
struct Same {
  C value;
  TESSERA_DEVICE C operator[](int) const { return value; }
};
/// A value for each row.
template <class C, int height_>
struct RowValues {
  static constexpr int height = height_;
  static constexpr bool has_rows_alone = true;
  using Element = C;
  C of_row[height];
  TESSERA_DEVICE C operator[](int h) const { return of_row[h]; }
  template <class H, class At>
  TESSERA_DEVICE None fetch(H, const At&) const {
    return {};
  }
  template <class H, class At>
  TESSERA_DEVICE Same<C> value(H h, const At&, None) const {
    return {of_row[h]};
  }
};
template <class T>
inline constexpr bool is_row_values = requires {
  T::has_rows_alone;
};

/// Values of rows from an array, `otherwise` where that is missing.
template <class C, int height>
struct LoadedValues : RowValues<C, height> {
  const C* from;
  C otherwise, next[height];

  template <class Holder>
  TESSERA_DEVICE void fetch_rows(const Holder& rows, int turns_ahead) {
    unroll<height>([&](auto h) { next[h] = from ? from[rows.existing_row(h, turns_ahead)] : otherwise; });
  }
  template <class Holder>
  TESSERA_DEVICE void load(const Holder& rows) {
    if constexpr (!Holder::fetches_ahead) fetch_rows(rows, 0);
    unroll<height>([&](auto h) { this->of_row[h] = next[h]; });
    if constexpr (Holder::fetches_ahead) fetch_rows(rows, 1);
  }
};

/// Elements of an array over the columns, or of a row that nobody holds; `otherwise` where that is missing. Unless they
/// lie alike, packs may begin anywhere within those of the row at `row`: the two at multiples of 16 bytes that hold one
/// are fetched. AMD's cards load from anywhere.
template <class T, bool alike = false>
class Beside {
 public:
  using C = compute_t<T>;
  using Element = C;
#if defined(__HIP__)
  static constexpr bool shifts = false;
#else
  static constexpr bool shifts = !alike;
#endif
  /// Words, since nvcc takes packs apart, lane by lane, where one way has this and another that.
  template <int width>
  struct Raw {
    using Words = conditional_t<width == 1, Pack<T, 1>, Array<u32, width* static_cast<int>(sizeof(T)) / 4>>;
    Words pack[shifts && width > 1 ? 2 : 1];
  };
  TESSERA_DEVICE Beside(const T* data, const void* row, C otherwise = C(0))
      : data_(data),
        shift_(static_cast<int>((reinterpret_cast<size_t>(data) - reinterpret_cast<size_t>(row)) & 15)),
        otherwise_(otherwise) {}

  template <class H, class At>
  TESSERA_DEVICE Raw<At::width> fetch(H, const At& at) const {
    using Words = typename Raw<At::width>::Words;
    Raw<At::width> raw{};
    if (!data_) return raw;
    const T* const from = data_ + at.column;
    if constexpr (alike) {
      raw.pack[0] = bit_cast<Words>(*reinterpret_cast<const Pack<T, At::width>*>(from));
    } else if constexpr (!shifts || At::width == 1) {
      __builtin_memcpy(&raw.pack[0], from, sizeof(raw));
    } else {
      const auto* const whole = reinterpret_cast<const Pack<T, At::width>*>(reinterpret_cast<size_t>(from) - shift_);
      raw.pack[0] = bit_cast<Words>(whole[0]);
      if (shift_ != 0) raw.pack[1] = bit_cast<Words>(whole[1]);
    }
    return raw;
  }
  template <class H, class At, int width>
  TESSERA_DEVICE Pack<T, width> pack(H, const At&, const Raw<width>& raw) const {
    using P = Pack<T, width>;
    if constexpr (!shifts || width == 1) return bit_cast<P>(raw.pack[0]);
    else return shifted(bit_cast<P>(raw.pack[0]), bit_cast<P>(raw.pack[1]), shift_);
  }
  template <class H, class At, int width>
  TESSERA_DEVICE Lanes<T, width> value(H h, const At& at, const Raw<width>& raw) const {
    if (data_) return Lanes<T, width>(pack(h, at, raw));
    Lanes<T, width> v;
    unroll<width>([&](auto j) { v.x[j] = otherwise_; });
    return v;
  }
  TESSERA_DEVICE bool is_missing() const { return !data_; }
  TESSERA_DEVICE C otherwise() const { return otherwise_; }

 private:
  const T* data_;
  int shift_;  // bytes by which packs lie behind multiples of 16
  C otherwise_;
};

/// What holds elements is not copied into a map.
template <class T>
using map_operand = conditional_t < requires {
  T::holds;
}
, const T&, T > ;

template <class T>
T sample();  // for types alone

/// Tiles side by side; each an object or a reference.
template <class... Tiles>
struct SideBySide {
  Tuple<Tiles...> tiles;

  template <class H, class At>
  TESSERA_DEVICE auto fetch(H h, const At& at) const {
    return with_indices<sizeof...(Tiles)>([&]<int... I>(Seq<I...>) {
      return tuple(tile_of<I>(tiles).fetch(h, at)...);
    });
  }
  /// fn(elements of tiles...).
  template <class H, class At, class Fetched, class Fn>
  TESSERA_DEVICE auto visit(H h, const At& at, const Fetched& fetched, const Fn& fn) const {
    return with_indices<sizeof...(Tiles)>([&]<int... I>(Seq<I...>) {
      return fn(tile_of<I>(tiles).value(h, at, get_slot<I>(fetched))...);
    });
  }

 private:
  template <int I, class T>
  static TESSERA_DEVICE T& tile_of(const Slot<I, T&>& slot) {
    return slot.value;
  }
  template <int I, class T>
  static TESSERA_DEVICE const T& tile_of(const Slot<I, T>& slot) {
    return slot.value;
  }
};

/// f(elements...) at every place.
template <class F, class... Tiles>
struct Mapped {
  using Element = remove_cvref_t<decltype(sample<const F&>()(sample<typename Tiles::Element>()...))>;
  F f;
  SideBySide<map_operand<Tiles>...> tiles;

  template <class H, class At>
  TESSERA_DEVICE auto fetch(H h, const At& at) const {
    return tiles.fetch(h, at);
  }
  template <class H, class At, class Fetched>
  TESSERA_DEVICE auto value(H h, const At& at, const Fetched& fetched) const {
    return tiles.visit(h, at, fetched, [&](const auto&... v) {
      Lanes<Element, At::width> out;
      unroll<At::width>([&](auto j) { out.x[j] = f(v[j]...); });
      return out;
    });
  }
};

/// f at every place of tiles; of values of rows alone, values of rows, at once.
template <class F, class First, class... Tiles>
requires requires(const First& first, const None& none) { first.fetch(Int<0>{}, Place<1, Edge, int>{}); }
TESSERA_DEVICE auto map_tile(const F& f, const First& first, const Tiles&... tiles) {
  if constexpr (is_row_values<First> && (is_row_values<Tiles> && ...)) {
    RowValues<remove_cvref_t<decltype(f(first[0], tiles[0]...))>, First::height> values;
    unroll<First::height>([&](auto h) { values.of_row[h] = f(first[h], tiles[h]...); });
    return values;
  } else {
    return Mapped<F, First, Tiles...>{f, {{{{first}, {tiles}...}}}};
  }
}

// ---- reductions

/// fn(Int<h>, elements...) at every place of a row and column.
template <class Holder, class Fn, class... Tiles>
TESSERA_DEVICE void for_each_place(Holder& rows, const Fn& fn, Tiles&&... tiles) {
  rows.each([&](auto h, auto at, const auto&... v) { unroll<at.width>([&](auto j) { fn(h, v[j]...); }); }, tiles...);
}

/// What fold(state, elements...) makes of zeros at every place of a row, as a sum: for each row S.
template <class S, class Holder, class Fold, class... Tiles>
TESSERA_DEVICE auto reduce_tile(Holder& rows, const Fold& fold, Tiles&&... tiles) {
  RowValues<S, Holder::height> state{};
  for_each_place(
      rows, [&](auto h, auto&&... v) { fold(state.of_row[h], v...); }, tiles...);
  return rows.join(state, Add{});
}
/// The sum of a row.
template <class Holder, class X>
TESSERA_DEVICE auto reduce_tile(Holder& rows, const X& x) {
  using C = typename X::Element;
  return reduce_tile<C>(
      rows, [](C& s, C v) { s += v; }, x);
}

/// Adds rows to the sums of their columns.
template <class Holder, class Sums, class X>
TESSERA_DEVICE void add_tile(Holder& rows, Sums& sums, const X& x) {
  for_each_place(
      rows, [](auto, auto& sum, auto v) { sum += v; }, sums, x);
}

/// Mean and sum of squared deviations of each row, in two passes over what threads hold; of `rms`, 0 and the sum of
/// squares.
template <class Holder, class X>
TESSERA_DEVICE auto moments_tile(Holder& rows, const X& x, bool rms) {
  using C = typename X::Element;
  if constexpr (requires { rows.moments(x, rms); }) {
    return rows.moments(x, rms);
  } else {
    const C n = static_cast<C>(rows.length());
    const auto total = reduce_tile<C>(
        rows, [=](C& s, C v) { s = rms ? fma(v, v, s) : s + v; }, x);
    auto moments = map_tile([=](C s) { return Moments<C>{C(0), s, n}; }, total);
    if (rms) return moments;
    const auto mean = map_tile([=](C s) { return s / n; }, total);
    const auto squares = reduce_tile<C>(
        rows, [](C& s, C v, C m) { s = fma(v - m, v - m, s); }, x, mean);
    return map_tile([=](C m, C s) { return Moments<C>{m, s, n}; }, mean, squares);
  }
}

// ---- sums of exponentials

/// e^x as the hardware has it, to 2^-22 for x in [-1, 0]; double by the library.
TESSERA_DEVICE double fast_exp(double x) { return exp(x); }
TESSERA_DEVICE float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }

/// The largest element and the sum of e^(x - shift()): softmax in one pass (Milakov and Gimelshein, arXiv:1805.02867).
template <class C>
struct Exponents {
  C largest, sum;

  static TESSERA_DEVICE Exponents start() { return {-static_cast<C>(__builtin_inf()), C(0)}; }
  /// The largest; 0 where that is infinite, so that infinite elements still meet a finite shift.
  TESSERA_DEVICE C shift() const { return abs(largest) < static_cast<C>(__builtin_inf()) ? largest : C(0); }

  template <class T, int width>
  TESSERA_DEVICE void add(const Pack<T, width>& p) {
    const C top = largest_of(p);
    if (top > largest) move_to(top);
    add_beside(p, shift());
  }
  /// The same where the largest is known.
  template <class T, int width>
  TESSERA_DEVICE void add_beside(const Pack<T, width>& p, C by) {
    for (const C v : Lanes<T, width>(p).x) sum += fast_exp(v - by);
  }
  /// For another largest element.
  TESSERA_DEVICE void move_to(C top) {
    const Exponents next{top, C(0)};
    if (sum > C(0)) sum *= fast_exp(shift() - next.shift());
    largest = top;
  }
};
struct JoinExponents {
  template <class C>
  TESSERA_DEVICE Exponents<C> operator()(Exponents<C> a, Exponents<C> b) const {
    const C top = larger(a.largest, b.largest);
    a.move_to(top);
    b.move_to(top);
    return {top, a.sum + b.sum};
  }
};

/// A tile's packs as they lie in memory.
template <class X>
struct RawPacks {
  const X& x;
  template <class H, class At>
  TESSERA_DEVICE auto fetch(H h, const At& at) const {
    return x.fetch(h, at);
  }
  template <class H, class At, class Raw>
  TESSERA_DEVICE auto value(H h, const At& at, const Raw& raw) const {
    return x.pack(h, at, raw);
  }
};

/// The Exponents of a row: of one in registers by its largest element, of others in one pass.
template <class Holder, class X>
TESSERA_DEVICE auto exponents_tile(Holder& rows, const X& x) {
  using C = typename X::Element;
  const RawPacks<X> packs{x};
  auto e = Exponents<C>::start();
  const auto join = [&](C value, auto op) { return rows.join(RowValues<C, 1>{{value}}, op)[0]; };
  if constexpr (Holder::in_registers) {
    rows.each([&](auto, auto, const auto& p) { e.largest = larger(e.largest, largest_of(p)); }, packs);
    e.largest = join(e.largest, Larger{});
    rows.each([&, by = e.shift()](auto, auto, const auto& p) { e.add_beside(p, by); }, packs);
  } else {
    rows.each([&](auto, auto, const auto& p) { e.add(p); }, packs);
    e.move_to(join(e.largest, Larger{}));
  }
  e.sum = join(e.sum, Add{});
  return RowValues<Exponents<C>, 1>{{e}};
}

// ---- stores

/// A place of a row whose places lie as those that were read.
template <class T, class At, class V>
TESSERA_DEVICE void store_place(T* row, const At& at, const V& v) {
  Pack<T, At::width> out;
  unroll<At::width>([&](auto j) { out.lane[j] = convert_element<T>(v[j]); });
  store_at_once(row + at.column, out);
}
/// Stores rows, if there is a place for them; values of rows go to an array of them.
template <class Holder, class T, class X>
TESSERA_DEVICE void store_tile(Holder& rows, const Rows<T>& to, const X& x) {
  rows.store(to, x);
}
template <class Holder, class T, class X>
TESSERA_DEVICE void store_tile(Holder& rows, T* to, const X& values) {
  unroll<Holder::height>([&](auto h) {
    if (rows.is_first_thread() && rows.row(h) < rows.count()) to[rows.row(h)] = convert_element<T>(values[h]);
  });
}

TESSERA_TILE_END
