// Elementwise operators: one map kernel, told what to compute.
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {
namespace {

struct Numbers {
  double first = 0, second = 0;
};

Numbers none(const Call&) { return {}; }
Numbers value(const Call& c) { return {c.attrs.as<ScalarAttrs>().value}; }
Numbers addend(const Call& c) { return {1, c.attrs.as<ScalarAttrs>().value}; }
Numbers factor(const Call& c) { return {c.attrs.as<ScalarAttrs>().value, -0.0}; }  // x + -0.0 is x, also for zeros
Numbers bounds(const Call& c) {
  const auto [low, high] = c.attrs.as<ClampAttrs>();
  return {low, high};
}

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

// The dtype a call computes in: what its inputs promote to where the result is bool or stored in place.
DType computed_dtype(MapOp op, const Call& call) {
  DType dtype = call.out[0].dtype();
  if (op >= MapOp::logical_not || call.op.in_place)
    for (const Operand& t : call.in) dtype = promote(dtype, t.dtype());
  return dtype;
}

constexpr bool rounds(MapOp op) {
  return op == MapOp::floor || op == MapOp::ceil || op == MapOp::round || op == MapOp::trunc;
}

template <MapOp op, Numbers (*numbers)(const Call&)>
void map(const Call& call, Plan& plan) {
  const ElementwiseTable& table = elementwise_table();
  const Operand& out = call.out[0];
  if (rounds(op) && !is_floating(out.dtype())) return copy(call, plan, out, call.in[0]);
  MapArgs args{};
  args.op = op;
  args.compute = compute_type(computed_dtype(op, call));
  const bool wraps = args.compute == Scalar::u64 && !table.supports(op, Scalar::u64);  // as i64 does
  if (wraps) args.compute = Scalar::i64;
  if (!table.supports(op, args.compute)) args.compute = Scalar::f64;  // functions of integers
  args.rank = checked_rank(call, out);
  args.inputs = static_cast<int>(call.in.size());
  set_lengths(args.lengths, out);
  args.tensor[0] = operand(out, args.rank);
  for (int i = 0; i < args.inputs; ++i) args.tensor[i + 1] = operand(call.in[i], args.rank);
  auto [first, second] = numbers(call);
  if (wraps)
    for (double* number : {&first, &second})
      if (*number >= 0x1p63) *number -= 0x1p64;
  args.scalars[0] = first;
  args.scalars[1] = second;
  launch_map(plan, args);
}

void copy_input(const Call& call, Plan& plan) { copy(call, plan, call.out[0], call.in.back()); }
void fill_output(const Call& call, Plan& plan) { fill(call, plan, call.out[0], call.attrs.as<ScalarAttrs>().value); }

template <MapOp op, Numbers (*numbers)(const Call&) = none>
constexpr Kernel map_kernel[] = {{.name = "map", .plan = map<op, numbers>}};
constexpr Kernel copy_kernel[] = {{.name = "copy", .plan = copy_input}};
constexpr Kernel fill_kernel[] = {{.name = "fill", .plan = fill_output}};

}  // namespace

std::span<const KernelTableEntry> elementwise_kernels() {
  static constexpr KernelTableEntry entries[] = {
#define TESSERA_MAP(name, ...) {#name, map_kernel<MapOp::name>},
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#include "tile/kernels/maps.h"
      {"clamp", map_kernel<MapOp::clamp, bounds>},
      {"clamp_backward", map_kernel<MapOp::clamp_backward, bounds>},
      {"add_scalar", map_kernel<MapOp::scale_shift, addend>},
      {"mul_scalar", map_kernel<MapOp::scale_shift, factor>},
      {"pow_scalar", map_kernel<MapOp::pow_scalar, value>},
      {"add_", map_kernel<MapOp::add_, value>},
      {"mul_", map_kernel<MapOp::mul>},
      {"mul_scalar_", map_kernel<MapOp::scale_shift, factor>},
      {"cast", copy_kernel},
      {"fill_", fill_kernel},
      {"copy_", copy_kernel},
  };
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
