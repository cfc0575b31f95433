// TMA's tensor maps, and whether the card at hand is Hopper's.
#pragma once
#include <array>
#include <string>

#include "driver.h"
#include "gpu.h"
#include "tessera/error.h"
#include "tile/arch/sm90/ptx.h"

namespace tessera::gpu_kernels {

/// Which devices are Hopper's.
struct Hoppers {
  std::array<bool, 16> is{};
  bool alike = true;

  Hoppers() {
    int count = 0, major = 0;
    (void)cudaGetDeviceCount(&count);
    for (int d = 0; d < count && d < 16; ++d) {
      is[d] = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d) == cudaSuccess && major == 9;
      alike = alike && is[d] == is[0];
    }
  }
};
inline bool is_hopper() {
  static const Hoppers hoppers;
  int device = 0;  // the current one, which takes 50 ns to ask
  if (!hoppers.alike && (cudaGetDevice(&device) != cudaSuccess || device >= 16)) return false;
  return hoppers.is[device];
}

using EncodeTensorMap = decltype(&::cuTensorMapEncodeTiled);
inline EncodeTensorMap encode_function() {
  static const auto function = driver_function<EncodeTensorMap>("cuTensorMapEncodeTiled");
  return function;
}

/// `count` matrices of `lines` rows (or columns) of `length` contiguous elements, and the box of them that TMA moves at
/// a time.
struct TmaMatrix {
  const void* data;
  Scalar type;
  i64 length, lines, pitch, count, step;
  int box_columns, box_rows;
};

inline bool fits(const TmaMatrix& b) {
  constexpr i64 most_bytes = i64{1} << 40, most = (i64{1} << 31) - 1024;
  const i64 bytes = size_of(b.type);
  const auto is_step = [&](i64 step) { return step > 0 && step * bytes % 16 == 0 && step * bytes < most_bytes; };
  return reinterpret_cast<size_t>(b.data) % 16 == 0 && is_step(b.pitch) && is_step(b.step) && b.length <= b.pitch &&
         b.length <= most && b.lines <= most && b.count <= most;
}

/// The map of a tensor of f32, f16 or bf16 and Rank dims, the first contiguous; steps, in elements, are those of the
/// others. Lines of a box are swizzled over 128 bytes, or 64 if that is what they have.
template <int Rank>
tile::sm90::TensorMap encode_map(Scalar type, const void* data, const i64 (&lengths)[Rank],
                                 const i64 (&steps)[Rank - 1], const int (&box)[Rank]) {
  tile::sm90::TensorMap map;
  static_assert(sizeof map == sizeof(CUtensorMap));
  const auto element = type == Scalar::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                       : type == Scalar::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint64_t extents[Rank], pitches[Rank - 1];
  cuuint32_t sides[Rank], every[Rank];
  for (int d = 0; d < Rank; ++d) {
    extents[d] = static_cast<cuuint64_t>(lengths[d]);
    sides[d] = static_cast<cuuint32_t>(box[d]);
    every[d] = 1;
    if (d > 0) pitches[d - 1] = static_cast<cuuint64_t>(steps[d - 1]) * static_cast<cuuint64_t>(size_of(type));
  }
  const auto swizzle = box[0] * size_of(type) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const CUresult status = encode_function()(
      reinterpret_cast<CUtensorMap*>(&map), element, Rank, const_cast<void*>(data), extents, pitches, sides, every,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError("cuTensorMapEncodeTiled failed with status " + std::to_string(static_cast<int>(status)));
  return map;
}

inline tile::sm90::TensorMap map_of(const TmaMatrix& b) {
  return encode_map<3>(b.type, b.data, {b.length, b.lines, b.count}, {b.pitch, b.step}, {b.box_columns, b.box_rows, 1});
}

}  // namespace tessera::gpu_kernels
