// A recurrent net as one operator, which GPUs have where the vendor's library takes it.
#include "ops/recurrent_net.h"

#include "core/capture_state.h"
#include "kernels/recurrent_net.h"
#include "ops/check.h"
#include "ops/op_table.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- recurrent_net: x [steps, batch, in], hidden and cell state [layers * d, batch, hidden] before the first step or
// nothing for 0, and each layer's parameters as in RecurrentWeights -> the hidden states behind each step [steps,
// batch, d * hidden], those behind the last one, an LSTM's last cell states; and what the kernel keeps (hidden)

constexpr size_t kStates = 3;

int64_t directions_of(const NetAttrs& a) { return a.both ? 2 : 1; }
size_t parameters_of(const NetAttrs& a) { return static_cast<size_t>(a.layers) * (a.biases ? 4 : 2); }

// Shapes of all parameters.
std::vector<Shape> parameter_shapes(const NetAttrs& a, Dim in, Dim hidden) {
  std::vector<Shape> shapes;
  const Dim d(directions_of(a)), rows = hidden * a.gates;
  for (int64_t layer = 0; layer < a.layers; ++layer) {
    shapes.push_back({d, rows, layer ? hidden * directions_of(a) : in});
    shapes.push_back({d, rows, hidden});
    if (a.biases) shapes.insert(shapes.end(), 2, Shape{d, rows});
  }
  return shapes;
}

Metas infer_net(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "recurrent_net";
  const auto& a = attrs.as<NetAttrs>();
  if (a.gates != 1 && a.gates != 3 && a.gates != 4) fail(op, "{} gates are none of 1, 3 and 4", a.gates);
  if (a.layers < 1 || in.size() != kStates + parameters_of(a))
    fail(op, "{} inputs are not those of {} layers", in.size(), a.layers);
  for (size_t i = 0; i < in.size(); ++i)
    if ((i == 0 || i >= kStates) && is_absent(in[i])) fail(op, "input {} is undefined", i);
  require_one_floating_dtype(op, in, in.size());
  require_rank(op, "x", in[0], 3);
  require_rank(op, "the hidden state's weight", in[kStates + 1], 3);
  const Shape& x = in[0].shape;
  const Dim hidden = in[kStates + 1].shape[2];
  const std::vector<Shape> shapes = parameter_shapes(a, x[2], hidden);
  for (size_t i = 0; i < shapes.size(); ++i) require_shape(op, "a parameter", in[kStates + i], shapes[i]);
  const Shape states{Dim(a.layers * directions_of(a)), x[1], hidden};
  require_shape(op, "the hidden state", in[1], states);
  require_shape(op, "the cell state", in[2], states);
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  Metas out{meta({x[0], x[1], hidden * directions_of(a)}), meta(states)};
  if (a.gates == 4) out.push_back(meta(states));
  out.push_back({{Dim(a.kept_bytes)}, UInt8, in[0].device});
  return out;
}

double net_flops(const Shape& x, const Shape& output, const NetAttrs& a) {
  const Dim hidden = output[2];  // of all directions
  const double rows = static_cast<double>((x[0] * x[1] * hidden * a.gates).value());
  const double one = static_cast<double>(hidden.value()) / static_cast<double>(directions_of(a));
  const double first = static_cast<double>(x[2].value()) + one, later = static_cast<double>(hidden.value()) + one;
  return 2 * rows * (first + static_cast<double>(a.layers - 1) * later);
}
double forward_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs& attrs) {
  return net_flops(in[0].shape, out[0].shape, attrs.as<NetAttrs>());
}

// ---- its gradient: those of the outputs, x, both states, the output, what was kept -> those of x, of both states and
// of the parameters

Metas infer_net_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "recurrent_net_backward";
  const auto& a = attrs.as<NetAttrs>();
  for (size_t i : {3, 6, 7})
    if (is_absent(in[i])) fail(op, "input {} is undefined", i);
  require_rank(op, "x", in[3], 3);
  require_rank(op, "the output", in[6], 3);
  const Shape &x = in[3].shape, &output = in[6].shape;
  const Dim hidden = output[2] / Dim(directions_of(a));
  const Shape states{Dim(a.layers * directions_of(a)), x[1], hidden};
  require_shape(op, "the gradient of the output", in[0], output);
  for (size_t i : {1, 2, 4, 5}) require_shape(op, "a state or its gradient", in[i], states);
  require_shape(op, "what was kept", in[7], {Dim(a.kept_bytes)});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[3].dtype, in[3].device}; };
  Metas out{meta(x), meta(states)};
  if (a.gates == 4) out.push_back(meta(states));
  for (const Shape& shape : parameter_shapes(a, x[2], hidden)) out.push_back(meta(shape));
  return out;
}

double backward_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs& attrs) {
  return 2 * net_flops(in[3].shape, in[6].shape, attrs.as<NetAttrs>());
}

Tensors net_vjp(const Saved& s, const Tensors& grads) {
  NetAttrs attrs = s.attrs.as<NetAttrs>();
  attrs.overwrite = s.last;
  const bool lstm = attrs.gates == 4;
  const Tensors d = dispatch(recurrent_net_backward_op,
                             {grads[0], grads[1], lstm ? grads[2] : Tensor(), s.inputs[0], s.inputs[1], s.inputs[2],
                              s.outputs[0], s.outputs[lstm ? 3 : 2]},
                             attrs);
  Tensors out{d[0], s.inputs[1].defined() ? d[1] : Tensor(), lstm && s.inputs[2].defined() ? d[2] : Tensor()};
  for (size_t i = lstm ? 3 : 2; i < d.size(); ++i) out.push_back(d[i]);
  return out;
}

// The parameters of all layers, or none where they are not of one width, or have one bias.
Tensors parameters_of(const std::vector<RecurrentWeights>& layers, bool biases) {
  Tensors all;
  for (const RecurrentWeights& w : layers) {
    if (!(w.hidden.shape() == layers[0].hidden.shape())) return {};
    if (w.input_bias.defined() != biases || w.hidden_bias.defined() != biases) return {};
    all.push_back(w.input);
    all.push_back(w.hidden);
    if (!biases) continue;
    all.push_back(w.input_bias);
    all.push_back(w.hidden_bias);
  }
  return all;
}

// In which dtype autocast will have it; none where dtypes differ.
std::optional<DType> common_dtype(const Tensors& in) {
  const Tensor& x = in[0];
  if (amp::autocast_enabled(x.device().type) && x.dtype() != Float64) return amp::autocast_dtype(x.device().type);
  for (const Tensor& t : in)
    if (t.defined() && t.dtype() != x.dtype()) return {};
  return x.dtype();
}

}  // namespace

const Op recurrent_net_backward_op = {.name = "recurrent_net_backward",
                                      .inputs = "doutput?, dlast?, dlast_cell?, x, hidden?, cell?, output, kept",
                                      .outputs = "dx, dhidden, dcell?, dparameters...",
                                      .attrs = attrs_of<NetAttrs>,
                                      .infer = infer_net_backward,
                                      .pitched = Pitched::None,
                                      .flops = backward_flops};

const Op recurrent_net_op = {.name = "recurrent_net",
                             .inputs = "x, hidden?, cell?, parameters...",
                             .outputs = "output, last, last_cell?, kept?",
                             .attrs = attrs_of<NetAttrs>,
                             .infer = infer_net,
                             .vjp = net_vjp,
                             .saves = {.inputs = 0b111, .outputs = 0b1101},
                             .autocast = Autocast::Lower,
                             .hidden_outputs = 1,
                             .pitched = Pitched::None,
                             .flops = forward_flops};

std::optional<RecurrentResult> recurrent_net(const Tensor& x, const std::vector<RecurrentWeights>& layers,
                                             const Tensor& hidden, const Tensor& cell, NetAttrs a) {
  if (!x.device().is_card() || is_capturing() || x.dim() != 3) return {};
  a.layers = static_cast<int64_t>(layers.size());
  a.biases = layers[0].input_bias.defined();
  const Tensors parameters = parameters_of(layers, a.biases);
  if (parameters.empty()) return {};
  Tensors in{x, hidden, cell};
  for (const Tensor& t : parameters) in.push_back(t);
  const std::optional<DType> dtype = common_dtype(in);
  if (!dtype) return {};

  const Shape& shape = x.shape();
  const Shape states{Dim(a.layers * directions_of(a)), shape[1], layers[0].hidden.shape()[2]};
  for (const Tensor& t : {hidden, cell})
    if (t.defined() && !(t.shape() == states)) return {};
  const Dim width = layers[0].hidden.shape()[2] * directions_of(a);
  const Operand asked[] = {Operand({shape, *dtype, x.device()}, nullptr)};
  const Operand made[] = {Operand({{shape[0], shape[1], width}, *dtype, x.device()}, nullptr)};
  const Attrs whole = a;
  a.kept_bytes = kept_by_net({recurrent_net_op, asked, whole, made});
  if (a.kept_bytes < 0) return {};
  const bool lstm = a.gates == 4;
  Tensors out = dispatch(recurrent_net_op, std::move(in), a);
  return RecurrentResult{out[0], out[1], lstm ? out[2] : Tensor()};
}

}  // namespace tessera
