// The tables of the plugin whose device a call is for, and the GPU's kernel lists. The files of kernels/cpu that hand
// tensors to kernels are compiled for GPUs, too; the ones here are what differs.
#include "kernels/args/gpu/tables.h"

#include <cstdlib>
#include <vector>

#include "core/gpu/backend.h"
#include "kernels/shared/kernel_tables.h"
#include "kernels/shared/tables.h"

namespace tessera {
namespace gpu_kernels {

Executor& executor() {
  static thread_local Executor executor;
  gpu::DeviceState& on = gpu::calling();
  executor = {gpu::stream_of(on).handle, on.properties.multiprocessors, on.fault};
  return executor;
}

const Tables& tables() {
  static const Tables none;
  const auto* tables = static_cast<const Tables*>(gpu::calling().kernels);
  return tables ? *tables : none;
}

const Tables* vendor_tables() {
  static const char* choice = std::getenv("TESSERA_VENDOR");
  static const bool off = choice && std::string_view(choice) == "off";
  return off ? nullptr : &tables();
}

namespace {
template <class Table>
const Table& of_plugin(const Table* Tables::*member) {
  const Table* table = tables().*member;
  if (!table) throw Error(to_string(gpu::calling().device) + ": the plugin has no kernels of this family");
  return *table;
}
}  // namespace

#define TESSERA_TABLE(Type, name) \
  const Type& name##_table() { return of_plugin(&Tables::name); }
TESSERA_TABLE(ElementwiseTable, elementwise)
TESSERA_TABLE(ReduceTable, reduce)
TESSERA_TABLE(PoolTable, pool)
TESSERA_TABLE(GemmTable, gemm)
TESSERA_TABLE(ConvTable, conv)
TESSERA_TABLE(AttentionTable, attention)
TESSERA_TABLE(NormTable, norm)
TESSERA_TABLE(SoftmaxTable, softmax)
TESSERA_TABLE(IndexTable, index)
TESSERA_TABLE(ScatterTable, scatter)
TESSERA_TABLE(NonzeroTable, nonzero)
TESSERA_TABLE(BitsTable, bits)
TESSERA_TABLE(RecurrentTable, recurrent)
TESSERA_TABLE(LinesTable, lines)
TESSERA_TABLE(PlaneTable, planes)
TESSERA_TABLE(SampleTable, sample)
TESSERA_TABLE(CreationTable, creation)
TESSERA_TABLE(DrawTable, draw)
TESSERA_TABLE(StepTable, step)
#undef TESSERA_TABLE

}  // namespace gpu_kernels

std::string gpu_libraries() {
  const gpu_kernels::Tables* vendor = gpu_kernels::vendor_tables();
  std::string text;
  if (vendor && vendor->vendor_gemm) text += "cublasLt " + std::to_string(vendor->vendor_gemm->version());
  if (vendor && vendor->vendor_conv)
    text += (text.empty() ? "cudnn " : ", cudnn ") + std::to_string(vendor->vendor_conv->version());
  return text;
}

void* gpu_executor() { return &gpu_kernels::executor(); }

std::span<const KernelTableEntry> gpu_kernel_table() {
  using namespace gpu_kernels;
  static const std::vector<KernelTableEntry> table = [] {
    std::vector<KernelTableEntry> all;
    for (auto family :
         {creation_kernels(),  elementwise_kernels(),   map_graph_kernels(), matmul_kernels(),    fused_gemm_kernels(),
          conv_kernels(),      pool_kernels(),          shape_kernels(),     attention_kernels(), norm_kernels(),
          softmax_kernels(),   reduction_kernels(),     loss_kernels(),      indexing_kernels(),  bit_kernels(),
          recurrent_kernels(), recurrent_net_kernels(), line_kernels(),      plane_kernels(),     sample_kernels(),
          random_kernels(),    optim_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
