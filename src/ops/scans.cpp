// Scans along one dim: by doubling, made of operators; by loops on the host, and by kernels of their own on GPUs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "core/element.h"
#include "ops/gradient.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/one_line.h"
#include "ops/precise.h"
#include "ops/scan_kernels.h"
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

// What was met so far: NaN is the extreme of what it is among, and of equals the last one counts.
template <bool largest, class T>
struct Extreme {
  T value;
  int64_t place;
  void meet(T v, int64_t at) {
    const bool taken = (largest ? v >= value : v <= value) || v != v;
    value = taken ? v : value;
    place = taken ? at : place;
  }
};

// Of as many lines as there are numbers k, whose states are in registers.
template <bool largest, class T, int64_t... k>
void extremes_of_lines(const SomeLines& l, int64_t length, const T* x, T* values, int64_t* places,
                       std::integer_sequence<int64_t, k...>) {
  Extreme<largest, T> state[] = {{x[l.begin + k * l.side], 0}...};
  for (int64_t i = 0, at = l.begin; i < length; ++i, at += l.step) {
    (state[k].meet(x[at + k * l.side], i), ...);
    ((values[at + k * l.side] = state[k].value, places[at + k * l.side] = state[k].place), ...);
  }
}

template <bool largest, class T>
void running_extremes(SomeLines l, int64_t length, const T* x, T* values, int64_t* places) {
  if (length == 0) return;
  for (; l.count >= 4; l.count -= 4, l.begin += 4 * l.side)
    extremes_of_lines<largest>(l, length, x, values, places, std::make_integer_sequence<int64_t, 4>{});
  for (; l.count > 0; --l.count, l.begin += l.side)
    extremes_of_lines<largest>(l, length, x, values, places, std::make_integer_sequence<int64_t, 1>{});
}

// By a loop or a kernel that gives values and places.
Chosen extremes_by(const Line& line, bool largest, const CustomForward& forward) {
  const auto backward = [dim = line.dim](const Tensors&, const Tensors& out, const Tensors& grads) {
    if (!grads[0].defined()) return Tensors(1);
    // In f32 at least: many may come to one place.
    return Tensors{in_single(grads[0], [&](const Tensor& g) {
      return scatter_add(zeros_to_copy(g.shape(), g.dtype(), g.device()), dim, out[1], g);
    })};
  };
  const Tensors out = custom_function(largest ? "cummax" : "cummin", {line.x}, forward, backward);
  return {out[0], out[1]};
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
  return extremes_by(line, largest, forward);
}

// ---- the same by kernels

bool scans_on_card(const Tensor& x) { return on_card(x) && x.numel() > 0; }

struct ScanArgs {
  Tensor x = {}, y = {}, g = {}, out = {}, places = {};
  bool backwards = false;
};
// Rows with gaps behind them are no reason to copy.
Tensor lines_on_card(const Tensor& x, int64_t dim) {
  return dim == x.dim() - 1 && lies_in_padded_rows(x) ? x : contiguous(x);
}

void scan_on_card(CardKernel& kernel, const ScanArgs& a, int64_t dim) {
  const HostLines lines(a.x, dim);
  const bool apart = lines.inner > 1;  // a thread takes a line, not a warp
  const int64_t count = lines.outer * lines.inner, wanted = apart ? 1 << 16 : 1 << 12, least = apart ? 64 : 1024;
  const int64_t segments = std::clamp<int64_t>(wanted / count, 1, std::max<int64_t>(lines.length / least, 1));
  const int64_t pitch = !apart && lies_in_padded_rows(a.x) ? a.x.stride(dim - 1) : lines.length;
  const Tensor totals = empty({segments > 1 ? count * segments * kScanStateBytes : 0}, UInt8, a.x.device());
  with_element_type(a.x.dtype(), [&]<class T>(T*) {
    const auto data = [](const Tensor& t) { return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr; };
    const T *x = data(a.x), *y = data(a.y), *g = data(a.g);
    auto* const places = a.places.defined() ? static_cast<int64_t*>(a.places.data_ptr()) : nullptr;
    enum Phase { whole, segments_alone, before_segments, segments_in_turn, by_parts };  // as in the text
    const auto launch = [&](Phase phase) {
      const int64_t threads =
          phase == by_parts || phase == before_segments ? count * 32 : count * segments * (apart ? 1 : 32);
      kernel.launch(a.x, (threads + 255) / 256, x, y, g, data(a.out), places, totals.data_ptr(), lines.outer,
                    lines.length, lines.inner, pitch, segments, static_cast<int>(a.backwards), static_cast<int>(phase));
    };
    if (segments == 1) return launch(!apart && count >= 4096 && lines.length <= 1024 ? by_parts : whole);
    for (const Phase phase : {segments_alone, before_segments, segments_in_turn}) launch(phase);
  });
}

std::string extreme_kernel(std::string_view name, std::string_view beyond) {
  return scan_kernel(name,
                     R"(
struct State {
  T value;
  int place;  // -1: there is none
};
TESSERA_DEVICE State none() { return {T(0), -1}; }
TESSERA_DEVICE State combine(const State& a, const State& b) {
  if (b.place < 0 || a.place < 0) return b.place < 0 ? a : b;
  const auto u = convert_element<compute_t<T>>(a.value), v = convert_element<compute_t<T>>(b.value);
  return v != v || v )" + std::string(beyond) +
                         R"( u ? b : a;
}
)",
                     R"(
TESSERA_DEVICE State Line::load(i64 i) const { return {x[at(i)], static_cast<int>(i)}; }
TESSERA_DEVICE void Line::store(i64 i, const State& s) const {
  out[at(i)] = s.value;
  places[at(i)] = s.place;
}
)");
}
CardKernel cummax_kernel("cummax", extreme_kernel("cummax", ">="));
CardKernel cummin_kernel("cummin", extreme_kernel("cummin", "<="));

Chosen card_running_extreme(const Line& line, bool largest) {
  const int64_t dim = line.dim;
  const auto forward = [=](const Tensors& in) {
    const Tensor x = lines_on_card(in[0], dim), values = empty(x.shape(), x.dtype(), x.device());
    const Tensor places = empty(x.shape(), Int64, x.device());
    scan_on_card(largest ? cummax_kernel : cummin_kernel, {.x = x, .out = values, .places = places}, dim);
    return Tensors{values, places};
  };
  return extremes_by(line, largest, forward);
}

Chosen running_extreme(std::string_view op, const Tensor& x, int64_t dim, bool largest) {
  const Line line(op, x, dim);
  const auto [values, places] = on_host(line.x)         ? host_running_extreme(line, largest)
                                : scans_on_card(line.x) ? card_running_extreme(line, largest)
                                                        : composed_running_extreme(line, largest);
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

// By loops or kernels: `slope` makes the gradient of x, the result and its gradient.
Tensor cumprod_by(const Tensor& x, int64_t dim, const CustomForward& forward, const CustomForward& slope) {
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_cumprod(in[0], dim)}, {in[0]}, grads, false, true);
    return custom_function("cumprod_backward", {in[0], out[0], grads[0]}, slope, {});
  };
  return custom_function("cumprod", {x}, forward, backward)[0];
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
  return cumprod_by(x, dim, forward, slope);
}

CardKernel cumprod_kernel("cumprod", scan_kernel("cumprod", R"(
struct State {
  T value;
};
TESSERA_DEVICE State none() { return {T(1)}; }
TESSERA_DEVICE State combine(const State& a, const State& b) { return {a.value * b.value}; }
)",
                                                 R"(
TESSERA_DEVICE State Line::load(i64 i) const { return {x[at(i)]}; }
TESSERA_DEVICE void Line::store(i64 i, const State& s) const { out[at(i)] = s.value; }
)"));

// `rest`, as above, is a function of that of the next element: it is multiplied, and something is added.
CardKernel cumprod_backward_kernel("cumprod_backward", scan_kernel("cumprod_backward", R"(
struct State {
  T factor, addend;
};
TESSERA_DEVICE State none() { return {T(1), T(0)}; }
TESSERA_DEVICE State combine(const State& a, const State& b) {
  return {a.factor * b.factor, b.factor * a.addend + b.addend};
}
)",
                                                                   R"(
TESSERA_DEVICE State Line::load(i64 i) const {
  const i64 here = at(i);
  return {i > 0 ? x[here + inner] : T(0), g[here]};
}
TESSERA_DEVICE void Line::store(i64 i, const State& s) const {
  const i64 here = at(i);
  out[here] = i + 1 < length ? y[here - inner] * s.addend : s.addend;
}
)"));

Tensor card_cumprod(const Tensor& x, int64_t dim) {
  const auto forward = [dim](const Tensors& in) {
    const Tensor from = lines_on_card(in[0], dim), y = empty(from.shape(), from.dtype(), from.device());
    scan_on_card(cumprod_kernel, {.x = from, .out = y}, dim);
    return Tensors{y};
  };
  const auto slope = [dim](const Tensors& in) {
    const Tensor from = contiguous(in[0]), dx = empty(from.shape(), from.dtype(), from.device());
    scan_on_card(cumprod_backward_kernel,
                 {.x = from, .y = contiguous(in[1]), .g = contiguous(in[2]), .out = dx, .backwards = true}, dim);
    return Tensors{dx};
  };
  return cumprod_by(x, dim, forward, slope);
}

// Sums are held beside the largest element so far, in f64.
template <class T>
void running_log_sums(const SomeLines& l, int64_t length, const T* x, T* y) {
  T largest[SomeLines::most];
  double sum[SomeLines::most] = {};
  std::fill_n(largest, SomeLines::most, -std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < length; ++i)
    for (int k = 0; k < l.count; ++k) {
      const int64_t place = l.begin + i * l.step + k * l.side;
      const T v = x[place];
      if (v == largest[k]) sum[k] += 1;
      else if (v < largest[k]) sum[k] += static_cast<double>(std::exp(v - largest[k]));
      else {
        sum[k] = sum[k] * static_cast<double>(std::exp(largest[k] - v)) + 1;
        largest[k] = v;
      }
      y[place] = largest[k] + static_cast<T>(std::log(static_cast<T>(sum[k])));
    }
}

// The gradient of x[i] is the sum of g[j] e^(x[i] - y[j]) over j from i on; `rest` is that with y[i] in place of x[i].
template <class T>
void gradients_of_log_sums(const SomeLines& l, int64_t length, const T* x, const T* y, const T* g, T* dx) {
  T rest[SomeLines::most] = {};
  for (int64_t i = length; i-- > 0;)
    for (int k = 0; k < l.count; ++k) {
      const int64_t place = l.begin + i * l.step + k * l.side;
      if (y[place] == -std::numeric_limits<T>::infinity()) {
        dx[place] = rest[k] = T(0);
        continue;
      }
      if (i + 1 < length) rest[k] *= std::exp(y[place] - y[place + l.step]);
      rest[k] += g[place];
      dx[place] = rest[k] * std::exp(x[place] - y[place]);
    }
}

CardKernel logcumsumexp_kernel("logcumsumexp", scan_kernel("logcumsumexp", R"(
struct State {
  T largest, sum;  // of e^(x - largest); where all are -infinity, 0
};
TESSERA_DEVICE State none() { return {T(-__builtin_inf()), T(0)}; }
TESSERA_DEVICE State combine(const State& a, const State& b) {
  const bool later = b.largest != b.largest || b.largest > a.largest;
  const State &high = later ? b : a, &low = later ? a : b;
  const T apart = low.largest - high.largest;  // NaN where both are of one infinity
  return {high.largest, high.sum + low.sum * (low.largest == high.largest ? T(1) : exp(apart))};
}
)",
                                                           R"(
TESSERA_DEVICE State Line::load(i64 i) const {
  const T v = x[at(i)];
  return {v, v == T(-__builtin_inf()) ? T(0) : T(1)};
}
TESSERA_DEVICE void Line::store(i64 i, const State& s) const {
  out[at(i)] = s.sum == T(0) ? s.largest : s.largest + log(s.sum);
}
)"));

Tensor composed_logcumsumexp(const Tensor& x, int64_t dim) {
  return scan_by_doubling({x}, dim, x.size(dim),
                          [](const Tensors& a, const Tensors& b) -> Tensors { return {log_of_sum(a[0], b[0])}; })[0];
}

Tensor host_logcumsumexp(const Tensor& x, int64_t dim) {
  const auto forward = [dim](const Tensors& in) {
    const Tensor from = contiguous(in[0]);
    return Tensors{by_lines(from, dim, [&]<class T>(const SomeLines& l, int64_t length, T* y) {
      running_log_sums(l, length, from.data<T>(), y);
    })};
  };
  const auto slope = [dim](const Tensors& in) {
    const Tensor from = contiguous(in[0]), y = contiguous(in[1]), g = contiguous(in[2]);
    return Tensors{by_lines(from, dim, [&]<class T>(const SomeLines& l, int64_t length, T* dx) {
      gradients_of_log_sums(l, length, from.data<T>(), y.data<T>(), g.data<T>(), dx);
    })};
  };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_logcumsumexp(in[0], dim)}, {in[0]}, grads, false, true);
    return custom_function("logcumsumexp_backward", {in[0], out[0], grads[0]}, slope, {});
  };
  return custom_function("logcumsumexp", {x}, forward, backward)[0];
}

// The gradient of x[i] is the sum of g[j] e^(x[i] - y[j]) over j from i on. Positive and negative ones are added apart,
// as logarithms.
Tensor card_logcumsumexp(const Tensor& x, int64_t dim) {
  const auto scan = [dim](const Tensor& in, bool backwards) {
    const Tensor from = lines_on_card(in, dim), y = empty(from.shape(), from.dtype(), from.device());
    scan_on_card(logcumsumexp_kernel, {.x = from, .out = y, .backwards = backwards}, dim);
    return y;
  };
  const auto forward = [scan](const Tensors& in) { return Tensors{scan(in[0], false)}; };
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    if (grad_enabled()) return grad({composed_logcumsumexp(in[0], dim)}, {in[0]}, grads, false, true);
    const auto part = [&](const Tensor& g) {
      const Tensor none = number_like(g, 0), least = number_like(g, -INFINITY);
      const Tensor counts = logical_and(gt(g, none), ne(out[0], least));
      const Tensor terms = where(counts, log(g) - out[0], least);
      return exp(scan(terms, true) + in[0]);
    };
    return Tensors{part(grads[0]) - part(neg(grads[0]))};
  };
  return custom_function("logcumsumexp", {x}, forward, backward)[0];
}

}  // namespace

Tensor cumprod(const Tensor& x, int64_t dim) {
  const Line line("cumprod", x, dim);
  if (!is_floating(x.dtype()))
    return line.back(composed_cumprod(cast(line.x, x.dtype() == UInt64 ? UInt64 : Int64), line.dim));
  return line.back(in_single(line.x, [&](const Tensor& v) {
    return on_host(v)         ? host_cumprod(v, line.dim)
           : scans_on_card(v) ? card_cumprod(v, line.dim)
                              : composed_cumprod(v, line.dim);
  }));
}

std::pair<Tensor, Tensor> cummax(const Tensor& x, int64_t dim) { return running_extreme("cummax", x, dim, true); }
std::pair<Tensor, Tensor> cummin(const Tensor& x, int64_t dim) { return running_extreme("cummin", x, dim, false); }

Tensor logcumsumexp(const Tensor& x, int64_t dim) {
  const Line line("logcumsumexp", x, dim);
  return line.back(in_single(line.x, [&](const Tensor& v) {
    return on_host(v)         ? host_logcumsumexp(v, line.dim)
           : scans_on_card(v) ? card_logcumsumexp(v, line.dim)
                              : composed_logcumsumexp(v, line.dim);
  }));
}

}  // namespace tessera
