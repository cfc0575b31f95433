// cuDNN's recurrent nets behind ours: opened at run time where it is installed, never needed.
#include "cudnn_net.h"
#include "cudnn_planner.h"

namespace tessera::gpu_kernels {

void pack_net(const NetPackArgs& args, Executor& executor);

namespace {

/// What was asked before; none: the library refused.
struct Known {
  std::optional<cudnn::Net> net;
  int kept = 0;
};

// For which nets: narrow ones, as PyTorch has it, and layers of halves whose sizes suit them.
bool suits(cudnn::NetAlgorithm algorithm, const NetShape& s) {
  const bool gated = s.kind == NetKind::lstm || s.kind == NetKind::gru;
  switch (algorithm) {
    case cudnn::NetAlgorithm::persistent_narrow:
      return s.hidden <= (gated ? 128 : 256);
    case cudnn::NetAlgorithm::persistent:
      return s.type == Scalar::f16 && !s.both && s.hidden <= 1024 && s.hidden % 128 == 0 && s.in % 128 == 0 &&
             s.batch % 8 == 0 && s.batch <= 128;
    default:
      return true;
  }
}

Known& known(const NetShape& s) {
  static auto* nets = new Recent<Known>(64);
  const long long words[] = {s.steps,
                             s.batch,
                             s.in,
                             s.hidden,
                             s.layers,
                             static_cast<long long>(s.kind),
                             static_cast<long long>(s.type),
                             s.both,
                             s.biases,
                             s.tf32,
                             cudnn::current_device()};
  return nets->at(bytes_of(words), [&](Known& made) {
    const cudnn::Handle handle = cudnn::planner().handle_of(cudnn::current_device());
    if (!handle) return;
    using enum cudnn::NetAlgorithm;
    for (const auto algorithm : {persistent_narrow, persistent, standard}) {
      if (!suits(algorithm, s)) continue;
      try {
        made.net.emplace(handle, s, algorithm);
        return;
      } catch (const cudnn::Refusal&) {
      }
    }
  });
}

const cudnn::Net& net_of(const NetShape& shape) {
  const Known& found = known(shape);
  if (!found.net) throw DeviceError("cudnn: there is no recurrent net for this shape now");
  return *found.net;
}

/// Runs fn(handle, net), whose status says how it went.
template <class Fn>
void with_net(const NetShape& shape, Executor& executor, const Fn& fn) {
  const std::lock_guard lock(cudnn::planner().mutex);
  try {
    const cudnn::Net& net = net_of(shape);
    const cudnn::Handle handle = cudnn::planner().handle_of(cudnn::current_device());
    cudnn::check(cudnn::library().set_stream(handle, static_cast<Queue>(executor.stream)));
    fn(handle, net);
  } catch (const cudnn::Refusal& refusal) {
    throw DeviceError("cudnn: a recurrent net failed with status " + std::to_string(refusal.status));
  }
}

NetRoom room(const NetShape& shape) {
  const std::lock_guard lock(cudnn::planner().mutex);
  try {
    const Known& found = known(shape);
    return found.net ? found.net->room : NetRoom{};
  } catch (const cudnn::Refusal&) {  // for now
    return {};
  }
}

long long place(const NetShape& shape, int layer, int product, bool bias) {
  const std::lock_guard lock(cudnn::planner().mutex);
  const int products = 2 * gates_of(shape.kind);
  return net_of(shape).places.at(static_cast<size_t>(2 * (layer * products + product) + bias));
}

void run(const NetArgs& a, Executor& executor) {
  with_net(a.shape, executor, [&](cudnn::Handle handle, const cudnn::Net& n) {
    const bool training = a.reserve;
    const auto size = [](long long bytes) { return static_cast<size_t>(bytes); };
    cudnn::check(cudnn::net_functions().forward(
        handle, n.net, training, nullptr, n.x, a.x, n.y, a.output, n.states, a.hidden, a.last_hidden, n.states, a.cell,
        a.last_cell, size(n.room.weights), a.weights, size(training ? n.room.training_workspace : n.room.workspace),
        a.workspace, training ? size(n.room.reserve) : 0, a.reserve));
  });
}

void check_copied(cudaError_t status) {
  if (status != cudaSuccess) throw DeviceError(std::string("a recurrent net: ") + cudaGetErrorString(status));
}

// The library writes to what it reserved, which a second backward would miss.
void run_backward(const NetBackwardArgs& a, Executor& executor) {
  const auto stream = static_cast<Queue>(executor.stream);
  with_net(a.shape, executor, [&](cudnn::Handle handle, const cudnn::Net& n) {
    const auto weights = static_cast<size_t>(n.room.weights), reserve = static_cast<size_t>(n.room.reserve),
               workspace = static_cast<size_t>(n.room.training_workspace);
    if (a.scratch != a.reserve)
      check_copied(cudaMemcpyAsync(a.scratch, a.reserve, reserve, cudaMemcpyDeviceToDevice, stream));
    check_copied(cudaMemsetAsync(a.dweights, 0, weights, stream));
    const cudnn::NetFunctions& f = cudnn::net_functions();
    cudnn::check(f.backward(handle, n.net, nullptr, n.y, a.output, a.doutput, n.x, a.dx, n.states, a.hidden,
                            a.dlast_hidden, a.dhidden, n.states, a.cell, a.dlast_cell, a.dcell, weights, a.weights,
                            workspace, a.workspace, reserve, a.scratch));
    constexpr int add = 0;
    cudnn::check(f.backward_weights(handle, n.net, add, nullptr, n.x, a.x, n.states, a.hidden, n.y, a.output, weights,
                                    a.dweights, workspace, a.workspace, reserve, a.scratch));
  });
}

}  // namespace

const VendorNetTable* vendor_net_table() {
  static const VendorNetTable table{room, place, pack_net, run, run_backward};
  return cudnn::library().complete && cudnn::net_functions().complete ? &table : nullptr;
}

}  // namespace tessera::gpu_kernels
