// From operands to the plain structs that kernels take.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "core/kernel.h"
#include "kernels/shared/kernel_tables.h"

namespace tessera::TESSERA_KERNELS {

inline Scalar scalar_of(DType dtype) { return static_cast<Scalar>(dtype); }

/// Throws Error past the eight dims that kernels take.
inline int checked_rank(const Call& call, const Operand& t) {
  if (t.dim() > max_rank)
    throw Error(std::string(call.op.name) + ": " + describe(t) + " has more than " + std::to_string(max_rank) +
                " dims");
  return static_cast<int>(t.dim());
}

inline void set_lengths(long long* lengths, const Operand& t) {
  for (int d = 0; d < static_cast<int>(t.dim()); ++d) lengths[d] = t.shape()[d].value();
}

/// `t` as an operand of a loop nest of `rank` dims, aligned at the last one; dims of size 1 repeat.
inline TensorArg operand(const Operand& t, int rank) {
  TensorArg arg{t.data_ptr(), scalar_of(t.dtype()), {}};
  int shift = rank - static_cast<int>(t.dim());
  for (int d = shift; d < rank; ++d) arg.strides[d] = t.shape()[d - shift] == Dim(1) ? 0 : t.strides()[d - shift];
  return arg;
}

/// One number for every element.
inline TensorArg constant(Plan& plan, double value) { return {plan.keep(value), Scalar::f64, {}, true}; }

/// Dims in the order in which the first tensor lies, the result, so that what lies channels last is one row, too: where
/// an element stands does not matter to a map.
inline void sort_dims(long long* lengths, int rank, std::span<TensorArg* const> tensors) {
  std::array<int, max_rank> order;
  std::iota(order.begin(), order.end(), 0);
  const auto& of_result = tensors[0]->strides;
  std::stable_sort(order.begin(), order.begin() + rank, [&](int a, int b) { return of_result[a] > of_result[b]; });
  const auto permute = [&](long long* items) {
    std::array<long long, max_rank> given;
    std::copy(items, items + rank, given.begin());
    for (int d = 0; d < rank; ++d) items[d] = given[static_cast<size_t>(order[static_cast<size_t>(d)])];
  };
  permute(lengths);
  for (TensorArg* t : tensors) permute(t->strides);
}

inline void launch_map(Plan& plan, MapArgs args, std::source_location where = std::source_location::current()) {
  TensorArg* all[std::size(args.tensor)];
  for (size_t i = 0; i < std::size(all); ++i) all[i] = &args.tensor[i];
  sort_dims(args.lengths, args.rank, std::span(all).first(static_cast<size_t>(args.inputs) + 1));
  plan.launch("map", elementwise_table().map, args, where);
}
inline void launch_copy(Plan& plan, CopyArgs args, std::source_location where = std::source_location::current()) {
  sort_dims(args.lengths, args.rank, std::array{&args.to, &args.from});
  plan.launch("copy", elementwise_table().copy, args, where);
}

/// to = from over the dims of `to`; `from` is broadcast and converted.
inline void copy(const Call& call, Plan& plan, const Operand& to, const Operand& from) {
  CopyArgs args{};
  args.rank = checked_rank(call, to);
  set_lengths(args.lengths, to);
  args.to = operand(to, args.rank);
  args.from = operand(from, args.rank);
  launch_copy(plan, args);
}

/// to = a op b over the dims of `to`; a and b are broadcast and converted.
inline void combine(const Call& call, Plan& plan, MapOp op, const Operand& to, const Operand& a, const TensorArg& b) {
  MapArgs args{};
  args.op = op;
  args.compute = to.dtype() == Float64 ? Scalar::f64 : Scalar::f32;
  args.rank = checked_rank(call, to);
  args.inputs = 2;
  set_lengths(args.lengths, to);
  args.tensor[0] = operand(to, args.rank);
  args.tensor[1] = operand(a, args.rank);
  args.tensor[2] = b;
  launch_map(plan, args);
}
inline void combine(const Call& call, Plan& plan, MapOp op, const Operand& to, const Operand& a, const Operand& b) {
  combine(call, plan, op, to, a, operand(b, checked_rank(call, to)));
}

/// Every element of `to` becomes `value`.
inline void fill(const Call& call, Plan& plan, const Operand& to, double value) {
  CopyArgs args{};
  args.rank = checked_rank(call, to);
  set_lengths(args.lengths, to);
  args.to = operand(to, args.rank);
  args.from = constant(plan, value);
  launch_copy(plan, args);
}

}  // namespace tessera::TESSERA_KERNELS
