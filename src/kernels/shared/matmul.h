// Matrix products: tensors' strides go straight to the GEMM kernel. What the lists of the CPU and of GPUs share.
#pragma once
#include <utility>

#include "kernels/shared/kept_input.h"
#include "kernels/shared/products.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {

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

/// With operands of f32 as they are, or rounded to tf32.
template <Products (*products)(const Call&), bool tf32 = false>
void plan_gemm(const Call& call, Plan& plan) {
  Products p = products(call);
  long long bytes = 0;
  p.each([&](GemmArgs args) {
    args.tf32 = tf32;
    bytes = std::max(bytes, gemm_table().workspace(args, executor()));
  });
  void* const workspace = plan.take(bytes);
  p.each([&](GemmArgs args) {
    args.tf32 = tf32;
    args.workspace = workspace;
    plan.launch("gemm", gemm_table().run, args);
  });
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
template <Products (*products)(const Call&), void (*plan_products)(const Call&, Plan&)>
void plan_all(const Call& call, Plan& plan) {
  plan_products(call, plan);
  if constexpr (products == linear_products) {
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
// Rows that begin at whole units of 16 bytes.
inline Shape hidden_rows(const Call& call) {
  Shape shape = hidden_shape(call);
  const int64_t unit = 16 / static_cast<int64_t>(size_of(call.in[0].dtype()));
  shape.back() = (shape.back().value() + unit - 1) / unit * unit;
  return shape;
}
inline void plan_mlp(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &up = call.in[1], &down = call.in[3];
  Operand hidden = call.out[1];
  if (!hidden.defined()) {  // nothing will need it afterwards
    const Shape shape = hidden_rows(call);
    hidden = operand_at(plan.take(static_cast<int64_t>(bytes_of(shape, x.dtype()))), shape, x.dtype(), x.device())
                 .as_strided(hidden_shape(call), contiguous_strides(shape));
  }
  const Operand first[] = {x, up, call.in[2], {}}, second[] = {hidden, down, call.in[4], call.in[5]};
  const Operand kept[] = {hidden, call.out[2]}, result[] = {call.out[0], {}};
  plan_call(*call.op.made_of, first, call.attrs, kept, plan);
  plan_call(*call.op.made_of, second, LinearAttrs{}, result, plan);
}
constexpr Kernel mlp_list[] = {{.name = "two_linear", .plan = plan_mlp}};

}  // namespace tessera::TESSERA_KERNELS
