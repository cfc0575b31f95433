// Writing to computed places: what comes to an element overwrites it, or is combined with it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/gradient.h"
#include "ops/index_check.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_math.h"

namespace tessera {
namespace {

extern const Op scatter_op, scatter_prod_op;

template <OpName op>
Metas infer_scatter(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs(op.view(), in);
  check_places(op.view(), in[0].shape, in[1], attrs.as<DimAttrs>().dim);
  if (!(in[1].shape == in[2].shape) || in[2].dtype != in[0].dtype)
    throw Error(fmt::format("{}: the source must be like the index {} and of dtype {}, not {}", op.view(),
                            to_string(in[1].shape), name(in[0].dtype), describe(in[2])));
  return {in[0]};
}

// combine(what is at a place, what comes to it)
template <auto combine>
Tensors scatter_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Tensor out = in[0].clone();
  reference::each_index(in[1].shape(), [&](auto& i) {
    auto at = place(in[0], in[1], attrs, i);
    reference::set(out, at, combine(reference::get(out, at), reference::get(in[2], i)));
  });
  return {out};
}

int64_t dim_of(const Saved& s) { return s.attrs.as<DimAttrs>().dim; }
Tensor kept_where(const Tensor& condition, const Tensor& g) { return where(condition, g, number_like(g, 0)); }

// Which elements of the index are the last to write to their places.
Tensor writes_last(const Shape& x, int64_t dim, const Tensor& index) {
  const Tensor order = cumsum(ones(index.shape(), Int64, index.device()), dim);
  const Tensor writer = scatter(zeros(x, Int64, index.device()), dim, index, order);
  return eq(gather(writer, dim, index), order);
}

Tensors scatter_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &g = grads[0], &index = s.inputs[1];
  const int64_t dim = dim_of(s);
  Tensors out(3);
  if (s.needs_input(0)) out[0] = scatter(g, dim, index, zeros(index.shape(), g.dtype(), g.device()));
  if (s.needs_input(2)) out[2] = kept_where(writes_last(g.shape(), dim, index), gather(g, dim, index));
  return out;
}

Tensors scatter_add_vjp(const Saved& s, const Tensors& grads) {
  Tensors out = {grads[0], {}, {}};
  if (s.needs_input(2)) out[2] = gather(grads[0], dim_of(s), s.inputs[1]);
  return out;
}

// The product of the other factors, as prod's: of all where none is zero, at the zero where there is one.
Tensors scatter_prod_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &index = s.inputs[1], &source = s.inputs[2];
  const int64_t dim = dim_of(s);
  const Tensor zero = number_like(x, 0), one = number_like(x, 1), zero_x = eq(x, zero), zero_source = eq(source, zero);
  const Tensor factors = where(zero_x, one, x), factors_source = where(zero_source, one, source);
  const Tensor product = dispatch_one(scatter_prod_op, {factors, index, factors_source}, s.attrs);
  const Tensor zeros = scatter_add(cast(zero_x, x.dtype()), dim, index, cast(zero_source, x.dtype()));
  const Tensor with_one_zero = kept_where(eq(zeros, one), grads[0] * product);
  const Tensor with_none = kept_where(eq(zeros, zero), grads[0] * product);
  Tensors out(3);
  if (s.needs_input(0)) out[0] = where(zero_x, with_one_zero, with_none / factors);
  if (s.needs_input(2))
    out[2] = where(zero_source, gather(with_one_zero, dim, index), gather(with_none, dim, index) / factors_source);
  return out;
}

// Equal extremes share the gradient.
Tensors scatter_extreme_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &x = s.inputs[0], &index = s.inputs[1], &source = s.inputs[2], &y = s.outputs[0];
  const int64_t dim = dim_of(s);
  const Tensor chosen = cast(eq(x, y), x.dtype()), chosen_source = cast(eq(source, gather(y, dim, index)), x.dtype());
  const Tensor shares = scatter_add(chosen, dim, index, chosen_source);
  const Tensor share = grads[0] / where(eq(shares, number_like(x, 0)), number_like(x, 1), shares);
  Tensors out(3);
  if (s.needs_input(0)) out[0] = share * chosen;
  if (s.needs_input(2)) out[2] = gather(share, dim, index) * chosen_source;
  return out;
}

double larger(double a, double b) { return b > a || b != b ? b : a; }
double smaller(double a, double b) { return b < a || b != b ? b : a; }

template <OpName op, auto combine>
constexpr Op scatter_by(Tensors (*vjp)(const Saved&, const Tensors&), Saves saves, Autocast autocast = Autocast::None) {
  return {.name = op.text,
          .inputs = "x, index, source",
          .outputs = "y",
          .attrs = attrs_of<DimAttrs>,
          .infer = infer_scatter<op>,
          .vjp = vjp,
          .reference = scatter_reference<combine>,
          .saves = saves,
          .autocast = autocast};
}
constexpr Saves kIndex{.inputs = 2}, kAllOfThem{.inputs = 7}, kWithResult{.inputs = 7, .outputs = 1};

const Op scatter_op = scatter_by<"scatter", [](double, double b) { return b; }>(scatter_vjp, kIndex);
const Op scatter_add_op =
    scatter_by<"scatter_add", [](double a, double b) { return a + b; }>(scatter_add_vjp, kIndex, Autocast::Promote);
const Op scatter_prod_op =
    scatter_by<"scatter_prod", [](double a, double b) { return a * b; }>(scatter_prod_vjp, kAllOfThem);
const Op scatter_amax_op = scatter_by<"scatter_amax", larger>(scatter_extreme_vjp, kWithResult);
const Op scatter_amin_op = scatter_by<"scatter_amin", smaller>(scatter_extreme_vjp, kWithResult);

}  // namespace

std::span<const Op* const> scatter_ops() {
  static constexpr const Op* ops[] = {&scatter_op, &scatter_add_op, &scatter_prod_op, &scatter_amax_op,
                                      &scatter_amin_op};
  return ops;
}

// ---- public functions

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return dispatch_one(scatter_add_op, {x, index, source}, DimAttrs{dim});
}

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return dispatch_one(scatter_op, {x, index, source}, DimAttrs{dim});
}

namespace {

// What changes nothing that it is combined with.
Tensor neutral(ScatterReduction how, const Tensor& x) {
  if (how == ScatterReduction::Prod) return number_like(x, 1);
  if (how != ScatterReduction::Max && how != ScatterReduction::Min) return number_like(x, 0);
  if (is_floating(x.dtype())) return number_like(x, how == ScatterReduction::Max ? -INFINITY : INFINITY);
  const bool from_zero = x.dtype() == Bool || is_unsigned(x.dtype());
  const Tensor least = number_like(x, from_zero ? 0 : -std::ldexp(1, static_cast<int>(size_of(x.dtype())) * 8 - 1));
  return how == ScatterReduction::Max ? least : bitwise_not(least);
}

// Counts are exact in the type in which they divide, unless there are very many.
Tensor mean_of_scattered(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& sums, bool include_self) {
  const bool few = index.shape().is_symbolic() || index.numel() < 1 << 24;
  const DType dtype = !is_floating(x.dtype()) || !few ? Int64 : x.dtype() == Float64 ? Float64 : Float32;
  const auto number = [&](double value) { return full({}, value, dtype, x.device()); };
  const Tensor own = expand(number(include_self ? 1 : 0), x.shape());
  const Tensor counts = scatter_add(own, dim, index, expand(number(1), index.shape()));
  const Tensor divisor = cast(include_self ? counts : clamp(counts, 1, INFINITY), x.dtype());
  return is_floating(x.dtype()) ? sums / divisor : floor_div(sums, divisor);
}

}  // namespace

Tensor scatter_reduce(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source, ScatterReduction how,
                      bool include_self) {
  const Tensor start = include_self ? x : scatter(x, dim, index, contiguous(expand(neutral(how, x), index.shape())));
  switch (how) {
    case ScatterReduction::Sum:
      return scatter_add(start, dim, index, source);
    case ScatterReduction::Mean:
      return mean_of_scattered(x, dim, index, scatter_add(start, dim, index, source), include_self);
    case ScatterReduction::Prod:
      return dispatch_one(scatter_prod_op, {start, index, source}, DimAttrs{dim});
    case ScatterReduction::Max:
      return dispatch_one(scatter_amax_op, {start, index, source}, DimAttrs{dim});
    default:
      return dispatch_one(scatter_amin_op, {start, index, source}, DimAttrs{dim});
  }
}

}  // namespace tessera
