// Recurrent layers as one call: each step is a product with the hidden state, then its cell.
#include <optional>
#include <utility>

#include "kernels/shared/matmul.h"
#include "kernels/shared/panels.h"

namespace tessera::TESSERA_KERNELS {
namespace {

/// Step t of [steps, batch, n].
Operand step_of(const Operand& all, int64_t t) {
  return all.as_strided({all.shape()[1], all.shape()[2]}, {all.stride(1), all.stride(2)}, t * all.stride(0));
}
Operand transposed(const Operand& m) { return m.as_strided({m.shape()[1], m.shape()[0]}, {m.stride(1), m.stride(0)}); }
Operand dense(const Staged& s, const Operand& like) {
  return operand_at(s.data, like.shape(), like.dtype(), like.device());
}

/// Where steps are in memory, and in which order they go.
struct Steps {
  int64_t count;
  bool reverse;
  /// The i-th that goes.
  int64_t at(int64_t i) const { return reverse ? count - 1 - i : i; }
};

/// y = x weight^T + bias + addend, step after step with one weight, which is packed once where its kernel wants that.
class StepProduct {
 public:
  StepProduct(const Call& call, Plan& plan, const Operand& weight, const Operand& x, const Operand& y,
              const Operand& bias = {})
      : linear_(*call.op.made_of), plan_(plan), weight_(weight), bias_(bias) {
    const Operand in[] = {x, weight, bias, {}}, out[] = {y, {}};
    const auto packing = packing_of({linear_, in, attrs_, out}, 1);
    if (!packing) return;
    TensorMeta meta{weight.shape(), weight.dtype(), weight.device()};
    meta.packing = packing->name;
    meta.storage_bytes = packing->bytes;
    weight_ = Operand(meta, plan.take(packing->bytes));
    plan.launch("pack", gemm_table().pack, panel_args(weight, weight_));
  }
  void launch(const Operand& x, const Operand& addend, const Operand& y) {
    const Operand in[] = {x, weight_, bias_, addend}, out[] = {y, {}};
    plan_call(linear_, in, attrs_, out, plan_);
  }

 private:
  const Op& linear_;
  Plan& plan_;
  const Attrs attrs_ = LinearAttrs{};
  Operand weight_, bias_;
};

/// Room for a step of `like` [steps, batch, n].
Operand room_for_step(const Call& call, Plan& plan, const Operand& like) {
  const Shape shape{like.shape()[1], like.shape()[2]};
  return operand_at(plan.take(static_cast<int64_t>(bytes_of(shape, like.dtype()))), shape, like.dtype(),
                    call.in[0].device());
}

/// A contiguous copy where it is not, in the dtype of the call's result.
class Contiguous {
 public:
  Contiguous(const Call& call, Plan& plan) : workspace_(call, plan), dtype_(call.out[0].dtype()) {}
  Operand operator()(const Operand& t) {
    return t.defined() ? dense(workspace_.read(t, dtype_, t.is_contiguous()), t) : Operand();
  }

 private:
  Workspace workspace_;
  DType dtype_;
};

void* data_of(const Operand& t, int64_t step) { return t.defined() ? step_of(t, step).data_ptr() : nullptr; }

// Without room for all cell states, which backward alone needs, each takes the place of the one before.
void lstm(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &output = call.out[0], &last_cell = call.out[1], &cells = call.out[2],
                &gates = call.out[3];
  Contiguous contiguous(call, plan);
  const Operand hidden = contiguous(call.in[2]), cell = contiguous(call.in[3]);
  const Steps steps{x.size(0), call.attrs.as<RecurrentAttrs>().reverse};
  if (steps.count == 0) return copy(call, plan, last_cell, cell);
  const Operand room = gates.defined() ? step_of(gates, 0) : room_for_step(call, plan, x);
  const auto cell_of = [&](int64_t t) { return cells.defined() ? step_of(cells, t) : last_cell; };
  StepProduct product(call, plan, call.in[1], hidden, room);
  for (int64_t i = 0; i < steps.count; ++i) {
    const int64_t t = steps.at(i), before = i > 0 ? steps.at(i - 1) : 0;
    const Operand into_gates = gates.defined() ? step_of(gates, t) : room;
    product.launch(i > 0 ? step_of(output, before) : hidden, step_of(x, t), into_gates);
    plan.launch(
        "lstm", recurrent_table().lstm,
        LstmArgs{x.size(1), output.size(2), scalar_of(x.dtype()), into_gates.data_ptr(),
                 (i > 0 ? cell_of(before) : cell).data_ptr(), cell_of(t).data_ptr(), step_of(output, t).data_ptr()});
  }
  if (cells.defined()) copy(call, plan, last_cell, step_of(cells, steps.at(steps.count - 1)));
}

void lstm_backward(const Call& call, Plan& plan) {
  const Operand &weight = call.in[2], &dx = call.out[0], &dhidden = call.out[1], &dcell = call.out[2];
  Contiguous contiguous(call, plan);
  const Operand doutput = contiguous(call.in[0]), dlast_cell = contiguous(call.in[1]), cell = contiguous(call.in[3]),
                cells = contiguous(call.in[4]), gates = contiguous(call.in[5]);
  const Steps steps{dx.size(0), call.attrs.as<RecurrentAttrs>().reverse};
  if (steps.count == 0) {
    fill(call, plan, dhidden, 0);
    return dlast_cell.defined() ? copy(call, plan, dcell, dlast_cell) : fill(call, plan, dcell, 0);
  }
  StepProduct product(call, plan, transposed(weight), step_of(dx, 0), dhidden);
  for (int64_t i = steps.count - 1; i >= 0; --i) {
    const int64_t t = steps.at(i);
    const bool last = i == steps.count - 1;
    plan.launch("lstm_backward", recurrent_table().lstm_backward,
                LstmBackwardArgs{dx.size(1), dhidden.size(1), scalar_of(dx.dtype()), data_of(gates, t),
                                 data_of(cells, t), i > 0 ? data_of(cells, steps.at(i - 1)) : cell.data_ptr(),
                                 data_of(doutput, t), last ? nullptr : dhidden.data_ptr(),
                                 last ? dlast_cell.data_ptr() : dcell.data_ptr(), data_of(dx, t), dcell.data_ptr()});
    product.launch(step_of(dx, t), {}, dhidden);
  }
}

void gru(const Call& call, Plan& plan) {
  Contiguous contiguous(call, plan);
  const Operand x = contiguous(call.in[0]), hidden = contiguous(call.in[3]), &output = call.out[0],
                &gates = call.out[1];
  const Steps steps{x.size(0), call.attrs.as<RecurrentAttrs>().reverse};
  if (steps.count == 0) return;
  const Operand room = room_for_step(call, plan, x);
  StepProduct product(call, plan, call.in[1], hidden, room, call.in[2]);
  for (int64_t i = 0; i < steps.count; ++i) {
    const int64_t t = steps.at(i);
    const Operand before = i > 0 ? step_of(output, steps.at(i - 1)) : hidden;
    product.launch(before, {}, room);
    plan.launch("gru", recurrent_table().gru,
                GruArgs{x.size(1), output.size(2), scalar_of(x.dtype()), data_of(x, t), room.data_ptr(),
                        before.data_ptr(), data_of(gates, t), data_of(output, t)});
  }
}

void gru_backward(const Call& call, Plan& plan) {
  const Operand &dx = call.out[0], &dproduct = call.out[1], &dhidden = call.out[2];
  Contiguous contiguous(call, plan);
  const Operand doutput = contiguous(call.in[0]), output = contiguous(call.in[2]), hidden = contiguous(call.in[3]),
                gates = contiguous(call.in[4]);
  const Steps steps{dx.size(0), call.attrs.as<RecurrentAttrs>().reverse};
  if (steps.count == 0) return fill(call, plan, dhidden, 0);
  const Operand direct = room_for_step(call, plan, output);
  StepProduct product(call, plan, transposed(call.in[1]), step_of(dproduct, 0), dhidden);
  for (int64_t i = steps.count - 1; i >= 0; --i) {
    const int64_t t = steps.at(i);
    plan.launch("gru_backward", recurrent_table().gru_backward,
                GruBackwardArgs{dx.size(1), dhidden.size(1), scalar_of(dx.dtype()), data_of(gates, t),
                                i > 0 ? data_of(output, steps.at(i - 1)) : hidden.data_ptr(), data_of(doutput, t),
                                i == steps.count - 1 ? nullptr : dhidden.data_ptr(), data_of(dx, t),
                                data_of(dproduct, t), direct.data_ptr()});
    product.launch(step_of(dproduct, t), direct, dhidden);
  }
}

void rnn(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &output = call.out[0];
  const RnnAttrs& attrs = call.attrs.as<RnnAttrs>();
  const Operand hidden = Contiguous(call, plan)(call.in[2]);
  const Steps steps{x.size(0), attrs.reverse};
  if (steps.count == 0) return;
  StepProduct product(call, plan, call.in[1], hidden, step_of(output, 0));
  for (int64_t i = 0; i < steps.count; ++i) {
    const Operand to = step_of(output, steps.at(i));
    product.launch(i > 0 ? step_of(output, steps.at(i - 1)) : hidden, step_of(x, steps.at(i)), to);
    plan.launch("rnn", recurrent_table().rnn, RnnArgs{to.numel(), scalar_of(x.dtype()), attrs.relu, to.data_ptr()});
  }
}

void rnn_backward(const Call& call, Plan& plan) {
  const Operand &dx = call.out[0], &dhidden = call.out[1];
  const RnnAttrs& attrs = call.attrs.as<RnnAttrs>();
  Contiguous contiguous(call, plan);
  const Operand doutput = contiguous(call.in[0]), output = contiguous(call.in[2]);
  const Steps steps{dx.size(0), attrs.reverse};
  if (steps.count == 0) return fill(call, plan, dhidden, 0);
  StepProduct product(call, plan, transposed(call.in[1]), step_of(dx, 0), dhidden);
  for (int64_t i = steps.count - 1; i >= 0; --i) {
    const int64_t t = steps.at(i);
    plan.launch(
        "rnn_backward", recurrent_table().rnn_backward,
        RnnBackwardArgs{dhidden.numel(), scalar_of(dx.dtype()), attrs.relu, data_of(output, t), data_of(doutput, t),
                        i == steps.count - 1 ? nullptr : dhidden.data_ptr(), data_of(dx, t)});
    product.launch(step_of(dx, t), {}, dhidden);
  }
}

constexpr Kernel lstm_kernels[] = {{.name = "steps", .plan = lstm}};
constexpr Kernel lstm_backward_kernels[] = {{.name = "steps", .plan = lstm_backward}};
constexpr Kernel gru_kernels[] = {{.name = "steps", .plan = gru}};
constexpr Kernel gru_backward_kernels[] = {{.name = "steps", .plan = gru_backward}};
constexpr Kernel rnn_kernels[] = {{.name = "steps", .plan = rnn}};
constexpr Kernel rnn_backward_kernels[] = {{.name = "steps", .plan = rnn_backward}};

}  // namespace

std::span<const KernelTableEntry> recurrent_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"lstm_layer", lstm_kernels}, {"lstm_layer_backward", lstm_backward_kernels},
      {"gru_layer", gru_kernels},   {"gru_layer_backward", gru_backward_kernels},
      {"rnn_layer", rnn_kernels},   {"rnn_layer_backward", rnn_backward_kernels}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
