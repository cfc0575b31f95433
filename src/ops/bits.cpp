// Operators on the bits of integers, and what is made of them.
#include <cstring>
#include <limits>

#include "core/capture_state.h"
#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/map_graph.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

void require_integers(std::string_view op, DType dtype) {
  if (is_floating(dtype)) fail(op, "takes integers and bools, not {}", name(dtype));
}

template <OpName op>
Metas infer_bits(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs(op.view(), in);
  require_integers(op.view(), in[0].dtype);
  require_integers(op.view(), in[1].dtype);
  if (in[0].dtype != in[1].dtype) fail(op.view(), "dtypes differ: {} and {}", name(in[0].dtype), name(in[1].dtype));
  return {{broadcast_shapes(op.view(), in[0].shape, in[1].shape), in[0].dtype, in[0].device}};
}

template <auto combine>
Tensors bits_reference(std::span<const Tensor> in, const Attrs&) {
  return {reference::generate(broadcast_shapes("", in[0].shape(), in[1].shape()), in[0].dtype(), [&](auto& i) {
    const auto a = static_cast<int64_t>(reference::get(in[0], i)), b = static_cast<int64_t>(reference::get(in[1], i));
    return static_cast<double>(combine(a, b));
  })};
}

template <OpName op, auto combine>
constexpr Op bits() {
  return {
      .name = op.text, .inputs = "a, b", .outputs = "y", .infer = infer_bits<op>, .reference = bits_reference<combine>};
}
using I = int64_t;
const Op bitwise_and_op = bits<"bitwise_and", [](I a, I b) { return a & b; }>();
const Op bitwise_or_op = bits<"bitwise_or", [](I a, I b) { return a | b; }>();
const Op bitwise_xor_op = bits<"bitwise_xor", [](I a, I b) { return a ^ b; }>();

// Of the CPU alone: elsewhere, and in captured functions, shifts are made of other operators.
const Op left_shift_op = bits<"left_shift", [](I a, I n) { return a << n; }>();
const Op right_shift_op = bits<"right_shift", [](I a, I n) { return (a >> n); }>();

// The last dim holds as many bytes as before.
Shape recast(Shape shape, DType from, DType to) {
  const auto old_size = static_cast<int64_t>(size_of(from)), new_size = static_cast<int64_t>(size_of(to));
  if (old_size == new_size) return shape;
  if (shape.empty()) fail("bitcast", "one {} is not one {}", name(from), name(to));
  const Dim bytes = shape.back() * old_size, count = bytes / new_size;
  if (provably_different(count * new_size, bytes))
    fail("bitcast", "rows of {} {} are no whole number of {}", shape.back().to_string(), name(from), name(to));
  shape.back() = count;
  return shape;
}

Metas infer_bitcast(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("bitcast", in);
  const DType from = in[0].dtype, to = attrs.as<CastAttrs>().dtype;
  if (to == Bool && from != Bool) fail("bitcast", "not every {} is a bool", name(from));
  return {{recast(in[0].shape, from, to), to, in[0].device}};
}
Tensors bitcast_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const DType to = attrs.as<CastAttrs>().dtype;
  const Tensor x = in[0].contiguous(), y = empty(recast(x.shape(), x.dtype(), to), to);
  std::memcpy(y.data_ptr(), x.data_ptr(), static_cast<size_t>(x.numel()) * size_of(x.dtype()));
  return {y};
}
const Op bitcast_op = {.name = "bitcast",
                       .inputs = "x",
                       .outputs = "y",
                       .attrs = attrs_of<CastAttrs>,
                       .infer = infer_bitcast,
                       .reference = bitcast_reference};

// As of other operators of two operands: a 0-d tensor does not widen another one, unless that is bool.
DType type_of_bits(const Tensor& a, const Tensor& b) {
  const auto gives_way = [](const Tensor& x, const Tensor& to) {
    return x.dim() == 0 && to.dim() > 0 && !is_floating(x.dtype()) && (x.dtype() == Bool || to.dtype() != Bool);
  };
  return gives_way(a, b) ? b.dtype() : gives_way(b, a) ? a.dtype() : promote(a.dtype(), b.dtype());
}

Tensor of_bits(const Op& op, const Tensor& a, const Tensor& b) {
  const DType dtype = type_of_bits(a, b);
  return dispatch_one(op, {cast(a, dtype), cast(b, dtype)});
}

// Whether an operator shifts such tensors.
bool has_operator(const Tensor& a, const Tensor& n) {
  const bool integers = a.dtype() == n.dtype() && !is_floating(a.dtype()) && a.dtype() != Bool;
  return integers && a.device() == n.device() && !is_capturing();
}

// In i64, or in u64: the count, 0 where there are fewer than none or as many as bits, and where that is so.
struct Shift {
  Tensor value, count, out_of_range;
  DType dtype;
  Shift(std::string_view op, const Tensor& a, const Tensor& n) : dtype(type_of_bits(a, n)) {
    require_integers(op, dtype);
    if (dtype == Bool) fail(op, "takes integers, not bools");
    const DType compute = dtype == UInt64 ? UInt64 : Int64;
    value = cast(a, compute);
    const Tensor wide = cast(n, compute), zero = number_like(wide, 0);
    const Tensor bits = number_like(wide, static_cast<double>(8 * size_of(dtype)));
    out_of_range = logical_or(lt(wide, zero), ge(wide, bits));
    count = where(out_of_range, zero, wide);
  }
  Tensor power(const Tensor& n) const { return pow(number_like(n, 2), n); }
};

}  // namespace

std::span<const Op* const> bit_ops() {
  static constexpr const Op* ops[] = {&bitwise_and_op, &bitwise_or_op,  &bitwise_xor_op,
                                      &left_shift_op,  &right_shift_op, &bitcast_op};
  return ops;
}

Tensor bitwise_and(const Tensor& a, const Tensor& b) { return of_bits(bitwise_and_op, a, b); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return of_bits(bitwise_or_op, a, b); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return of_bits(bitwise_xor_op, a, b); }
Tensor bitwise_not(const Tensor& x) {
  require_integers("bitwise_not", x.dtype());
  if (x.dtype() == Bool) return logical_not(x);
  return map_elements({x}, x.dtype(), x.dtype(), [](const Tensor& v) { return add(neg(v), -1); });
}

Tensor bitcast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : dispatch_one(bitcast_op, {x}, CastAttrs{dtype});
}

Tensor left_shift(const Tensor& a, const Tensor& count) {
  if (has_operator(a, count)) return dispatch_one(left_shift_op, {a, count});
  const Shift s("left_shift", a, count);
  return cast(where(s.out_of_range, number_like(s.value, 0), s.value * s.power(s.count)), s.dtype);
}
// 2^63 is no i64: that far only the sign remains, as beyond all bits. It is a u64.
Tensor right_shift(const Tensor& a, const Tensor& count) {
  if (has_operator(a, count)) return dispatch_one(right_shift_op, {a, count});
  const Shift s("right_shift", a, count);
  const Tensor zero = number_like(s.value, 0);
  if (s.dtype == UInt64) return where(s.out_of_range, zero, floor_div(s.value, s.power(s.count)));
  const Tensor sign = where(lt(s.value, zero), number_like(zero, -1), zero);
  const Tensor most = number_like(zero, 63), whole = logical_or(s.out_of_range, eq(s.count, most));
  return cast(where(whole, sign, floor_div(s.value, s.power(where(whole, zero, s.count)))), s.dtype);
}

}  // namespace tessera
