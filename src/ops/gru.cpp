// A layer of gated recurrent units over whole sequences as one operator, as PyTorch and cuDNN have them: the reset gate
// behind the candidate's product.
#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/op_table.h"
#include "ops/recurrent_steps.h"

namespace tessera {
namespace {

// ---- gru_layer: what goes into the gates beside the hidden state [steps, batch, 3 * hidden], the hidden state's
// weight [3 * hidden, hidden] and bias [3 * hidden], hidden state before the first step -> the hidden states behind
// each step; and update, reset, candidate and the candidate's product [steps, batch, 4 * hidden] (hidden)

Metas infer_gru(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "gru_layer";
  for (size_t i : {0, 1, 3})
    if (is_absent(in[i])) fail(op, "input {} is undefined", i);
  const TensorMeta given[] = {in[0], in[1], in[3], is_absent(in[2]) ? in[1] : in[2]};
  require_one_floating_dtype(op, given, 4);
  require_rank(op, "x", in[0], 3);
  require_rank(op, "the weight", in[1], 2);
  const Dim hidden = in[1].shape[1], batch = in[0].shape[1];
  require_shape(op, "the weight", in[1], {in[0].shape[2], hidden});
  if (!(hidden * 3 == in[0].shape[2])) fail(op, "{} are not three gates of {}", describe(in[0]), hidden.to_string());
  if (!is_absent(in[2])) require_shape(op, "the bias", in[2], {in[0].shape[2]});
  require_shape(op, "the hidden state", in[3], {batch, hidden});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  return {meta({in[0].shape[0], batch, hidden}), meta({in[0].shape[0], batch, hidden * 4})};
}

double gru_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs&) {
  const Shape& x = in[0].shape;
  return 2.0 * static_cast<double>((x[0] * x[1] * x[2] * in[1].shape[1]).value());
}

Tensors gru_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1], &bias = in[2];
  const int64_t batch = x.size(1), hidden = weight.size(1);
  const Tensor output = empty({x.size(0), batch, hidden}, x.dtype());
  each_step(x, attrs.as<RecurrentAttrs>().reverse, false, [&](int64_t t, int64_t before) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto state = [&](int64_t k) {
          return before < 0 ? number(in[3], {b, k}) : number(output, {before, b, k});
        };
        const auto product = [&](int64_t gate) {
          double sum = bias.defined() ? number(bias, {gate * hidden + i}) : 0;
          for (int64_t k = 0; k < hidden; ++k) sum += number(weight, {gate * hidden + i, k}) * state(k);
          return sum;
        };
        const auto into = [&](int64_t gate) { return number(x, {t, b, gate * hidden + i}); };
        const double update = sigmoid_of(into(0) + product(0)), reset = sigmoid_of(into(1) + product(1)),
                     candidate = std::tanh(into(2) + reset * product(2));
        put(output, {t, b, i}, candidate + update * (state(i) - candidate));
      }
  });
  return {output};
}

// ---- its gradient: that of the output, the weight, the output, the first hidden state, what is kept -> those of x, of
// the hidden state's product and of the first hidden state

Metas infer_gru_backward(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "gru_layer_backward";
  require_inputs(op, in);
  require_one_floating_dtype(op, in, 5);
  require_rank(op, "the weight", in[1], 2);
  require_rank(op, "the output", in[2], 3);
  const Shape& output = in[2].shape;
  const Dim hidden = output[2];
  require_shape(op, "the gradient of the output", in[0], output);
  require_shape(op, "the weight", in[1], {hidden * 3, hidden});
  require_shape(op, "the hidden state", in[3], {output[1], hidden});
  require_shape(op, "the gates", in[4], {output[0], output[1], hidden * 4});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  const Shape gates{output[0], output[1], hidden * 3};
  return {meta(gates), meta(gates), meta({output[1], hidden})};
}

Tensors gru_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &weight = in[1], &output = in[2], &gates = in[4];
  const int64_t batch = output.size(1), hidden = output.size(2);
  const Tensor dx = empty({output.size(0), batch, 3 * hidden}, output.dtype()),
               dproduct = empty(dx.shape(), dx.dtype()), dhidden = zeros({batch, hidden}, output.dtype());
  each_step(output, attrs.as<RecurrentAttrs>().reverse, true, [&](int64_t t, int64_t before) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto gate = [&](int64_t k) { return number(gates, {t, b, k * hidden + i}); };
        const double update = gate(0), reset = gate(1), candidate = gate(2),
                     state = before < 0 ? number(in[3], {b, i}) : number(output, {before, b, i}),
                     dh = number(in[0], {t, b, i}) + number(dhidden, {b, i});
        const double dcandidate = dh * (1 - update) * (1 - candidate * candidate);
        const double d[] = {dh * (state - candidate) * update * (1 - update),
                            dcandidate * gate(3) * reset * (1 - reset), dcandidate};
        for (int64_t k = 0; k < 3; ++k) {
          put(dx, {t, b, k * hidden + i}, d[k]);
          put(dproduct, {t, b, k * hidden + i}, k < 2 ? d[k] : d[k] * reset);
        }
        put(dhidden, {b, i}, dh * update);
      }
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = number(dhidden, {b, i});
        for (int64_t k = 0; k < 3 * hidden; ++k) sum += number(dproduct, {t, b, k}) * number(weight, {k, i});
        put(dhidden, {b, i}, sum);
      }
  });
  return {dx, dproduct, dhidden};
}

double gru_backward_flops(std::span<const TensorMeta>, std::span<const TensorMeta> out, const Attrs&) {
  const Shape& dx = out[0].shape;
  return 2.0 * static_cast<double>((dx[0] * dx[1] * dx[2] * out[2].shape[1]).value());
}

Tensors gru_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &weight = s.inputs[1], &hidden = s.inputs[3], &output = s.outputs[0];
  const Tensors d = dispatch(gru_backward_op, {grads[0], weight, output, hidden, s.outputs[1]}, s.attrs);
  Tensors out = {d[0], {}, {}, d[2]};
  if (s.needs_input(1)) out[1] = weight_gradient(d[1], output, hidden, s.attrs.as<RecurrentAttrs>().reverse);
  if (s.needs_input(2)) out[2] = sum(all_rows(d[1]), {0});
  return out;
}

}  // namespace

const Op gru_backward_op = {.name = "gru_layer_backward",
                            .inputs = "doutput, weight, output, hidden, gates",
                            .outputs = "dx, dproduct, dhidden",
                            .attrs = attrs_of<RecurrentAttrs>,
                            .infer = infer_gru_backward,
                            .reference = gru_backward_reference,
                            .pitched = Pitched::None,
                            .made_of = &linear_op,
                            .flops = gru_backward_flops};

const Op gru_op = {.name = "gru_layer",
                   .inputs = "x, weight, bias?, hidden",
                   .outputs = "output, gates?",
                   .attrs = attrs_of<RecurrentAttrs>,
                   .infer = infer_gru,
                   .vjp = gru_vjp,
                   .reference = gru_reference,
                   .saves = {.inputs = 0b1010, .outputs = 0b11},
                   .autocast = Autocast::Lower,
                   .hidden_outputs = 1,
                   .pitched = Pitched::None,
                   .made_of = &linear_op,
                   .flops = gru_flops};

Tensor gru_layer(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& hidden, bool reverse) {
  return dispatch_one(gru_op, {x, weight, bias, hidden}, RecurrentAttrs{reverse});
}

}  // namespace tessera
