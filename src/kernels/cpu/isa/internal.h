// Shared by the translation units of one instruction set.
#pragma once

#include "kernels/args/common.h"
#include "tile/kernels/elementwise.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using tile::i32;
using tile::i64;

inline constexpr int scalar_size[scalar_count] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

inline int size_of(Scalar type) { return scalar_size[static_cast<int>(type)]; }

/// The conversion between two element types.
tile::ConvertFn converter(Scalar to, Scalar from);
/// The same, but between u64 and i64, where the order of elements stays and their values do not: kernels that only
/// compare need no instance for u64.
tile::ConvertFn order_preserving(Scalar to, Scalar from);

template <class T>
struct Type {
  using type = T;
};

/// fn(Type<T>) for a floating-point type.
template <class Fn>
inline void with_float(Scalar type, const Fn& fn) {
  switch (type) {
    case Scalar::f32:
      return fn(Type<float>{});
    case Scalar::f64:
      return fn(Type<double>{});
    case Scalar::f16:
      return fn(Type<tile::f16>{});
    case Scalar::bf16:
      return fn(Type<tile::bf16>{});
    default:
      return;
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
