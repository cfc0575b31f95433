// Reading and adding at computed places. Every index is checked before it is used, whatever thread meets it.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/element.h"
#include "kernels/cpu/walk.h"
#include "kernels/shared/tables.h"
#include "tile/arch/cpu/stream.h"

namespace tessera::cpu_kernels {
namespace {

struct IndexArg {
  const void* data;
  bool wide;  // i64, not i32
  const char* op;
  IndexArg(const Call& call, const Operand& index)
      : data(index.data_ptr()), wide(index.dtype() == Int64), op(call.op.name.data()) {}
  int64_t read(int64_t offset, int64_t bound) const {
    const int64_t i = wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
    if (i < 0 || i >= bound) refuse(i, bound);
    return i;
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(int64_t i, int64_t bound) const {
    throw Error(fmt::format("{}: index {} is out of range for size {}", op, i, bound));
  }
};

/// The same with a type that is known: for loops over many.
template <class I>
struct Indices {
  const I* data;
  const IndexArg& arg;
  int64_t bound;
  int64_t operator[](int64_t offset) const {
    const I i = data[offset];
    if (static_cast<uint64_t>(static_cast<int64_t>(i)) >= static_cast<uint64_t>(bound)) arg.refuse(i, bound);
    return i;
  }
};
template <class Fn>
void with_indices(const IndexArg& arg, int64_t bound, const Fn& fn) {
  if (arg.wide) fn(Indices<int64_t>{static_cast<const int64_t*>(arg.data), arg, bound});
  else fn(Indices<int32_t>{static_cast<const int32_t*>(arg.data), arg, bound});
}

int64_t dim_of(const Call& call, const Operand& x) {
  checked_rank(call, x);
  int64_t dim = call.attrs.as<DimAttrs>().dim;
  return dim < 0 ? dim + x.dim() : dim;
}

struct Gather {
  Lines x, places, out;
  IndexArg index;
  int64_t dim;
};
void run_gather(const Gather& g, Executor&) {
  const int last = g.places.rank - 1;
  const int64_t step = g.x.stride[g.dim], to_step = g.out.stride[last], index_step = g.places.stride[last];
  int64_t others[max_rank];
  std::copy(g.x.stride, g.x.stride + g.x.rank, others);
  others[g.dim] = 0;
  const int64_t side = others[last];
  with_indices(g.index, g.x.length[g.dim], [&](const auto& index) {
    with_size(g.x.dtype, [&]<class T>(T*) {
      split(g.places.numel, 1, [&](int64_t begin, int64_t end, int) {
        each_stretch<3>(g.places.rank, g.places.length, {others, g.places.stride, g.out.stride}, begin, end,
                        [&](const int64_t(&at)[3], int64_t count) {
                          const T* from = static_cast<const T*>(g.x.data) + at[0];
                          T* const to = static_cast<T*>(g.out.data) + at[2];
                          if (index_step == 0) {
                            from += index[at[1]] * step;
                            if (to_step == 1 && side == 1) std::copy_n(from, count, to);
                            else
                              for (int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * side];
                          } else {
                            for (int64_t i = 0; i < count; ++i)
                              to[i * to_step] = from[index[at[1] + i * index_step] * step + i * side];
                          }
                        });
      });
    });
  });
}
void gather(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1], &out = call.out[0];
  if (index.dim() == 0) {
    plan.launch(
        "check_index", +[](const IndexArg& i, Executor&) { i.read(0, 1); }, IndexArg(call, index));
    return copy(call, plan, out, x);
  }
  plan.launch("gather", run_gather,
              {Lines(call, x), Lines(call, index), Lines(call, out), IndexArg(call, index), dim_of(call, x)});
}

// A line along `dim` is one thread's, so that what meets at a place does so in order.
struct Scatter {
  Lines places, source, out;
  IndexArg index;
  int64_t dim, bound;
};
struct Overwrite {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};
// Combine: what is at a place, and what comes to it. Lines that lie side by side along the last dim go together, so
// that memory is read and written by rows.
template <class Combine>
void run_scatter(const Scatter& s, Executor& executor) {
  const int64_t dim = s.dim, length = s.places.length[dim], last = s.places.rank - 1;
  const int64_t columns = dim == last ? 1 : s.places.length[last];
  // A block of columns is some lines of memory at least, a page or two at most: rows lie far apart.
  const int64_t most = std::min(columns, std::clamp<int64_t>(columns / executor.threads(), 64, 1024));
  const Lines* const operands[] = {&s.out, &s.places, &s.source};
  int64_t lines[max_rank], strides[3][max_rank], side[3];
  std::copy(s.places.length, s.places.length + s.places.rank, lines);
  for (int k = 0; k < 3; ++k) {
    std::copy(operands[k]->stride, operands[k]->stride + s.places.rank, strides[k]);
    side[k] = strides[k][last];
    if (dim != last) strides[k][last] *= most;
  }
  if (dim != last) lines[last] = (columns + most - 1) / most;
  lines[dim] = 1;
  const int64_t total = std::accumulate(lines, lines + s.places.rank, int64_t{1}, std::multiplies<>());
  const int64_t to_step = s.out.stride[dim], index_step = s.places.stride[dim], from_step = s.source.stride[dim];
  const auto run = [&]<class T>(T*) {
    const auto put = [](T& held, T value) { held = static_cast<T>(Combine()(held, value)); };
    with_indices(s.index, s.bound, [&](const auto& index) {
      split(total, length * most, [&](int64_t begin, int64_t end, int) {
        Walk<3> walk(s.places.rank, lines, {strides[0], strides[1], strides[2]}, begin);
        for (int64_t line = begin; line < end; ++line, walk.next()) {
          T* const to = static_cast<T*>(s.out.data) + walk.offset[0];
          const T* const from = static_cast<const T*>(s.source.data) + walk.offset[2];
          const int64_t at = walk.offset[1];
          if (dim == last) {
            for (int64_t i = 0; i < length; ++i) put(to[index[at + i * index_step] * to_step], from[i * from_step]);
            continue;
          }
          const int64_t count = std::min(most, columns - walk.at(static_cast<int>(last)) * most);
          for (int64_t i = 0; i < length; ++i) {
            const T* const row = from + i * from_step;
            if (side[1] == 0) {
              T* const place = to + index[at + i * index_step] * to_step;
              if (side[0] == 1 && side[2] == 1)
                for (int64_t c = 0; c < count; ++c) put(place[c], row[c]);
              else
                for (int64_t c = 0; c < count; ++c) put(place[c * side[0]], row[c * side[2]]);
            } else {
              for (int64_t c = 0; c < count; ++c)
                put(to[index[at + i * index_step + c * side[1]] * to_step + c * side[0]], row[c * side[2]]);
            }
          }
        }
      });
    });
  };
  if constexpr (std::is_same_v<Combine, Overwrite>) with_size(s.out.dtype, run);
  else with_element_type(s.out.dtype, run);
}
struct Sum {
  template <class T>
  auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return static_cast<uint64_t>(a) + static_cast<uint64_t>(b);  // wraps
    else return a + b;
  }
};
struct Product {
  template <class T>
  auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
    else return a * b;
  }
};
// NaN stays.
struct Largest {
  template <class T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};
struct Smallest {
  template <class T>
  T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};
template <class Combine>
void scatter(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1], &source = call.in[2], &out = call.out[0];
  copy(call, plan, out, x);
  if (index.numel() == 0) return;
  const int64_t dim = dim_of(call, x);
  plan.launch("scatter", run_scatter<Combine>,
              {Lines(call, index), Lines(call, source), Lines(call, out), IndexArg(call, index), dim, x.size(dim)});
}

// Blocks of x, one for every outer coordinate before `dim` and every index: all that follows `dim`.
struct Take {
  Lines x, places;
  IndexArg index;
  void* out;
  int64_t dim, outer, block;
  bool dense;  // a block
};
void run_take(const Take& t, Executor&) {
  const int dim = static_cast<int>(t.dim), inner = t.x.rank - dim - 1;
  const int64_t count = t.places.numel, step = t.x.stride[dim];
  const auto run = [&]<class T>(T*, const auto& index) {
    const auto size = static_cast<int64_t>(sizeof(T));
    const bool lines = t.dense && t.block * size % 64 == 0 && reinterpret_cast<uintptr_t>(t.out) % 64 == 0;
    const bool streams = lines && t.outer * count * t.block * size >= tile::cpu::streamed_bytes;
    split(t.outer * count, t.block, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin, some; i < end; i += some) {
        const int64_t first = i % count;
        some = std::min(count - first, end - i);
        const T* const from =
            static_cast<const T*>(t.x.data) + Walk<1>(dim, t.x.length, {t.x.stride}, i / count).offset[0];
        T* const to = static_cast<T*>(t.out) + i * t.block;
        for (int64_t k = 0; k < some; ++k) {
          const T* const source = from + index[offset_of(t.places, first + k)] * step;
          if (t.block == 1) {
            to[k] = *source;
          } else if (streams) {
            tile::cpu::stream(to + k * t.block, source, t.block * size);
          } else if (t.dense) {
            std::copy_n(source, t.block, to + k * t.block);
          } else {
            Walk<1> walk(inner, t.x.length + dim + 1, {t.x.stride + dim + 1}, 0);
            for (int64_t e = 0; e < t.block; ++e, walk.next()) to[k * t.block + e] = source[walk.offset[0]];
          }
        }
      }
      if (streams) tile::cpu::fence();
    });
  };
  with_indices(t.index, t.x.length[dim],
               [&](const auto& index) { with_size(t.x.dtype, [&](auto* type) { run(type, index); }); });
}
void take(const Call& call, Plan& plan, const Operand& x, int64_t dim, const Operand& index) {
  const Shape outer(x.shape().begin(), x.shape().begin() + dim), inner(x.shape().begin() + dim + 1, x.shape().end());
  const int64_t* const strides = x.strides().data() + dim + 1;
  const bool dense = std::equal(strides, strides + inner.rank(), contiguous_strides(inner).begin());
  plan.launch("take", run_take,
              {Lines(call, x), Lines(call, index), IndexArg(call, index), call.out[0].data_ptr(), dim,
               outer.numel().value(), inner.numel().value(), dense});
}

void index_select(const Call& call, Plan& plan) { take(call, plan, call.in[0], dim_of(call, call.in[0]), call.in[1]); }
void embedding(const Call& call, Plan& plan) {
  checked_rank(call, call.out[0]);
  take(call, plan, call.in[1], 0, call.in[0]);
}

// ---- embedding_backward: the indices are sorted by row, stably, so that each row is summed by one thread in order.

struct SumRows {
  Lines places, grad, out;
  IndexArg index;
  bool adds;       // to what is there
  int64_t* ends;   // workspace: where each row's group of positions ends,
  int64_t* order;  // and these positions
};

void sort_by_row(const SumRows& s) {
  const int64_t rows = s.out.length[0], n = s.places.numel;
  std::fill_n(s.ends, rows, 0);
  auto row_of = [&](int64_t i) { return s.index.read(offset_of(s.places, i), rows); };
  for (int64_t i = 0; i < n; ++i) ++s.ends[row_of(i)];
  for (int64_t r = 0, begin = 0; r < rows; ++r) begin += std::exchange(s.ends[r], begin);
  for (int64_t i = 0; i < n; ++i) s.order[s.ends[row_of(i)]++] = i;
}

void run_sum_rows(const SumRows& s, Executor& executor) {
  const int64_t rows = s.out.length[0], width = s.out.length[1], n = s.places.numel;
  const int leading = s.grad.rank - 1;
  const int64_t step = s.grad.stride[leading];
  sort_by_row(s);
  with_element_type(s.out.dtype, [&]<class T>(T*) {
    using Sum = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float,
                                   T>;  // half types are summed in float
    const T* from = static_cast<const T*>(s.grad.data);
    T* to = static_cast<T*>(s.out.data);
    split(rows, width * (1 + n / std::max<int64_t>(rows, 1)), [&](int64_t begin, int64_t end, int thread) {
      auto* sum = static_cast<Sum*>(executor.scratch(thread, width * static_cast<int64_t>(sizeof(Sum))));
      for (int64_t r = begin; r < end; ++r) {
        T* row = to + r * s.out.stride[0];
        for (int64_t c = 0; c < width; ++c) sum[c] = s.adds ? static_cast<Sum>(row[c * s.out.stride[1]]) : Sum();
        for (int64_t k = r ? s.ends[r - 1] : 0; k < s.ends[r]; ++k) {
          const T* source = from + Walk<1>(leading, s.grad.length, {s.grad.stride}, s.order[k]).offset[0];
          for (int64_t c = 0; c < width; ++c) sum[c] = static_cast<Sum>(sum[c] + source[c * step]);
        }
        for (int64_t c = 0; c < width; ++c) row[c * s.out.stride[1]] = static_cast<T>(sum[c]);
      }
    });
  });
}

// index, gradient are the last inputs; before them what the sums are added to, if there is something.
void embedding_backward(const Call& call, Plan& plan) {
  const Operand &index = call.in[call.in.size() - 2], &grad = call.in.back(), &out = call.out[0];
  auto* const ends = static_cast<int64_t*>(plan.take((out.size(0) + index.numel()) * 8));
  plan.launch("sum_rows", run_sum_rows,
              {Lines(call, index), Lines(call, grad), Lines(call, out), IndexArg(call, index), call.in.size() == 3,
               ends, ends + out.size(0)});
}

struct OneHot {
  Lines places;
  IndexArg index;
  int64_t classes;
  int64_t* out;
};
void run_one_hot(const OneHot& o, Executor&) {
  split(o.places.numel, o.classes, [&](int64_t begin, int64_t end, int) {
    std::fill(o.out + begin * o.classes, o.out + end * o.classes, 0);
    for (int64_t i = begin; i < end; ++i) o.out[i * o.classes + o.index.read(offset_of(o.places, i), o.classes)] = 1;
  });
}
void one_hot(const Call& call, Plan& plan) {
  checked_rank(call, call.out[0]);
  plan.launch("one_hot", run_one_hot,
              {Lines(call, call.in[0]), IndexArg(call, call.in[0]), call.attrs.as<OneHotAttrs>().classes,
               static_cast<int64_t*>(call.out[0].data_ptr())});
}

// The output has as many rows as elements were counted.
struct Nonzero {
  Lines x, out;
};
// Whether an element counts is no branch, which processors would mispredict: its place is noted, and kept by moving on.
void run_nonzero(const Nonzero& z, Executor&) {
  constexpr int64_t most = 512;
  int32_t found[most];
  const int last = z.x.rank - 1;
  const int64_t columns = z.x.length[last], step = z.x.stride[last];
  int64_t left = z.out.length[0];
  with_element_type(z.x.dtype, [&]<class T>(T*) {
    int64_t* to = static_cast<int64_t*>(z.out.data);
    Walk<1> line(last, z.x.length, {z.x.stride}, 0);
    for (int64_t seen = 0; seen < z.x.numel; seen += columns, line.next()) {
      const T* const from = static_cast<const T*>(z.x.data) + line.offset[0];
      for (int64_t first = 0; first < columns; first += most) {
        const int64_t n = std::min(most, columns - first);
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i) {
          found[count] = static_cast<int32_t>(i);
          count += from[(first + i) * step] != T(0);
        }
        count = std::min(count, left);  // others may write x
        left -= count;
        for (int d = 0; d < last; ++d)
          for (int64_t i = 0; i < count; ++i) to[i * z.out.stride[0] + d * z.out.stride[1]] = line.at(d);
        for (int64_t i = 0; i < count; ++i)
          to[i * z.out.stride[0] + last * z.out.stride[1]] = first + static_cast<int64_t>(found[i]);
        to += count * z.out.stride[0];
      }
    }
  });
}
void nonzero(const Call& call, Plan& plan) {
  if (call.out[0].numel() > 0) plan.launch("nonzero", run_nonzero, {Lines(call, call.in[0]), Lines(call, call.out[0])});
}

constexpr Kernel gather_kernels[] = {{.name = "loop", .plan = gather}};
template <class Combine>
constexpr Kernel scatter_kernels[] = {{.name = "lines", .plan = scatter<Combine>}};
constexpr Kernel index_select_kernels[] = {{.name = "blocks", .plan = index_select}};
constexpr Kernel embedding_kernels[] = {{.name = "rows", .plan = embedding}};
constexpr Kernel embedding_backward_kernels[] = {{.name = "sorted", .plan = embedding_backward}};
constexpr Kernel one_hot_kernels[] = {{.name = "loop", .plan = one_hot}};
constexpr Kernel nonzero_kernels[] = {{.name = "loop", .plan = nonzero}};

}  // namespace

std::span<const KernelTableEntry> indexing_kernels() {
  static constexpr KernelTableEntry entries[] = {{"gather", gather_kernels},
                                                 {"scatter", scatter_kernels<Overwrite>},
                                                 {"scatter_add", scatter_kernels<Sum>},
                                                 {"scatter_prod", scatter_kernels<Product>},
                                                 {"scatter_amax", scatter_kernels<Largest>},
                                                 {"scatter_amin", scatter_kernels<Smallest>},
                                                 {"index_select", index_select_kernels},
                                                 {"embedding", embedding_kernels},
                                                 {"embedding_backward", embedding_backward_kernels},
                                                 {"embedding_backward_", embedding_backward_kernels},
                                                 {"one_hot", one_hot_kernels},
                                                 {"nonzero", nonzero_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
