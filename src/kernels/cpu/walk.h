// Loops of the host over tensors that lie anyhow.
#pragma once
#include <algorithm>
#include <array>

#include "kernels/shared/arguments.h"

namespace tessera::cpu_kernels {

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

// A tensor as these loops walk it.
struct Lines {
  void* data;
  DType dtype;
  bool dense;
  int rank;
  int64_t numel, length[max_rank], stride[max_rank];
  Lines(const Call& call, const Operand& t)
      : data(t.data_ptr()), dtype(t.dtype()), dense(t.is_contiguous()), rank(checked_rank(call, t)), numel(t.numel()) {
    for (int d = 0; d < rank; ++d) length[d] = t.size(d), stride[d] = t.strides()[static_cast<size_t>(d)];
  }
};

// Walks the coordinates of a shape in row-major order, with the element offsets of N operands.
template <int N>
class Walk {
 public:
  int64_t offset[N] = {};

  Walk(int rank, const int64_t* lengths, std::array<const int64_t*, N> strides, int64_t position)
      : rank_(rank), length_(lengths), strides_(strides) {
    for (int d = rank_ - 1; d >= 0; --d) {
      at_[d] = position % length_[d];
      position /= length_[d];
      for (int k = 0; k < N; ++k) offset[k] += at_[d] * strides_[k][d];
    }
  }
  int64_t at(int d) const { return at_[d]; }
  void next() {
    for (int d = rank_ - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offset[k] += strides_[k][d];
      if (++at_[d] < length_[d]) return;
      for (int k = 0; k < N; ++k) offset[k] -= at_[d] * strides_[k][d];
      at_[d] = 0;
    }
  }

 private:
  int rank_;
  const int64_t* length_;
  std::array<const int64_t*, N> strides_;
  int64_t at_[max_rank] = {};
};

/// Calls fn(offsets of N operands, count) for the positions [begin, end) of a shape with at least one dim, stretch
/// after stretch along the last dim.
template <int N, class Fn>
void each_stretch(int rank, const int64_t* lengths, std::array<const int64_t*, N> strides, int64_t begin, int64_t end,
                  const Fn& fn) {
  const int last = rank - 1;
  Walk<N> rows(last, lengths, strides, begin / lengths[last]);
  for (int64_t i = begin, count; i < end; i += count, rows.next()) {
    const int64_t first = i % lengths[last];
    count = std::min(lengths[last] - first, end - i);
    int64_t at[N];
    for (int k = 0; k < N; ++k) at[k] = rows.offset[k] + first * strides[k][last];
    fn(at, count);
  }
}

inline int64_t offset_of(const Lines& t, int64_t position) {
  return t.dense ? position : Walk<1>(t.rank, t.length, {t.stride}, position).offset[0];
}

}  // namespace tessera::cpu_kernels
