// Determinants, inverses and factors of small matrices: elimination, on the host matrix by matrix, else step by step
// for the whole batch.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/on_host.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

int64_t require_square(std::string_view op, const Tensor& a) {
  if (a.dim() < 2 || !(a.shape()[a.dim() - 1] == a.shape()[a.dim() - 2]) || !is_floating(a.dtype()))
    throw Error(fmt::format("{}: takes square matrices of a floating dtype, not {}", op, describe(a)));
  return a.size(-1);
}

Tensor numbers_to(int64_t n, const Tensor& like) { return arange(0, static_cast<double>(n), 1, Int64, like.device()); }

// Of [batch, n, w]: the rows k and p [batch, 1] exchanged.
Tensor exchange_rows(const Tensor& x, int64_t k, const Tensor& p) {
  const int64_t n = x.size(1);
  const Tensor row = reshape(numbers_to(n, x), {1, n}), first = number_like(row, static_cast<double>(k));
  const Tensor from = where(eq(row, first), p, where(eq(row, p), first, row));
  return gather(x, 1, expand(unsqueeze(from, -1), x.shape()));
}

// Gauss and Jordan: rows [batch, n, w], whose first n columns become the identity, the determinant of these, and where
// it is 0. A pivot of 0 is passed over.
struct Eliminated {
  Tensor rows, determinant, singular;
  Eliminated(Tensor given, int64_t n) : rows(std::move(given)) {
    const Tensor number = numbers_to(n, rows), one = number_like(rows, 1), zero = number_like(rows, 0);
    determinant = ones({rows.shape()[0]}, rows.dtype(), rows.device());
    singular = zeros({rows.shape()[0]}, Bool, rows.device());
    for (int64_t k = 0; k < n; ++k) {
      const Tensor at = number_like(number, static_cast<double>(k));
      const Tensor below = where(ge(number, at), abs(select(rows, 2, k)), number_like(rows, -1));
      const Tensor largest = argmax(below, 1, true);
      rows = exchange_rows(rows, k, largest);
      const Tensor row = slice(rows, 1, k, k + 1), pivot = select(row, 2, k);
      determinant = determinant * squeeze(where(eq(largest, at), pivot, -pivot), 1);
      const Tensor none = eq(pivot, zero);
      singular = logical_or(singular, squeeze(none, 1));
      const Tensor scaled = row / unsqueeze(where(none, one, pivot), -1);
      const Tensor this_row = reshape(eq(number, at), {1, n, 1});
      rows = where(this_row, scaled, rows - slice(rows, 2, k, k + 1) * scaled);
    }
  }
};

// The CPU says which of the matrices a is `bad`, [batch]. A GPU, which is not waited for, gives NaN.
void refuse(std::string_view op, const Tensor& a, const Tensor& bad, std::string_view what) {
  if (bad.device().is_gpu() || bad.device().meta || is_capturing()) return;
  const auto flags = bad.to_vector<bool>();
  const auto at = std::find(flags.begin(), flags.end(), true) - flags.begin();
  if (at == static_cast<int64_t>(flags.size())) return;
  throw Error(fmt::format("{}: matrix {} of {} is {}", op, at, to_string(a.shape()), what));
}

Shape leading(const Tensor& a) { return Shape(a.shape().begin(), a.shape().end() - 2); }

// ---- on the host

// Gauss with row pivots: a [n, n] becomes its upper factor, b [n, m] what the lower one leaves of it. Returns the
// determinant. A pivot of 0 is passed over.
template <class T>
T eliminate_below(T* a, int64_t n, T* b, int64_t m) {
  T determinant(1);
  for (int64_t k = 0; k < n; ++k) {
    int64_t best = k;
    for (int64_t r = k + 1; r < n; ++r)
      if (std::abs(a[r * n + k]) > std::abs(a[best * n + k])) best = r;
    if (best != k) {
      std::swap_ranges(a + k * n, a + (k + 1) * n, a + best * n);
      std::swap_ranges(b + k * m, b + (k + 1) * m, b + best * m);
      determinant = -determinant;
    }
    const T pivot = a[k * n + k];
    determinant *= pivot;
    if (pivot == T(0)) continue;
    for (int64_t r = k + 1; r < n; ++r) {
      const T factor = a[r * n + k] / pivot;
      for (int64_t c = k + 1; c < n; ++c) a[r * n + c] -= factor * a[k * n + c];
      for (int64_t c = 0; c < m; ++c) b[r * m + c] -= factor * b[k * m + c];
    }
  }
  return determinant;
}

// With the upper factor.
template <class T>
void substitute_back(const T* a, int64_t n, T* b, int64_t m) {
  for (int64_t k = n; k-- > 0;) {
    T* const row = b + k * m;
    for (int64_t r = k + 1; r < n; ++r)
      for (int64_t c = 0; c < m; ++c) row[c] -= a[k * n + r] * b[r * m + c];
    for (int64_t c = 0; c < m; ++c) row[c] /= a[k * n + k];
  }
}

// The lower factor of a, zeros above it, column by column. Returns whether there is one.
template <class T>
bool cholesky_factor(const T* a, int64_t n, T* l) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) l[i * n + j] = j > i ? T(0) : a[i * n + j];
  for (int64_t k = 0; k < n; ++k) {
    T& pivot = l[k * n + k];
    if (!(pivot > T(0))) return false;
    pivot = std::sqrt(pivot);
    const T inverse = T(1) / pivot;
    for (int64_t i = k + 1; i < n; ++i) l[i * n + k] *= inverse;
    for (int64_t i = k + 1; i < n; ++i)
      for (int64_t j = k + 1; j <= i; ++j) l[i * n + j] -= l[i * n + k] * l[j * n + k];
  }
  return true;
}

// fn(number of the matrix, the tensors' elements of it), of f32 or f64.
template <class Fn, class... Tensor>
void each_matrix(int64_t count, int64_t cost, const Fn& fn, const Tensor&... t) {
  const auto run = [&](auto... data) {
    each_part(count, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn(i, data + i * (t.numel() / count)...);
    });
  };
  const bool is_double = (... || (t.dtype() == Float64));
  if (count == 0) return;
  if (is_double) run(t.template data<double>()...);
  else run(t.template data<float>()...);
}

// a [batch, n, n] -> [batch]
Tensor host_determinants(const Tensor& a) {
  const int64_t n = a.size(1);
  const auto forward = [n](const Tensors& in) {
    const Tensor rows = in[0].clone(), out = empty({in[0].shape()[0]}, in[0].dtype());
    each_matrix(
        rows.size(0), n * n * n,
        [&]<class T>(int64_t, T* a, T* determinant) { *determinant = eliminate_below<T>(a, n, nullptr, 0); }, rows,
        out);
    return Tensors{out};
  };
  // g det a^-T, where a has an inverse.
  const auto backward = [n](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({Eliminated(in[0], n).determinant}, {in[0]}, grads, false, true);
    if (any(eq(out[0], number_like(out[0], 0))).item<bool>()) {
      const GradMode on(true);
      const Tensor own = in[0].detach().set_requires_grad();
      return grad({Eliminated(own, n).determinant}, {own}, grads);
    }
    const auto column = [](const Tensor& t) { return reshape(t, {t.shape()[0], Dim(1), Dim(1)}); };
    return Tensors{transpose(inverse(in[0]), 1, 2) * column(grads[0] * out[0])};
  };
  return custom_function("det", {a}, forward, backward)[0];
}

struct Solutions {
  Tensor x, singular;
};

// a [batch, n, n], b [batch, n, m] -> x [batch, n, m], and where a is singular.
Solutions host_solutions(const Tensor& a, const Tensor& b) {
  const int64_t n = a.size(1), m = b.size(2), cost = n * n * (n + m);
  const auto forward = [=](const Tensors& in) {
    const Tensor rows = in[0].clone(), x = in[1].clone(), singular = empty({in[0].shape()[0]}, Bool);
    bool* const flags = singular.data<bool>();
    each_matrix(
        rows.size(0), cost,
        [&]<class T>(int64_t i, T* left, T* right) {
          eliminate_below(left, n, right, m);
          flags[i] = false;
          for (int64_t k = 0; k < n; ++k) flags[i] |= left[k * n + k] == T(0);
          substitute_back(left, n, right, m);
        },
        rows, x);
    return Tensors{x, singular};
  };
  // a, x, the gradient of x -> those of a and b: of the transposed system, and its product with x.
  const auto slopes = [=](const Tensors& in) {
    const Tensor da = transpose(in[0], 1, 2).clone(), db = in[2].clone(), x = contiguous(in[1]);
    each_matrix(
        da.size(0), cost,
        [&]<class T>(int64_t, T* left, T* right, const T* from) {
          eliminate_below(left, n, right, m);
          substitute_back(left, n, right, m);
          for (int64_t r = 0; r < n; ++r)
            for (int64_t c = 0; c < n; ++c) {
              T sum(0);
              for (int64_t k = 0; k < m; ++k) sum += right[r * m + k] * from[c * m + k];
              left[r * n + c] = -sum;
            }
        },
        da, db, x);
    return Tensors{da, db};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (!grad_enabled()) return custom_function("solve_backward", {in[0], out[0], grads[0]}, slopes, {});
    const Tensor db = solve(transpose(in[0], 1, 2), grads[0]);
    return Tensors{-matmul(db, transpose(solve(in[0], in[1]), 1, 2)), db};
  };
  const Tensors out = custom_function("solve", {a, b}, forward, backward);
  return {out[0], out[1]};
}

// g -> the gradient of the lower triangle of a, of its factor l.
template <class T>
void gradient_of_factor(const T* l, const T* g, int64_t n, T* da, T* room) {
  T* const p = room;  // the lower triangle of l^T g, half of its diagonal, as a symmetric matrix
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      T sum(0);
      for (int64_t k = i; k < n; ++k) sum += l[k * n + i] * g[k * n + j];
      p[i * n + j] = p[j * n + i] = sum / T(2);
    }
  const auto divide = [&](auto at) {  // the columns of a matrix by l^T, from the left
    for (int64_t c = 0; c < n; ++c)
      for (int64_t k = n; k-- > 0;) {
        T rest = at(k, c);
        for (int64_t r = k + 1; r < n; ++r) rest -= l[r * n + k] * at(r, c);
        at(k, c) = rest / l[k * n + k];
      }
  };
  divide([&](int64_t r, int64_t c) -> T& { return p[r * n + c]; });
  divide([&](int64_t r, int64_t c) -> T& { return p[c * n + r]; });
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) da[i * n + j] = j > i ? T(0) : p[i * n + j] * T(i == j ? 1 : 2);
}

Tensor composed_factor(const Tensor& a);

// a [batch, n, n] -> the lower factor, which depends on the lower triangle alone, and where there is none.
Tensors host_factor(const Tensor& a) {
  const int64_t n = a.size(1);
  const auto forward = [n](const Tensors& in) {
    const Tensor from = contiguous(in[0]), l = empty(in[0].shape(), in[0].dtype()),
                 none = empty({in[0].shape()[0]}, Bool);
    bool* const flags = none.data<bool>();
    each_matrix(
        l.size(0), n * n * n,
        [&]<class T>(int64_t i, const T* a, T* to) {
          flags[i] = !cholesky_factor(a, n, to);
          if (flags[i]) std::fill_n(to, n * n, static_cast<T>(NAN));
        },
        from, l);
    return Tensors{l, none};
  };
  const auto slope = [n](const Tensors& in) {
    const Tensor l = contiguous(in[0]), g = contiguous(in[1]), da = empty(l.shape(), l.dtype()),
                 room = empty(l.shape(), l.dtype());
    each_matrix(
        l.size(0), 4 * n * n * n,
        [&]<class T>(int64_t, const T* factor, const T* slopes, T* to, T* p) {
          gradient_of_factor<T>(factor, slopes, n, to, p);
        },
        l, g, da, room);
    return Tensors{da};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_factor(in[0])}, {in[0]}, {grads[0]}, false, true);
    return custom_function("cholesky_backward", {out[0], grads[0]}, slope, {});
  };
  return custom_function("cholesky", {a}, forward, backward);
}

}  // namespace

Tensor det(const Tensor& a) {
  const int64_t n = require_square("det", a);
  return in_single(a, [&](const Tensor& v) {
    const Tensor batch = reshape(v, {leading(a).numel(), n, n});
    return reshape(on_host(v) ? host_determinants(batch) : Eliminated(batch, n).determinant, leading(a));
  });
}

namespace {
Tensor solved(std::string_view op, const Tensor& a, const Tensor& b) {
  const int64_t n = require_square(op, a);
  if (b.dim() < 2 || !(b.shape()[b.dim() - 2] == Dim(n)) || !is_floating(b.dtype()))
    throw Error(fmt::format("solve: {} and {} are no system of equations", describe(a), describe(b)));
  const Shape outer = broadcast_shapes("solve", leading(a), leading(b));
  const Dim m = b.shape()[b.dim() - 1];
  return in_single(a, b, [&](const Tensor& left, const Tensor& right) {
    const auto as_batch = [&](const Tensor& t, Dim width) {
      Shape shape = outer;
      shape.push_back(n);
      shape.push_back(width);
      return reshape(expand(t, shape), {outer.numel(), Dim(n), width});
    };
    Shape shape = outer;
    shape.push_back(n);
    shape.push_back(m);
    if (on_host(left) && on_host(right)) {
      const Solutions found = host_solutions(as_batch(left, n), as_batch(right, m));
      refuse(op, a, found.singular, "singular");
      return reshape(found.x, shape);
    }
    const Eliminated done(concat({as_batch(left, n), as_batch(right, m)}, 2), n);
    refuse(op, a, done.singular, "singular");
    const Tensor x = slice(done.rows, 2, Dim(n), m + n);
    const Tensor singular = reshape(done.singular, {outer.numel(), Dim(1), Dim(1)});
    return reshape(where(singular, number_like(x, NAN), x), shape);
  });
}
}  // namespace

Tensor solve(const Tensor& a, const Tensor& b) { return solved("solve", a, b); }

Tensor inverse(const Tensor& a) {
  const int64_t n = require_square("inverse", a);
  return solved("inverse", a, cast(eq(reshape(numbers_to(n, a), {n, 1}), numbers_to(n, a)), a.dtype()));
}

namespace {
// A column after the other: what the columns before it do not explain, by the root of the pivot.
Tensor composed_factor(const Tensor& a) {
  const int64_t n = a.size(1);
  const Tensor number = reshape(numbers_to(n, a), {1, n, 1});
  Tensors columns;
  for (int64_t k = 0; k < n; ++k) {
    Tensor rest = slice(a, 2, k, k + 1);
    if (k > 0) {
      const Tensor before = concat(columns, 2);
      rest = rest - matmul(before, transpose(slice(before, 1, k, k + 1), 1, 2));
    }
    const Tensor column = rest / sqrt(slice(rest, 1, k, k + 1));
    const Tensor here = ge(number, number_like(number, static_cast<double>(k)));
    columns.push_back(where(here, column, number_like(column, 0)));
  }
  return concat(columns, 2);
}
}  // namespace

Tensor cholesky(const Tensor& a) {
  const int64_t n = require_square("cholesky", a);
  return in_single(a, [&](const Tensor& v) {
    const Tensor whole = reshape(v, {leading(a).numel(), n, n});
    if (n == 0) return reshape(whole, a.shape());
    Tensors found = on_host(v) ? host_factor(whole) : Tensors{composed_factor(whole)};
    if (found.size() < 2) found.push_back(any(isnan(diagonal(found[0], 0, 1, 2)), {1}));
    refuse("cholesky", a, found[1], "not positive definite");
    return reshape(found[0], a.shape());
  });
}

}  // namespace tessera
