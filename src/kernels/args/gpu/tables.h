// What a plugin's kernels look like from the core: a table of functions per family, as for the CPU's instruction sets.
#pragma once
#ifndef TESSERA_GPU_KERNELS
#error "compile this with TESSERA_GPU_KERNELS"
#endif
#include <cstddef>

#include "kernels/args/attention.h"
#include "kernels/args/conv.h"
#include "kernels/args/elementwise.h"
#include "kernels/args/gemm.h"
#include "kernels/args/gpu/depthwise.h"
#include "kernels/args/gpu/indexing.h"
#include "kernels/args/gpu/optim.h"
#include "kernels/args/gpu/pointwise.h"
#include "kernels/args/gpu/random.h"
#include "kernels/args/gpu/recurrent_net.h"
#include "kernels/args/gpu/vendor_limits.h"
#include "kernels/args/lines.h"
#include "kernels/args/norm.h"
#include "kernels/args/planes.h"
#include "kernels/args/pool.h"
#include "kernels/args/recurrent.h"
#include "kernels/args/reduce.h"
#include "kernels/args/sample.h"
#include "kernels/args/softmax.h"

namespace tessera::gpu_kernels {

/// The vendor's own products, where its library is installed. For GELU by tanh, `slope` gets and `factor` is what it is
/// applied to, as the library has it.
struct VendorGemmTable {
  bool (*supports)(const GemmArgs& args);
  /// By the library's first algorithm, or its `choice`-th next, if it has so many.
  void (*run)(const GemmArgs& args, int choice, void* workspace, Executor& executor);
  size_t (*version)();
};

/// Why a product is not for Hopper's pipeline.
enum class Sm90Refusal : unsigned char { none, hardware, type, layout, shape, small };

/// Products of halves by Hopper's own instructions.
struct Sm90GemmTable {
  Sm90Refusal (*refuses)(const GemmArgs& args);
  void (*run)(const GemmArgs& args, Executor& executor);
  /// As GemmTable::workspace.
  long long (*workspace)(const GemmArgs& args, const Executor& executor);
  /// Whether it has what the vendor's fast algorithms do not take: operands whose rows are not 16-byte aligned,
  /// or do not end so along k.
  bool (*has_odd_lines)(const GemmArgs& args);
};

/// 1x1 convolutions of halves by Hopper's own instructions, of at most 256 channels and filters.
struct Sm90PointwiseTable {
  Sm90Refusal (*refuses)(const PointwiseArgs& args);
  void (*run)(const PointwiseArgs& args, Executor& executor);
  long long (*workspace)(const PointwiseArgs& args);
  Sm90Refusal (*refuses_grad)(const PointwiseGradArgs& args);
  void (*run_grad)(const PointwiseGradArgs& args, Executor& executor);
  long long (*grad_workspace)(const PointwiseGradArgs& args);
};

/// A convolution, or its gradient for the images or the filters.
enum class ConvPart : unsigned char { forward, images, filters };

/// The vendor's own convolutions, where its library is installed. Elements are f32, f16 or bf16, every tensor dense
/// with channels before positions, or every one behind them; bias and activation are left out.
struct VendorConvTable {
  /// Bytes, or -1 where the library has no kernel that computes the same each time and in full precision.
  long long (*workspace)(ConvPart part, const ConvArgs& args);
  /// Whether the kernel for which workspace() answered multiplies on matrix cores.
  bool (*on_matrix_cores)(ConvPart part, const ConvArgs& args);
  void (*run)(ConvPart part, const ConvArgs& args, Executor& executor);
  size_t (*version)();
};

/// Convolutions of halves by Hopper's own instructions, channels last. Activations are left out; the forward finds mean
/// and variance of each filter's results where they are asked for.
struct Sm90ConvTable {
  Sm90Refusal (*refuses)(ConvPart part, const ConvArgs& args);
  long long (*workspace)(ConvPart part, const ConvArgs& args);
  void (*run)(ConvPart part, const ConvArgs& args, Executor& executor);
};

/// The same forward, of what a norm with a variance and ReLU make of the images.
struct Sm90NormConvTable {
  Sm90Refusal (*refuses)(const ConvArgs& args);
  void (*run)(const ConvArgs& args, const PlanesNorm& norm, Executor& executor);
};

/// Convolutions of every channel by itself.
struct DepthwiseTable {
  bool (*is_fast)(const DepthwiseArgs& args);  ///< whether its windows are those that run at the speed of memory
  long long (*filters_workspace)(const DepthwiseArgs& args);
  void (*forward)(const DepthwiseArgs& args, Executor& executor);
  void (*backward_images)(const DepthwiseArgs& args, Executor& executor);
  void (*backward_filters)(const DepthwiseArgs& args, Executor& executor);
};

/// The vendor's own attention, where its library is installed: of halves in 16-byte vectors, without a mask.
/// Log-sum-exps are those of our kernels. Strides are not 0.
struct VendorAttentionTable {
  /// Bytes, or -1 where the library has no kernel that computes the same each time, or none with so little workspace.
  long long (*workspace)(const AttentionArgs& args);
  void (*run)(const AttentionArgs& args, void* workspace, Executor& executor);
  long long (*workspace_backward)(const AttentionBackwardArgs& args);
  void (*run_backward)(const AttentionBackwardArgs& args, void* workspace, Executor& executor);
};

/// Null: the plugin has no such family.
struct Tables {
  const ElementwiseTable* elementwise = nullptr;
  const ReduceTable* reduce = nullptr;
  const PoolTable* pool = nullptr;
  const PoolTable* dense_pool = nullptr;  // f32, f16 and bf16 of less than 2^30 vectors
  const GemmTable* gemm = nullptr;
  const Sm90GemmTable* sm90_gemm = nullptr;
  const Sm90PointwiseTable* sm90_pointwise = nullptr;
  const ConvTable* conv = nullptr;
  const DepthwiseTable* depthwise = nullptr;
  const Sm90ConvTable* sm90_conv = nullptr;
  const Sm90NormConvTable* sm90_norm_conv = nullptr;
  const VendorGemmTable* vendor_gemm = nullptr;
  const VendorConvTable* vendor_conv = nullptr;
  const AttentionTable* attention = nullptr;
  const VendorAttentionTable* vendor_attention = nullptr;
  const NormTable* norm = nullptr;
  const SoftmaxTable* softmax = nullptr;
  const IndexTable* index = nullptr;
  const ScatterTable* scatter = nullptr;
  const NonzeroTable* nonzero = nullptr;
  const BitsTable* bits = nullptr;
  const RecurrentTable* recurrent = nullptr;
  const VendorNetTable* vendor_net = nullptr;
  const LinesTable* lines = nullptr;
  const PlaneTable* planes = nullptr;
  const SampleTable* sample = nullptr;
  const CreationTable* creation = nullptr;
  const DrawTable* draw = nullptr;
  const StepTable* step = nullptr;
};

/// Those of the plugin whose device the call is for.
const Tables& tables();
/// The same, or null where TESSERA_VENDOR=off.
const Tables* vendor_tables();

}  // namespace tessera::gpu_kernels
