// Vec<T, N>: N lanes of T, over the vector extensions of GCC and clang, or an array where a GPU compiler has
// none. Every function here also takes a plain scalar, so that one kernel source serves both.
#pragma once

#include "numbers.h"
#include "simd.h"

#if defined(__GNUC__) && !TESSERA_GPU_COMPILER
#pragma GCC diagnostic ignored "-Wpsabi"  // every function is inlined: no vector crosses a call
#endif

TESSERA_TILE_BEGIN

/// Bytes of the widest register of the instruction set this is compiled for.
#if defined(__AVX512F__)
inline constexpr int native_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int native_bytes = 32;
#else
inline constexpr int native_bytes = 16;
#endif

template <int Bytes>
struct SignedOfSize;
template <>
struct SignedOfSize<1> {
  using type = i8;
};
template <>
struct SignedOfSize<2> {
  using type = i16;
};
template <>
struct SignedOfSize<4> {
  using type = i32;
};
template <>
struct SignedOfSize<8> {
  using type = i64;
};

template <class T, int N>
struct Vec;

/// What a comparison yields: lanes of -1 (true) or 0.
template <class T, int N>
using MaskOf = Vec<typename SignedOfSize<sizeof(T)>::type, N>;

template <class T, int N>
struct Vec {
  using Element = T;
  static constexpr int lanes = N;
#if TESSERA_GPU_COMPILER
  struct Native {
    T lane[N];
    TESSERA_HD T& operator[](int i) { return lane[i]; }
    TESSERA_HD const T& operator[](int i) const { return lane[i]; }
  };
#else
  typedef T Native __attribute__((vector_size(N * sizeof(T))));
#endif

  Native v;

  Vec() = default;
  /// The same value in every lane.
#if TESSERA_GPU_COMPILER
  TESSERA_HD Vec(T s) {
    for (int i = 0; i < N; ++i) v[i] = s;
  }
#else
  TESSERA_HD Vec(T s) : v(s - Native{}) {}
#endif

  static TESSERA_HD Vec of(Native native) {
    Vec r;
    r.v = native;
    return r;
  }

  TESSERA_HD T operator[](int i) const { return v[i]; }
  TESSERA_HD void set(int i, T s) { v[i] = s; }

#if TESSERA_GPU_COMPILER
#define TESSERA_VEC_BINARY(op)                             \
  friend TESSERA_HD Vec operator op(Vec a, Vec b) {        \
    for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op b.v[i]; \
    return a;                                              \
  }
#define TESSERA_VEC_COMPARE(op)                                     \
  friend TESSERA_HD MaskOf<T, N> operator op(Vec a, Vec b) {        \
    MaskOf<T, N> m;                                                 \
    for (int i = 0; i < N; ++i) m.v[i] = a.v[i] op b.v[i] ? -1 : 0; \
    return m;                                                       \
  }
  friend TESSERA_HD Vec operator-(Vec a) {
    for (int i = 0; i < N; ++i) a.v[i] = -a.v[i];
    return a;
  }
  friend TESSERA_HD Vec operator~(Vec a) {
    for (int i = 0; i < N; ++i) a.v[i] = ~a.v[i];
    return a;
  }
#else
#define TESSERA_VEC_BINARY(op) \
  friend TESSERA_HD Vec operator op(Vec a, Vec b) { return Vec::of(a.v op b.v); }
#define TESSERA_VEC_COMPARE(op)                                           \
  friend TESSERA_HD MaskOf<T, N> operator op(Vec a, Vec b) {              \
    return MaskOf<T, N>::of((typename MaskOf<T, N>::Native)(a.v op b.v)); \
  }
  friend TESSERA_HD Vec operator-(Vec a) { return Vec::of(-a.v); }
  friend TESSERA_HD Vec operator~(Vec a) { return Vec::of(~a.v); }
#endif
  TESSERA_VEC_BINARY(+)
  TESSERA_VEC_BINARY(-)
  TESSERA_VEC_BINARY(*)
  TESSERA_VEC_BINARY(/)
  TESSERA_VEC_BINARY(&)
  TESSERA_VEC_BINARY(|)
  TESSERA_VEC_BINARY(^)
  TESSERA_VEC_BINARY(<<)
  TESSERA_VEC_BINARY(>>)
  TESSERA_VEC_COMPARE(<)
  TESSERA_VEC_COMPARE(<=)
  TESSERA_VEC_COMPARE(>)
  TESSERA_VEC_COMPARE(>=)
  TESSERA_VEC_COMPARE(==)
  TESSERA_VEC_COMPARE(!=)
#undef TESSERA_VEC_BINARY
#undef TESSERA_VEC_COMPARE

  TESSERA_HD Vec& operator+=(Vec b) { return *this = *this + b; }
  TESSERA_HD Vec& operator-=(Vec b) { return *this = *this - b; }
  TESSERA_HD Vec& operator*=(Vec b) { return *this = *this * b; }
  TESSERA_HD Vec& operator/=(Vec b) { return *this = *this / b; }
};

/// A vector that fills one register.
template <class T>
using NativeVec = Vec<T, native_bytes / static_cast<int>(sizeof(T))>;

template <class V>
struct VecTraits {
  using Element = V;
  static constexpr int lanes = 1;
  template <class T>
  using Rebind = T;
};
template <class T, int N>
struct VecTraits<Vec<T, N>> {
  using Element = T;
  static constexpr int lanes = N;
  template <class U>
  using Rebind = Vec<U, N>;
};
/// Element type, lane count, and the same shape with another element type, of a Vec or a scalar.
template <class V>
using element_t = typename VecTraits<V>::Element;
template <class V>
inline constexpr int lanes_v = VecTraits<V>::lanes;
template <class V, class T>
using rebind_t = typename VecTraits<V>::template Rebind<T>;

template <class V>
TESSERA_HD element_t<V> get(const V& v, int i) {
  if constexpr (lanes_v<V> == 1 && is_same_v<V, element_t<V>>) {
    return v;
  } else {
    return v[i];
  }
}
template <class V>
TESSERA_HD void set(V& v, int i, element_t<V> s) {
  if constexpr (lanes_v<V> == 1 && is_same_v<V, element_t<V>>) {
    v = s;
  } else {
    v.set(i, s);
  }
}

/// f applied lane by lane: for what has no vector form.
template <class V, class F>
TESSERA_HD V map_lanes(V v, F f) {
  for (int i = 0; i < lanes_v<V>; ++i) set(v, i, f(get(v, i)));
  return v;
}
template <class V, class F>
TESSERA_HD V map_lanes(V a, V b, F f) {
  for (int i = 0; i < lanes_v<V>; ++i) set(a, i, f(get(a, i), get(b, i)));
  return a;
}

/// 0, 1, 2, ...
template <class V>
TESSERA_HD V iota() {
  V v;
  for (int i = 0; i < lanes_v<V>; ++i) set(v, i, static_cast<element_t<V>>(i));
  return v;
}

/// The same bits as another vector of the same size.
template <class To, class From>
TESSERA_HD To vec_bits(From v) {
#if TESSERA_GPU_COMPILER
  return bit_cast<To>(v);
#else
  if constexpr (is_same_v<To, element_t<To>>) {
    return bit_cast<To>(v);
  } else {
    return To::of((typename To::Native)(v.v));
  }
#endif
}

/// Lane-wise conversion between element types (float to integer truncates).
template <class T, class V>
TESSERA_HD rebind_t<V, T> convert(V v) {
  if constexpr (is_same_v<V, element_t<V>>) {
    return convert_element<T>(v);
  } else if constexpr (is_same_v<T, element_t<V>>) {
    return v;
  } else {
#if TESSERA_GPU_COMPILER
    rebind_t<V, T> r;
    for (int i = 0; i < lanes_v<V>; ++i) r.v[i] = convert_element<T>(v[i]);
    return r;
#else
    return rebind_t<V, T>::of(__builtin_convertvector(v.v, typename rebind_t<V, T>::Native));
#endif
  }
}

// ---- interleaving: a zip of vectors a and b is a[0], b[0], a[1], b[1], ... ---------------------------------

template <class V>
struct VecPair {
  V first, second;
};
namespace detail {
/// Lanes `from...` of a and, counted on from its last, of b.
template <class V, int... From>
TESSERA_HD V pick_lanes(V a, V b, Seq<From...>) {
#if TESSERA_GPU_COMPILER
  constexpr int from[] = {From...};
  V r;
  for (int i = 0; i < lanes_v<V>; ++i) r.set(i, from[i] < lanes_v<V> ? a[from[i]] : b[from[i] - lanes_v<V>]);
  return r;
#else
  return V::of(__builtin_shufflevector(a.v, b.v, From...));
#endif
}
template <class V, int... I>
TESSERA_HD VecPair<V> zip(V a, V b, Seq<I...>) {
  constexpr int n = lanes_v<V>;
  return {pick_lanes(a, b, Seq<(I / 2 + I % 2 * n)...>{}), pick_lanes(a, b, Seq<(n / 2 + I / 2 + I % 2 * n)...>{})};
}
template <class V, int... I>
TESSERA_HD VecPair<V> unzip(V a, V b, Seq<I...>) {
  return {pick_lanes(a, b, Seq<2 * I...>{}), pick_lanes(a, b, Seq<(2 * I + 1)...>{})};
}
}  // namespace detail

/// Both vectors of a zip.
template <class T, int N>
TESSERA_HD VecPair<Vec<T, N>> zip(Vec<T, N> a, Vec<T, N> b) {
  return detail::zip(a, b, make_seq<N>{});
}
/// The vectors of which first and second are the zip: what has even places, and what has odd ones.
template <class T, int N>
TESSERA_HD VecPair<Vec<T, N>> unzip(Vec<T, N> first, Vec<T, N> second) {
  return detail::unzip(first, second, make_seq<N>{});
}

// ---- choice, minimum, maximum, fused multiply-add -------------------------------------------------------

TESSERA_HD float select(bool c, float a, float b) { return c ? a : b; }
TESSERA_HD double select(bool c, double a, double b) { return c ? a : b; }
TESSERA_HD i32 select(bool c, i32 a, i32 b) { return c ? a : b; }
TESSERA_HD i64 select(bool c, i64 a, i64 b) { return c ? a : b; }
TESSERA_HD bool any(bool c) { return c; }
TESSERA_HD bool all(bool c) { return c; }

/// a where the mask is true, b elsewhere.
template <class M, class T, int N>
TESSERA_HD Vec<T, N> select(Vec<M, N> mask, Vec<T, N> a, Vec<T, N> b) {
  static_assert(sizeof(M) == sizeof(T), "a mask has lanes as wide as the values it chooses");
#if TESSERA_GPU_COMPILER
  for (int i = 0; i < N; ++i) a.v[i] = mask.v[i] ? a.v[i] : b.v[i];
  return a;
#else
  return Vec<T, N>::of(mask.v ? a.v : b.v);
#endif
}
template <class M, class T, int N>
TESSERA_HD Vec<T, N> select(Vec<M, N> mask, Vec<T, N> a, T b) {
  return select(mask, a, Vec<T, N>(b));
}
#if TESSERA_X86
template <class V>
inline constexpr bool has_simd = sizeof(V) >= 16 && sizeof(V) <= native_bytes &&
                                 (is_same_v<element_t<V>, float> ||
                                  is_same_v<element_t<V>, double>)&&!is_same_v<V, element_t<V>>;
template <class V>
inline constexpr bool is_wide = sizeof(V) > native_bytes;
#else
template <class V>
inline constexpr bool has_simd = false;
template <class V>
inline constexpr bool is_wide = false;
#endif

/// A vector as its two halves.
template <class V>
struct Halves {
  using Half = Vec<element_t<V>, lanes_v<V> / 2>;
  Half low, high;
};
namespace detail {
template <class V, class F, class... A>
TESSERA_HD V by_halves(F f, A... a) {
  return bit_cast<V>(Halves<V>{f(bit_cast<Halves<A>>(a).low...), f(bit_cast<Halves<A>>(a).high...)});
}
}  // namespace detail

namespace detail {
/// Lanes of a mask combined, by halves down to a word.
template <class M, int N, class F>
TESSERA_HD auto folded(Vec<M, N> mask, F f) {
  if constexpr (sizeof(mask) > 8 && !TESSERA_GPU_COMPILER) {
    const auto halves = bit_cast<Halves<Vec<M, N>>>(mask);
    if constexpr (N > 2) return folded(f(halves.low, halves.high), f);
    else return f(mask[0], mask[1]);
  } else {
    M r = mask[0];
    for (int i = 1; i < N; ++i) r = f(r, mask[i]);
    return r;
  }
}
}  // namespace detail
template <class M, int N>
TESSERA_HD bool any(Vec<M, N> mask) {
  return detail::folded(mask, [](auto a, auto b) { return a | b; }) != 0;
}
template <class M, int N>
TESSERA_HD bool all(Vec<M, N> mask) {
  return detail::folded(mask, [](auto a, auto b) { return a & b; }) != 0;
}

/// The smaller; where a lane is not a number, a's value (so min(x, bound) keeps x's NaN).
template <class T, int N>
TESSERA_HD Vec<T, N> min(Vec<T, N> a, Vec<T, N> b) {
#if TESSERA_X86
  if constexpr (has_simd<Vec<T, N>>) return Vec<T, N>::of(simd::min(b.v, a.v));
  if constexpr (is_wide<Vec<T, N>>) return detail::by_halves<Vec<T, N>>([](auto x, auto y) { return min(x, y); }, a, b);
#endif
  return select(b < a, b, a);
}
template <class T, int N>
TESSERA_HD Vec<T, N> max(Vec<T, N> a, Vec<T, N> b) {
#if TESSERA_X86
  if constexpr (has_simd<Vec<T, N>>) return Vec<T, N>::of(simd::max(b.v, a.v));
  if constexpr (is_wide<Vec<T, N>>) return detail::by_halves<Vec<T, N>>([](auto x, auto y) { return max(x, y); }, a, b);
#endif
  return select(a < b, b, a);
}

TESSERA_HD float fma(float a, float b, float c) {
#if defined(__CUDACC__)
  return ::fmaf(a, b, c);
#elif defined(__HIPCC__) || defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;  // without the instruction a fused result costs a library call
#endif
}
TESSERA_HD double fma(double a, double b, double c) {
#if defined(__CUDACC__)
  return ::fma(a, b, c);
#elif defined(__HIPCC__) || defined(__FMA__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
/// a * b + c, rounded once where the processor can.
TESSERA_HD i32 fma(i32 a, i32 b, i32 c) {
  return static_cast<i32>(static_cast<u32>(a) * static_cast<u32>(b) + static_cast<u32>(c));
}
TESSERA_HD i64 fma(i64 a, i64 b, i64 c) {
  return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b) + static_cast<u64>(c));
}
template <class T, int N>
TESSERA_HD Vec<T, N> fma(Vec<T, N> a, Vec<T, N> b, Vec<T, N> c) {
#if TESSERA_GPU_COMPILER
  for (int i = 0; i < N; ++i) a.v[i] = fma(a.v[i], b.v[i], c.v[i]);
  return a;
#else
#if defined(__FMA__) && defined(__AVX2__)
  if constexpr (has_simd<Vec<T, N>>) return Vec<T, N>::of(simd::fma(a.v, b.v, c.v));
  if constexpr (is_wide<Vec<T, N>>) {
    return detail::by_halves<Vec<T, N>>([](auto x, auto y, auto z) { return fma(x, y, z); }, a, b, c);
  }
#endif
  return a * b + c;
#endif
}

/// sum = fma(a, b, sum) where registers are scarce: sum stays where it is.
template <class V>
TESSERA_HD void add_product(V& sum, V a, V b) {
#if TESSERA_X86 && defined(__FMA__) && defined(__AVX2__)
  if constexpr (has_simd<V> && sizeof(V) >= 32) return simd::add_product(sum.v, a.v, b.v);
#endif
  sum = fma(a, b, sum);
}

#if defined(__CUDACC__)
TESSERA_HD float sqrt(float x) { return ::sqrtf(x); }
TESSERA_HD double sqrt(double x) { return ::sqrt(x); }
#else
TESSERA_HD float sqrt(float x) { return __builtin_sqrtf(x); }
TESSERA_HD double sqrt(double x) { return __builtin_sqrt(x); }
#endif
template <class T, int N>
TESSERA_HD Vec<T, N> sqrt(Vec<T, N> x) {
#if TESSERA_X86
  if constexpr (has_simd<Vec<T, N>>) return Vec<T, N>::of(simd::sqrt(x.v));
  if constexpr (is_wide<Vec<T, N>>) return detail::by_halves<Vec<T, N>>([](auto y) { return sqrt(y); }, x);
#endif
  return map_lanes(x, [](T s) { return sqrt(s); });
}

// ---- reductions: a fixed tree, so that the result never depends on the surroundings ---------------------

/// op over all lanes: lane i meets lane i + N/2, and so on down.
template <class V, class Op>
TESSERA_HD element_t<V> reduce(V v, Op op) {
  if constexpr (is_same_v<V, element_t<V>>) {
    return v;
  } else if constexpr (lanes_v<V> == 1) {
    return v[0];
  } else {
    const auto h = bit_cast<Halves<V>>(v);
    return reduce(op(h.low, h.high), op);
  }
}
struct Add {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return max(a, b);
  }
};
struct Min {
  template <class V>
  TESSERA_HD V operator()(V a, V b) const {
    return min(a, b);
  }
};
template <class V>
TESSERA_HD element_t<V> reduce_sum(V v) {
  return reduce(v, Add{});
}
template <class V>
TESSERA_HD element_t<V> reduce_max(V v) {
  return reduce(v, Max{});
}
template <class V>
TESSERA_HD element_t<V> reduce_min(V v) {
  return reduce(v, Min{});
}

// ---- memory ---------------------------------------------------------------------------------------------

namespace detail {

template <class T, int N>
TESSERA_HD Vec<T, N> load_same(const T* p) {
  Vec<T, N> v;
#if TESSERA_GPU_COMPILER
  for (int i = 0; i < N; ++i) v.v[i] = p[i];
#else
  __builtin_memcpy(&v.v, p, sizeof v.v);
#endif
  return v;
}
template <class T, int N>
TESSERA_HD Vec<T, N> load_same(const T* p, int n) {
#if defined(__AVX2__) && !TESSERA_GPU_COMPILER
  if constexpr (has_simd<Vec<T, N>> && sizeof(Vec<T, N>) >= 32) {
    return Vec<T, N>::of(simd::load_first(p, n, Int<N>{}));
  }
#endif
  T lane[N] = {};
  for (int i = 0; i < N; ++i)
    if (i < n) lane[i] = p[i];
  return load_same<T, N>(lane);
}
template <class T, int N>
TESSERA_HD void store_same(T* p, Vec<T, N> v) {
#if TESSERA_GPU_COMPILER
  for (int i = 0; i < N; ++i) p[i] = v.v[i];
#else
  __builtin_memcpy(p, &v.v, sizeof v.v);
#endif
}
template <class T, int N>
TESSERA_HD void store_same(T* p, Vec<T, N> v, int n) {
#if defined(__AVX2__) && !TESSERA_GPU_COMPILER
  if constexpr (has_simd<Vec<T, N>> && sizeof(Vec<T, N>) >= 32) {
    simd::store_first(p, v.v, n);
    return;
  }
#endif
  for (int i = 0; i < N; ++i)
    if (i < n) p[i] = v[i];
}

/// Vec<float, N> from 16-bit patterns and back.
template <class H, int N>
TESSERA_HD Vec<float, N> widen_half(Vec<u16, N> bits) {
  if constexpr (is_same_v<H, bf16>) {
    return vec_bits<Vec<float, N>>(convert<u32>(bits) << Vec<u32, N>(16u));
  } else {
#if defined(__F16C__) && !TESSERA_GPU_COMPILER
    if constexpr (N == 8 || (N == 16 && native_bytes == 64)) {
      return Vec<float, N>::of(simd::widen_f16(bits.v));
    }
#endif
    Vec<float, N> r;
    for (int i = 0; i < N; ++i) r.set(i, f16_to_f32(bits[i]));
    return r;
  }
}
template <class H, int N>
TESSERA_HD Vec<u16, N> narrow_half(Vec<float, N> v) {
  if constexpr (is_same_v<H, bf16> && !TESSERA_GPU_COMPILER) {
    using U = Vec<u32, N>;
    const U b = vec_bits<U>(v);
    const U rounded = (b + U(0x7fffu) + ((b >> U(16u)) & U(1u))) >> U(16u);
    return convert<u16>(select(v == v, rounded, (b >> U(16u)) | U(0x40u)));
  } else {
#if defined(__F16C__) && !TESSERA_GPU_COMPILER
    if constexpr (N == 8 || (N == 16 && native_bytes == 64)) {
      return Vec<u16, N>::of(simd::narrow_f16(v.v));
    }
#endif
    Vec<u16, N> r;
    for (int i = 0; i < N; ++i) r.set(i, H(v[i]).bits);
    return r;
  }
}

template <class S>
inline constexpr bool is_half = is_same_v<S, f16> || is_same_v<S, bf16>;

}  // namespace detail

/// lanes_v<V> consecutive elements from p, converted to V's element type; no alignment needed.
template <class V, class S>
TESSERA_HD V load(const S* p) {
  using T = element_t<V>;
  if constexpr (is_same_v<V, T>) {
    return convert_element<T>(*p);
  } else if constexpr (detail::is_half<S>) {
    const auto bits = detail::load_same<u16, lanes_v<V>>(reinterpret_cast<const u16*>(p));
    return convert<T>(detail::widen_half<S>(bits));
  } else {
    return convert<T>(detail::load_same<S, lanes_v<V>>(p));
  }
}

/// The first n elements from p (n may be 0 or exceed the lanes); the other lanes are zero and not read.
template <class V, class S>
TESSERA_HD V load(const S* p, int n) {
  using T = element_t<V>;
  if constexpr (is_same_v<V, T>) {
    return n > 0 ? convert_element<T>(*p) : T(0);
  } else if constexpr (detail::is_half<S>) {
    const auto bits = detail::load_same<u16, lanes_v<V>>(reinterpret_cast<const u16*>(p), n);
    return convert<T>(detail::widen_half<S>(bits));
  } else {
    return convert<T>(detail::load_same<S, lanes_v<V>>(p, n));
  }
}

/// Elements at a constant stride; the first n of them where n is given.
template <class V, class S>
TESSERA_HD V load_strided(const S* p, i64 stride, int n = lanes_v<V>) {
  if constexpr (is_same_v<V, element_t<V>>) {
    return load<V>(p, n);
  } else {
    element_t<V> lane[lanes_v<V>] = {};
    for (int i = 0; i < lanes_v<V>; ++i)
      if (i < n) lane[i] = convert_element<element_t<V>>(p[i * stride]);
    return load<V>(static_cast<const element_t<V>*>(lane));
  }
}

/// Stores every lane, converted to S.
template <class S, class V>
TESSERA_HD void store(S* p, V v) {
  if constexpr (is_same_v<V, element_t<V>>) {
    *p = convert_element<S>(v);
  } else if constexpr (detail::is_half<S>) {
    detail::store_same(reinterpret_cast<u16*>(p), detail::narrow_half<S>(convert<float>(v)));
  } else {
    detail::store_same(p, convert<S>(v));
  }
}

/// Stores the first n lanes and touches nothing behind them.
template <class S, class V>
TESSERA_HD void store(S* p, V v, int n) {
  if constexpr (is_same_v<V, element_t<V>>) {
    if (n > 0) *p = convert_element<S>(v);
  } else if constexpr (detail::is_half<S>) {
    detail::store_same(reinterpret_cast<u16*>(p), detail::narrow_half<S>(convert<float>(v)), n);
  } else {
    detail::store_same(p, convert<S>(v), n);
  }
}

template <class S, class V>
TESSERA_HD void store_strided(S* p, i64 stride, V v, int n = lanes_v<V>) {
  for (int i = 0; i < lanes_v<V>; ++i)
    if (i < n) p[i * stride] = convert_element<S>(get(v, i));
}

TESSERA_TILE_END
