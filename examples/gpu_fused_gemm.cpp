// A product with a fusion of one's own, compiled for the card at hand by the program itself: y = gelu(x w + d0 + d1).
#include <tessera/tessera.h>

#include <chrono>
#include <cstdio>

using namespace tessera;

int main() {
  const Device device = device_count(DeviceType::HIP) ? hip() : cuda();
  if (auto reason = why_unavailable(device); !reason.empty())
    return std::printf("no GPU to run on: %s; %s\n", reason.c_str(), why_unavailable(hip()).c_str()), 0;
  const auto make = [&](Shape shape) { return randn(shape).to(BFloat16).to(device); };
  Tensor x = make({768, 768}), w = make({768, 3072}), residual = make({768, 3072}), bias = make({3072});
  const auto start = std::chrono::steady_clock::now();

  Tensor y = fused_gemm(x, w, "gelu_tanh(acc + load(d0) + load(d1))", {residual, bias});

  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto wide = [](const Tensor& t) { return t.to(cpu()).to(Float32); };
  Tensor expected = gelu_tanh(matmul(wide(x), wide(w)) + wide(residual) + wide(bias));
  const double error = norm(wide(y) - expected).item() / norm(expected).item();
  std::printf("first call %.2f s, relative error %.1e on %s\n", seconds.count(), error, to_string(device).c_str());
  return error < 4e-3 ? 0 : 1;
}
