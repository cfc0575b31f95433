// Writing safetensors, shared with checkpoints.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tessera/state_dict.h"

namespace tessera {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// The bytes before the first tensor. Throws Error if a name or value is not UTF-8.
std::string safetensors_header(const NamedTensors& tensors, const Metadata& metadata);
/// In the order of the format's reference implementation: larger elements first, so that each tensor is aligned.
NamedTensors aligned_order(const StateDict& tensors);

/// The tensor as a dense block in host memory.
Tensor dense_on_host(const Tensor& tensor);
inline size_t bytes_of(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()) * size_of(tensor.dtype()); }
/// Bytes of a dense tensor of that shape; false on overflow.
bool dense_bytes(const Shape& shape, DType dtype, size_t& bytes);

}  // namespace tessera
