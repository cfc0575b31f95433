// Functions of elements that are graphs of maps.
#include "kernels/shared/map_calls.h"
#include "kernels/shared/tables.h"

namespace tessera::gpu_kernels {

std::span<const KernelTableEntry> map_graph_kernels() {
  static constexpr Kernel kernels[] = {{.name = "calls", .plan = call_maps}};
  static constexpr KernelTableEntry entries[] = {{"map_graph", kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
