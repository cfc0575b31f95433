// Bytes of workspace that vendors' libraries may use, each call at most.
#pragma once
#include <cstddef>

namespace tessera::gpu_kernels {

inline constexpr size_t vendor_workspace = size_t(32) << 20;   ///< products
inline constexpr long long vendor_conv_workspace = 1LL << 30;  ///< room for the images in another layout, and padded
inline constexpr long long vendor_attention_workspace =
    2LL << 30;  ///< backward's has two for each pair of a query and a key

}  // namespace tessera::gpu_kernels
