// What the matrix products share: batches, and what becomes of a sum.
#pragma once
#include "gpu.h"
#include "kernels/cpu/isa/epilogue.h"

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
        alpha_(static_cast<T>(args.alpha)),
        beta_(static_cast<T>(args.beta)),
        activation_{args.activation} {}

  TESSERA_DEVICE void operator()(T sum, i64 i, i64 j) const {
    T t = alpha_ * sum;
    if (addend_.exists()) t = tile::fma(beta_, addend_.template load<T>(i, j), t);
    if (bias_.exists()) t += bias_.template load<T>(i, j);
    if (slope_.exists()) {
      const auto both = activation_.both(t);
      c_.store(i, j, both.value);
      slope_.store(i, j, both.slope);
    } else {
      c_.store(i, j, activation_(t));
    }
  }

 private:
  AnyMatrix c_, addend_, bias_, slope_;
  T alpha_, beta_;
  AnyActivation activation_;
};

/// Products of `args`, whose batch has max_batch_rank dims, on ordinary cores: any types and strides, the sums in f32
/// or f64.
void simt_gemm_f32(const GemmArgs& args, Executor& executor);
void simt_gemm_f64(const GemmArgs& args, Executor& executor);
void simt_gemm_mixed(const GemmArgs& args, Executor& executor);

/// The same on matrix cores, a and b both of one type. Named after the contiguous dim: n, columns of a row are; t, rows
/// of a column. `aligned`: a chunk of 16 bytes of an operand is aligned, and wholly inside or outside.
#define TESSERA_MMA_GEMM(name) void mma_gemm_##name(const GemmArgs& args, bool aligned, Executor& executor);
TESSERA_MMA_GEMM(f16_nn)
TESSERA_MMA_GEMM(f16_nt)
TESSERA_MMA_GEMM(f16_tn)
TESSERA_MMA_GEMM(f16_tt)
TESSERA_MMA_GEMM(bf16_nn)
TESSERA_MMA_GEMM(bf16_nt)
TESSERA_MMA_GEMM(bf16_tn)
TESSERA_MMA_GEMM(bf16_tt)
#undef TESSERA_MMA_GEMM

inline i64 batch_count(const GemmArgs& args) {
  i64 batch = 1;
  for (i64 length : args.batch) batch *= length;
  return batch;
}

}  // namespace tessera::gpu_kernels
