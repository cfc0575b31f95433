#include "gemm_leaves.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

WithEpilogue<float> mixed_epilogue(const GemmArgs& args) { return any_epilogue<float, void>(args); }

}  // namespace tessera::cpu_kernels::TESSERA_ISA
