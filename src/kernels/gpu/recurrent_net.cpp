// Whole recurrent nets by the vendor's library, and their gradients.
#include "kernels/recurrent_net.h"

#include <algorithm>

#include "core/gpu/backend.h"
#include "core/net_attrs.h"
#include "kernels/args/gpu/tables.h"
#include "kernels/shared/matmul.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"
#include "tessera/device.h"

namespace tessera::gpu_kernels {
namespace {

constexpr long long kAlignment = 256;
long long aligned(long long bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
void* behind(const Operand& t, long long bytes) { return static_cast<char*>(t.data_ptr()) + bytes; }

// Of a net from x [steps, batch, in] to the output [steps, batch, directions * hidden].
NetShape shape_of(const Operand& x, const Operand& output, const NetAttrs& a) {
  NetShape s{};
  s.steps = x.size(0);
  s.batch = x.size(1);
  s.in = x.size(2);
  s.hidden = output.size(2) / (a.both ? 2 : 1);
  s.layers = a.layers;
  s.kind = a.gates == 4 ? NetKind::lstm : a.gates == 3 ? NetKind::gru : a.relu ? NetKind::rnn_relu : NetKind::rnn_tanh;
  s.type = scalar_of(x.dtype());
  s.both = a.both;
  s.biases = a.biases;
  s.tf32 = tf32_allowed();
  return s;
}

Reason takes_shape(const NetShape& s) {
  const VendorNetTable* vendor = vendor_tables() ? tables().vendor_net : nullptr;
  if (!vendor) return Reason::Library;
  if (s.type == Scalar::f64) return Reason::DType;
  if (s.steps == 1) return Reason::Small;  // there are few launches anyway
  constexpr long long most = 1LL << 31;
  const double elements =
      static_cast<double>(s.steps) * static_cast<double>(s.batch) * static_cast<double>(std::max(s.in, 8 * s.hidden));
  if (elements >= most || std::min({s.steps, s.batch, s.in, s.hidden}) < 1) return Reason::Shape;
  return vendor->room(s).takes ? Reason::Ok : Reason::Shape;
}

// ---- parameters in the library's weights

// The gate of ours that is the library's: of an LSTM input, forget, cell, output there, of a GRU reset, update, hidden,
// as in PyTorch.
int gate_of_ours(NetKind kind, int theirs, bool pytorch) {
  constexpr int lstm[] = {0, 2, 3, 1}, gru[] = {1, 0, 2};
  if (pytorch) return theirs;
  return kind == NetKind::lstm ? lstm[theirs] : kind == NetKind::gru ? gru[theirs] : 0;
}

class Packing {
 public:
  Packing(Workspace& workspace, const NetShape& shape, bool pytorch, void* weights, bool back)
      : workspace_(workspace), shape_(shape), pytorch_(pytorch) {
    args_.weights = weights;
    args_.type = shape.type;
    args_.back = back;
  }
  /// All rows of one parameter of a layer: of the input's products or the hidden state's, [directions, gates * hidden,
  /// columns], or of the bias, [directions, gates * hidden].
  void add(int layer, bool of_hidden, bool bias, void* ours, long long columns) {
    const int gates = gates_of(shape_.kind), directions = shape_.both ? 2 : 1;
    const long long count = shape_.hidden * columns, bytes = count * (shape_.type == Scalar::f32 ? 4 : 2);
    for (int d = 0; d < directions; ++d)
      for (int gate = 0; gate < gates; ++gate) {
        const int product = gate + (of_hidden ? gates : 0);
        const long long at = tables().vendor_net->place(shape_, layer * directions + d, product, bias);
        const long long from = (d * gates + gate_of_ours(shape_.kind, gate, pytorch_)) * bytes;
        if (args_.count == most_net_parts) launch();
        args_.parts[args_.count++] = {static_cast<char*>(ours) + from, count, at};
      }
  }
  void launch() {
    if (args_.count) workspace_.launch("pack_net", tables().vendor_net->pack, args_);
    args_.count = 0;
  }

 private:
  Workspace& workspace_;
  const NetShape& shape_;
  bool pytorch_;
  NetPackArgs args_{};
};

// The parameters: of each layer the matrices of input and hidden state, and the biases of both.
void pack(Workspace& workspace, const NetShape& shape, bool pytorch, std::span<const Operand> parameters, void* weights,
          bool back) {
  Packing packing(workspace, shape, pytorch, weights, back);
  const size_t of_layer = shape.biases ? 4 : 2;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Operand& t = parameters[i];
    const bool bias = i % of_layer > 1;
    void* ours = back ? t.data_ptr() : read_contiguous(workspace, t, t.dtype());
    packing.add(static_cast<int>(i / of_layer), i % 2 == 1, bias, ours, bias ? 1 : t.size(2));
  }
  packing.launch();
}

// ---- plans

constexpr size_t kStates = 3;  // x, hidden and cell are in front of the parameters

Reason takes(const Call& call) { return takes_shape(shape_of(call.in[0], call.out[0], call.attrs.as<NetAttrs>())); }

void launch_net(const NetArgs& args, Executor& executor) { tables().vendor_net->run(args, executor); }
void launch_net_backward(const NetBackwardArgs& args, Executor& executor) {
  tables().vendor_net->run_backward(args, executor);
}
void note_library(Workspace& workspace) { workspace.plan().calls_library("cudnn", tables().vendor_conv->version()); }

// What is kept is the library's reserve, then the weights.
void net(const Call& call, Workspace& workspace) {
  const auto& attrs = call.attrs.as<NetAttrs>();
  const Operand &x = call.in[0], &kept = call.out.back();
  const NetShape shape = shape_of(x, call.out[0], attrs);
  const NetRoom room = tables().vendor_net->room(shape);
  const auto read = [&](const Operand& t) { return read_contiguous(workspace, t, x.dtype()); };
  void* weights = kept.defined() ? behind(kept, aligned(room.reserve)) : workspace.take(room.weights);
  NetArgs args{};
  args.shape = shape;
  args.x = read(x);
  args.hidden = read(call.in[1]);
  args.cell = read(call.in[2]);
  args.output = call.out[0].data_ptr();
  args.last_hidden = call.out[1].data_ptr();
  args.last_cell = attrs.gates == 4 ? call.out[2].data_ptr() : nullptr;
  args.weights = weights;
  args.reserve = kept.defined() ? kept.data_ptr() : nullptr;
  args.workspace = workspace.take(kept.defined() ? room.training_workspace : room.workspace);
  pack(workspace, shape, attrs.pytorch, call.in.subspan(kStates), weights, false);
  workspace.launch("cudnn", launch_net, args);
  note_library(workspace);
}

Reason takes_backward(const Call& call) {
  return takes_shape(shape_of(call.in[3], call.in[6], call.attrs.as<NetAttrs>()));
}

void net_backward(const Call& call, Workspace& workspace) {
  const auto& attrs = call.attrs.as<NetAttrs>();
  const Operand &doutput = call.in[0], &x = call.in[3], &output = call.in[6], &kept = call.in[7];
  const NetShape shape = shape_of(x, output, attrs);
  const NetRoom room = tables().vendor_net->room(shape);
  const auto read = [&](const Operand& t) { return read_contiguous(workspace, t, x.dtype()); };
  const bool lstm = attrs.gates == 4;
  NetBackwardArgs args{};
  args.shape = shape;
  if (doutput.defined()) {
    args.doutput = read(doutput);
  } else {
    const Operand zeros = operand_at(workspace.take(output.numel() * static_cast<long long>(size_of(x.dtype()))),
                                     output.shape(), x.dtype(), x.device());
    fill(call, workspace.plan(), zeros, 0);
    args.doutput = zeros.data_ptr();
  }
  args.dlast_hidden = read(call.in[1]);
  args.dlast_cell = lstm ? read(call.in[2]) : nullptr;
  args.x = read(x);
  args.hidden = read(call.in[4]);
  args.cell = lstm ? read(call.in[5]) : nullptr;
  args.output = read(output);
  args.reserve = kept.data_ptr();
  args.weights = behind(kept, aligned(room.reserve));
  args.dx = call.out[0].data_ptr();
  args.dhidden = call.out[1].data_ptr();
  args.dcell = lstm ? call.out[2].data_ptr() : nullptr;
  args.dweights = workspace.take(room.weights);
  args.workspace = workspace.take(room.training_workspace);
  args.scratch = attrs.overwrite ? kept.data_ptr() : workspace.take(room.reserve);
  workspace.launch("cudnn", launch_net_backward, args);
  note_library(workspace);
  pack(workspace, shape, attrs.pytorch, call.out.subspan(lstm ? 3 : 2), args.dweights, true);
}

constexpr Kernel net_kernels[] = {staged_kernel<net>("vendor", takes)};
constexpr Kernel net_backward_kernels[] = {staged_kernel<net_backward>("vendor", takes_backward)};

}  // namespace

std::span<const KernelTableEntry> recurrent_net_kernels() {
  static constexpr KernelTableEntry entries[] = {{"recurrent_net", net_kernels},
                                                 {"recurrent_net_backward", net_backward_kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels

namespace tessera {

long long kept_by_net(const Call& call) {
  using namespace gpu_kernels;
  gpu::begin_call(call_device(call));
  if (takes(call) != Reason::Ok) return -1;
  const NetRoom room = tables().vendor_net->room(shape_of(call.in[0], call.out[0], call.attrs.as<NetAttrs>()));
  return aligned(room.reserve) + room.weights;
}

}  // namespace tessera
