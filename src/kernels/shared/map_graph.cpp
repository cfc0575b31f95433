// Functions of elements that are graphs of maps, on any device: a map after the other.
#include "core/map_graph.h"

#include <vector>

#include "kernels/shared/map_calls.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {

void call_maps(const Call& call, Plan& plan) {
  const Graph& graph = *map_graph_of(call.attrs).graph;
  const Shape& shape = call.out[0].shape();
  std::vector<Operand> values(graph.values.size());
  for (size_t i = 0; i < call.in.size(); ++i) values[static_cast<size_t>(graph.inputs[i])] = call.in[i];
  for (const GraphNode& node : graph.nodes) {
    const auto made = static_cast<size_t>(node.outputs[0]);
    const TensorMeta meta{node.op->name == "full" ? Shape() : shape, graph.values[made].meta.dtype,
                          call.out[0].device()};
    values[made] = Operand(meta, plan.take(bytes_of(meta).value()));
    SmallVector<Operand, 3> in;
    for (const int32_t v : node.inputs) in.push_back(values[static_cast<size_t>(v)]);
    plan_call(*node.op, {in.data(), in.size()}, node.attrs, {&values[made], 1}, plan);
  }
  for (size_t i = 0; i < call.out.size(); ++i)
    copy(call, plan, call.out[i], values[static_cast<size_t>(graph.outputs[i])]);
}

}  // namespace tessera::TESSERA_KERNELS
