// A recurrent layer without gates (Elman) over whole sequences as one operator.
#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/op_table.h"
#include "ops/recurrent_steps.h"

namespace tessera {
namespace {

// ---- rnn_layer: what is added to the hidden state's product [steps, batch, hidden], the hidden state's weight
// [hidden, hidden], hidden state before the first step -> the hidden states behind each step

Metas infer_rnn(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "rnn_layer";
  require_inputs(op, in);
  require_one_floating_dtype(op, in, 3);
  require_rank(op, "x", in[0], 3);
  const Dim batch = in[0].shape[1], hidden = in[0].shape[2];
  require_shape(op, "the weight", in[1], {hidden, hidden});
  require_shape(op, "the hidden state", in[2], {batch, hidden});
  return {{in[0].shape, in[0].dtype, in[0].device}};
}

double rnn_flops(std::span<const TensorMeta>, std::span<const TensorMeta> out, const Attrs&) {
  const Shape& x = out[0].shape;
  return 2.0 * static_cast<double>((x[0] * x[1] * x[2] * x[2]).value());
}

Tensors rnn_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1];
  const RnnAttrs& a = attrs.as<RnnAttrs>();
  const Tensor output = empty(x.shape(), x.dtype());
  each_step(x, a.reverse, false, [&](int64_t t, int64_t before) {
    for (int64_t b = 0; b < x.size(1); ++b)
      for (int64_t i = 0; i < x.size(2); ++i) {
        double sum = number(x, {t, b, i});
        for (int64_t k = 0; k < x.size(2); ++k)
          sum += number(weight, {i, k}) * (before < 0 ? number(in[2], {b, k}) : number(output, {before, b, k}));
        put(output, {t, b, i}, a.relu ? std::max(sum, 0.0) : std::tanh(sum));
      }
  });
  return {output};
}

// ---- its gradient: that of the output, the weight, the output -> those of x and of the first hidden state

Metas infer_rnn_backward(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "rnn_layer_backward";
  require_inputs(op, in);
  require_one_floating_dtype(op, in, 3);
  require_rank(op, "the output", in[2], 3);
  const Shape& output = in[2].shape;
  require_shape(op, "the gradient of the output", in[0], output);
  require_shape(op, "the weight", in[1], {output[2], output[2]});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  return {meta(output), meta({output[1], output[2]})};
}

Tensors rnn_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &weight = in[1], &output = in[2];
  const RnnAttrs& a = attrs.as<RnnAttrs>();
  const int64_t batch = output.size(1), hidden = output.size(2);
  const Tensor dx = empty(output.shape(), output.dtype()), dhidden = zeros({batch, hidden}, output.dtype());
  each_step(output, a.reverse, true, [&](int64_t t, int64_t) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        const double y = number(output, {t, b, i}), dh = number(in[0], {t, b, i}) + number(dhidden, {b, i});
        put(dx, {t, b, i}, a.relu ? (y > 0 ? dh : 0) : dh * (1 - y * y));
      }
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < hidden; ++k) sum += number(dx, {t, b, k}) * number(weight, {k, i});
        put(dhidden, {b, i}, sum);
      }
  });
  return {dx, dhidden};
}

Tensors rnn_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &weight = s.inputs[1], &hidden = s.inputs[2], &output = s.outputs[0];
  const Tensors d = dispatch(rnn_backward_op, {grads[0], weight, output}, s.attrs);
  Tensors out = {d[0], {}, d[1]};
  if (s.needs_input(1)) out[1] = weight_gradient(d[0], output, hidden, s.attrs.as<RnnAttrs>().reverse);
  return out;
}

}  // namespace

const Op rnn_backward_op = {.name = "rnn_layer_backward",
                            .inputs = "doutput, weight, output",
                            .outputs = "dx, dhidden",
                            .attrs = attrs_of<RnnAttrs>,
                            .infer = infer_rnn_backward,
                            .reference = rnn_backward_reference,
                            .pitched = Pitched::None,
                            .made_of = &linear_op,
                            .flops = rnn_flops};

const Op rnn_op = {.name = "rnn_layer",
                   .inputs = "x, weight, hidden",
                   .outputs = "output",
                   .attrs = attrs_of<RnnAttrs>,
                   .infer = infer_rnn,
                   .vjp = rnn_vjp,
                   .reference = rnn_reference,
                   .saves = {.inputs = 0b110, .outputs = 0b1},
                   .autocast = Autocast::Lower,
                   .pitched = Pitched::None,
                   .made_of = &linear_op,
                   .flops = rnn_flops};

Tensor rnn_layer(const Tensor& x, const Tensor& weight, const Tensor& hidden, const RnnAttrs& attrs) {
  return dispatch_one(rnn_op, {x, weight, hidden}, attrs);
}

}  // namespace tessera
