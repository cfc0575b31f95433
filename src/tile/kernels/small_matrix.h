// Determinants, solutions and Cholesky's factors of a small matrix, which one thread has: on the host and on GPUs.
#pragma once
#include "../math.h"

TESSERA_TILE_BEGIN

/// Elements row after row, `step` apart, unless all of a kind lie side by side, where `dense` says so: on GPUs it is
/// the number of matrices, so that neighbouring threads read neighbours.
template <class T, bool dense>
struct SmallMatrix {
  using Element = T;
  T* data;
  i64 width, step = 1;
  struct Row {
    T* data;
    i64 step;
    TESSERA_HD T& operator[](i64 column) const { return data[dense ? column : column * step]; }
  };
  TESSERA_HD Row row(i64 r) const { return {data + r * (dense ? width : width * step), step}; }
  TESSERA_HD T& operator()(i64 r, i64 column) const { return row(r)[column]; }
};

/// Gauss with row pivots: a [n, n] becomes its upper factor, b [n, any] what the lower one leaves of it. Returns the
/// determinant. A pivot of 0 is passed over.
template <class M, class T = typename M::Element>
TESSERA_HD T eliminate_below(const M& a, const M& b) {
  const i64 n = a.width, m = b.width;
  const auto exchange = [](const auto& x, const auto& y, i64 first, i64 count) {
    for (i64 c = first; c < count; ++c) {
      const T kept = x[c];
      x[c] = y[c], y[c] = kept;
    }
  };
  T determinant(1);
  for (i64 k = 0; k < n; ++k) {
    i64 best = k;
    T largest = tile::abs(a(k, k));
    for (i64 r = k + 1; r < n; ++r)
      if (const T size = tile::abs(a(r, k)); size > largest) largest = size, best = r;
    const auto from = a.row(k), right = b.row(k);
    if (best != k) {
      exchange(from, a.row(best), k, n);
      exchange(right, b.row(best), 0, m);
      determinant = -determinant;
    }
    const T pivot = from[k];
    determinant *= pivot;
    if (pivot == T(0)) continue;
    for (i64 r = k + 1; r < n; ++r) {
      const auto to = a.row(r), beside = b.row(r);
      const T factor = to[k] / pivot;
      for (i64 c = k + 1; c < n; ++c) to[c] -= factor * from[c];
      for (i64 c = 0; c < m; ++c) beside[c] -= factor * right[c];
    }
  }
  return determinant;
}

/// With the upper factor a. Returns whether its diagonal has a 0.
template <class M, class T = typename M::Element>
TESSERA_HD bool substitute_back(const M& a, const M& b) {
  const i64 n = a.width, m = b.width;
  bool singular = false;
  for (i64 k = n; k-- > 0;) {
    const auto factors = a.row(k), to = b.row(k);
    for (i64 r = k + 1; r < n; ++r) {
      const auto from = b.row(r);
      const T factor = factors[r];
      for (i64 c = 0; c < m; ++c) to[c] -= factor * from[c];
    }
    const T pivot = factors[k];
    for (i64 c = 0; c < m; ++c) to[c] /= pivot;
    singular |= pivot == T(0);
  }
  return singular;
}

/// The gradient of a x = b: of b it is g, once solved with a transposed; of a it replaces that, minus g x'.
template <class M, class T = typename M::Element>
TESSERA_HD void slopes_of_solution(const M& transposed, const M& g, const M& x) {
  eliminate_below(transposed, g);
  substitute_back(transposed, g);
  for (i64 r = 0; r < transposed.width; ++r)
    for (i64 c = 0; c < transposed.width; ++c) {
      T sum(0);
      for (i64 k = 0; k < x.width; ++k) sum += g(r, k) * x(c, k);
      transposed(r, c) = -sum;
    }
}

/// The lower factor, with zeros above, in place of a symmetric matrix of which the lower triangle is read. Returns
/// whether there is one.
template <class M, class T = typename M::Element>
TESSERA_HD bool cholesky_factor(const M& l) {
  const i64 n = l.width;
  for (i64 i = 0; i < n; ++i)
    for (i64 j = i + 1; j < n; ++j) l(i, j) = T(0);
  for (i64 k = 0; k < n; ++k) {
    if (!(l(k, k) > T(0))) return false;
    const T pivot = tile::sqrt(l(k, k)), inverse = T(1) / pivot;
    l(k, k) = pivot;
    for (i64 i = k + 1; i < n; ++i) l(i, k) *= inverse;
    for (i64 i = k + 1; i < n; ++i) {
      const auto row = l.row(i);
      const T factor = row[k];
      for (i64 j = k + 1; j <= i; ++j) row[j] -= factor * l(j, k);
    }
  }
  return true;
}

/// g -> da, the gradient of the lower triangle of a, of its factor l (Murray, arXiv:1602.07527). `p`: room for a
/// matrix.
template <class M, class T = typename M::Element>
TESSERA_HD void slopes_of_factor(const M& l, const M& g, const M& da, const M& p) {
  const i64 n = l.width;
  for (i64 i = 0; i < n; ++i)  // the lower triangle of l' g, half of its diagonal, as a symmetric matrix
    for (i64 j = 0; j <= i; ++j) {
      T sum(0);
      for (i64 k = i; k < n; ++k) sum += l(k, i) * g(k, j);
      p(i, j) = p(j, i) = sum / T(2);
    }
  const auto divide = [&](const auto& at) {  // the columns of a matrix by l', from the left
    for (i64 c = 0; c < n; ++c)
      for (i64 k = n; k-- > 0;) {
        T rest = at(k, c);
        for (i64 r = k + 1; r < n; ++r) rest -= l(r, k) * at(r, c);
        at(k, c) = rest / l(k, k);
      }
  };
  divide([&](i64 r, i64 c) -> T& { return p(r, c); });
  divide([&](i64 r, i64 c) -> T& { return p(c, r); });
  for (i64 i = 0; i < n; ++i)
    for (i64 j = 0; j < n; ++j) da(i, j) = j > i ? T(0) : p(i, j) * T(i == j ? 1 : 2);
}

TESSERA_TILE_END
