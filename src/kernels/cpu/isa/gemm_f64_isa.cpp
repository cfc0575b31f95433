#include "gemm_leaves.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

WithEpilogue<double> f64_epilogue(const GemmArgs& args) {
  const auto plain = plain_epilogue<double>(args);
  return plain ? plain : any_epilogue<double, double>(args);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
