// Scans along one dim: by doubling, made of operators, and on the host by loops.
#include "core/element.h"
#include "ops/gradient.h"
#include "ops/on_host.h"
#include "ops/one_line.h"
#include "ops/precise.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

// Of a state at each element: after step i it is that of 2^i elements, combine(earlier ones, later ones).
template <class Combine>
Tensors scan_by_doubling(Tensors state, int64_t dim, int64_t size, const Combine& combine) {
  for (int64_t reach = 1; reach < size; reach *= 2) {
    Tensors earlier, later;
    for (const Tensor& t : state) {
      earlier.push_back(slice(t, dim, 0, size - reach));
      later.push_back(slice(t, dim, reach, size));
    }
    const Tensors combined = combine(earlier, later);
    for (size_t i = 0; i < state.size(); ++i) state[i] = concat({slice(state[i], dim, 0, reach), combined[i]}, dim);
  }
  return state;
}

// The values where the extreme was last met. NaN is the extreme of what it is among.
Chosen composed_running_extreme(const Line& line, bool largest) {
  const Tensor& x = line.x;
  Shape along(static_cast<size_t>(line.x.dim()), Dim(1));
  along[line.dim] = line.size;
  const Tensor index = expand(reshape(index_numbers(line.size, x.device()), along), line.x.shape());
  const auto later_one = [&](const Tensor& a, const Tensor& b) {
    const Tensor beyond = largest ? ge(b, a) : le(b, a);
    return is_floating(x.dtype()) ? logical_or(beyond, isnan(b)) : beyond;
  };
  const Tensors found = scan_by_doubling({line.x.detach(), index}, line.dim, line.size,
                                         [&](const Tensors& a, const Tensors& b) -> Tensors {
                                           const Tensor taken = later_one(a[0], b[0]);
                                           return {where(taken, b[0], a[0]), where(taken, b[1], a[1])};
                                         });
  const Tensor places = contiguous(found[1]);
  return {gather(line.x, line.dim, places), places};
}

// ---- the same by loops

template <bool largest, class T>
void running_extremes(const SomeLines& l, int64_t length, const T* x, T* values, int64_t* places) {
  T best[SomeLines::most];
  int64_t at[SomeLines::most];
  for (int64_t i = 0; i < length; ++i)
    for (int k = 0; k < l.count; ++k) {
      const int64_t place = l.begin + i * l.step + k * l.side;
      const T v = x[place];
      const bool taken = i == 0 || (largest ? v >= best[k] : v <= best[k]) || v != v;
      best[k] = taken ? v : best[k];
      at[k] = taken ? i : at[k];
      values[place] = best[k];
      places[place] = at[k];
    }
}

Chosen host_running_extreme(const Line& line, bool largest) {
  const int64_t dim = line.dim;
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]), values = empty(x.shape(), x.dtype()), places = empty(x.shape(), Int64);
    const HostLines lines(x, dim);
    with_element_type(x.dtype(), [&]<class T>(T*) {
      lines.each(2, [&](const SomeLines& l) {
        const auto run = largest ? running_extremes<true, T> : running_extremes<false, T>;
        run(l, lines.length, x.data<T>(), values.data<T>(), places.data<int64_t>());
      });
    });
    return Tensors{values, places};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (!grads[0].defined()) return Tensors(1);
    return Tensors{scatter_add(zeros_like(in[0]), dim, out[1], grads[0])};
  };
  const Tensors out = custom_function(largest ? "cummax" : "cummin", {line.x}, forward, backward);
  return {out[0], out[1]};
}

Chosen running_extreme(std::string_view op, const Tensor& x, int64_t dim, bool largest) {
  const Line line(op, x, dim);
  const auto [values, places] =
      on_host(line.x) ? host_running_extreme(line, largest) : composed_running_extreme(line, largest);
  return {line.back(values), line.back(places)};
}

Tensor log_of_sum(const Tensor& a, const Tensor& b) {
  const Tensor larger = maximum(a, b), smaller = minimum(a, b);
  return larger + log1p(exp(where(eq(larger, smaller), number_like(a, 0), smaller - larger)));
}

}  // namespace

namespace {

Tensor composed_cumprod(const Tensor& x, int64_t dim) {
  return scan_by_doubling({x}, dim, x.size(dim),
                          [](const Tensors& a, const Tensors& b) -> Tensors { return {a[0] * b[0]}; })[0];
}

template <class T>
void running_products(const SomeLines& l, int64_t length, const T* x, T* y) {
  T product[SomeLines::most];
  std::fill_n(product, SomeLines::most, T(1));
  for (int64_t i = 0; i < length; ++i)
    for (int k = 0; k < l.count; ++k) {
      const int64_t place = l.begin + i * l.step + k * l.side;
      y[place] = product[k] *= x[place];
    }
}

// x[i] is a factor of all products from y[i] on. `rest` is the sum of their gradients, each times what follows x[i].
template <class T>
void gradients_of_products(const SomeLines& l, int64_t length, const T* x, const T* y, const T* g, T* dx) {
  T rest[SomeLines::most] = {};
  for (int64_t i = length; i-- > 0;)
    for (int k = 0; k < l.count; ++k) {
      const int64_t place = l.begin + i * l.step + k * l.side;
      rest[k] = g[place] + (i + 1 < length ? x[place + l.step] * rest[k] : T(0));
      dx[place] = i > 0 ? y[place - l.step] * rest[k] : rest[k];
    }
}

// Of f32 or f64.
template <class Fn>
Tensor by_lines(const Tensor& like, int64_t dim, const Fn& fn) {
  const Tensor out = empty(like.shape(), like.dtype());
  const HostLines lines(like, dim);
  const auto run = [&]<class T>(T*) { lines.each(2, [&](const SomeLines& l) { fn(l, lines.length, out.data<T>()); }); };
  if (like.dtype() == Float64) run(static_cast<double*>(nullptr));
  else run(static_cast<float*>(nullptr));
  return out;
}

Tensor host_cumprod(const Tensor& x, int64_t dim) {
  const auto forward = [dim](const Tensors& in) {
    const Tensor from = contiguous(in[0]);
    return Tensors{by_lines(from, dim, [&]<class T>(const SomeLines& l, int64_t length, T* y) {
      running_products(l, length, from.data<T>(), y);
    })};
  };
  const auto slope = [dim](const Tensors& in) {
    const Tensor from = contiguous(in[0]), y = contiguous(in[1]), g = contiguous(in[2]);
    return Tensors{by_lines(from, dim, [&]<class T>(const SomeLines& l, int64_t length, T* dx) {
      gradients_of_products(l, length, from.data<T>(), y.data<T>(), g.data<T>(), dx);
    })};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_cumprod(in[0], dim)}, {in[0]}, grads, false, true);
    return custom_function("cumprod_backward", {in[0], out[0], grads[0]}, slope, {});
  };
  return custom_function("cumprod", {x}, forward, backward)[0];
}

}  // namespace

Tensor cumprod(const Tensor& x, int64_t dim) {
  const Line line("cumprod", x, dim);
  if (!is_floating(x.dtype()))
    return line.back(composed_cumprod(cast(line.x, x.dtype() == UInt64 ? UInt64 : Int64), line.dim));
  return line.back(in_single(
      line.x, [&](const Tensor& v) { return on_host(v) ? host_cumprod(v, line.dim) : composed_cumprod(v, line.dim); }));
}

std::pair<Tensor, Tensor> cummax(const Tensor& x, int64_t dim) { return running_extreme("cummax", x, dim, true); }
std::pair<Tensor, Tensor> cummin(const Tensor& x, int64_t dim) { return running_extreme("cummin", x, dim, false); }

Tensor logcumsumexp(const Tensor& x, int64_t dim) {
  const Line line("logcumsumexp", x, dim);
  return line.back(in_single(line.x, [&](const Tensor& v) {
    return scan_by_doubling({v}, line.dim, line.size,
                            [](const Tensors& a, const Tensors& b) -> Tensors { return {log_of_sum(a[0], b[0])}; })[0];
  }));
}

}  // namespace tessera
