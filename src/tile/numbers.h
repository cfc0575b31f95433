// Integers that are known at compile time, or only by a divisor, and the few containers of the tile library.
#pragma once
#include "base.h"

TESSERA_TILE_BEGIN

// ---- sequences and loops over compile-time integers

template <int... I>
struct Seq {};

template <class A, class B>
struct JoinSeq;
template <int... A, int... B>
struct JoinSeq<Seq<A...>, Seq<B...>> {
  using type = Seq<A..., (static_cast<int>(sizeof...(A)) + B)...>;
};

template <int N>
struct MakeSeq {
  using type = typename JoinSeq<typename MakeSeq<N / 2>::type, typename MakeSeq<N - N / 2>::type>::type;
};
template <>
struct MakeSeq<0> {
  using type = Seq<>;
};
template <>
struct MakeSeq<1> {
  using type = Seq<0>;
};

/// Seq<0, 1, ..., N-1>.
template <int N>
using make_seq = typename MakeSeq<N>::type;

template <class F, int... I>
constexpr TESSERA_HD void unroll_over(F& f, Seq<I...>) {
  (f(Int<I>{}), ...);
}

/// f(Int<0>{}), ..., f(Int<N-1>{}): a loop whose counter is a constant expression.
template <int N, class F>
constexpr TESSERA_HD void unroll(F&& f) {
  unroll_over(f, make_seq<N>{});
}

/// f(Seq<0, ..., N-1>{}): for what needs the whole pack at once.
template <int N, class F>
constexpr TESSERA_HD auto with_indices(F&& f) {
  return f(make_seq<N>{});
}

template <int... A, int... B>
constexpr TESSERA_HD Seq<A..., B...> operator+(Seq<A...>, Seq<B...>) {
  return {};
}
/// The i-th entry.
template <int... V>
constexpr TESSERA_HD int entry(Seq<V...>, int i) {
  int value = -1, k = 0;
  ((value = k++ == i ? V : value), ...);
  return value;
}
/// The sum of the first n entries.
template <int... V>
constexpr TESSERA_HD int sum_before(Seq<V...>, int n) {
  int sum = 0, k = 0;
  ((sum += k++ < n ? V : 0), ...);
  return sum;
}

// ---- containers

/// A fixed array that may be empty, a coordinate for instance: Array<i64, 2>{row, column}.
template <class T, int N>
struct Array {
  static constexpr int size = N;
  T items[N > 0 ? N : 1];
  constexpr TESSERA_HD T& operator[](int i) { return items[i]; }
  constexpr TESSERA_HD const T& operator[](int i) const { return items[i]; }
};

template <class To, class From, int N>
constexpr TESSERA_HD Array<To, N> convert(const Array<From, N>& from) {
  Array<To, N> to{};
  unroll<N>([&](auto i) { to[i] = static_cast<To>(from[i]); });
  return to;
}

template <int I, class T>
struct Slot {
  T value;
  constexpr TESSERA_HD T get() const { return value; }
};
template <int I, int N>
struct Slot<I, Int<N>> {  // takes no space
  constexpr Slot() = default;
  constexpr TESSERA_HD Slot(Int<N>) {}
  constexpr TESSERA_HD Int<N> get() const { return {}; }
};

template <class S, class... T>
struct TupleSlots;
template <int... I, class... T>
struct TupleSlots<Seq<I...>, T...> : Slot<I, T>... {};

/// Values of different types; constants (Int<N>) among them take no space.
template <class... T>
struct Tuple : TupleSlots<make_seq<sizeof...(T)>, T...> {
  static constexpr int size = sizeof...(T);
};

template <class... T>
constexpr TESSERA_HD Tuple<T...> tuple(T... values) {
  return {{{values}...}};
}

template <int I, class T>
constexpr TESSERA_HD T get_slot(const Slot<I, T>& slot) {
  return slot.get();
}
template <int I, class... T>
constexpr TESSERA_HD auto get(const Tuple<T...>& t) {
  return get_slot<I>(t);
}

template <int I, class T>
using element = decltype(get<I>(T{}));

// ---- numbers: Int<N>, Multiple<N>, i32 or i64

/// A run-time integer of which a divisor is known: vector widths are derived from it.
template <int N, class T = i64>
struct Multiple {
  T value;
  constexpr TESSERA_HD operator T() const { return value; }
};
/// Anything that converts to an integer.
template <class T>
concept Number = requires(T n) {
  static_cast<i64>(n);
};

/// The promise that `value` is a multiple of N.
template <int N, class T>
constexpr TESSERA_HD Multiple<N, T> multiple_of(T value) {
  return {value};
}

template <class T>
struct NumberTraits {
  static constexpr bool is_static = false;
  static constexpr int divisor = 1;
  using Index = conditional_t<(sizeof(T) > 4), i64, i32>;
};
template <int N>
struct NumberTraits<Int<N>> {
  static constexpr bool is_static = true;
  static constexpr int divisor = N < 0 ? -N : N;  // 0: every number divides it
  using Index = i32;
};
template <int N, class T>
struct NumberTraits<Multiple<N, T>> {
  static constexpr bool is_static = false;
  static constexpr int divisor = N;
  using Index = typename NumberTraits<T>::Index;
};

template <class... T>
struct NumberTraits<Tuple<T...>> {
  using Index = conditional_t<((sizeof(typename NumberTraits<T>::Index) > 4) || ... || false), i64, i32>;
};

template <class T>
inline constexpr bool is_static = NumberTraits<T>::is_static;
template <class T>
inline constexpr int divisor = NumberTraits<T>::divisor;
/// The type to compute with: i64 as soon as one of the numbers is that wide.
template <class... T>
using index_of = typename NumberTraits<Tuple<T...>>::Index;

/// Entry `i` of a tuple of numbers; costs nothing where `i` is known to the compiler.
template <class... T>
constexpr TESSERA_HD i64 pick(const Tuple<T...>& numbers, int i) {
  i64 value = 0;
  unroll<sizeof...(T)>([&](auto k) { value = k == i ? static_cast<i64>(get<k>(numbers)) : value; });
  return value;
}

constexpr TESSERA_HD int gcd(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
template <class... T>
constexpr TESSERA_HD int gcd(int a, int b, int c, T... more) {
  return gcd(gcd(a, b), c, more...);
}
constexpr TESSERA_HD int gcd(int a) { return a; }

/// a * b that stays as static as its operands.
template <class A, class B>
constexpr TESSERA_HD auto mul(A a, B b) {
  if constexpr (is_static<A> && is_static<B>) return Int<A::value * B::value>{};
  else if constexpr (is_same_v<A, Int<0>> || is_same_v<B, Int<0>>) return Int<0>{};
  else if constexpr (is_same_v<A, Int<1>>) return b;
  else if constexpr (is_same_v<B, Int<1>>) return a;
  else {
    using X = index_of<A, B>;
    constexpr int known = divisor<A> * divisor<B>;
    const X product = static_cast<X>(a) * static_cast<X>(b);
    if constexpr (known > 1) return Multiple<known, X>{product};
    else return product;
  }
}

/// a + b that stays as static as its operands.
template <class A, class B>
constexpr TESSERA_HD auto add(A a, B b) {
  if constexpr (is_static<A> && is_static<B>) return Int<A::value + B::value>{};
  else if constexpr (is_same_v<A, Int<0>>) return b;
  else if constexpr (is_same_v<B, Int<0>>) return a;
  else {
    using X = index_of<A, B>;
    constexpr int known = gcd(divisor<A>, divisor<B>);
    const X sum = static_cast<X>(a) + static_cast<X>(b);
    if constexpr (known > 1) return Multiple<known, X>{sum};
    else return sum;
  }
}

template <class N>
constexpr TESSERA_HD auto product(N n) {
  return n;
}
template <class A, class B, class... N>
constexpr TESSERA_HD auto product(A a, B b, N... more) {
  return product(mul(a, b), more...);
}

/// Row-major strides of the given lengths: {b * c, c, 1} for {a, b, c}.
template <class... L>
constexpr TESSERA_HD auto row_major_strides(const Tuple<L...>& lengths) {
  constexpr int rank = sizeof...(L);
  const auto stride = [&]<int I, int... K>(Int<I>, Seq<K...>) { return product(Int<1>{}, get<I + 1 + K>(lengths)...); };
  return with_indices<rank>([&]<int... I>(Seq<I...>) { return tuple(stride(Int<I>{}, make_seq<rank - 1 - I>{})...); });
}

/// a / n; 64-bit division is slow on every processor, so the usual small operands take the 32-bit one.
template <class X, class N>
constexpr TESSERA_HD X quotient(X a, N n) {
  if constexpr (is_static<N> || sizeof(X) <= 4) return a / static_cast<X>(n);
  else {
    const u64 ua = static_cast<u64>(a), ub = static_cast<u64>(static_cast<X>(n));
    if (((ua | ub) >> 32) == 0) return static_cast<X>(static_cast<u32>(ua) / static_cast<u32>(ub));
    return a / static_cast<X>(n);
  }
}

/// What numbers below 2^31 are multiplied by where they are divided, exactly, by one of those: a division would take
/// twenty instructions.
struct Inverse {
  u32 factor = 0;
  int shift = 0;  // 2^shift is the divisor or the next power of two; factor the least above 2^(31 + shift) / divisor

  static Inverse of(i64 divisor) {
    Inverse inverse;
    while ((i64{1} << inverse.shift) < divisor) ++inverse.shift;
    inverse.factor = static_cast<u32>((u64{1} << (31 + inverse.shift)) / static_cast<u64>(divisor) + 1);
    return inverse;
  }
  TESSERA_HD int operator()(int number) const {
    return static_cast<int>(static_cast<u32>(static_cast<u64>(static_cast<u32>(number) << 1) * factor >> 32) >> shift);
  }
};

TESSERA_TILE_END
