// Functions that move elements, made of views, copies and gathers.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "core/element.h"
#include "ops/gradient.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

// x as [outer, size of dim, inner].
struct Middle {
  Dim outer = 1, size, inner = 1;
  Middle(const Tensor& x, int64_t dim) : size(x.shape()[dim]) {
    for (int64_t d = 0; d < x.dim(); ++d) {
      if (d < dim) outer = outer * x.shape()[d];
      if (d > dim) inner = inner * x.shape()[d];
    }
  }
};

// Along one dim, as a whole or each element.
Tensor repeat_along(const Tensor& x, int64_t dim, int64_t count, bool each) {
  if (count == 1) return x;
  const Middle m(x, dim);
  Shape shape = x.shape();
  shape[dim] = shape[dim] * count;
  if (m.size == Dim(1)) return expand(x, shape);
  const Shape apart = each ? Shape{m.outer, m.size, Dim(1), m.inner} : Shape{m.outer, Dim(1), m.size, m.inner};
  Shape together = apart;
  together[each ? 2 : 1] = count;
  return reshape(expand(reshape(x, apart), together), shape);
}

// Along all dims in one copy, whose gradient is one sum: a repeated dim is two, the first of which is expanded.
Tensor repeat_at_once(const Tensor& x, const Dims& counts) {
  Shape shape = x.shape(), apart, together;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const Dim size = shape[d], count = counts[d];
    const bool is_one = size == Dim(1);
    if (counts[d] != 1 && !is_one) apart.push_back(1), together.push_back(count);
    apart.push_back(size);
    together.push_back(is_one ? count : size);
    shape[d] = size * count;
  }
  return reshape(expand(reshape(x, apart), together), shape);
}

}  // namespace

Tensor repeat(const Tensor& x, const Dims& counts) {
  const auto rank = static_cast<int64_t>(counts.size());
  if (rank < x.dim() || std::any_of(counts.begin(), counts.end(), [](int64_t c) { return c < 0; }))
    throw Error(
        fmt::format("repeat: [{}] are no counts for each dim of {}", fmt::join(counts, ", "), to_string(x.shape())));
  Shape shape(static_cast<size_t>(rank - x.dim()), Dim(1));
  shape.append(x.shape().begin(), x.shape().end());
  Tensor y = reshape(x, shape);
  constexpr int64_t most_dims = 8;  // of an operator
  if (rank + std::count_if(counts.begin(), counts.end(), [](int64_t c) { return c != 1; }) <= most_dims)
    return repeat_at_once(y, counts);
  for (int64_t d = rank; d-- > 0;) y = repeat_along(y, d, counts[d], false);
  return y;
}

namespace {

Tensor host_repeat_each(const Tensor& given, int64_t dim, int64_t count) {
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]);
    Shape shape = x.shape();
    shape[dim] = shape[dim] * count;
    const Tensor out = empty(shape, x.dtype());
    const HostLines lines(x, dim);
    with_element_type(x.dtype(), [&]<class T>(T*) {
      each_part(lines.outer * lines.length, lines.inner * count, [&](int64_t begin, int64_t end) {
        const T* const from = x.data<T>();
        T* to = out.data<T>() + begin * lines.inner * count;
        for (int64_t i = begin; i < end; ++i)
          for (int64_t k = 0; k < count; ++k, to += lines.inner)
            if (lines.inner == 1) *to = from[i];
            else std::copy_n(from + i * lines.inner, lines.inner, to);
      });
    });
    return Tensors{out};
  };
  const auto backward = [=](const Tensors& in, const Tensors&, const Tensors& grads) {
    Shape apart = in[0].shape();
    apart.insert(apart.begin() + dim + 1, Dim(count));
    return Tensors{sum(reshape(grads[0], apart), {dim + 1})};
  };
  return custom_function("repeat_interleave", {given}, forward, backward)[0];
}

}  // namespace

Tensor repeat_interleave(const Tensor& x, int64_t count, int64_t dim) {
  dim = normalize_dim("repeat_interleave", dim, x.shape());
  if (count < 0) throw Error(fmt::format("repeat_interleave: {} times", count));
  if (count > 1 && on_host(x)) return host_repeat_each(x, dim, count);
  return repeat_along(x, dim, count, true);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& counts, int64_t dim) {
  dim = normalize_dim("repeat_interleave", dim, x.shape());
  if (counts.dim() != 1 || !(counts.shape()[0] == x.shape()[dim]) || is_floating(counts.dtype()))
    throw Error(fmt::format("repeat_interleave: {} are no counts for dim {} of {}", describe(counts), dim,
                            to_string(x.shape())));
  if (counts.numel() > 0 && amin(counts).item<int64_t>() < 0) throw Error("repeat_interleave: a count is negative");
  const Tensor ends = cumsum(counts, 0);
  const Tensor places = arange(0, sum(counts).item(), 1, Int64, x.device());
  return index_select(x, dim, searchsorted(ends, places, true));
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  if (shifts.size() != dims.size()) throw Error(fmt::format("roll: {} shifts for {} dims", shifts.size(), dims.size()));
  Tensor y = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = normalize_dim("roll", dims[i], x.shape()), n = x.size(dim);
    const int64_t shift = n == 0 ? 0 : (shifts[i] % n + n) % n;
    if (shift != 0) y = concat({slice(y, dim, n - shift, n), slice(y, dim, 0, n - shift)}, dim);
  }
  return y;
}

Tensor movedim(const Tensor& x, int64_t from, int64_t to) {
  from = normalize_dim("movedim", from, x.shape());
  to = normalize_dim("movedim", to, x.shape());
  Dims dims;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (d != from) dims.push_back(d);
  dims.insert(dims.begin() + to, from);
  return from == to ? x : permute(x, dims);
}

// In the flattened matrix its elements lie a row and a column apart.
Tensor diagonal(const Tensor& x, int64_t offset, int64_t a, int64_t b) {
  a = normalize_dim("diagonal", a, x.shape());
  b = normalize_dim("diagonal", b, x.shape());
  if (a == b) throw Error(fmt::format("diagonal: dim {} of {} twice", a, to_string(x.shape())));
  const int64_t rows = x.size(a), columns = x.size(b);
  const int64_t row = std::clamp<int64_t>(offset < 0 ? -offset : 0, 0, rows);
  const int64_t column = std::clamp<int64_t>(offset > 0 ? offset : 0, 0, columns);
  const int64_t count = std::min(rows - row, columns - column), start = row * columns + column;
  const Tensor last = movedim(movedim(x, a, -1), b > a ? b - 1 : b, -1);
  const Tensor flat = flatten(last, -2, -1);
  return slice(flat, -1, count > 0 ? start : 0, count > 0 ? start + (count - 1) * (columns + 1) + 1 : 0, columns + 1);
}

Tensor eye(int64_t rows, int64_t columns, int64_t offset, DType dtype, Device device) {
  if (columns == -1) columns = rows;
  if (rows < 0 || columns < 0) throw Error(fmt::format("eye: {} rows and {} columns", rows, columns));
  if (!is_capturing()) {
    const Tensor all = zeros({rows, columns}, dtype, device);
    if (offset <= -rows || offset >= columns) return all;
    const int64_t top = std::max<int64_t>(0, -offset), left = std::max<int64_t>(0, offset);
    const int64_t row = all.strides()[0];  // a large matrix has gaps behind its rows on a GPU
    as_strided(all.storage(), {std::min(rows - top, columns - left)}, {row + 1}, top * row + left, dtype).fill_(1);
    return all;
  }
  const Tensor down = arange(0, static_cast<double>(rows), 1, Int64, device);
  const Tensor across = arange(0, static_cast<double>(columns), 1, Int64, device);
  return cast(eq(reshape(down + static_cast<double>(offset), {rows, 1}), across), dtype);
}

// From both ends, so that both are met.
namespace {
// Counted from both ends, so that each is exact.
Tensor host_linspace(double start, double end, double step, int64_t half, const Tensor& to) {
  const int64_t last = to.numel() - 1;
  with_element_type(to.dtype(), [&]<class T>(T*) {
    each_part(to.numel(), 4, [&](int64_t begin, int64_t stop) {
      T* const out = to.data<T>();
      const int64_t middle = std::clamp(half, begin, stop);
      for (int64_t i = begin; i < middle; ++i) out[i] = static_cast<T>(start + static_cast<double>(i) * step);
      for (int64_t i = middle; i < stop; ++i) out[i] = static_cast<T>(end - static_cast<double>(last - i) * step);
    });
  });
  return to;
}

CardKernel linspace_kernel("linspace", R"(
extern "C" TESSERA_KERNEL(256) void linspace(T* out, double start, double end, double step, i64 half, i64 count) {
  const i64 i = block_in_grid() * 256 + thread_in_block();
  if (i < count) out[i] = T(i < half ? start + double(i) * step : end - double(count - 1 - i) * step);
}
)");
Tensor card_linspace(double start, double end, double step, int64_t half, const Tensor& to) {
  linspace_kernel.launch(to, (to.numel() + 255) / 256, to.data_ptr(), start, end, step, half, to.numel());
  return to;
}
}  // namespace

Tensor linspace(double start, double end, int64_t steps, DType dtype, Device device) {
  if (steps < 0) throw Error(fmt::format("linspace: {} steps", steps));
  if (!is_floating(dtype)) return cast(linspace(start, end, steps, Float64, device), dtype);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  const auto from = [&](double first, double by, int64_t count) {
    return dispatch_one(find_op("arange"), {}, CreateAttrs{DimList(Shape{count}), dtype, first, by, device});
  };
  const int64_t half = steps - steps / 2;
  if (steps > 1 && device.type == DeviceType::CPU && !device.meta && !is_capturing())
    return host_linspace(start, end, step, half, empty({steps}, dtype));
  if (steps > 1 && (dtype == Float32 || dtype == Float64) && device.is_gpu() && !device.meta)
    if (const Tensor to = empty({steps}, dtype, device); on_card(to)) return card_linspace(start, end, step, half, to);
  return steps < 2 ? from(start, step, steps)
                   : concat({from(start, step, half), flip(from(end, -step, steps - half), {0})}, 0);
}

Tensors meshgrid(const Tensors& tensors, bool swapped) {
  Shape shape;
  for (const Tensor& t : tensors) {
    if (t.dim() != 1) throw Error(fmt::format("meshgrid: {} is not 1-d", to_string(t.shape())));
    shape.push_back(t.shape()[0]);
  }
  Tensors out;
  for (size_t d = 0; d < tensors.size(); ++d) {
    Shape along(tensors.size(), Dim(1));
    along[static_cast<int64_t>(d)] = tensors[d].shape()[0];
    const Tensor grid = expand(reshape(tensors[d], along), shape);
    out.push_back(swapped && tensors.size() > 1 ? transpose(grid, 0, 1) : grid);
  }
  return out;
}

Tensor slice_by(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  if (step == 0) throw Error("slice_by: the step is 0");
  if (step > 0) return slice(x, dim, start, end, step);
  const int64_t n = x.size(dim);
  // From the end of x, whose elements are turned round: before the first one is behind the last one.
  const auto turned = [n](int64_t at) { return n - 1 - std::clamp<int64_t>(at < 0 ? at + n : at, -1, n - 1); };
  const int64_t back = step == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : -step;
  return slice(flip(x, {dim}), dim, turned(std::max(start, -n - 1)), turned(std::max(end, -n - 1)), back);
}

Tensors unbind(const Tensor& x, int64_t dim) {
  Tensors out;
  for (int64_t i = 0, n = x.size(dim); i < n; ++i) out.push_back(select(x, dim, i));
  return out;
}

}  // namespace tessera
