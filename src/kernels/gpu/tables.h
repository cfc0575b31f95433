// What a plugin's kernels look like from the core: a table of functions per family, as for the CPU's instruction sets.
#pragma once
#ifndef TESSERA_GPU_KERNELS
#error "compile this with TESSERA_GPU_KERNELS"
#endif
#include <cstddef>

#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/conv.h"
#include "kernels/cpu/isa/elementwise.h"
#include "kernels/cpu/isa/gemm.h"
#include "kernels/cpu/isa/norm.h"
#include "kernels/cpu/isa/pool.h"
#include "kernels/cpu/isa/reduce.h"
#include "kernels/cpu/isa/softmax.h"
#include "kernels/gpu/indexing.h"
#include "kernels/gpu/optim.h"
#include "kernels/gpu/random.h"

namespace tessera::gpu_kernels {

/// Bytes of workspace that a vendor's products may use.
inline constexpr size_t vendor_workspace = size_t(32) << 20;

/// The vendor's own products, where its library is installed.
struct VendorGemmTable {
  bool (*supports)(const GemmArgs& args);
  void (*run)(const GemmArgs& args, void* workspace, Executor& executor);
  size_t (*version)();
};

/// Null: the plugin has no such family.
struct Tables {
  const ElementwiseTable* elementwise = nullptr;
  const ReduceTable* reduce = nullptr;
  const PoolTable* pool = nullptr;
  const GemmTable* gemm = nullptr;
  const ConvTable* conv = nullptr;
  const VendorGemmTable* vendor_gemm = nullptr;
  const AttentionTable* attention = nullptr;
  const NormTable* norm = nullptr;
  const SoftmaxTable* softmax = nullptr;
  const IndexTable* index = nullptr;
  const CreationTable* creation = nullptr;
  const DrawTable* draw = nullptr;
  const StepTable* step = nullptr;
};

}  // namespace tessera::gpu_kernels
