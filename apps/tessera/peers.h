// Other libraries to measure against, opened at run time where they are installed.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace tessera::app {

struct GemmPeer {
  std::string name;
  /// c [m, n] = a [m, k] b [k, n], row-major f32.
  std::function<void(int m, int n, int k, const float* a, const float* b, float* c)> run;
};

/// OpenBLAS and oneDNN, set to `threads` threads; those that are not installed are left out.
std::vector<GemmPeer> gemm_peers(int threads);

}  // namespace tessera::app
