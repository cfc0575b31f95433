#include "peers.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

#include "kernels/cpu/isa_select.h"

namespace tessera::app {
namespace {

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

template <class F>
F* symbol(void* library, const char* name) {
  return library ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
}

}  // namespace

std::vector<GemmPeer> gemm_peers(int threads) {
  // Threads that wait for work in a loop would take the processor from whoever is measured next.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("OPENBLAS_THREAD_TIMEOUT", "4", 0);
  if (cpu_kernels::isa() == cpu_kernels::Isa::Avx2) {  // like with like, also where AVX-512 is there and not wanted
    setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 0);
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 0);  // before oneDNN 3
  }
  std::vector<GemmPeer> peers;
  void* openblas = open_first({"libopenblas.so.0", "libopenblas.so"});
  using Cblas = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  if (auto* sgemm = symbol<Cblas>(openblas, "cblas_sgemm")) {
    if (auto* set = symbol<void(int)>(openblas, "openblas_set_num_threads")) set(threads);
    peers.push_back({"openblas", [sgemm](int m, int n, int k, const float* a, const float* b, float* c) {
                       constexpr int kRowMajor = 101, kNoTrans = 111;
                       sgemm(kRowMajor, kNoTrans, kNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
                     }});
  }
  void* onednn = open_first({"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"});
  using Dnnl = int(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float,
                   float*, int64_t);
  if (auto* sgemm = symbol<Dnnl>(onednn, "dnnl_sgemm")) {
    void* openmp = open_first({"libgomp.so.1"});
    if (auto* set = symbol<void(int)>(openmp, "omp_set_num_threads")) set(threads);
    peers.push_back({"onednn", [sgemm](int m, int n, int k, const float* a, const float* b, float* c) {
                       sgemm('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
                     }});
  }
  return peers;
}

}  // namespace tessera::app
