#include "ops/fold_on_host.h"

#include "core/element.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

// Where windows lie: dims after the folded one as one dim, with one stride.
struct WindowLines {
  int64_t outer = 1, count, inner = 1, size, step, inner_step = 1, tap_step;
  explicit WindowLines(const Tensor& w, int64_t dim)
      : count(w.size(dim)), size(w.size(-1)), step(w.stride(dim)), tap_step(w.stride(-1)) {
    for (int64_t d = 0; d < dim; ++d) outer *= w.size(d);
    for (int64_t d = dim + 1; d + 1 < w.dim(); ++d) {
      if (w.size(d) > 1) inner_step = w.stride(d);
      inner *= w.size(d);
    }
  }
  static bool fits(const Tensor& w, int64_t dim) {
    int64_t next = 0;
    for (int64_t d = w.dim() - 2; d > dim; --d) {
      if (w.size(d) == 1) continue;
      if (next != 0 && w.stride(d) != next) return false;
      next = w.stride(d) * w.size(d);
    }
    return true;
  }
};

int64_t offset_of(const Tensor& w, int64_t dim, int64_t outer) {
  int64_t offset = 0;
  for (int64_t d = dim; d-- > 0; outer /= w.size(d)) offset += outer % w.size(d) * w.stride(d);
  return offset;
}

template <class T>
void add_run(T* to, const T* from, int64_t n, int64_t to_step, int64_t from_step) {
  const auto add = [](T& sum, T v) { sum = static_cast<T>(sum + v); };
  if (to_step == 1 && from_step == 1)
    for (int64_t i = 0; i < n; ++i) add(to[i], from[i]);
  else
    for (int64_t i = 0; i < n; ++i) add(to[i * to_step], from[i * from_step]);
}

template <class T>
void fold_line(const WindowLines& l, const WindowAttrs& a, const T* from, T* to) {
  for (int64_t i = 0; i < l.count; ++i, from += l.step, to += a.stride * l.inner) {
    if (l.inner == 1) add_run(to, from, l.size, a.dilation, l.tap_step);
    else
      for (int64_t t = 0; t < l.size; ++t)
        add_run(to + t * a.dilation * l.inner, from + t * l.tap_step, l.inner, 1, l.inner_step);
  }
}

}  // namespace

Tensor host_folded(const Tensor& windows, int64_t length, const WindowAttrs& a) {
  const auto forward = [=](const Tensors& in) {
    const Tensor w = WindowLines::fits(in[0], a.dim) ? in[0] : contiguous(in[0]);
    Shape shape(w.shape().begin(), w.shape().end() - 1);
    shape[a.dim] = length;
    const Tensor out = zeros(shape, w.dtype());
    const WindowLines l(w, a.dim);
    with_element_type(w.dtype(), [&]<class T>(T*) {
      if constexpr (!std::is_same_v<T, bool>)
        each_part(l.outer, l.count * l.inner * l.size, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            fold_line(l, a, w.data<T>() + offset_of(w, a.dim, i), out.data<T>() + i * length * l.inner);
        });
    });
    return Tensors{out};
  };
  const auto backward = [=](const Tensors& in, const Tensors&, const Tensors& grads) {
    const Tensor all = sliding_windows(grads[0], {a.dim}, {a.size}, {a.stride}, {a.dilation});
    return Tensors{slice(all, a.dim, Dim(0), in[0].shape()[a.dim])};
  };
  return custom_function("fold_windows", {windows}, forward, backward)[0];
}

}  // namespace tessera
