// What a norm of channels comes to for each of them.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"

namespace tessera::gpu_kernels {

/// A weight of each channel, of the type of x or that of statistics, or none.
struct ChannelWeights {
  const void* data;
  Scalar type;
  template <class C>
  TESSERA_DEVICE C at(i64 channel, C otherwise) const {
    if (!data) return otherwise;
    switch (type) {
      case Scalar::f16:
        return tile::convert_element<C>(static_cast<const f16*>(data)[channel]);
      case Scalar::bf16:
        return tile::convert_element<C>(static_cast<const bf16*>(data)[channel]);
      case Scalar::f32:
        return static_cast<C>(static_cast<const float*>(data)[channel]);
      default:
        return static_cast<C>(static_cast<const double*>(data)[channel]);
    }
  }
};

/// What normalisation comes to for a channel: y = scale x + shift.
template <class C>
struct ScaleShift {
  C scale, shift;
  TESSERA_DEVICE ScaleShift(C mean, C rstd, C weight, C bias) : scale(rstd * weight), shift(bias - mean * scale) {}
  TESSERA_DEVICE C operator()(C x) const { return tile::fma(x, scale, shift); }
};

}  // namespace tessera::gpu_kernels
