// Fourier transforms of as many rows at once as a vector has lanes: element n of a transform is the vector of its real
// parts and that of its imaginary ones. Passes of mixed radix put results in order as they go (Stockham).
#pragma once
#include "../math.h"

TESSERA_TILE_BEGIN
namespace fourier {

template <class V>
struct Complex {
  V re, im;
  friend TESSERA_HD Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  friend TESSERA_HD Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  TESSERA_HD Complex operator*(V s) const { return {re * s, im * s}; }
  /// Times -i.
  TESSERA_HD Complex turned() const { return {im, -re}; }
};
template <class V>
TESSERA_HD Complex<V> times(Complex<V> a, Complex<V> w) {
  return {fma(a.re, w.re, -(a.im * w.im)), fma(a.re, w.im, a.im * w.re)};
}

template <class V, class T = element_t<V>>
TESSERA_HD Complex<V> read(const T* x, i64 n) {
  return {load<V>(x + 2 * n * V::lanes), load<V>(x + (2 * n + 1) * V::lanes)};
}
template <class V, class T = element_t<V>>
TESSERA_HD void write(T* y, i64 n, Complex<V> v) {
  store(y + 2 * n * V::lanes, v.re);
  store(y + (2 * n + 1) * V::lanes, v.im);
}
/// A number of a table, in all lanes.
template <class V, class T = element_t<V>>
TESSERA_HD Complex<V> factor(const T* table, i64 n) {
  return {V(table[2 * n]), V(table[2 * n + 1])};
}

/// The transform of R neighbours, in place.
template <int R, class V>
TESSERA_HD void butterfly(Complex<V> (&a)[R]) {
  using T = element_t<V>;
  if constexpr (R == 2) {
    const auto d = a[0] - a[1];
    a[0] = a[0] + a[1], a[1] = d;
  } else if constexpr (R == 3) {
    const V half(T(0.5)), height(T(0.86602540378443864676));
    const auto sum = a[1] + a[2], turned = (a[1] - a[2]).turned() * height, middle = a[0] - sum * half;
    a[0] = a[0] + sum, a[1] = middle + turned, a[2] = middle - turned;
  } else if constexpr (R == 4) {
    const auto even = a[0] + a[2], odd = a[1] + a[3], apart = a[0] - a[2], turned = (a[1] - a[3]).turned();
    a[0] = even + odd, a[1] = apart + turned, a[2] = even - odd, a[3] = apart - turned;
  } else {
    static_assert(R == 5);
    const V c1(T(0.30901699437494742410)), c2(T(-0.80901699437494742410)), s1(T(0.95105651629515357212)),
        s2(T(0.58778525229247312917));
    const auto near = a[1] + a[4], far = a[2] + a[3], n = (a[1] - a[4]).turned(), f = (a[2] - a[3]).turned();
    const auto m1 = a[0] + near * c1 + far * c2, m2 = a[0] + near * c2 + far * c1;
    const auto t1 = n * s1 + f * s2, t2 = n * s2 - f * s1;
    a[0] = a[0] + near + far, a[1] = m1 + t1, a[4] = m1 - t1, a[2] = m2 + t2, a[3] = m2 - t2;
  }
}

/// Of n elements that lie s apart, s transforms side by side: afterwards there are R s, of n / R elements.
template <int R, class V, class T = element_t<V>>
void pass(const T* x, T* y, i64 n, i64 s, const T* factors) {
  const i64 m = n / R;
  for (i64 p = 0; p < m; ++p, factors += 2 * (R - 1)) {
    Complex<V> w[R];
    for (int k = 1; k < R; ++k) w[k] = factor<V>(factors, k - 1);
    for (i64 q = 0; q < s; ++q) {
      Complex<V> a[R];
      TESSERA_UNROLL
      for (int j = 0; j < R; ++j) a[j] = read<V>(x, q + s * (p + m * j));
      butterfly(a);
      write(y, q + s * R * p, a[0]);
      TESSERA_UNROLL
      for (int k = 1; k < R; ++k) write(y, q + s * (R * p + k), m == 1 ? a[k] : times(a[k], w[k]));
    }
  }
}
/// The same for any radix up to `most`.
template <int most, class V, class T = element_t<V>>
void pass_of(int radix, const T* x, T* y, i64 n, i64 s, const T* factors, const T* roots) {
  const i64 m = n / radix;
  for (i64 p = 0; p < m; ++p, factors += 2 * (radix - 1))
    for (i64 q = 0; q < s; ++q) {
      Complex<V> a[most];
      for (int j = 0; j < radix; ++j) a[j] = read<V>(x, q + s * (p + m * j));
      for (int k = 0; k < radix; ++k) {
        Complex<V> sum = a[0];
        for (int j = 1, at = k; j < radix; ++j, at = (at + k) % radix) sum = sum + times(a[j], factor<V>(roots, at));
        write(y, q + s * (radix * p + k), k == 0 ? sum : times(sum, factor<V>(factors, k - 1)));
      }
    }
}

/// Forward, of plan.length elements in x. Returns where the results are: x or `room`, of as many elements, twice as
/// many of the longer length where there is a chirp.
template <class V, class Plan, class T = element_t<V>>
T* transform(const Plan& plan, T* x, T* room) {
  const auto table = [](const void* p) { return static_cast<const T*>(p); };
  if (plan.longer) {
    const i64 n = plan.length, longer = plan.longer->length;
    T *const a = room, *const b = room + 2 * longer * V::lanes;
    const auto put = [&](T* to, i64 i, Complex<V> v, bool turns) {  // an inverse is a transform with parts exchanged
      write<V>(to, i, turns ? Complex<V>{v.im, v.re} : v);
    };
    for (i64 i = 0; i < longer; ++i)
      put(a, i, i < n ? times(read<V>(x, i), factor<V>(table(plan.chirp), i)) : Complex<V>{V(T(0)), V(T(0))}, false);
    T* const found = transform<V>(*plan.longer, a, b);
    for (i64 i = 0; i < longer; ++i) put(found, i, times(read<V>(found, i), factor<V>(table(plan.spectrum), i)), true);
    const T* const back = transform<V>(*plan.longer, found, found == a ? b : a);
    for (i64 i = 0; i < n; ++i) {
      const Complex<V> v = read<V>(back, i);
      write(x, i, times(Complex<V>{v.im, v.re}, factor<V>(table(plan.chirp), i)));
    }
    return x;
  }
  i64 n = plan.length, s = 1;
  for (int i = 0; i < plan.passes; ++i) {
    const auto& [radix, factors, roots] = plan.pass[i];
    if (radix == 2) pass<2, V>(x, room, n, s, table(factors));
    else if (radix == 3) pass<3, V>(x, room, n, s, table(factors));
    else if (radix == 4) pass<4, V>(x, room, n, s, table(factors));
    else if (radix == 5) pass<5, V>(x, room, n, s, table(factors));
    else pass_of<Plan::largest_radix, V>(radix, x, room, n, s, table(factors), table(roots));
    T* const now = room;
    room = x, x = now;
    n /= radix, s *= radix;
  }
  return x;
}

}  // namespace fourier
TESSERA_TILE_END
