// All operators, and the one way down from a call to its kernel.
#pragma once
#include <span>
#include <vector>

#include "core/op.h"

namespace tessera {

/// Every op of the library; tests, documentation and tools walk it.
std::span<const Op* const> op_table();
/// Those that the program has registered so far (tessera/custom_op.h), in that order.
std::vector<const Op*> registered_ops();
/// One of either. Throws Error on an unknown name.
const Op& find_op(std::string_view name);
/// Of a registered one, every attribute at its default.
const Attrs& registered_defaults(const RegisteredOp& op);

/// Runs an op: infer, allocate or alias, pick a kernel, run, record for backward. Returns the visible outputs.
Tensors dispatch(const Op& op, Tensors&& in, const Attrs& attrs = {});
/// The first output.
Tensor dispatch_one(const Op& op, Tensors&& in, const Attrs& attrs = {});

// Each family lists its ops in its own file.
std::span<const Op* const> creation_ops();
std::span<const Op* const> elementwise_ops();
std::span<const Op* const> reduction_ops();
std::span<const Op* const> shape_ops();
std::span<const Op* const> window_ops();
std::span<const Op* const> indexing_ops();
std::span<const Op* const> scatter_ops();
std::span<const Op* const> bit_ops();
std::span<const Op* const> recurrent_ops();
std::span<const Op* const> line_ops();
std::span<const Op* const> plane_ops();
std::span<const Op* const> sample_ops();
std::span<const Op* const> matmul_ops();
std::span<const Op* const> fused_gemm_ops();
std::span<const Op* const> pack_ops();
std::span<const Op* const> conv_ops();
std::span<const Op* const> conv_act_ops();
std::span<const Op* const> norm_ops();
std::span<const Op* const> batch_norm_ops();
std::span<const Op* const> loss_ops();
std::span<const Op* const> attention_ops();
std::span<const Op* const> random_ops();
std::span<const Op* const> optim_ops();
std::span<const Op* const> transfer_ops();
std::span<const Op* const> map_graph_ops();
std::span<const Op* const> function_ops();

}  // namespace tessera
