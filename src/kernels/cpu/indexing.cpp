// Reading and adding at computed places. Every index is checked before it is used, whatever thread meets it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/element.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

// Calls fn(begin, end, thread) for parts of [0, total), each worth a thread; `cost` is of one item, in elements moved.
template <class Fn>
void split(int64_t total, int64_t cost, const Fn& fn) {
  const int64_t part = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(cost, 1));
  executor().parallel((total + part - 1) / part,
                      [&](int64_t i, int thread) { fn(i * part, std::min(total, (i + 1) * part), thread); });
}

// Calls fn with a null pointer of an integer type as wide as an element: for what only moves.
template <class Fn>
void with_size(DType dtype, const Fn& fn) {
  switch (size_of(dtype)) {
    case 1:
      return fn(static_cast<uint8_t*>(nullptr));
    case 2:
      return fn(static_cast<uint16_t*>(nullptr));
    case 4:
      return fn(static_cast<uint32_t*>(nullptr));
    default:
      return fn(static_cast<uint64_t*>(nullptr));
  }
}

int64_t read_index(const Call& call, const Tensor& index, int64_t offset, int64_t bound) {
  int64_t i = index.dtype() == Int64 ? static_cast<const int64_t*>(index.data_ptr())[offset]
                                     : static_cast<const int32_t*>(index.data_ptr())[offset];
  if (i < 0 || i >= bound) throw Error(fmt::format("{}: index {} is out of range for size {}", call.op.name, i, bound));
  return i;
}

// Walks the coordinates of a shape in row-major order, with the element offsets of N operands.
template <int N>
class Walk {
 public:
  int64_t offset[N] = {};

  Walk(const Shape& shape, std::array<const int64_t*, N> strides, int64_t position)
      : rank_(shape.rank()), strides_(strides) {
    for (int64_t d = rank_ - 1; d >= 0; --d) {
      length_[d] = shape[d].value();
      at_[d] = position % length_[d];
      position /= length_[d];
      for (int k = 0; k < N; ++k) offset[k] += at_[d] * strides_[k][d];
    }
  }
  void next() {
    for (int64_t d = rank_ - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offset[k] += strides_[k][d];
      if (++at_[d] < length_[d]) return;
      for (int k = 0; k < N; ++k) offset[k] -= at_[d] * strides_[k][d];
      at_[d] = 0;
    }
  }

 private:
  int64_t rank_;
  std::array<const int64_t*, N> strides_;
  int64_t length_[max_rank] = {}, at_[max_rank] = {};
};

int64_t offset_of(const Tensor& t, int64_t position) {
  return t.is_contiguous() ? position : Walk<1>(t.shape(), {t.strides().data()}, position).offset[0];
}

int64_t dim_of(const Call& call, const Tensor& x) {
  checked_rank(call, x);
  int64_t dim = call.attrs.as<DimAttrs>().dim;
  return dim < 0 ? dim + x.dim() : dim;
}

void gather(const Call& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &out = call.out[0];
  if (index.dim() == 0) {
    read_index(call, index, 0, 1);
    return copy(call, out, x);
  }
  const int64_t dim = dim_of(call, x), bound = x.size(dim), step = x.strides()[dim];
  Strides others = x.strides();
  others[dim] = 0;
  with_size(x.dtype(), [&]<class T>(T*) {
    const T* from = static_cast<const T*>(x.data_ptr());
    T* to = static_cast<T*>(out.data_ptr());
    split(index.numel(), 1, [&](int64_t begin, int64_t end, int) {
      Walk<3> walk(index.shape(), {others.data(), index.strides().data(), out.strides().data()}, begin);
      for (int64_t i = begin; i < end; ++i, walk.next())
        to[walk.offset[2]] = from[walk.offset[0] + read_index(call, index, walk.offset[1], bound) * step];
    });
  });
}

// A line along `dim` is one thread's, so that additions happen in order.
void scatter_add(const Call& call) {
  const Tensor &x = call.in[0], &index = call.in[1], &source = call.in[2], &out = call.out[0];
  copy(call, out, x);
  if (index.numel() == 0) return;
  const int64_t dim = dim_of(call, x), bound = x.size(dim), length = index.size(dim);
  const int64_t to_step = out.strides()[dim], index_step = index.strides()[dim], from_step = source.strides()[dim];
  Shape lines = index.shape();
  lines[dim] = 1;
  with_element_type(x.dtype(), [&]<class T>(T*) {
    T* to = out.data<T>();
    const T* from = source.data<T>();
    split(lines.numel().value(), length, [&](int64_t begin, int64_t end, int) {
      Walk<3> walk(lines, {out.strides().data(), index.strides().data(), source.strides().data()}, begin);
      for (int64_t line = begin; line < end; ++line, walk.next())
        for (int64_t i = 0; i < length; ++i) {
          T& sum = to[walk.offset[0] + read_index(call, index, walk.offset[1] + i * index_step, bound) * to_step];
          sum = static_cast<T>(sum + from[walk.offset[2] + i * from_step]);
        }
    });
  });
}

// Blocks of x, one for every outer coordinate before `dim` and every index: all that follows `dim`.
void take(const Call& call, const Tensor& x, int64_t dim, const Tensor& index) {
  const Tensor& out = call.out[0];
  Shape outer(x.shape().begin(), x.shape().begin() + dim), inner(x.shape().begin() + dim + 1, x.shape().end());
  const int64_t *outer_strides = x.strides().data(), *inner_strides = x.strides().data() + dim + 1;
  const int64_t count = index.numel(), block = inner.numel().value(), bound = x.size(dim);
  const bool dense = std::equal(inner_strides, inner_strides + inner.rank(), contiguous_strides(inner).begin());
  with_size(x.dtype(), [&]<class T>(T*) {
    const T* from = static_cast<const T*>(x.data_ptr());
    T* to = static_cast<T*>(out.data_ptr());
    split(outer.numel().value() * count, block, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t row = read_index(call, index, offset_of(index, i % count), bound);
        const T* source = from + Walk<1>(outer, {outer_strides}, i / count).offset[0] + row * x.strides()[dim];
        if (dense) {
          std::copy_n(source, block, to + i * block);
        } else {
          Walk<1> walk(inner, {inner_strides}, 0);
          for (int64_t e = 0; e < block; ++e, walk.next()) to[i * block + e] = source[walk.offset[0]];
        }
      }
    });
  });
}

void index_select(const Call& call) { take(call, call.in[0], dim_of(call, call.in[0]), call.in[1]); }
void embedding(const Call& call) {
  checked_rank(call, call.out[0]);
  take(call, call.in[1], 0, call.in[0]);
}

// ---- embedding_backward: the indices are sorted by row, stably, so that each row is summed by one thread in order.

// index, gradient, the last inputs; before them what the sums are added to, if there is something.
const Tensor& index_of(const Call& call) { return call.in[call.in.size() - 2]; }

size_t sorting_bytes(const Call& call) {
  return static_cast<size_t>(call.out[0].size(0) + index_of(call).numel()) * sizeof(int64_t);
}

// order: positions of the indices, grouped by row; ends: where each row's group ends.
void sort_by_row(const Call& call, int64_t* ends, int64_t* order) {
  const Tensor& index = index_of(call);
  const int64_t rows = call.out[0].size(0), n = index.numel();
  std::fill_n(ends, rows, 0);
  auto row_of = [&](int64_t i) { return read_index(call, index, offset_of(index, i), rows); };
  for (int64_t i = 0; i < n; ++i) ++ends[row_of(i)];
  for (int64_t r = 0, begin = 0; r < rows; ++r) begin += std::exchange(ends[r], begin);
  for (int64_t i = 0; i < n; ++i) order[ends[row_of(i)]++] = i;
}

void embedding_backward(const Call& call) {
  const Tensor &grad = call.in.back(), &out = call.out[0];
  const int64_t rows = out.size(0), width = out.size(1), n = index_of(call).numel();
  const bool adds = call.in.size() == 3;
  auto* ends = static_cast<int64_t*>(call.workspace);
  auto* order = ends + rows;
  sort_by_row(call, ends, order);
  checked_rank(call, grad);
  const Shape leading(grad.shape().begin(), grad.shape().end() - 1);
  const int64_t step = grad.strides().back();
  with_element_type(out.dtype(), [&]<class T>(T*) {
    using Sum = std::conditional_t<sizeof(T) == 2, float, T>;  // half types are summed in float
    const T* from = grad.data<T>();
    T* to = out.data<T>();
    split(rows, width * (1 + n / std::max<int64_t>(rows, 1)), [&](int64_t begin, int64_t end, int thread) {
      auto* sum = static_cast<Sum*>(executor().scratch(thread, width * static_cast<int64_t>(sizeof(Sum))));
      for (int64_t r = begin; r < end; ++r) {
        T* row = to + r * out.strides()[0];
        for (int64_t c = 0; c < width; ++c) sum[c] = adds ? static_cast<Sum>(row[c * out.strides()[1]]) : Sum();
        for (int64_t k = r ? ends[r - 1] : 0; k < ends[r]; ++k) {
          const T* source = from + Walk<1>(leading, {grad.strides().data()}, order[k]).offset[0];
          for (int64_t c = 0; c < width; ++c) sum[c] = static_cast<Sum>(sum[c] + source[c * step]);
        }
        for (int64_t c = 0; c < width; ++c) row[c * out.strides()[1]] = static_cast<T>(sum[c]);
      }
    });
  });
}

void one_hot(const Call& call) {
  const Tensor &index = call.in[0], &out = call.out[0];
  const int64_t classes = call.attrs.as<OneHotAttrs>().classes;
  auto* to = out.data<int64_t>();
  checked_rank(call, out);
  split(index.numel(), classes, [&](int64_t begin, int64_t end, int) {
    std::fill(to + begin * classes, to + end * classes, 0);
    for (int64_t i = begin; i < end; ++i) to[i * classes + read_index(call, index, offset_of(index, i), classes)] = 1;
  });
}

constexpr Kernel gather_kernels[] = {{.name = "loop", .run = gather}};
constexpr Kernel scatter_add_kernels[] = {{.name = "lines", .run = scatter_add}};
constexpr Kernel index_select_kernels[] = {{.name = "blocks", .run = index_select}};
constexpr Kernel embedding_kernels[] = {{.name = "rows", .run = embedding}};
constexpr Kernel embedding_backward_kernels[] = {
    {.name = "sorted", .workspace_bytes = sorting_bytes, .run = embedding_backward}};
constexpr Kernel one_hot_kernels[] = {{.name = "loop", .run = one_hot}};

}  // namespace

std::span<const KernelTableEntry> indexing_kernels() {
  static constexpr KernelTableEntry entries[] = {{"gather", gather_kernels},
                                                 {"scatter_add", scatter_add_kernels},
                                                 {"index_select", index_select_kernels},
                                                 {"embedding", embedding_kernels},
                                                 {"embedding_backward", embedding_backward_kernels},
                                                 {"embedding_backward_", embedding_backward_kernels},
                                                 {"one_hot", one_hot_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
