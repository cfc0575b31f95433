// Softmax and log-softmax, with their gradients.
#include "row_works.h"

namespace tessera::gpu_kernels {
namespace {

void softmax(const SoftmaxArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int most = sizeof(T) == 2 ? 512 : 1024;
    launch_rows<T, 1, most, most>("softmax", RowLayout(sizeof(T), a.x, a.y),
                                  Softmax<T>{a.rows, a.n, a.log, rows_of<T>(a.y), rows_of<const T>(a.x)}, executor);
  });
}

void softmax_backward(const SoftmaxBackwardArgs& a, Executor& executor) {
  if (softmax_backward_sm90(a, executor)) return;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int most = sizeof(T) == 2 ? 512 : 256;  // of floats, registers of more do not suffice
    launch_rows<T, 2, most, 1024>("softmax_backward", RowLayout(sizeof(T), a.y, a.dy, a.dx), softmax_backward_of<T>(a),
                                  executor);
  });
}

}  // namespace

i64 most_shared_bytes() {
#if defined(__HIP__)
  return 64 << 10;
#else
  int device = 0, bytes = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
#endif
}

long long cross_entropy(const CrossEntropyArgs& args, Executor& executor);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, Executor& executor);
bool cross_entropy_overwrite(const CrossEntropyOverwriteArgs& args, Executor& executor);
void divide_by_targets(const DivideByTargetsArgs& args, Executor& executor);

SoftmaxTable softmax_table = {softmax,           softmax_backward,       cross_entropy, cross_entropy_backward,
                              divide_by_targets, cross_entropy_overwrite};

}  // namespace tessera::gpu_kernels
