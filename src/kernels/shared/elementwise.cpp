// Elementwise operators: one map kernel, told what to compute.
#include <array>
#include <utility>

#include "kernels/shared/arguments.h"
#include "kernels/shared/map_calls.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {
namespace {

struct Numbers {
  double first = 0, second = 0;
};

Numbers none(const Attrs&) { return {}; }
Numbers value(const Attrs& attrs) { return {attrs.as<ScalarAttrs>().value}; }
Numbers addend(const Attrs& attrs) { return {1, attrs.as<ScalarAttrs>().value}; }
Numbers factor(const Attrs& attrs) { return {attrs.as<ScalarAttrs>().value, -0.0}; }  // x + -0.0 is x, also for zeros
Numbers bounds(const Attrs& attrs) {
  const auto [low, high] = attrs.as<ClampAttrs>();
  return {low, high};
}

struct Rule {
  std::string_view name;
  MapOp op;
  Numbers (*numbers)(const Attrs&) = none;
};
constexpr Rule kRules[] = {
#define TESSERA_MAP(name, ...) {#name, MapOp::name},
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#include "tile/kernels/maps.h"
    {"clamp", MapOp::clamp, bounds},
    {"clamp_backward", MapOp::clamp_backward, bounds},
    {"add_scalar", MapOp::scale_shift, addend},
    {"mul_scalar", MapOp::scale_shift, factor},
    {"pow_scalar", MapOp::pow_scalar, value},
    {"add_", MapOp::add_, value},
    {"mul_", MapOp::mul},
    {"mul_scalar_", MapOp::scale_shift, factor},
};

Scalar compute_type(DType dtype) {
  switch (dtype) {
    case Float64:
      return Scalar::f64;
    case Float32:
    case Float16:
    case BFloat16:
      return Scalar::f32;
    case Int64:
    case UInt32:
      return Scalar::i64;
    case UInt64:
      return Scalar::u64;
    default:
      return Scalar::i32;
  }
}

constexpr bool rounds(MapOp op) {
  return op == MapOp::floor || op == MapOp::ceil || op == MapOp::round || op == MapOp::trunc;
}

// It computes in what its inputs promote to where the result is bool or stored in place, and else in the result's type.
MapCall call_of(const Rule& rule, const Op& op, const Attrs& attrs, std::span<const DType> in, DType out) {
  DType dtype = out;
  if (rule.op >= MapOp::logical_not || op.in_place)
    for (const DType d : in) dtype = promote(dtype, d);
  const auto& supports = elementwise_table().supports;
  Scalar compute = compute_type(dtype);
  const bool wraps = compute == Scalar::u64 && !supports(rule.op, Scalar::u64);  // as i64 does
  if (wraps) compute = Scalar::i64;
  if (!supports(rule.op, compute)) compute = Scalar::f64;  // functions of integers
  auto [first, second] = rule.numbers(attrs);
  if (wraps)
    for (double* number : {&first, &second})
      if (*number >= 0x1p63) *number -= 0x1p64;
  return {rule.op, compute, {first, second}};
}

void map(const Rule& rule, const Call& call, Plan& plan) {
  const Operand& out = call.out[0];
  if (rounds(rule.op) && !is_floating(out.dtype())) return copy(call, plan, out, call.in[0]);
  SmallVector<DType, 4> dtypes;
  for (const Operand& t : call.in) dtypes.push_back(t.dtype());
  const MapCall found = call_of(rule, call.op, call.attrs, {dtypes.data(), dtypes.size()}, out.dtype());
  MapArgs args{};
  args.op = found.op;
  args.compute = found.compute;
  args.rank = checked_rank(call, out);
  args.inputs = static_cast<int>(call.in.size());
  set_lengths(args.lengths, out);
  args.tensor[0] = operand(out, args.rank);
  for (int i = 0; i < args.inputs; ++i) args.tensor[i + 1] = operand(call.in[i], args.rank);
  std::copy(found.numbers, found.numbers + 2, args.scalars);
  launch_map(plan, args);
}

void copy_input(const Call& call, Plan& plan) { copy(call, plan, call.out[0], call.in.back()); }
void fill_output(const Call& call, Plan& plan) { fill(call, plan, call.out[0], call.attrs.as<ScalarAttrs>().value); }

template <size_t rule>
constexpr Kernel map_kernel[] = {
    {.name = "map", .plan = [](const Call& call, Plan& plan) { map(kRules[rule], call, plan); }}};
constexpr Kernel copy_kernel[] = {{.name = "copy", .plan = copy_input}};
constexpr Kernel fill_kernel[] = {{.name = "fill", .plan = fill_output}};

template <size_t... rule>
constexpr auto kernels_of(std::index_sequence<rule...>) {
  return std::array{KernelTableEntry{kRules[rule].name, map_kernel<rule>}..., KernelTableEntry{"cast", copy_kernel},
                    KernelTableEntry{"fill_", fill_kernel}, KernelTableEntry{"copy_", copy_kernel}};
}

}  // namespace

std::optional<MapCall> map_call(const Op& op, const Attrs& attrs, std::span<const DType> in, DType out) {
  for (const Rule& rule : kRules) {
    if (rule.name != op.name) continue;
    if (rounds(rule.op) && !is_floating(out)) return std::nullopt;
    return call_of(rule, op, attrs, in, out);
  }
  return std::nullopt;
}

std::span<const KernelTableEntry> elementwise_kernels() {
  static constexpr auto entries = kernels_of(std::make_index_sequence<std::size(kRules)>());
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
