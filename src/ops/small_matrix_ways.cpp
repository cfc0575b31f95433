#include "ops/small_matrix_ways.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <string>

#include "ops/on_card.h"
#include "ops/on_host.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"
#include "tile/kernels/small_matrix.h"

namespace tessera {
namespace {

Tensor flags_of(const Tensor& a) { return empty({a.shape()[0]}, Bool, a.device()); }

// ---- on the host

template <class T>
using Dense = tile::SmallMatrix<T, true>;

// fn(number of the matrix, each tensor's matrix), of f32 or f64.
template <class Fn, std::same_as<Tensor>... Rest>
void each_matrix(int64_t cost, const Fn& fn, const Tensor& first, const Rest&... rest) {
  const auto run = [&]<class T>(T*) {
    each_part(first.size(0), cost, [&](int64_t begin, int64_t end) {
      const auto matrix = [](const Tensor& t, int64_t i) {
        return Dense<T>{t.data<T>() + i * t.size(1) * t.size(2), t.size(2)};
      };
      for (int64_t i = begin; i < end; ++i) fn(i, matrix(first, i), matrix(rest, i)...);
    });
  };
  if (first.dtype() == Float64) run(static_cast<double*>(nullptr));
  else run(static_cast<float*>(nullptr));
}

template <class T>
void fill(const Dense<T>& m, int64_t rows, T value) {
  std::fill_n(m.data, rows * m.width, value);
}

int64_t cost_of(const Tensor& a, int64_t columns) { return a.size(1) * a.size(1) * (a.size(1) + columns); }

Tensors host_determinants(const Tensors& in) {
  const Tensor a = in[0].clone(), out = empty({a.shape()[0]}, a.dtype());
  each_matrix(
      cost_of(a, 0),
      [&]<class T>(int64_t i, const Dense<T>& m) {
        out.data<T>()[i] = tile::eliminate_below(m, Dense<T>{m.data, 0});
      },
      a);
  return {out};
}

// Functions of their own, whose loops have all registers.
template <class T>
[[gnu::noinline]] bool solve_one(Dense<T> a, Dense<T> b) {
  tile::eliminate_below(a, b);
  return tile::substitute_back(a, b);
}
template <class T>
[[gnu::noinline]] void slopes_of_one(Dense<T> a, Dense<T> g, Dense<T> x) {
  tile::slopes_of_solution(a, g, x);
}

Tensors host_solutions(const Tensors& in) {
  const Tensor a = in[0].clone(), x = in[1].clone(), singular = flags_of(a);
  bool* const flags = singular.data<bool>();
  each_matrix(
      cost_of(a, x.size(2)),
      [&]<class T>(int64_t i, const Dense<T>& left, const Dense<T>& right) {
        flags[i] = solve_one(left, right);
        if (flags[i]) fill(right, left.width, static_cast<T>(NAN));
      },
      a, x);
  return {x, singular};
}

Tensors host_slopes(const Tensors& in) {
  const Tensor da = transpose(in[0], 1, 2).clone(), db = in[2].clone(), x = contiguous(in[1]);
  each_matrix(
      cost_of(da, x.size(2)), [](int64_t, const auto& a, const auto& g, const auto& of) { slopes_of_one(a, g, of); },
      da, db, x);
  return {da, db};
}

Tensors host_factors(const Tensors& in) {
  const Tensor l = in[0].clone(), none = flags_of(l);
  bool* const flags = none.data<bool>();
  each_matrix(
      cost_of(l, 0),
      [&]<class T>(int64_t i, const Dense<T>& m) {
        flags[i] = !tile::cholesky_factor(m);
        if (flags[i]) fill(m, m.width, static_cast<T>(NAN));
      },
      l);
  return {l, none};
}

Tensors host_factor_slopes(const Tensors& in) {
  const Tensor l = contiguous(in[0]), g = contiguous(in[1]);
  const Tensor da = empty(l.shape(), l.dtype()), room = empty(l.shape(), l.dtype());
  each_matrix(
      4 * cost_of(l, 0),
      [](int64_t, const auto& factor, const auto& slopes, const auto& to, const auto& p) {
        tile::slopes_of_factor(factor, slopes, to, p);
      },
      l, g, da, room);
  return {da};
}

// ---- on a GPU, where matrices lie as [n, m, batch]

constexpr int64_t most_rows = 16;  // beyond, a thread is slower than a launch for each step of all

const std::string small_matrices = R"(
#include <tessera/tile/kernels/small_matrix.h>
using Matrix = SmallMatrix<T, false>;
TESSERA_DEVICE i64 own() { return block_in_grid() * 256 + thread_in_block(); }
TESSERA_DEVICE void fill(const Matrix& m, i64 rows, T value) {
  for (i64 r = 0; r < rows; ++r)
    for (i64 c = 0; c < m.width; ++c) m(r, c) = value;
}
)";

CardKernel determinants_kernel("determinants", small_matrices + R"(
extern "C" TESSERA_KERNEL(256) void determinants(T* a, T* out, i64 n, i64 count) {
  if (own() < count) out[own()] = eliminate_below(Matrix{a + own(), n, count}, Matrix{a, 0, 0});
}
)");
CardKernel solutions_kernel("solutions", small_matrices + R"(
extern "C" TESSERA_KERNEL(256) void solutions(T* a, T* x, bool* singular, i64 n, i64 m, i64 count) {
  if (own() >= count) return;
  const Matrix left{a + own(), n, count}, right{x + own(), m, count};
  eliminate_below(left, right);
  singular[own()] = substitute_back(left, right);
  if (singular[own()]) fill(right, n, T(__builtin_nanf("")));
}
)");
CardKernel slopes_kernel("slopes_of_solutions", small_matrices + R"(
extern "C" TESSERA_KERNEL(256) void slopes_of_solutions(T* a, T* g, T* x, i64 n, i64 m, i64 count) {
  if (own() < count)
    slopes_of_solution(Matrix{a + own(), n, count}, Matrix{g + own(), m, count}, Matrix{x + own(), m, count});
}
)");
CardKernel factors_kernel("cholesky_factors", small_matrices + R"(
extern "C" TESSERA_KERNEL(256) void cholesky_factors(T* l, bool* none, i64 n, i64 count) {
  if (own() >= count) return;
  const Matrix factor{l + own(), n, count};
  none[own()] = !cholesky_factor(factor);
  if (none[own()]) fill(factor, n, T(__builtin_nanf("")));
}
)");
CardKernel factor_slopes_kernel("slopes_of_factors", small_matrices + R"(
extern "C" TESSERA_KERNEL(256) void slopes_of_factors(T* l, T* g, T* da, T* room, i64 n, i64 count) {
  const auto matrix = [&](T* data) { return Matrix{data + own(), n, count}; };
  if (own() < count) slopes_of_factor(matrix(l), matrix(g), matrix(da), matrix(room));
}
)");

// A copy with the batch last, and such a tensor with it first.
Tensor batch_last(const Tensor& t) { return t.permute({1, 2, 0}).clone(); }
Tensor batch_first(const Tensor& t) { return t.permute({2, 0, 1}); }

int64_t blocks_of(const Tensor& t) { return (t.size(2) + 255) / 256; }

Tensors card_determinants(const Tensors& in) {
  const Tensor a = batch_last(in[0]), out = empty({a.shape()[2]}, a.dtype(), a.device());
  determinants_kernel.launch(a, blocks_of(a), a.data_ptr(), out.data_ptr(), a.size(0), a.size(2));
  return {out};
}

Tensors card_solutions(const Tensors& in) {
  const Tensor a = batch_last(in[0]), x = batch_last(in[1]), singular = flags_of(in[0]);
  solutions_kernel.launch(a, blocks_of(a), a.data_ptr(), x.data_ptr(), singular.data_ptr(), a.size(0), x.size(1),
                          a.size(2));
  return {batch_first(x), singular};
}

Tensors card_slopes(const Tensors& in) {
  const Tensor da = batch_last(transpose(in[0], 1, 2)), x = batch_last(in[1]), db = batch_last(in[2]);
  slopes_kernel.launch(da, blocks_of(da), da.data_ptr(), db.data_ptr(), x.data_ptr(), da.size(0), x.size(1),
                       da.size(2));
  return {batch_first(da), batch_first(db)};
}

Tensors card_factors(const Tensors& in) {
  const Tensor l = batch_last(in[0]), none = flags_of(in[0]);
  factors_kernel.launch(l, blocks_of(l), l.data_ptr(), none.data_ptr(), l.size(0), l.size(2));
  return {batch_first(l), none};
}

Tensors card_factor_slopes(const Tensors& in) {
  const Tensor l = batch_last(in[0]), g = batch_last(in[1]);
  const Tensor da = empty(l.shape(), l.dtype(), l.device()), room = empty(l.shape(), l.dtype(), l.device());
  factor_slopes_kernel.launch(l, blocks_of(l), l.data_ptr(), g.data_ptr(), da.data_ptr(), room.data_ptr(), l.size(0),
                              l.size(2));
  return {batch_first(da)};
}

}  // namespace

const SmallMatrixWays* small_matrix_ways(const Tensor& a) {
  static const SmallMatrixWays host{host_determinants, host_solutions, host_slopes, host_factors, host_factor_slopes};
  static const SmallMatrixWays card{card_determinants, card_solutions, card_slopes, card_factors, card_factor_slopes};
  if (on_host(a)) return &host;
  return on_card(a) && a.size(-1) <= most_rows && a.size(-1) > 0 ? &card : nullptr;
}

}  // namespace tessera
