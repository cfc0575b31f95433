// A layer of an LSTM over whole sequences as one operator.
#include <cmath>

#include "ops/check.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/op_table.h"
#include "ops/recurrent_steps.h"

namespace tessera {
namespace {

// ---- lstm_layer: what goes into the gates beside the hidden state [steps, batch, 4 * hidden], the hidden state's
// weight [4 * hidden, hidden], hidden and cell state before the first step -> the hidden states behind each step, the
// last cell state; and all cell states and the gates (hidden)

Metas infer_lstm(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "lstm_layer";
  require_inputs(op, in);
  require_one_floating_dtype(op, in, 4);
  require_rank(op, "x", in[0], 3);
  require_rank(op, "the weight", in[1], 2);
  const Dim hidden = in[1].shape[1], batch = in[0].shape[1];
  require_shape(op, "the weight", in[1], {in[0].shape[2], hidden});
  if (!(hidden * 4 == in[0].shape[2])) fail(op, "{} are not four gates of {}", describe(in[0]), hidden.to_string());
  require_shape(op, "the hidden state", in[2], {batch, hidden});
  require_shape(op, "the cell state", in[3], {batch, hidden});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[0].dtype, in[0].device}; };
  const Shape states{in[0].shape[0], batch, hidden};
  return {meta(states), meta({batch, hidden}), meta(states), meta(in[0].shape)};
}

double lstm_flops(std::span<const TensorMeta> in, std::span<const TensorMeta>, const Attrs&) {
  const Shape& x = in[0].shape;
  return 2.0 * static_cast<double>((x[0] * x[1] * x[2] * in[1].shape[1]).value());
}

Tensors lstm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &x = in[0], &weight = in[1];
  const int64_t batch = x.size(1), hidden = weight.size(1);
  const Tensor output = empty({x.size(0), batch, hidden}, x.dtype()), cells = in[3].clone();
  each_step(x, attrs.as<RecurrentAttrs>().reverse, false, [&](int64_t t, int64_t before) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto into = [&](int64_t gate) {
          double sum = number(x, {t, b, gate * hidden + i});
          for (int64_t k = 0; k < hidden; ++k)
            sum += number(weight, {gate * hidden + i, k}) *
                   (before < 0 ? number(in[2], {b, k}) : number(output, {before, b, k}));
          return sum;
        };
        const double cell = sigmoid_of(into(2)) * number(cells, {b, i}) + sigmoid_of(into(0)) * std::tanh(into(3));
        put(cells, {b, i}, cell);
        put(output, {t, b, i}, sigmoid_of(into(1)) * std::tanh(cell));
      }
  });
  return {output, cells};
}

// ---- its gradient: those of the output and the last cell state, the weight, the first cell state, cells, gates ->
// those of x, of the hidden and of the cell state

Metas infer_lstm_backward(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "lstm_layer_backward";
  for (size_t i = 2; i < 6; ++i)
    if (is_absent(in[i])) fail(op, "input {} is undefined", i);
  require_one_floating_dtype(op, in.subspan(2), 4);
  require_rank(op, "the weight", in[2], 2);
  require_rank(op, "the cells", in[4], 3);
  const Shape& cells = in[4].shape;
  const Dim hidden = cells[2];
  require_shape(op, "the weight", in[2], {hidden * 4, hidden});
  require_shape(op, "the cell state", in[3], {cells[1], hidden});
  require_shape(op, "the gates", in[5], {cells[0], cells[1], hidden * 4});
  require_shape(op, "the gradient of the output", in[0], cells);
  require_shape(op, "the gradient of the cell state", in[1], {cells[1], hidden});
  const auto meta = [&](const Shape& shape) { return TensorMeta{shape, in[2].dtype, in[2].device}; };
  return {meta(in[5].shape), meta({cells[1], hidden}), meta({cells[1], hidden})};
}

Tensors lstm_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor &weight = in[2], &cells = in[4], &gates = in[5];
  const int64_t batch = cells.size(1), hidden = cells.size(2);
  const Tensor dx = empty(gates.shape(), gates.dtype()), dhidden = zeros({batch, hidden}, gates.dtype()),
               dcell = in[1].defined() ? in[1].clone() : zeros({batch, hidden}, gates.dtype());
  each_step(cells, attrs.as<RecurrentAttrs>().reverse, true, [&](int64_t t, int64_t before) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        const auto gate = [&](int64_t k) { return number(gates, {t, b, k * hidden + i}); };
        const double c = before < 0 ? number(in[3], {b, i}) : number(cells, {before, b, i});
        const double tanh_cell = std::tanh(number(cells, {t, b, i})),
                     dh = (in[0].defined() ? number(in[0], {t, b, i}) : 0) + number(dhidden, {b, i});
        const double dc = number(dcell, {b, i}) + dh * gate(1) * (1 - tanh_cell * tanh_cell);
        const double d[] = {dc * gate(3) * gate(0) * (1 - gate(0)), dh * tanh_cell * gate(1) * (1 - gate(1)),
                            dc * c * gate(2) * (1 - gate(2)), dc * gate(0) * (1 - gate(3) * gate(3))};
        for (int64_t k = 0; k < 4; ++k) put(dx, {t, b, k * hidden + i}, d[k]);
        put(dcell, {b, i}, dc * gate(2));
      }
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < 4 * hidden; ++k) sum += number(dx, {t, b, k}) * number(weight, {k, i});
        put(dhidden, {b, i}, sum);
      }
  });
  return {dx, dhidden, dcell};
}

double lstm_backward_flops(std::span<const TensorMeta>, std::span<const TensorMeta> out, const Attrs&) {
  const Shape& dx = out[0].shape;
  return 2.0 * static_cast<double>((dx[0] * dx[1] * dx[2] * out[1].shape[1]).value());
}

}  // namespace

const Op lstm_backward_op = {.name = "lstm_layer_backward",
                             .inputs = "doutput?, dlast?, weight, cell, cells, gates",
                             .outputs = "dx, dhidden, dcell",
                             .attrs = attrs_of<RecurrentAttrs>,
                             .infer = infer_lstm_backward,
                             .reference = lstm_backward_reference,
                             .pitched = Pitched::None,
                             .made_of = &linear_op,
                             .flops = lstm_backward_flops};

static Tensors lstm_vjp(const Saved& s, const Tensors& grads) {
  const Tensor &weight = s.inputs[1], &hidden = s.inputs[2], &output = s.outputs[0];
  const Tensors d =
      dispatch(lstm_backward_op, {grads[0], grads[1], weight, s.inputs[3], s.outputs[2], s.outputs[3]}, s.attrs);
  Tensors out = {d[0], {}, d[1], d[2]};
  if (!s.needs_input(1)) return out;
  out[1] = weight_gradient(d[0], output, hidden, s.attrs.as<RecurrentAttrs>().reverse);
  return out;
}

const Op lstm_op = {.name = "lstm_layer",
                    .inputs = "x, weight, hidden, cell",
                    .outputs = "output, last, cells?, gates?",
                    .attrs = attrs_of<RecurrentAttrs>,
                    .infer = infer_lstm,
                    .vjp = lstm_vjp,
                    .reference = lstm_reference,
                    .saves = {.inputs = 0b1110, .outputs = 0b1101},
                    .autocast = Autocast::Lower,
                    .hidden_outputs = 2,
                    .pitched = Pitched::None,
                    .made_of = &linear_op,
                    .flops = lstm_flops};

LstmResult lstm_layer(const Tensor& x, const Tensor& weight, const Tensor& hidden, const Tensor& cell, bool reverse) {
  Tensors out = dispatch(lstm_op, {x, weight, hidden, cell}, RecurrentAttrs{reverse});
  return {out[0], out[1]};
}

}  // namespace tessera
