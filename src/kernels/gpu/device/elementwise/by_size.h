// Elements of which only bits count, as integers of their size.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"

namespace tessera::gpu_kernels {

/// fn(Type<T>) for the unsigned T that is as large as an element.
template <class Fn>
void with_size(Scalar type, const Fn& fn) {
  switch (size_of(type)) {
    case 1:
      return fn(Type<u8>{});
    case 2:
      return fn(Type<tile::u16>{});
    case 4:
      return fn(Type<u32>{});
    default:
      return fn(Type<u64>{});
  }
}

}  // namespace tessera::gpu_kernels
