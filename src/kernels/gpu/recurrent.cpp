// Recurrent layers on GPUs: in one kernel, or step after step.
#include "kernels/shared/recurrent.h"
#include "kernels/args/gpu/tables.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::gpu_kernels {
namespace {

// Of a layer whose results behind each step lie as `states`, [steps, batch, hidden].
SequenceShape shape_of(const Operand& states, CellKind cell, bool reverse, bool relu = false) {
  SequenceShape s{};
  s.steps = states.size(0);
  s.batch = states.size(1);
  s.hidden = states.size(2);
  s.type = scalar_of(states.dtype());
  s.cell = cell;
  s.reverse = reverse;
  s.relu = relu;
  return s;
}
SequenceShape gated(const Call& call, const Operand& states, CellKind cell) {
  return shape_of(states, cell, call.attrs.as<RecurrentAttrs>().reverse);
}
SequenceShape plain(const Call& call, const Operand& states) {
  const auto& attrs = call.attrs.as<RnnAttrs>();
  return shape_of(states, CellKind::rnn, attrs.reverse, attrs.relu);
}

Reason takes(const SequenceShape& s) {
  const SequenceTable* table = tables().sequence;
  if (!table || !table->is_there()) return Reason::Hardware;
  if (s.type == Scalar::f64) return Reason::DType;
  if (s.steps < 2) return Reason::Small;
  return table->takes(s) ? Reason::Ok : Reason::Shape;
}

void launch(Workspace& workspace, const SequenceArgs& args) {
  workspace.launch("sequence", tables().sequence->run, args);
}
void launch(Workspace& workspace, const SequenceBackwardArgs& args) {
  workspace.launch("sequence_backward", tables().sequence->run_backward, args);
}
const void* read(Workspace& workspace, const Operand& t) { return read_contiguous(workspace, t, t.dtype()); }
void* data_of(const Operand& t) { return t.defined() ? t.data_ptr() : nullptr; }

Reason takes_lstm(const Call& call) { return takes(gated(call, call.out[0], CellKind::lstm)); }
Reason takes_lstm_backward(const Call& call) { return takes(gated(call, call.in[4], CellKind::lstm)); }
Reason takes_gru(const Call& call) { return takes(gated(call, call.out[0], CellKind::gru)); }
Reason takes_gru_backward(const Call& call) { return takes(gated(call, call.in[2], CellKind::gru)); }
Reason takes_rnn(const Call& call) { return takes(plain(call, call.out[0])); }
Reason takes_rnn_backward(const Call& call) { return takes(plain(call, call.in[2])); }

void lstm_sequence(const Call& call, Workspace& workspace) {
  SequenceArgs a{};
  a.shape = gated(call, call.out[0], CellKind::lstm);
  a.x = read(workspace, call.in[0]);
  a.weight = read(workspace, call.in[1]);
  a.hidden = read(workspace, call.in[2]);
  a.cell = read(workspace, call.in[3]);
  a.output = call.out[0].data_ptr();
  a.last_cell = call.out[1].data_ptr();
  a.cells = data_of(call.out[2]);
  a.gates = data_of(call.out[3]);
  launch(workspace, a);
}
void lstm_backward_sequence(const Call& call, Workspace& workspace) {
  SequenceBackwardArgs a{};
  a.shape = gated(call, call.in[4], CellKind::lstm);
  a.doutput = read(workspace, call.in[0]);
  a.dlast_cell = read(workspace, call.in[1]);
  a.weight = read(workspace, call.in[2]);
  a.cell = read(workspace, call.in[3]);
  a.cells = read(workspace, call.in[4]);
  a.gates = read(workspace, call.in[5]);
  a.dx = call.out[0].data_ptr();
  a.dhidden = call.out[1].data_ptr();
  a.dcell = call.out[2].data_ptr();
  launch(workspace, a);
}

void gru_sequence(const Call& call, Workspace& workspace) {
  SequenceArgs a{};
  a.shape = gated(call, call.out[0], CellKind::gru);
  a.x = read(workspace, call.in[0]);
  a.weight = read(workspace, call.in[1]);
  a.bias = read(workspace, call.in[2]);
  a.hidden = read(workspace, call.in[3]);
  a.output = call.out[0].data_ptr();
  a.gates = data_of(call.out[1]);
  launch(workspace, a);
}
void gru_backward_sequence(const Call& call, Workspace& workspace) {
  SequenceBackwardArgs a{};
  a.shape = gated(call, call.in[2], CellKind::gru);
  a.doutput = read(workspace, call.in[0]);
  a.weight = read(workspace, call.in[1]);
  a.output = read(workspace, call.in[2]);
  a.hidden = read(workspace, call.in[3]);
  a.gates = read(workspace, call.in[4]);
  a.dx = call.out[0].data_ptr();
  a.dproduct = call.out[1].data_ptr();
  a.dhidden = call.out[2].data_ptr();
  launch(workspace, a);
}

void rnn_sequence(const Call& call, Workspace& workspace) {
  SequenceArgs a{};
  a.shape = plain(call, call.out[0]);
  a.x = read(workspace, call.in[0]);
  a.weight = read(workspace, call.in[1]);
  a.hidden = read(workspace, call.in[2]);
  a.output = call.out[0].data_ptr();
  launch(workspace, a);
}
void rnn_backward_sequence(const Call& call, Workspace& workspace) {
  SequenceBackwardArgs a{};
  a.shape = plain(call, call.in[2]);
  a.doutput = read(workspace, call.in[0]);
  a.weight = read(workspace, call.in[1]);
  a.output = read(workspace, call.in[2]);
  a.dx = call.out[0].data_ptr();
  a.dhidden = call.out[1].data_ptr();
  launch(workspace, a);
}

constexpr Kernel lstm_kernels[] = {staged_kernel<lstm_sequence>("sequence", takes_lstm),
                                   {.name = "steps", .plan = lstm_steps}};
constexpr Kernel lstm_backward_kernels[] = {staged_kernel<lstm_backward_sequence>("sequence", takes_lstm_backward),
                                            {.name = "steps", .plan = lstm_backward_steps}};
constexpr Kernel gru_kernels[] = {staged_kernel<gru_sequence>("sequence", takes_gru),
                                  {.name = "steps", .plan = gru_steps}};
constexpr Kernel gru_backward_kernels[] = {staged_kernel<gru_backward_sequence>("sequence", takes_gru_backward),
                                           {.name = "steps", .plan = gru_backward_steps}};
constexpr Kernel rnn_kernels[] = {staged_kernel<rnn_sequence>("sequence", takes_rnn),
                                  {.name = "steps", .plan = rnn_steps}};
constexpr Kernel rnn_backward_kernels[] = {staged_kernel<rnn_backward_sequence>("sequence", takes_rnn_backward),
                                           {.name = "steps", .plan = rnn_backward_steps}};

}  // namespace

std::span<const KernelTableEntry> recurrent_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"lstm_layer", lstm_kernels}, {"lstm_layer_backward", lstm_backward_kernels},
      {"gru_layer", gru_kernels},   {"gru_layer_backward", gru_backward_kernels},
      {"rnn_layer", rnn_kernels},   {"rnn_layer_backward", rnn_backward_kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
