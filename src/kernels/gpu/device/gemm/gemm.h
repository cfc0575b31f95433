// What the matrix products share: batches, and what becomes of a sum.
#pragma once
#include "kernels/gpu/device/elementwise/loops.h"
#include "kernels/shared/epilogue.h"
#include "tile/arch/gpu/shared_line.h"

namespace tessera::gpu_kernels {

/// Where the matrices of one index of the batch lie, in elements; the batch has max_batch_rank dims.
struct BatchPlace {
  i64 at[max_batch_rank];
  TESSERA_DEVICE BatchPlace(const GemmArgs& args, i64 index) {
    for (int d = max_batch_rank - 1; d >= 0; --d) {
      at[d] = 0;
      if (args.batch[d] == 1) continue;
      at[d] = index % args.batch[d];
      index /= args.batch[d];
    }
  }
  TESSERA_DEVICE i64 offset(const MatrixArg& m) const {
    i64 sum = 0;
    for (int d = 0; d < max_batch_rank; ++d) sum += at[d] * m.batch[d];
    return sum;
  }
};

/// A matrix of the batch whose element type is known at run time.
struct AnyMatrix {
  MatrixArg matrix;
  TESSERA_DEVICE AnyMatrix(const MatrixArg& m, const BatchPlace& place) : matrix(m) {
    if (m.data) matrix.data = static_cast<char*>(m.data) + place.offset(m) * bytes();
  }
  TESSERA_DEVICE bool exists() const { return matrix.data != nullptr; }
  template <class T>
  TESSERA_DEVICE T load(i64 i, i64 j) const {
    return load_as<T>(matrix.data, matrix.type, i * matrix.row + j * matrix.column);
  }
  template <class T>
  TESSERA_DEVICE void store(i64 i, i64 j, T value) const {
    store_as<T>(matrix.data, matrix.type, i * matrix.row + j * matrix.column, value);
  }

 private:
  TESSERA_DEVICE int bytes() const { return matrix.type == Scalar::f64 ? 8 : matrix.type == Scalar::f32 ? 4 : 2; }
};

/// What becomes of a sum of type T.
template <class T>
class AnyEpilogue {
 public:
  TESSERA_DEVICE AnyEpilogue(const GemmArgs& args, const BatchPlace& place)
      : c_(args.c, place),
        addend_(args.addend, place),
        bias_(args.bias, place),
        slope_(args.slope, place),
        factor_(args.factor, place),
        alpha_(static_cast<T>(args.alpha)),
        beta_(static_cast<T>(args.beta)),
        activation_{args.activation} {}

  TESSERA_DEVICE void operator()(T sum, i64 i, i64 j) const {
    T t = alpha_ * sum;
    if (addend_.exists()) t = tile::fma(beta_, addend_.template load<T>(i, j), t);
    if (bias_.exists()) t += bias_.template load<T>(i, j);
    if (slope_.exists()) {
      const auto both = activation_.both(t);
      slope_.store(i, j, both.slope);
      t = both.value;
    } else {
      t = activation_(t);
    }
    if (factor_.exists()) t *= factor_.template load<T>(i, j);
    c_.store(i, j, t);
  }

 private:
  AnyMatrix c_, addend_, bias_, slope_, factor_;
  T alpha_, beta_;
  AnyActivation activation_;
};

/// Four neighbours in a row.
using Lanes = tile::Vec<float, 4>;

/// A matrix of the batch, of f32, f16 or bf16, of which four neighbours are read or written at once.
class LaneMatrix {
 public:
  /// `more` elements further on.
  TESSERA_DEVICE LaneMatrix(const MatrixArg& m, const BatchPlace& place, i64 more = 0)
      : data_(static_cast<char*>(m.data)), type_(m.type), row_(m.row), column_(m.column) {
    const int bytes = type_ == Scalar::f32 ? 4 : 2;
    if (data_) data_ += (place.offset(m) + more) * bytes;
    vectors_ = column_ == 1 && reinterpret_cast<u64>(data_) % (4 * bytes) == 0 && row_ % 4 == 0;
  }
  TESSERA_DEVICE bool exists() const { return data_ != nullptr; }

  /// Elements j to j + 3 of row i, of which `count` exist.
  TESSERA_DEVICE Lanes load(i64 i, i64 j, int count) const {
    if (type_ == Scalar::f32) return load_as<float>(i, j, count);
    return type_ == Scalar::f16 ? load_as<f16>(i, j, count) : load_as<bf16>(i, j, count);
  }
  TESSERA_DEVICE void store(i64 i, i64 j, int count, const Lanes& value) const {
    if (type_ == Scalar::f32) store_as<float>(i, j, count, value);
    else if (type_ == Scalar::f16) store_as<f16>(i, j, count, value);
    else store_as<bf16>(i, j, count, value);
  }

 private:
  template <class T>
  TESSERA_DEVICE T* at(i64 i, i64 j) const {
    return reinterpret_cast<T*>(data_) + i * row_ + j * column_;
  }
  template <class T>
  TESSERA_DEVICE Lanes load_as(i64 i, i64 j, int count) const {
    const T* from = at<T>(i, j);
    Lanes lanes(0.0f);
    if (vectors_ && count == 4) {
      const auto pack = *reinterpret_cast<const Pack<T, 4>*>(from);
      tile::unroll<4>([&](auto l) { lanes.v[l] = tile::convert_element<float>(pack.lane[l]); });
    } else {
      tile::unroll<4>([&](auto l) {
        if (l < count) lanes.v[l] = tile::convert_element<float>(from[l * column_]);
      });
    }
    return lanes;
  }
  template <class T>
  TESSERA_DEVICE void store_as(i64 i, i64 j, int count, const Lanes& value) const {
    T* to = at<T>(i, j);
    Pack<T, 4> pack;
    tile::unroll<4>([&](auto l) { pack.lane[l] = tile::convert_element<T>(value.v[l]); });
    if (vectors_ && count == 4) {
      *reinterpret_cast<Pack<T, 4>*>(to) = pack;
    } else {
      tile::unroll<4>([&](auto l) {
        if (l < count) to[l * column_] = pack.lane[l];
      });
    }
  }

  char* data_;
  Scalar type_;
  i64 row_, column_;
  bool vectors_;
};

/// What becomes of four neighbouring sums.
class LaneEpilogue {
 public:
  /// The result lies `more` elements further on.
  TESSERA_DEVICE LaneEpilogue(const GemmArgs& args, const BatchPlace& place, i64 more = 0)
      : c_(args.c, place, more),
        addend_(args.addend, place),
        bias_(args.bias, place),
        slope_(args.slope, place),
        factor_(args.factor, place),
        alpha_(static_cast<float>(args.alpha)),
        beta_(static_cast<float>(args.beta)),
        activation_{args.activation} {}

  /// Gives what c gets.
  TESSERA_DEVICE Lanes operator()(Lanes t, i64 i, i64 j, int count) const {
    t = t * Lanes(alpha_);
    if (addend_.exists()) t = tile::fma(Lanes(beta_), addend_.load(i, j, count), t);
    if (bias_.exists()) t = t + bias_.load(i, j, count);
    if (activation_.kind != Activation::none || slope_.exists()) {
      const auto both = activation_.both(t);
      if (slope_.exists()) slope_.store(i, j, count, both.slope);
      t = both.value;
    }
    if (factor_.exists()) t = t * factor_.load(i, j, count);
    c_.store(i, j, count, t);
    return t;
  }

 private:
  LaneMatrix c_, addend_, bias_, slope_, factor_;
  float alpha_, beta_;
  AnyActivation activation_;
};

/// The sums of rows and columns as blocks of a product leave them in the workspace, in f32 or f64: [batch][across][m]
/// and [batch][down][n]. Null: not wanted.
struct LineParts {
  i64 down, across;  // blocks of a product
  void *rows, *columns;
};

/// Sums up the rows and columns of a block's part of the result, in a fixed order. Each of its threads sees four
/// neighbours at a time, always of the same columns; a row of it lies in neighbouring threads of a warp.
template <class T, int Width, int Threads>
class LineSums {
  static_assert(Threads * 4 % Width == 0 && Width <= 128 && (Width & (Width - 1)) == 0);

 public:
  using Four = tile::Vec<T, 4>;

  TESSERA_DEVICE LineSums(const GemmArgs& args, const LineParts& parts, i64 batch, i64 down, i64 across)
      : args_(args), parts_(parts), row_(batch * parts.across + across), column_(batch * parts.down + down) {}

  /// Called by all threads at once with elements of which `count` exist, in row `row` of the result.
  TESSERA_DEVICE void add(Four value, i64 row, int count) {
    tile::unroll<4>([&](auto l) {
      if (l >= count) value.v[l] = T(0);
    });
    if (parts_.columns) sum_ = sum_ + value;
    if (!parts_.rows) return;
    T sum = (value.v[0] + value.v[1]) + (value.v[2] + value.v[3]);
#pragma unroll
    for (int mask = 1; mask < Width / 4; mask *= 2) sum += tile::from_lane_xor(sum, mask);
    if (tile::thread_in_block() % (Width / 4) == 0 && count > 0)
      static_cast<T*>(parts_.rows)[row_ * args_.m + row] = sum;
  }

  /// Called by all threads at the end, with room for four elements of each, aligned to 16; the block's columns begin at
  /// `column`.
  TESSERA_DEVICE void finish(T* slab, i64 column) const {
    if (!parts_.columns) return;
    const int thread = tile::thread_in_block();
    using Line = tile::SharedLine<T, 4>;
    T held[4];
    tile::unroll<4>([&](auto l) { held[l] = sum_.v[l]; });
    Line::store(slab, thread * 4, held);
    tile::sync_block();
    for (int j = thread; j < Width && column + j < args_.n; j += Threads) {
      T sum = slab[Line::place(j)];
      for (int group = 1; group < Threads * 4 / Width; ++group) sum += slab[Line::place(group * Width + j)];
      static_cast<T*>(parts_.columns)[column_ * args_.n + column + j] = sum;
    }
  }

 private:
  const GemmArgs& args_;
  const LineParts& parts_;
  i64 row_, column_;  // of sums among the parts
  Four sum_ = Four(T(0));
};

/// The parts from blocks of height x width, in the workspace of `args`, and the bytes that they take.
LineParts line_parts(const GemmArgs& args, i64 height, i64 width);
i64 line_bytes(const GemmArgs& args, i64 height, i64 width);
/// Adds up the parts, in their order.
void add_parts(const GemmArgs& args, const LineParts& parts, Executor& executor);
/// The activation of c and its slope where that is asked for, else c times the factor and the sums of its rows and
/// columns, in a pass of its own, with workspace for it. The batch has max_batch_rank dims.
void finish_lines(const GemmArgs& args, Executor& executor);
i64 finish_bytes(const GemmArgs& args);

/// Products of `args`, whose batch has max_batch_rank dims, on ordinary cores: any types and strides, the sums in f32
/// or f64.
void simt_gemm_f32(const GemmArgs& args, Executor& executor);
void simt_gemm_f64(const GemmArgs& args, Executor& executor);
void simt_gemm_mixed(const GemmArgs& args, Executor& executor);

/// How a product in tiles is cut.
struct GemmCut {
  bool big;   // tiles of 128 x 128, or 64 x 64
  int parts;  // of the sums along k; more than one: their sums in f32 lie part_stride elements apart
  i64 part_depth, part_stride;
  LineParts lines;
};

/// The same in tiles, both operands of one type: of 16 bits on matrix cores, f32 as it is or rounded to tf32. Named
/// after the contiguous dim: n, columns of a row are; t, rows of a column. Lines begin at multiples of 16 bytes.
#define TESSERA_TILED_GEMM(type)                                                             \
  void tiled_gemm_##type##_nn(const GemmArgs& args, const GemmCut& cut, Executor& executor); \
  void tiled_gemm_##type##_nt(const GemmArgs& args, const GemmCut& cut, Executor& executor); \
  void tiled_gemm_##type##_tn(const GemmArgs& args, const GemmCut& cut, Executor& executor);
TESSERA_TILED_GEMM(f16)
TESSERA_TILED_GEMM(bf16)
TESSERA_TILED_GEMM(f32)
TESSERA_TILED_GEMM(tf32)
#undef TESSERA_TILED_GEMM

/// Adds the parts of the sums, in f32 in the workspace, rows padded to fours, part_stride elements apart, in their
/// order, and does what is to be done with them once.
void join_parts(const GemmArgs& args, int parts, i64 part_stride, Executor& executor);

inline i64 batch_count(const GemmArgs& args) {
  i64 batch = 1;
  for (i64 length : args.batch) batch *= length;
  return batch;
}

}  // namespace tessera::gpu_kernels
