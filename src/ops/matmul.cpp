// Matrix products: matmul, also times a factor and with sums of its lines, linear with its fused epilogue
// act(x wᵀ + bias) + residual, and two of these, whose backward is fused, too.
#include <cmath>
#include <numbers>

#include "kernels/shared/kept_input.h"
#include "ops/autocast.h"
#include "ops/check.h"
#include "ops/cost.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

Tensor transposed(const Tensor& x) { return transpose(x, -2, -1); }

// [..., n] as a matrix; a view where strides allow.
Tensor rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  Dim count = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) count = count * x.shape()[d];
  return reshape(x, Shape{count, x.shape().back()});
}

// ---- matmul

Metas infer_product(const char* op, std::span<const TensorMeta> in) {
  const Shape &a = in[0].shape, &b = in[1].shape;
  require_one_floating_dtype(op, in, in.size());
  if (a.rank() < 2 || b.rank() < 2) fail(op, "operands need two dims: {} x {}", to_string(a), to_string(b));
  if (a.back() != b[b.size() - 2]) fail(op, "inner dimensions differ: {} x {}", to_string(a), to_string(b));
  Shape out = broadcast_shapes(op, Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  out.push_back(a[a.size() - 2]);
  out.push_back(b.back());
  return {{out, in[0].dtype, in[0].device}};
}
Metas infer_matmul(std::span<const TensorMeta> in, const Attrs&) { return infer_product("matmul", in); }

// Columns by rows of a batch are no sums: elements of the host are multiplied without products' copies.
Tensor product_in_gradient(const Tensor& a, const Tensor& b) {
  return on_host(a) && a.dim() > 2 && a.size(-1) == 1 ? mul(a, b) : matmul(a, b);
}

// From the gradient of a b; as many as there are inputs.
Tensors product_gradients(const Saved& s, const Tensor& g) {
  const Tensor &a = s.inputs[0], &b = s.inputs[1];
  Tensors out(s.inputs.size());
  if (s.needs_input(0)) out[0] = gradient_for(product_in_gradient(g, transposed(b)), a);
  if (s.needs_input(1))  // a matrix shared by a batch: its gradient is one product, not a sum of many
    out[1] =
        b.dim() == 2 ? matmul(transposed(rows(a)), rows(g)) : gradient_for(product_in_gradient(transposed(a), g), b);
  return out;
}
Tensors matmul_vjp(const Saved& s, const Tensors& grads) { return product_gradients(s, grads[0]); }

Tensors matmul_reference(std::span<const Tensor> in, const Attrs& attrs) {
  TensorMeta metas[] = {in[0].meta(), in[1].meta()};
  Shape shape = infer_matmul(metas, attrs)[0].shape;
  int64_t inner = in[0].size(-1);
  return {reference::generate(shape, in[0].dtype(), [&](const reference::Index& index) {
    reference::Index a = index, b = index;
    double total = 0;
    for (int64_t k = 0; k < inner; ++k) {
      a[a.size() - 1] = b[b.size() - 2] = k;
      total += reference::get(in[0], a) * reference::get(in[1], b);
    }
    return total;
  })};
}

}  // namespace

const Op matmul_op = {.name = "matmul",
                      .inputs = "a, b",
                      .outputs = "y",
                      .infer = infer_matmul,
                      .vjp = matmul_vjp,
                      .reference = matmul_reference,
                      .saves = {.inputs = 0b11},
                      .autocast = Autocast::Lower,
                      .pitched = Pitched::All,
                      .flops = product_flops};

namespace {

// ---- matmul_wide: the same of halves with its sums in f32, as the gradient of a f32 weight is wanted under autocast

Metas infer_matmul_wide(std::span<const TensorMeta> in, const Attrs&) {
  Metas out = infer_product("matmul_wide", in);
  out[0].dtype = statistics_dtype(out[0].dtype);
  return out;
}
Tensors matmul_wide_vjp(const Saved& s, const Tensors& grads) {
  return product_gradients(s, cast(grads[0], s.inputs[0].dtype()));
}

const Op matmul_wide_op = {.name = "matmul_wide",
                           .inputs = "a, b",
                           .outputs = "y",
                           .infer = infer_matmul_wide,
                           .vjp = matmul_wide_vjp,
                           .reference = matmul_reference,
                           .saves = {.inputs = 0b11},
                           .pitched = Pitched::All,
                           .flops = product_flops};

// Whether this input is a cast f32 parameter, as autocast makes them, whose gradient is then not rounded to halves on
// its way.
bool takes_wide_gradient(const Saved& s, size_t input) {
  if (grad_enabled() || !s.node) return false;
  const Ref<Node>& cast = s.node->next[input].node;
  if (!cast || !cast->takes_any_dtype()) return false;
  const Edge& from = cast->next[0];
  return from.leaf && from.leaf->dtype == Float32;
}

// Of an input that is a weight [out, in], from the gradient of what x became.
Tensor weight_gradient(const Saved& s, size_t input, const Tensor& g, const Tensor& x) {
  return dispatch_one(takes_wide_gradient(s, input) ? matmul_wide_op : matmul_op, {transposed(rows(g)), rows(x)});
}
// Of a bias, from the gradient of what it was added to, or from the sums of that where they are there.
Tensor bias_gradient(const Saved& s, size_t input, const Tensor& g, const Tensor& sums = {}) {
  const Tensor& bias = s.inputs[input];
  const bool wide = takes_wide_gradient(s, input);
  if (sums.defined()) return wide ? sums : cast(sums, bias.dtype());
  static const Op& sum_wide = find_op("sum_wide");
  return wide ? dispatch_one(sum_wide, {rows(g)}, ReduceAttrs{{0}}) : sum_to(g, bias.shape());
}

// ---- matmul_mul_sum: a, b, factor? -> y, sums of its rows?, sums of its columns?

Shape without_dim(const Shape& shape, int from_end) {
  Shape out(shape.begin(), shape.end() - from_end);
  for (int d = from_end - 1; d > 0; --d) out.push_back(shape[shape.size() - d]);
  return out;
}

DType dtype_of_sums(DType dtype, const Attrs& attrs) {
  return attrs.as<LineSumAttrs>().wide ? statistics_dtype(dtype) : dtype;
}

Metas infer_matmul_mul_sum(std::span<const TensorMeta> in, const Attrs& attrs) {
  Metas out = infer_product("matmul_mul_sum", in);
  const TensorMeta y = out[0];
  require_shape("matmul_mul_sum", "factor", in[2], y.shape);
  const auto& wanted = attrs.as<LineSumAttrs>();
  const DType dtype = dtype_of_sums(y.dtype, attrs);
  if (wanted.rows) out.push_back({without_dim(y.shape, 1), dtype, y.device});
  if (wanted.columns) out.push_back({without_dim(y.shape, 2), dtype, y.device});
  return out;
}

Tensors matmul_mul_sum_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &a = s.inputs[0], &b = s.inputs[1], &factor = s.inputs[2];
  const auto& wanted = s.attrs.as<LineSumAttrs>();
  const TensorMeta metas[] = {a.meta(), b.meta()};
  const Shape shape = infer_product("matmul_mul_sum", metas)[0].shape;
  Tensor g = grads[0];
  const auto add_sums = [&](const Tensor& sums, int64_t dim) {
    if (!sums.defined()) return;
    const Tensor more = expand(unsqueeze(cast(sums, a.dtype()), dim), shape);
    g = g.defined() ? g + more : more;
  };
  if (wanted.rows) add_sums(grads[1], -1);
  if (wanted.columns) add_sums(grads.back(), -2);
  Tensor dfactor;
  if (s.needs_input(2)) dfactor = g * matmul(a, b);
  Tensors out = product_gradients(s, factor.defined() ? g * factor : g);
  out[2] = dfactor;
  return out;
}

Tensors matmul_mul_sum_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor& factor = in[2];
  const Tensor product = matmul_reference(in.first(2), {})[0];
  const auto value = [&](const reference::Index& i) {
    return reference::get(product, i) * (factor.defined() ? reference::get(factor, i) : 1);
  };
  Tensors out = {reference::generate(product.shape(), product.dtype(), value)};
  const auto& wanted = attrs.as<LineSumAttrs>();
  const auto add_sums = [&](int from_end) {
    const auto at = static_cast<int64_t>(product.dim() - from_end);
    out.push_back(reference::generate(without_dim(product.shape(), from_end), product.dtype(),
                                      [&](const reference::Index& index) {
                                        reference::Index i(index.begin(), index.begin() + at);
                                        i.push_back(0);
                                        if (from_end == 2) i.push_back(index.back());
                                        double sum = 0;
                                        for (i[at] = 0; i[at] < product.size(at); ++i[at]) sum += value(i);
                                        return sum;
                                      }));
  };
  if (wanted.rows) add_sums(1);
  if (wanted.columns) add_sums(2);
  return out;
}

const Op matmul_mul_sum_op = {.name = "matmul_mul_sum",
                              .inputs = "a, b, factor?",
                              .outputs = "y, row_sums?, column_sums?",
                              .attrs = attrs_of<LineSumAttrs>,
                              .infer = infer_matmul_mul_sum,
                              .vjp = matmul_mul_sum_vjp,
                              .reference = matmul_mul_sum_reference,
                              .saves = {.inputs = 0b111},
                              .autocast = Autocast::Lower,
                              .pitched = Pitched::All,
                              .flops = product_flops};

// ---- matmul_gelu_grad: a, b, h -> a b times the slope of gelu_tanh at h, sums of its columns; a backward's own

Metas infer_matmul_gelu_grad(std::span<const TensorMeta> in, const Attrs& attrs) {
  Metas out = infer_product("matmul_gelu_grad", in);
  if (out[0].shape.rank() != 2) fail("matmul_gelu_grad", "takes matrices, not {}", describe(in[0]));
  require_shape("matmul_gelu_grad", "h", in[2], out[0].shape);
  out.push_back({{out[0].shape.back()}, dtype_of_sums(out[0].dtype, attrs), out[0].device});
  return out;
}

Tensors matmul_gelu_grad_reference(std::span<const Tensor> in, const Attrs&) {
  const Tensor product = matmul_reference(in.first(2), {})[0];
  const auto value = [&](const reference::Index& i) {
    const double h = reference::get(in[2], i), c = std::sqrt(2 / std::numbers::pi);
    const double t = std::tanh(c * (h + 0.044715 * h * h * h));
    return reference::get(product, i) * (0.5 * (1 + t) + 0.5 * h * (1 - t * t) * c * (1 + 3 * 0.044715 * h * h));
  };
  const auto sum_of_column = [&](const reference::Index& index) {
    double sum = 0;
    for (int64_t row = 0; row < product.size(0); ++row) sum += value({row, index[0]});
    return sum;
  };
  return {reference::generate(product.shape(), product.dtype(), value),
          reference::generate({product.shape()[1]}, product.dtype(), sum_of_column)};
}

const Op matmul_gelu_grad_op = {.name = "matmul_gelu_grad",
                                .inputs = "a, b, h",
                                .outputs = "y, column_sums",
                                .attrs = attrs_of<LineSumAttrs>,
                                .infer = infer_matmul_gelu_grad,
                                .reference = matmul_gelu_grad_reference,
                                .pitched = Pitched::All,
                                .flops = product_flops};

// ---- linear: x, weight, bias?, residual? -> y, slope of the activation or its input (hidden)

Metas infer_linear(std::span<const TensorMeta> in, const Attrs& attrs) {
  const Shape &x = in[0].shape, &weight = in[1].shape;
  require_one_floating_dtype("linear", in, 4);
  require_rank("linear", "weight", in[1], 2);
  if (x.empty() || x.back() != weight[1])
    fail("linear", "the last dim of x is not the weight's: {} and {}", to_string(x), to_string(weight));
  require_shape("linear", "bias", in[2], {weight[0]});
  Shape out = x;
  out.back() = weight[0];
  require_shape("linear", "residual", in[3], out);
  bool activated = attrs.as<LinearAttrs>().activation != Activation::None;
  TensorMeta y{out, in[0].dtype, in[0].device};
  return {y, activated ? y : absent_meta(y.device)};
}

}  // namespace

const Op& activation_op(Activation activation) {
  switch (activation) {
    case Activation::Relu:
      return find_op("relu");
    case Activation::GeluTanh:
      return find_op("gelu_tanh");
    case Activation::GeluErf:
      return find_op("gelu");
    case Activation::Silu:
      return find_op("silu");
    case Activation::Tanh:
      return find_op("tanh");
    case Activation::None:
      break;
  }
  throw Error("linear: unknown activation");
}

Tensor activation_gradient(Activation activation, const Tensor& g, Tensor h) {
  if (activation == Activation::None) return g;
  static const Attrs none;
  const Op& op = activation_op(activation);
  Tensor out = op.saves.outputs ? dispatch_one(op, {h}) : Tensor();
  Saved saved{none, {&h, 1}, {&out, 1}, {}, 1};
  return (op.fused_vjp && !grad_enabled() ? op.fused_vjp : op.vjp)(saved, {g})[0];
}

namespace {

// Of x, weight and bias, the first inputs, from the gradient of what the activation is applied to; `dbias` may be
// there.
Tensors linear_gradients(const Saved& s, const Tensor& dh, const Tensor& dbias = {}) {
  const Tensor& weight = s.inputs[1];
  const Shape shape = s.inputs[0].shape();
  Tensors out(s.inputs.size());
  if (s.needs_input(1)) out[1] = weight_gradient(s, 1, dh, s.inputs[0]);
  s.inputs[0] = {};  // before its gradient takes as much memory
  if (s.needs_input(0)) out[0] = reshape(matmul(rows(dh), weight), shape);
  if (s.needs_input(2)) out[2] = bias_gradient(s, 2, dh, dbias);
  return out;
}
Tensors with_residual(Tensors out, const Tensor& g) {
  out.back() = g;
  return out;
}

Tensors linear_vjp(const Saved& s, const Tensors& grads) {
  Activation activation = s.attrs.as<LinearAttrs>().activation;
  Tensor h;
  if (activation != Activation::None) h = linear(s.inputs[0], s.inputs[1], s.inputs[2]);
  return with_residual(linear_gradients(s, activation_gradient(activation, grads[0], h)), grads[0]);
}

Tensors linear_fused_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& g = grads[0];
  const Activation activation = s.attrs.as<LinearAttrs>().activation;
  if (activation == Activation::None) return with_residual(linear_gradients(s, g), g);
  const bool in_place = s.owns(0) && !s.needs_input(3);
  Tensor& slope = s.outputs[1];
  if (keeps_activation_input(activation, slope))
    return with_residual(linear_gradients(s, activation_gradient(activation, g, std::exchange(slope, {}))), g);
  Tensor dh = g;
  if (in_place) dh.mul_(slope);
  else dh = g * slope;
  slope = {};
  return with_residual(linear_gradients(s, dh), g);
}

}  // namespace

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::Relu:
      return x > 0 ? x : 0;
    case Activation::GeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::GeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::Silu:
      return x / (1 + std::exp(-x));
    case Activation::Tanh:
      return std::tanh(x);
  }
  throw Error("linear: unknown activation");
}

namespace {

Tensors linear_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1], &bias = in[2], &residual = in[3];
  Shape shape = x.shape();
  shape.back() = weight.shape()[0];
  return {reference::generate(shape, x.dtype(), [&](const reference::Index& index) {
    reference::Index i = index;
    int64_t column = index.back();
    double h = bias.defined() ? reference::get(bias, std::array{column}) : 0;
    for (int64_t k = 0; k < x.size(-1); ++k) {
      i.back() = k;
      h += reference::get(x, i) * reference::get(weight, std::array{column, k});
    }
    return activate(attrs.as<LinearAttrs>().activation, h) + (residual.defined() ? reference::get(residual, index) : 0);
  })};
}

}  // namespace

const Op linear_op = {.name = "linear",
                      .inputs = "x, weight, bias?, residual?",
                      .outputs = "y, slope?",
                      .attrs = attrs_of<LinearAttrs>,
                      .infer = infer_linear,
                      .vjp = linear_vjp,
                      .fused_vjp = linear_fused_vjp,
                      .reference = linear_reference,
                      .saves = {.inputs = 0b0111, .outputs = 0b10},
                      .autocast = Autocast::Lower,
                      .hidden_outputs = 1,
                      .pitched = Pitched::All,
                      .flops = product_flops};

namespace {

// ---- mlp: x, up, up's bias?, down, down's bias?, residual? -> y, hidden layer, slope of its activation or the
// activation's input (both hidden)

Metas infer_mlp(std::span<const TensorMeta> in, const Attrs& attrs) {
  const Shape &x = in[0].shape, &up = in[1].shape, &down = in[3].shape;
  require_one_floating_dtype("mlp", in, 6);
  require_rank("mlp", "up", in[1], 2);
  require_rank("mlp", "down", in[3], 2);
  if (x.empty() || x.back() != up[1])
    fail("mlp", "the last dim of x is not that of up: {} and {}", to_string(x), to_string(up));
  if (up[0] != down[1]) fail("mlp", "up gives what down does not take: {} and {}", to_string(up), to_string(down));
  require_shape("mlp", "the bias of up", in[2], {up[0]});
  require_shape("mlp", "the bias of down", in[4], {down[0]});
  Shape hidden = x, out = x;
  hidden.back() = up[0];
  out.back() = down[0];
  require_shape("mlp", "residual", in[5], out);
  const bool activated = attrs.as<LinearAttrs>().activation != Activation::None;
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  return {meta(out), meta(hidden), activated ? meta(hidden) : absent_meta(in[0].device)};
}

double mlp_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  const double rows = elements_of(out[0].shape) / std::max(1.0, static_cast<double>(out[0].shape.back().value()));
  return 2 * rows * (elements_of(in[1].shape) + elements_of(in[3].shape));
}

// Of down, its bias and the residual.
void add_down_gradients(const Saved& s, const Tensor& g, const Tensor& hidden, Tensors& out) {
  if (s.needs_input(3)) out[3] = weight_gradient(s, 3, g, hidden);
  if (s.needs_input(4)) out[4] = bias_gradient(s, 4, g);
  out[5] = g;
}

Tensors mlp_vjp(const Saved& s, const Tensors& grads) {
  const Activation activation = s.attrs.as<LinearAttrs>().activation;
  const Tensor &g = grads[0], &down = s.inputs[3];
  const Tensor h = linear(s.inputs[0], s.inputs[1], s.inputs[2]);
  const Tensor hidden = activation == Activation::None ? h : dispatch_one(activation_op(activation), {h});
  Tensors out = linear_gradients(s, activation_gradient(activation, matmul(g, down), h));
  add_down_gradients(s, g, hidden, out);
  return out;
}

Tensors mlp_fused_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &g = grads[0], &down = s.inputs[3];
  Tensor &hidden = s.outputs[1], &slope = s.outputs[2];
  Tensors of_down(s.inputs.size());
  add_down_gradients(s, g, hidden, of_down);
  hidden = {};  // before its gradient takes as much memory
  if (!(s.needs & 0b111)) return of_down;
  const Activation activation = s.attrs.as<LinearAttrs>().activation;
  const bool keeps_input = slope.defined() && keeps_activation_input(activation, slope);
  Tensor factor = activation != Activation::None ? rows(std::exchange(slope, {})) : Tensor();
  const LineSumAttrs sums{false, s.needs_input(2), s.needs_input(2) && takes_wide_gradient(s, 2)};
  Tensors products = dispatch(keeps_input ? matmul_gelu_grad_op : matmul_mul_sum_op, {rows(g), down, factor}, sums);
  factor = {};
  Tensors out = linear_gradients(s, products[0], s.needs_input(2) ? products[1] : Tensor());
  std::move(of_down.begin() + 3, of_down.end(), out.begin() + 3);
  return out;
}

Tensors mlp_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor hidden = linear_reference(std::array{in[0], in[1], in[2], Tensor()}, attrs)[0];
  return linear_reference(std::array{hidden, in[3], in[4], in[5]}, LinearAttrs{});
}

const Op mlp_op = {.name = "mlp",
                   .inputs = "x, up, up_bias?, down, down_bias?, residual?",
                   .outputs = "y, hidden?, slope?",
                   .attrs = attrs_of<LinearAttrs>,
                   .infer = infer_mlp,
                   .vjp = mlp_vjp,
                   .fused_vjp = mlp_fused_vjp,
                   .reference = mlp_reference,
                   .saves = {.inputs = 0b11111, .outputs = 0b110},
                   .autocast = Autocast::Lower,
                   .hidden_outputs = 2,
                   .pitched = Pitched::All,
                   .made_of = &linear_op,
                   .flops = mlp_flops};

}  // namespace

std::span<const Op* const> matmul_ops() {
  static constexpr const Op* ops[] = {&matmul_op,           &matmul_wide_op, &matmul_mul_sum_op,
                                      &matmul_gelu_grad_op, &linear_op,      &mlp_op};
  return ops;
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (a.dim() >= 2 && b.dim() >= 2) return dispatch_one(matmul_op, {a, b});
  if (a.dim() == 0 || b.dim() == 0 || a.shape().back() != b.shape()[std::max<int64_t>(b.dim() - 2, 0)])
    fail("matmul", "inner dimensions differ: {} x {}", to_string(a.shape()), to_string(b.shape()));
  Tensor out = dispatch_one(matmul_op, {a.dim() == 1 ? unsqueeze(a, 0) : a, b.dim() == 1 ? unsqueeze(b, 1) : b});
  if (b.dim() == 1) out = squeeze(out, -1);
  return a.dim() == 1 ? squeeze(out, b.dim() == 1 ? -1 : -2) : out;
}

Tensors matmul_mul_sum(const Tensor& a, const Tensor& b, const Tensor& factor, bool row_sums, bool column_sums) {
  return dispatch(matmul_mul_sum_op, {a, b, factor}, LineSumAttrs{row_sums, column_sums});
}

namespace {

/// Whether the rows are many short lists that no one stride walks, as those of [n, tokens, c] turned to [tokens, n, c].
bool has_scattered_rows(const Tensor& x) {
  constexpr int64_t few = 64;
  const int64_t last = x.dim() - 2;  // of the rows
  if (last < 1 || x.device().type != DeviceType::CPU || x.impl().symbolic || x.size(last) >= few) return false;
  int64_t span = -1;
  for (int64_t d = last; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (span >= 0 && x.stride(d) != span) return x.stride(d) != 0;
    span = x.stride(d) * x.size(d);
  }
  return false;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_act(x, weight, bias, Activation::None);
}
Tensor linear_act(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
                  const Tensor& residual) {
  if (amp::is_wide_residual(residual)) return add(residual, linear_act(x, weight, bias, activation));
  const Tensor rows = has_scattered_rows(x) ? contiguous(x) : x;  // a copy costs less than many small products
  return dispatch_one(linear_op, {rows, weight, bias, residual}, LinearAttrs{activation});
}
Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, Activation activation, const Tensor& down,
           const Tensor& down_bias, const Tensor& residual) {
  if (amp::is_wide_residual(residual)) return add(residual, mlp(x, up, up_bias, activation, down, down_bias));
  return dispatch_one(mlp_op, {x, up, up_bias, down, down_bias, residual}, LinearAttrs{activation});
}

}  // namespace tessera
