// The kernels that are disassembled and executed: a plain tile GEMM, and GEMM + Add + Add + GELU, in every
// transposition. One source for nvcc and clang; the including file says what Pipeline is and declares the kernel.
#pragma once
#include "../../src/tile/arch/gpu/gemm.h"
#include "gemm_args.h"

namespace tessera::tile {

template <class T>
TESSERA_HD auto plain(const GemmArgs& args) {
  T* d = static_cast<T*>(args.d);
  return store(strided(d, tuple(args.m, args.n), tuple(args.ldd, Int<1>{})), acc);
}
template <class T>
TESSERA_HD auto add_add_gelu(const GemmArgs& args) {
  T* d = static_cast<T*>(args.d);
  const auto d0 = strided(static_cast<const T*>(args.d0), tuple(args.m, args.n), tuple(args.ldd, Int<1>{}));
  const auto d1 = strided(static_cast<const T*>(args.bias), tuple(args.m, args.n), tuple(Int<0>{}, Int<1>{}));
  return store(strided(d, tuple(args.m, args.n), tuple(args.ldd, Int<1>{})), gelu_tanh(acc + load(d0) + load(d1)));
}

}  // namespace tessera::tile
