// From tensors to batches of matrix products: tensors' strides go straight to the GEMM kernel, and batch dims are
// merged, so that few products of many rows run. What the lists of the CPU and of GPUs share.
#pragma once
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/shared/kept_input.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

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

inline size_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<size_t>(shape.numel().value()) * size_of(dtype);
}

// A dense operand in memory that belongs to somebody else, such as the workspace.
inline Operand operand_at(void* data, const Shape& shape, DType dtype, Device device) {
  return Operand({shape, dtype, device}, data);
}

inline void set_matrix(Products& p, Products::Role which, const Operand& t) {
  int rank = static_cast<int>(t.dim());
  p.set(which, t, t.strides()[rank - 2], t.strides()[rank - 1], rank - 2);
}

inline Products matmul_products(const Call& call) {
  const Operand &a = call.in[0], &b = call.in[1], &c = call.out[0];
  Products p(a.size(-2), b.size(-1), a.size(-1));
  set_matrix(p, Products::A, a);
  set_matrix(p, Products::B, b);
  set_matrix(p, Products::C, c);
  return p;
}

inline Products matmul_mul_sum_products(const Call& call) {
  Products p = matmul_products(call);
  const auto& attrs = call.attrs.as<LineSumAttrs>();
  if (call.in[2].defined()) set_matrix(p, Products::Factor, call.in[2]);
  size_t next = 1;
  const auto set_sums = [&](Products::Role which, bool along_rows) {
    const Operand& t = call.out[next++];
    const int64_t step = t.strides().back();
    p.set(which, t, along_rows ? step : 0, along_rows ? 0 : step, static_cast<int>(t.dim()) - 1);
  };
  if (attrs.rows) set_sums(Products::RowSums, true);
  if (attrs.columns) set_sums(Products::ColumnSums, false);
  return p;
}

/// A product times a factor, with the sums of its columns: a b times the slope of GELU.
inline Products gelu_grad_products(const Call& call, Activation activation) {
  Products p = matmul_products(call);
  p.args().activation = activation;
  set_matrix(p, Products::Factor, call.in[2]);
  p.set(Products::ColumnSums, call.out[1], 0, call.out[1].strides()[0], 0);
  return p;
}

inline Activation activation_of(tessera::Activation activation) {
  switch (activation) {
    case tessera::Activation::Relu:
      return Activation::relu;
    case tessera::Activation::GeluTanh:
      return Activation::gelu_tanh;
    case tessera::Activation::GeluErf:
      return Activation::gelu_erf;
    case tessera::Activation::Silu:
      return Activation::silu;
    case tessera::Activation::Tanh:
      return Activation::tanh;
    case tessera::Activation::None:
      break;
  }
  return Activation::none;
}

// Rows of one matrix; or, of m = 1, each a batch of one row, and the batch folds into as few products as strides allow.
inline void set_rows(Products& p, Products::Role which, const Operand& t) {
  long long pitch = 0;
  if (!t.defined()) return;
  if (p.args().m != 1 && folds_to_rows(t, 1, pitch)) p.set(which, t, pitch, 1, 0);
  else p.set(which, t, 0, t.strides().back(), static_cast<int>(t.dim()) - 1);
}
// The rows of all, if each tensor's are as far apart as the next ones; otherwise 1.
inline long long rows_of(std::initializer_list<const Operand*> tensors) {
  long long pitch, rows = 1;
  for (const Operand* t : tensors)
    if (t->defined() && !folds_to_rows(*t, 1, pitch)) return 1;
  for (int64_t d = 0; d < (*tensors.begin())->dim() - 1; ++d) rows *= (*tensors.begin())->shape()[d].value();
  return rows;
}

// An activation has no room for the residual, which is then added behind it.
inline bool adds_behind(const Call& call) {
  return call.attrs.as<LinearAttrs>().activation != tessera::Activation::None && call.in[3].defined();
}

// With activation and slope; the slope's place is also that of the activation's input.
inline Products activated_products(const Call& call) {
  const Operand &x = call.in[0], &weight = call.in[1], &bias = call.in[2], &residual = call.in[3];
  Activation activation = activation_of(call.attrs.as<LinearAttrs>().activation);
  bool activated = activation != Activation::none;
  Products p(rows_of({&x, &residual, &call.out[0], &call.out[1]}), weight.size(0), weight.size(1));
  set_rows(p, Products::A, x);
  p.set(Products::B, weight, weight.strides()[1], weight.strides()[0], 0);
  p.args().packed = weight.packing() != nullptr;
  set_rows(p, Products::C, call.out[0]);
  if (bias.defined()) p.set(Products::Bias, bias, 0, bias.strides()[0], 0);
  if (activated) set_rows(p, Products::Slope, call.out[1]);
  else set_rows(p, Products::Addend, residual);
  p.args().activation = activation;
  return p;
}

// Whether the second output is what the activation is applied to.
inline bool keeps_input(const Call& call) {
  return call.out[1].defined() && keeps_activation_input(call.attrs.as<LinearAttrs>().activation, call.in[0]);
}

// What is kept of an activation's input comes first, and a map makes the result of it.
inline Products linear_products(const Call& call) {
  Products p = activated_products(call);
  if (!keeps_input(call)) return p;
  set_rows(p, Products::C, call.out[1]);
  p.unset(Products::Slope);
  p.args().activation = Activation::none;
  return p;
}

// to = op(a, b?) element by element; every operand has the shape of `to`, and without `a` there is a 1.
inline void map(const Call& call, Plan& plan, MapOp op, const Operand& to, const Operand& a, const Operand& b = {}) {
  MapArgs args{};
  args.op = op;
  args.compute = to.dtype() == Float64 ? Scalar::f64 : Scalar::f32;
  args.rank = checked_rank(call, to);
  args.inputs = b.defined() ? 2 : 1;
  set_lengths(args.lengths, to);
  args.tensor[0] = operand(to, args.rank);
  args.tensor[1] = a.defined() ? operand(a, args.rank) : constant(plan, 1);
  if (b.defined()) args.tensor[2] = operand(b, args.rank);
  launch_map(plan, args);
}

inline void add_behind(const Call& call, Plan& plan) {
  if (adds_behind(call)) combine(call, plan, MapOp::add, call.out[0], call.out[0], call.in[3]);
}
/// Is it `linear_products`? By specialization, since g++ 12 under -fsanitize=undefined takes no `==` of functions for a
/// constant.
template <Products (*)(const Call&)>
inline constexpr bool is_linear = false;
template <>
inline constexpr bool is_linear<linear_products> = true;

template <Products (*products)(const Call&), void (*plan_products)(const Call&, Plan&)>
void plan_all(const Call& call, Plan& plan) {
  plan_products(call, plan);
  if constexpr (is_linear<products>) {
    if (keeps_input(call)) map(call, plan, MapOp::gelu_tanh, call.out[0], call.out[1]);
    add_behind(call, plan);
  }
}

// ---- two linear layers, each by the kernel that its own list picks

inline Shape hidden_shape(const Call& call) {
  Shape shape = call.in[0].shape();
  shape.back() = call.in[1].shape()[0];
  return shape;
}
// Rows that are 16-byte aligned.
inline Shape hidden_rows(const Call& call) {
  Shape shape = hidden_shape(call);
  const int64_t unit = 16 / static_cast<int64_t>(size_of(call.in[0].dtype()));
  shape.back() = (shape.back().value() + unit - 1) / unit * unit;
  return shape;
}
inline Operand hidden_at(const Call& call, void* memory) {
  const Shape shape = hidden_rows(call);
  return operand_at(memory, shape, call.in[0].dtype(), call.in[0].device())
      .as_strided(hidden_shape(call), contiguous_strides(shape));
}
inline void plan_mlp(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &up = call.in[1], &down = call.in[3];
  Operand hidden = call.out[1];
  if (!hidden.defined())  // nothing will need it afterwards
    hidden = hidden_at(call, plan.take(static_cast<int64_t>(bytes_of(hidden_rows(call), x.dtype()))));
  const Operand first[] = {x, up, call.in[2], {}}, second[] = {hidden, down, call.in[4], call.in[5]};
  const Operand kept[] = {hidden, call.out[2]}, result[] = {call.out[0], {}};
  plan_call(*call.op.made_of, first, call.attrs, kept, plan);
  plan_call(*call.op.made_of, second, LinearAttrs{}, result, plan);
}
// What the kernels of both want.
inline std::optional<Packing> pack_mlp(const Call& call, size_t input) {
  const Operand hidden = call.out[1].defined() ? call.out[1] : hidden_at(call, nullptr);
  const Operand first[] = {call.in[0], call.in[1], call.in[2], {}}, kept[] = {hidden, call.out[2]};
  const Operand second[] = {hidden, call.in[3], call.in[4], call.in[5]}, result[] = {call.out[0], {}};
  if (input == 1) return packing_of({*call.op.made_of, first, call.attrs, kept}, 1);
  if (input == 3) return packing_of({*call.op.made_of, second, LinearAttrs{}, result}, 1);
  return std::nullopt;
}
constexpr Kernel mlp_list[] = {{.name = "two_linear", .plan = plan_mlp, .pack = pack_mlp}};

}  // namespace tessera::TESSERA_KERNELS
