// From tensors to batches of matrix products: batch dims are merged, so that few products of many rows run.
#pragma once
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/shared/arguments.h"

namespace tessera::TESSERA_KERNELS {

/// c = epilogue(a b) for every index of the batch. Tensors must outlive the object.
class Products {
 public:
  enum Role { A, B, C, Addend, Bias, Slope, Factor, RowSums, ColumnSums };

  Products(long long m, long long n, long long k) {
    args_.m = m;
    args_.n = n;
    args_.k = k;
    args_.alpha = args_.beta = 1;
    args_.tf32 = tf32_allowed();
  }

  GemmArgs& args() { return args_; }

  /// One operand, with the strides of its rows and columns; its first `batch_dims` dims run over the batch, aligned at
  /// the last one and repeated where their size is 1.
  void set(Role which, const Operand& t, long long row, long long column, int batch_dims) {
    MatrixArg& m = matrix(which);
    m.data = t.data_ptr();
    m.type = scalar_of(t.dtype());
    m.row = row;
    m.column = column;
    tensors_[which] = &t;
    batch_dims_[which] = batch_dims;
  }

  void unset(Role which) {
    matrix(which) = {};
    tensors_[which] = nullptr;
    batch_dims_[which] = 0;
  }

  void launch(Plan& plan) {
    each([&](const GemmArgs& args) { plan.launch("gemm", gemm_table().run, args); });
  }

  /// fn(args) for every product that the kernels are asked for: mostly one.
  template <class Fn>
  void each(const Fn& fn) {
    if (collect()) each_from(0, {&fn, [](const void* f, const GemmArgs& args) { (*static_cast<const Fn*>(f))(args); }});
  }

 private:
  static constexpr int kOperands = 9;
  struct BatchDim {
    long long length;
    std::array<long long, kOperands> strides;
  };
  /// A function of any type: the walk below is compiled once, not for each.
  struct Visitor {
    const void* fn;
    void (*call)(const void* fn, const GemmArgs& args);
  };

  MatrixArg& matrix(int i) {
    MatrixArg* all[] = {&args_.a,     &args_.b,      &args_.c,        &args_.addend,     &args_.bias,
                        &args_.slope, &args_.factor, &args_.row_sums, &args_.column_sums};
    return *all[i];
  }

  // Whether there is anything to compute; what is asked for, with the fewest batch dims.
  bool collect() {
    const bool sums = args_.row_sums.data || args_.column_sums.data;  // zeros where the product is empty
    if ((args_.m == 0 || args_.n == 0) && !sums) return false;
    if (!std::exchange(collected_, true)) merge_dims();
    if (std::any_of(dims_.begin(), dims_.end(), [](const BatchDim& d) { return d.length == 0; })) return false;
    while (fold_into_rows()) {
    }
    return true;
  }

  // Batch dims from the outermost in, neighbours merged where every operand allows.
  void merge_dims() {
    int rank = batch_dims_[C];
    for (int d = 0; d < rank; ++d) {
      BatchDim dim{tensors_[C]->shape()[d].value(), {}};
      if (dim.length == 1) continue;
      for (int i = 0; i < kOperands; ++i) {
        int own = d - (rank - batch_dims_[i]);
        if (!tensors_[i] || own < 0 || tensors_[i]->shape()[own] == Dim(1)) continue;
        dim.strides[i] = tensors_[i]->strides()[own];
      }
      bool merges = !dims_.empty();
      for (int i = 0; i < kOperands && merges; ++i) merges = dims_.back().strides[i] == dim.strides[i] * dim.length;
      if (merges) dims_.back() = {dims_.back().length * dim.length, dim.strides};
      else dims_.push_back(dim);
    }
  }

  // A batch that shares b is one product of more rows.
  bool fold_into_rows() {
    if (dims_.empty() || dims_.back().strides[B] != 0) return false;
    const BatchDim& last = dims_.back();
    for (int i = 0; i < kOperands; ++i)
      if (i != B && (args_.m != 1 || i == ColumnSums) && last.strides[i] != args_.m * matrix(i).row) return false;
    for (int i = 0; i < kOperands; ++i)
      if (i != B && args_.m == 1) matrix(i).row = last.strides[i];
    args_.m *= last.length;
    dims_.pop_back();
    return true;
  }

  // The table takes max_batch_rank dims; more of them, which is rare, are walked here.
  void each_from(size_t first, Visitor visitor) {
    if (dims_.size() - first > max_batch_rank) {
      for (long long j = 0; j < dims_[first].length; ++j) {
        Products one = *this;
        for (int i = 0; i < kOperands; ++i) {
          MatrixArg& m = one.matrix(i);
          if (!m.data) continue;
          auto bytes = static_cast<long long>(size_of(static_cast<DType>(m.type)));
          m.data = static_cast<std::byte*>(m.data) + j * dims_[first].strides[i] * bytes;
        }
        one.each_from(first + 1, visitor);
      }
      return;
    }
    args_.batch_rank = static_cast<int>(dims_.size() - first);
    for (int d = 0; d < args_.batch_rank; ++d) {
      args_.batch[d] = dims_[first + d].length;
      for (int i = 0; i < kOperands; ++i) matrix(i).batch[d] = dims_[first + d].strides[i];
    }
    visitor.call(visitor.fn, args_);
  }

  GemmArgs args_{};
  std::array<const Operand*, kOperands> tensors_{};
  std::array<int, kOperands> batch_dims_{};
  SmallVector<BatchDim, 6> dims_;
  bool collected_ = false;
};

}  // namespace tessera::TESSERA_KERNELS
