// Coordinate transforms: small values that map upper coordinates to lower ones.
//
// Ten names (pass, pad, affine, merge, unmerge, slice, fix, broadcast, swizzle, gather) for six kinds of
// arithmetic. Kinds and ranks are compile time, lengths and strides are fields (or Int<N>). Each type has
//   lower_rank, upper_rank     numbers of coordinates below and above
//   is_linear                  lower = constant + sum(coefficient * upper), and always valid
//   length<I>()                of upper dimension I
//   lower(u)                   the lower index
//   update(u, du, l)           how far the lower index moves when the upper one moved by du to u, from l
//   valid(l)                   whether lower index l may be read, where u lies inside its lengths
//   width<I>(w)                safe vector width along upper I, from those of the lower dimensions
//   motion(u, l, i, m)         while upper i advances by m.step: which lower dimension moves, how far, how
//   often
#pragma once
#include "numbers.h"

TESSERA_TILE_BEGIN

/// A walk along one dimension: `dim` advances by `step` (0 and -1: nothing moves), regularly `limit` times.
template <class X>
struct Motion {
  int dim;
  X step;
  X limit;
  constexpr TESSERA_HD void stop_after(X count) { limit = min(limit, count); }
};

/// lower = start + sum(coefficient * upper): pass, affine, unmerge, slice and fix.
template <class Start, class Lengths, class Coefs>
struct Affine {
  static constexpr int lower_rank = 1, upper_rank = Lengths::size;
  static constexpr bool is_linear = true;
  Start start;
  Lengths lengths;
  Coefs coefs;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    return get<I>(lengths);
  }
  template <int I>
  constexpr TESSERA_HD auto coef() const {
    return get<I>(coefs);
  }

  template <class X>
  constexpr TESSERA_HD Array<X, 1> update(const Array<X, upper_rank>&, const Array<X, upper_rank>& du,
                                          const Array<X, 1>&) const {
    X sum = 0;
    unroll<upper_rank>([&](auto i) { sum += du[i] * static_cast<X>(get<i>(coefs)); });
    return {sum};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 1> lower(const Array<X, upper_rank>& u) const {
    return {static_cast<X>(start) + update(u, u, {})[0]};
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, 1>&) const {
    return true;
  }

  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, 1>& w) {
    if (!is_same_v<decltype(get<I>(Coefs{})), Int<1>>) return 1;
    int common = gcd(w[0], divisor<Start>, divisor<decltype(get<I>(Lengths{}))>);
    unroll<upper_rank>([&](auto i) {
      if (i != I) common = gcd(common, divisor<decltype(get<i>(Coefs{}))>);
    });
    return common;
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, upper_rank>&, const Array<X, 1>&, int i, Motion<X>& m) const {
    X coef = 0;
    unroll<upper_rank>([&](auto k) { coef = k == i ? static_cast<X>(get<k>(coefs)) : coef; });
    m.dim = 0;
    m.step *= coef;
  }
};
// Functions, not deduction guides: those cannot be called on the device under clang 19.
template <class S, class L, class C>
constexpr TESSERA_HD Affine<S, L, C> make_affine(S start, L lengths, C coefs) {
  return {start, lengths, coefs};
}

/// The identity with `low` invalid coordinates before the lower dimension and `high` after it.
template <class Low, class Length, class High>
struct Pad {
  static constexpr int lower_rank = 1, upper_rank = 1;
  static constexpr bool is_linear = false;
  Low low;
  Length inner;
  High high;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    return add(add(low, inner), high);
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 1> lower(const Array<X, 1>& u) const {
    return {u[0] - static_cast<X>(low)};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 1> update(const Array<X, 1>&, const Array<X, 1>& du, const Array<X, 1>&) const {
    return du;
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, 1>& l) const {
    return l[0] >= 0 && l[0] < static_cast<X>(inner);
  }
  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, 1>& w) {
    return gcd(w[0], divisor<Low>, divisor<High>);
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, 1>&, const Array<X, 1>& l, int, Motion<X>& m) const {
    m.dim = 0;
    const X end = static_cast<X>(inner), at = l[0];
    if (m.step > 0 && at < 0) m.stop_after(ceil_div(-at, m.step));
    else if (m.step > 0 && at < end) m.stop_after(ceil_div(end - at, m.step));
    else if (m.step < 0 && at >= end) m.stop_after(ceil_div(at - end + 1, -m.step));
    else if (m.step < 0 && at >= 0) m.stop_after(at / -m.step + 1);
  }
};

/// Several lower dimensions as one; the last one runs fastest.
template <class Lengths>
struct Merge {
  static constexpr int lower_rank = Lengths::size, upper_rank = 1;
  static constexpr bool is_linear = false;
  Lengths lengths;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    return product_of(make_seq<lower_rank>{});
  }
  template <class X>
  constexpr TESSERA_HD Array<X, lower_rank> lower(const Array<X, 1>& u) const {
    Array<X, lower_rank> l{};
    X rest = u[0];
    unroll<lower_rank - 1>([&](auto k) {
      constexpr int i = lower_rank - 1 - k;
      const X q = quotient(rest, get<i>(lengths));
      l[i] = rest - q * static_cast<X>(get<i>(lengths));
      rest = q;
    });
    l[0] = rest;
    return l;
  }
  /// Adds with carry: it divides only when a coordinate moves further than its length.
  template <class X>
  constexpr TESSERA_HD Array<X, lower_rank> update(const Array<X, 1>&, const Array<X, 1>& du,
                                                   const Array<X, lower_rank>& l) const {
    Array<X, lower_rank> dl{};
    X carry = du[0];
    unroll<lower_rank - 1>([&](auto k) {
      constexpr int i = lower_rank - 1 - k;
      const X n = static_cast<X>(get<i>(lengths));
      X to = l[i] + carry, wraps = 0;
      if (to >= n) wraps = to < 2 * n ? 1 : to / n;
      else if (to < 0) wraps = to >= -n ? -1 : -ceil_div(-to, n);
      to -= wraps * n;
      dl[i] = to - l[i];
      carry = wraps;
    });
    dl[0] = carry;
    return dl;
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, lower_rank>&) const {
    return true;
  }
  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, lower_rank>& w) {
    return w[lower_rank - 1];
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, 1>&, const Array<X, lower_rank>& l, int, Motion<X>& m) const {
    constexpr int last = lower_rank - 1;
    const X n = static_cast<X>(get<last>(lengths));
    m.dim = last;
    if (m.step > 0) m.stop_after(max(X{1}, ceil_div(n - l[last], m.step)));
    else if (m.step < 0) m.stop_after(l[last] / -m.step + 1);
  }

 private:
  template <int... I>
  constexpr TESSERA_HD auto product_of(Seq<I...>) const {
    return product(get<I>(lengths)...);
  }
};

/// An upper dimension along which nothing moves.
template <class Length>
struct Broadcast {
  static constexpr int lower_rank = 0, upper_rank = 1;
  static constexpr bool is_linear = true;
  Length count;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    return count;
  }
  template <int I>
  constexpr TESSERA_HD Int<0> coef() const {
    return {};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 0> lower(const Array<X, 1>&) const {
    return {};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 0> update(const Array<X, 1>&, const Array<X, 1>&, const Array<X, 0>&) const {
    return {};
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, 0>&) const {
    return true;
  }
  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, 0>&) {
    return 1;
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, 1>&, const Array<X, 0>&, int, Motion<X>& m) const {
    m.dim = -1;
    m.step = 0;
  }
};

/// (row, column) -> (row, column ^ unit * (row / period % count)): spreads the rows of a column over the
/// banks of shared memory. `unit` and `count` are powers of two, and the column length a multiple of unit *
/// count.
template <class Rows, class Columns, int Unit, int Count, int Period>
struct Swizzle {
  static_assert(Unit > 0 && (Unit & (Unit - 1)) == 0, "swizzle: unit must be a power of two");
  static_assert(Count > 0 && (Count & (Count - 1)) == 0, "swizzle: count must be a power of two");
  static constexpr int lower_rank = 2, upper_rank = 2;
  static constexpr bool is_linear = false;
  Rows rows;
  Columns columns;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    if constexpr (I == 0) return rows;
    else return columns;
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 2> lower(const Array<X, 2>& u) const {
    return {u[0], u[1] ^ (u[0] / Period % Count * Unit)};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 2> update(const Array<X, 2>& u, const Array<X, 2>&, const Array<X, 2>& l) const {
    const auto to = lower(u);
    return {to[0] - l[0], to[1] - l[1]};
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, 2>&) const {
    return true;
  }
  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, 2>& w) {
    return I == 1 ? gcd(w[1], Unit) : 1;
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, 2>& u, const Array<X, 2>&, int i, Motion<X>& m) const {
    m.dim = i;
    if (i == 0) m.stop_after(1);
    else if (m.step == 1) m.stop_after(Unit - u[1] % Unit);
    else if (m.step != 0) m.stop_after(1);
  }
};

/// lower = table[upper...]: a page table, or the rows of an embedding. A negative entry is invalid.
template <class Entry, class Lengths, class Strides>
struct Gather {
  static constexpr int lower_rank = 1, upper_rank = Lengths::size;
  static constexpr bool is_linear = false;
  const Entry* table;
  Lengths lengths;
  Strides strides;

  template <int I>
  constexpr TESSERA_HD auto length() const {
    return get<I>(lengths);
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 1> lower(const Array<X, upper_rank>& u) const {
    bool inside = true;  // the table must not be read where a pad above has left its range
    i64 at = 0;
    unroll<upper_rank>([&](auto i) {
      inside &= u[i] >= 0 && u[i] < static_cast<X>(get<i>(lengths));
      at += static_cast<i64>(u[i]) * static_cast<i64>(get<i>(strides));
    });
    return {inside ? static_cast<X>(table[at]) : X{-1}};
  }
  template <class X>
  constexpr TESSERA_HD Array<X, 1> update(const Array<X, upper_rank>& u, const Array<X, upper_rank>&,
                                          const Array<X, 1>& l) const {
    return {lower(u)[0] - l[0]};
  }
  template <class X>
  constexpr TESSERA_HD bool valid(const Array<X, 1>& l) const {
    return l[0] >= 0;
  }
  template <int I>
  static constexpr TESSERA_HD int width(const Array<int, 1>&) {
    return 1;
  }
  template <class X>
  constexpr TESSERA_HD void motion(const Array<X, upper_rank>&, const Array<X, 1>&, int, Motion<X>& m) const {
    m.dim = 0;
    if (m.step != 0) m.stop_after(1);
  }
};

// ---- the ten names: what to do with which lower dimensions, before their lengths are known

/// The lower dimension after the one named last.
inline constexpr int next = -1;

/// A transform waiting for the lengths of its lower dimensions D...
template <class F, int... D>
struct Recipe {
  F make;
};
template <int... D, class F>
constexpr TESSERA_HD Recipe<F, D...> recipe(F make) {
  return {make};
}

/// The dimension as it is. Every maker takes the lower dimension as template argument; without it, the next
/// one: transform(x, pass<1>(), pass<0>()) transposes a matrix.
template <int D = next>
constexpr TESSERA_HD auto pass() {
  return recipe<D>([](auto n) { return make_affine(Int<0>{}, tuple(n), tuple(Int<1>{})); });
}

/// `low` coordinates before and `high` after the dimension, which are invalid and read as zero.
template <int D = next, class Low, class High>
constexpr TESSERA_HD auto pad(Low low, High high) {
  return recipe<D>([=](auto n) { return Pad<Low, decltype(n), High>{low, n, high}; });
}

/// start + sum(strides * upper) over several upper dimensions, e.g. the windows of a convolution:
/// affine(tuple(filter, output), tuple(dilation, stride)). The caller keeps it inside the lower length.
template <int D = next, class... L, class... S, class Start = Int<0>>
constexpr TESSERA_HD auto affine(Tuple<L...> lengths, Tuple<S...> strides, Start start = {}) {
  static_assert(sizeof...(L) == sizeof...(S), "affine: lengths and strides differ in number");
  return recipe<D>([=](auto) { return make_affine(start, lengths, strides); });
}
/// affine() with run-time lengths: embed({filter, output}, {dilation, stride}).
template <int D = next, int R>
constexpr TESSERA_HD auto embed(const i64 (&lengths)[R], const i64 (&strides)[R]) {
  return with_indices<R>([&]<int... I>(Seq<I...>) { return affine<D>(tuple(lengths[I]...), tuple(strides[I]...)); });
}

/// Dimensions D... as one, the last running fastest.
template <int... D>
constexpr TESSERA_HD auto merge() {
  static_assert(sizeof...(D) > 0, "merge: name the dimensions, as in merge<0, 2>()");
  return recipe<D...>([](auto... n) { return Merge<Tuple<decltype(n)...>>{tuple(n...)}; });
}

/// One dimension as several; the caller's lengths multiply to its length.
template <int D = next, class... L>
constexpr TESSERA_HD auto unmerge(Tuple<L...> lengths) {
  return recipe<D>([=](auto) { return make_affine(Int<0>{}, lengths, row_major_strides(lengths)); });
}
template <int D = next, int R>
constexpr TESSERA_HD auto unmerge(const i64 (&lengths)[R]) {
  return with_indices<R>([&]<int... I>(Seq<I...>) { return unmerge<D>(tuple(lengths[I]...)); });
}

/// `count` coordinates from `start`, `step` apart.
template <int D = next, class Start, class Count, class Step = Int<1>>
constexpr TESSERA_HD auto slice(Start start, Count count, Step step = {}) {
  return recipe<D>([=](auto) { return make_affine(start, tuple(count), tuple(step)); });
}

/// The dimension at one coordinate: it vanishes from above.
template <int D = next, class At>
constexpr TESSERA_HD auto fix(At at) {
  return recipe<D>([=](auto) { return make_affine(at, Tuple<>{}, Tuple<>{}); });
}

/// A new dimension of `length` equal entries; it has no lower dimension.
template <class Length>
constexpr TESSERA_HD auto broadcast(Length length) {
  return recipe<>([=]() { return Broadcast<Length>{length}; });
}

/// See Swizzle; Row and Column are the lower dimensions.
template <int Row, int Column, int Unit, int Count, int Period = 1>
constexpr TESSERA_HD auto swizzle() {
  return recipe<Row, Column>([](auto rows, auto columns) {
    return Swizzle<decltype(rows), decltype(columns), Unit, Count, Period>{rows, columns};
  });
}

/// Upper dimensions of the given lengths look their lower coordinate up in a strided table.
template <int D = next, class Entry, class... L, class... S>
constexpr TESSERA_HD auto gather(const Entry* table, Tuple<L...> lengths, Tuple<S...> strides) {
  static_assert(sizeof...(L) == sizeof...(S), "gather: lengths and strides differ in number");
  return recipe<D>([=](auto) { return Gather<Entry, Tuple<L...>, Tuple<S...>>{table, lengths, strides}; });
}
template <int D = next, class Entry, class Length>
constexpr TESSERA_HD auto gather(const Entry* table, Length length) {
  return gather<D>(table, tuple(length), tuple(Int<1>{}));
}

TESSERA_TILE_END
