// Determinants, inverses and factors of small matrices: elimination, by a function for each matrix where there is one
// (small_matrix_ways.h), else step by step for the whole batch.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/gradient.h"
#include "ops/on_host.h"
#include "ops/precise.h"
#include "ops/small_matrix_ways.h"
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

// ---- by one function for the whole batch

// a [batch, n, n] -> [batch]
Tensor determinants(const Tensor& a, const SmallMatrixWays& by) {
  const int64_t n = a.size(1);
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
  return custom_function("det", {a}, by.determinants, backward)[0];
}

// a [batch, n, n], b [batch, n, m] -> x [batch, n, m], and where a is singular.
Tensors solutions(const Tensor& a, const Tensor& b, const SmallMatrixWays& by) {
  const auto backward = [slopes = by.slopes](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (!grad_enabled()) return custom_function("solve_backward", {in[0], out[0], grads[0]}, slopes, {});
    const Tensor db = solve(transpose(in[0], 1, 2), grads[0]);
    return Tensors{-matmul(db, transpose(solve(in[0], in[1]), 1, 2)), db};
  };
  return custom_function("solve", {a, b}, by.solutions, backward);
}

Tensor composed_factor(const Tensor& a);

// a [batch, n, n] -> the lower factor, which depends on the lower triangle alone, and where there is none.
Tensors factors(const Tensor& a, const SmallMatrixWays& by) {
  const auto backward = [slopes = by.factor_slopes](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_factor(in[0])}, {in[0]}, {grads[0]}, false, true);
    return custom_function("cholesky_backward", {out[0], grads[0]}, slopes, {});
  };
  return custom_function("cholesky", {a}, by.factors, backward);
}

}  // namespace

Tensor det(const Tensor& a) {
  const int64_t n = require_square("det", a);
  return in_single(a, [&](const Tensor& v) {
    const Tensor batch = reshape(v, {leading(a).numel(), n, n});
    const SmallMatrixWays* const by = small_matrix_ways(batch);
    return reshape(by ? determinants(batch, *by) : Eliminated(batch, n).determinant, leading(a));
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
    constexpr int64_t most = 64;  // columns that a GPU's thread solves for
    const SmallMatrixWays* const by = small_matrix_ways(left);
    if (by && right.device() == left.device() && (on_host(left) || right.size(-1) <= most)) {
      const Tensors found = solutions(as_batch(left, n), as_batch(right, m), *by);
      refuse(op, a, found[1], "singular");
      return reshape(found[0], shape);
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
    const SmallMatrixWays* const by = small_matrix_ways(whole);
    Tensors found = by ? factors(whole, *by) : Tensors{composed_factor(whole)};
    if (found.size() < 2) found.push_back(any(isnan(diagonal(found[0], 0, 1, 2)), {1}));
    refuse("cholesky", a, found[1], "not positive definite");
    return reshape(found[0], a.shape());
  });
}

}  // namespace tessera
