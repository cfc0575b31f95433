// Arguments of kernels as cuDNN sees them.
#pragma once
#include "cudnn.h"
#include "kernels/args/gpu/tables.h"
#include "kernels/gpu/device/runtime/recent.h"

namespace tessera::gpu_kernels::cudnn {

inline DataType data_type(Scalar type) {
  return type == Scalar::f16 ? DataType::f16 : type == Scalar::bf16 ? DataType::bf16 : DataType::f32;
}

/// The library counts elements in 32 bits in places.
inline bool is_countable(std::span<const int64_t> lengths, const long long (&strides)[4]) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    if (lengths[d] < 1 || lengths[d] >= int64_t(1) << 31 || strides[d] >= int64_t(1) << 31) return false;
    last += (lengths[d] - 1) * strides[d];
  }
  return last < (int64_t(1) << 31) - 1;
}

}  // namespace tessera::gpu_kernels::cudnn
