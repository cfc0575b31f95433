// Shared by the translation units of one instruction set.
#pragma once

#include "args.h"
#include "tile/kernels/elementwise.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using tile::i32;
using tile::i64;

inline constexpr int scalar_size[scalar_count] = {1, 1, 1, 4, 8, 2, 2, 4, 8};

inline int size_of(Scalar type) { return scalar_size[static_cast<int>(type)]; }

/// The conversion between two element types.
tile::ConvertFn converter(Scalar to, Scalar from);

}  // namespace tessera::cpu_kernels::TESSERA_ISA
