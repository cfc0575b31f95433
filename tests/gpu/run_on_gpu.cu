// Runs the tile GEMMs of sm80_gemm.cu on a card: compares them with float64 on random inputs and odd shapes, then times
// some configurations beside cuBLAS. Built and started by run_on_gpu.sh; no part of the ordinary tests.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "sm80_gemm.cu"

namespace tessera::tile {
namespace {

#define CHECK(call)                                                              \
  do {                                                                           \
    const cudaError_t error = call;                                              \
    if (error != cudaSuccess) {                                                  \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

/// A matrix of random elements on the card, of which rows are `pitch` long.
template <class T>
struct DeviceMatrix {
  DeviceMatrix(int rows, int columns_, std::mt19937& random) : pitch(columns_), size(std::size_t(rows) * columns_) {
    std::vector<T> host(size);
    std::normal_distribution<float> normal;
    for (T& x : host) x = T(normal(random));
    CHECK(cudaMalloc(&data, size * sizeof(T)));
    CHECK(cudaMemcpy(data, host.data(), size * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceMatrix() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> result(size);
    CHECK(cudaMemcpy(result.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
    return result;
  }
  T* data;
  int pitch;
  std::size_t size;
};

struct Case {
  bool transposed_a, transposed_b, fused;
};

/// The same in float64, an element a thread.
template <class T>
__global__ void reference(GemmArgs args, Case what, double* result) {
  const int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.m || j >= args.n) return;
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  double sum = 0;
  for (int k = 0; k < args.k; ++k) {
    const T left = what.transposed_a ? a[i64(k) * args.lda + i] : a[i64(i) * args.lda + k];
    const T right = what.transposed_b ? b[i64(j) * args.ldb + k] : b[i64(k) * args.ldb + j];
    sum += double(float(left)) * double(float(right));
  }
  if (what.fused) {
    const double x = sum + double(float(static_cast<const T*>(args.d0)[i64(i) * args.ldd + j])) +
                     double(float(static_cast<const T*>(args.bias)[j]));
    sum = 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  }
  result[i64(i) * args.n + j] = sum;
}

template <class Kernel>
void launch(Kernel kernel, const GemmArgs& args, int tile_m, int tile_n, int threads, int shared) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int blocks = ceil_div(args.m, tile_m) * ceil_div(args.n, tile_n);
  kernel<<<blocks, threads, shared>>>(args);
  CHECK(cudaGetLastError());
}

int failures = 0;

template <class T, class D>
void compare(const char* name, void (*kernel)(GemmArgs), Case what, double tolerance, int m, int n, int k, int pad) {
  std::mt19937 random(m * 7919 + n * 104729 + k);
  DeviceMatrix<T> a(what.transposed_a ? k : m, (what.transposed_a ? m : k) + pad, random);
  DeviceMatrix<T> b(what.transposed_b ? n : k, (what.transposed_b ? k : n) + pad, random);
  DeviceMatrix<T> d0(m, n + pad, random), bias(1, n, random);
  DeviceMatrix<D> d(m, n + pad, random);
  const std::vector<D> before = d.host();
  const GemmArgs args{a.data, b.data, d0.data, bias.data, d.data, m, n, k, a.pitch, b.pitch, d.pitch};
  launch(kernel, args, 128, 128, 128, 65536);
  double* expected;
  CHECK(cudaMalloc(&expected, sizeof(double) * m * n));
  reference<T><<<dim3(ceil_div(n, 16), ceil_div(m, 16)), dim3(16, 16)>>>(args, what, expected);
  std::vector<double> want(std::size_t(m) * n);
  CHECK(cudaMemcpy(want.data(), expected, sizeof(double) * m * n, cudaMemcpyDeviceToHost));
  cudaFree(expected);
  const std::vector<D> got = d.host();
  double error = 0, norm = 0;
  bool untouched = true;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n + pad; ++j) {
      const double x = float(got[std::size_t(i) * d.pitch + j]);
      if (j >= n) untouched = untouched && x == double(float(before[std::size_t(i) * d.pitch + j]));
      else error += std::pow(x - want[std::size_t(i) * n + j], 2), norm += std::pow(want[std::size_t(i) * n + j], 2);
    }
  const double relative = std::sqrt(error / norm);
  const bool good = relative < tolerance && untouched;
  failures += !good;
  std::printf("%s %-13s %4d x %4d x %4d pad %2d  relative error %.1e%s\n", good ? "ok " : "BAD", name, m, n, k, pad,
              relative, untouched ? "" : ", wrote outside the result");
}

void compare_all() {
  const Case nn{false, false, false}, nt{false, true, false}, tn{true, false, false}, tt{true, true, false};
  const double exact = 2e-6;
  compare<f16, float>("f16_nn", f16_nn, nn, exact, 33, 64, 40, 8);
  compare<f16, float>("f16_nn", f16_nn, nn, exact, 1, 8, 8, 0);
  compare<f16, float>("f16_nn", f16_nn, nn, exact, 1023, 1032, 520, 16);
  compare<f16, float>("f16_nt", f16_nt, nt, exact, 33, 65, 40, 0);
  compare<f16, float>("f16_nt", f16_nt, nt, exact, 257, 1, 64, 8);
  compare<f16, float>("f16_nt", f16_nt, nt, exact, 997, 1009, 1000, 0);
  compare<f16, float>("f16_tn", f16_tn, tn, exact, 40, 72, 37, 8);
  compare<f16, float>("f16_tn", f16_tn, tn, exact, 1000, 520, 331, 0);
  compare<f16, float>("f16_tt", f16_tt, tt, exact, 40, 65, 40, 0);
  compare<f16, float>("f16_tt", f16_tt, tt, exact, 512, 769, 256, 8);
  compare<f16, float>("f16_any_nn", f16_any_nn, nn, exact, 33, 65, 41, 3);
  compare<f16, float>("f16_any_nn", f16_any_nn, nn, exact, 1, 1, 1, 0);
  compare<f16, float>("f16_any_nn", f16_any_nn, nn, exact, 509, 521, 523, 0);
  compare<f16, float>("f16_half_nt", f16_half_nt, nt, exact, 37, 65, 44, 4);
  compare<bf16, float>("bf16_nn", bf16_nn, nn, exact, 33, 64, 40, 8);
  compare<bf16, float>("bf16_nn", bf16_nn, nn, exact, 1023, 1032, 520, 0);
  compare<f16, f16>("f16_gelu_nn", f16_gelu_nn, {false, false, true}, 5e-4, 33, 64, 40, 8);
  compare<f16, f16>("f16_gelu_nn", f16_gelu_nn, {false, false, true}, 5e-4, 767, 3072, 768, 0);
  compare<bf16, bf16>("bf16_gelu_nt", bf16_gelu_nt, {false, true, true}, 4e-3, 33, 65, 40, 0);
  compare<bf16, bf16>("bf16_gelu_nt", bf16_gelu_nt, {false, true, true}, 4e-3, 767, 3071, 768, 8);
}

// ---- times

template <class T, class C, bool TransposedB>
TESSERA_KERNEL(C::config.warps * 32)
void timed(GemmArgs args) {
  const auto a = matrix<T, 8, false>(args.a, args.m, args.k, args.lda);
  const auto b = matrix<T, 8, TransposedB>(args.b, args.k, args.n, args.ldb);
  using Pipeline = sm80::Gemm<decltype(a), ByColumn<decltype(b)>, C>;
  extern __shared__ __align__(128) char shared[];
  gemm_block<Pipeline>(a, b, plain<T>(args), reinterpret_cast<T*>(shared));
}

/// Milliseconds of one call: the median of 7 batches, each queued.
template <class F>
double milliseconds(F call) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<double> times;
  for (int batch = 0; batch < 8; ++batch) {
    constexpr int calls = 10;
    cudaEventRecord(begin);
    for (int i = 0; i < calls; ++i) call();
    cudaEventRecord(end);
    CHECK(cudaEventSynchronize(end));
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    if (batch > 0) times.push_back(ms / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
void time_all(const char* type, cudaDataType cuda_type, int m, int n, int k, bool transposed_b) {
  std::mt19937 random(1);
  DeviceMatrix<T> a(m, k, random), b(transposed_b ? n : k, transposed_b ? k : n, random), d(m, n, random);
  const GemmArgs args{a.data, b.data, nullptr, nullptr, d.data, m, n, k, a.pitch, b.pitch, d.pitch};
  const double flops = 2.0 * m * n * k;
  cublasHandle_t handle;
  cublasCreate(&handle);
  const float one = 1, zero = 0;
  const double peer = milliseconds([&] {  // column-major: the transposed product
    cublasGemmEx(handle, transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data, cuda_type,
                 b.pitch, a.data, cuda_type, a.pitch, &zero, d.data, cuda_type, d.pitch, CUBLAS_COMPUTE_32F,
                 CUBLAS_GEMM_DEFAULT);
  });
  cublasDestroy(handle);
  std::printf("%s %s %d x %d x %d: cuBLAS %.1f TFLOP/s", type, transposed_b ? "nt" : "nn", m, n, k, flops / peer / 1e9);
  const auto time = [&]<class C>() {
    constexpr Config config = C::config;
    const auto run = [&](auto kernel) {
      return milliseconds([&] {
        launch(kernel, args, config.tile_m, config.tile_n, config.warps * 32,
               config.stages * (config.tile_m + config.tile_n) * config.tile_k * 2);
      });
    };
    const double ms = transposed_b ? run(timed<T, C, true>) : run(timed<T, C, false>);
    std::printf(", %dx%dx%d/%d/%d %.1f (%.2f)", config.tile_m, config.tile_n, config.tile_k, config.warps,
                config.stages, flops / ms / 1e9, peer / ms);
  };
  time.template operator()<Choice<128, 128, 32, 4, 4>>();
  time.template operator()<Choice<128, 128, 64, 4, 3>>();
  time.template operator()<Choice<128, 256, 32, 8, 4>>();
  time.template operator()<Choice<128, 256, 64, 8, 3>>();
  time.template operator()<Choice<256, 128, 64, 8, 3>>();
  std::printf("\n");
}

}  // namespace
}  // namespace tessera::tile

/// With an argument it only compares.
int main(int argc, char**) {
  using namespace tessera::tile;
  cudaDeviceProp card;
  CHECK(cudaGetDeviceProperties(&card, 0));
  std::printf("%s, compute capability %d.%d\n", card.name, card.major, card.minor);
  compare_all();
  std::printf("%d wrong\n", failures);
  if (argc > 1) return failures ? 1 : 0;
  time_all<f16>("f16", CUDA_R_16F, 4096, 4096, 4096, false);
  time_all<f16>("f16", CUDA_R_16F, 8192, 8192, 8192, false);
  time_all<bf16>("bf16", CUDA_R_16BF, 8192, 8192, 8192, true);
  time_all<bf16>("bf16", CUDA_R_16BF, 12288, 3072, 768, true);
  return failures ? 1 : 0;
}
