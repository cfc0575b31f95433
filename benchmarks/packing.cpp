// Linear layers whose weights were packed once beside those that pack them in each call, in turns: medians and ratios.
// Usage: bench_packing [threads...]; TESSERA_ISA picks the instruction set.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/util/median.h"
#include "kernels/kernel_lists.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

double seconds(const std::function<void()>& work, int times) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
}

void compare(const std::string& name, const std::function<void()>& plain, const std::function<void()>& packed) {
  const std::function<void()>* const works[] = {&plain, &packed};
  std::vector<double> times[2], ratios;
  seconds(plain, 2);
  const int repeats = std::clamp(static_cast<int>(1e-3 / seconds(plain, 1)), 1, 100);
  for (double spent = 0; spent < 0.4 || times[0].size() < 9;) {
    for (int i : {0, 1}) {
      seconds(*works[i], 1);  // wakes its threads, and brings its weights to the caches
      times[i].push_back(seconds(*works[i], repeats));
      spent += times[i].back() * repeats;
    }
    ratios.push_back(times[0].back() / times[1].back());
  }
  fmt::print("{:28} plain {:9.1f} us   packed {:9.1f} us   ratio {:.2f}\n", name, median(times[0]) * 1e6,
             median(times[1]) * 1e6, median(ratios));
  std::fflush(stdout);
}

std::string load() {
  std::string text;
  std::getline(std::ifstream("/proc/loadavg"), text);
  return text;
}

void measure() {
  NoGrad guard;
  Generator g(1);
  fmt::print("{}; load {}\n", cpu_description(), load());
  for (const auto& [in, out] : {std::pair{768, 3072}, {3072, 768}, {768, 768}, {128, 512}}) {
    const Tensor weight = randn({out, in}, g), bias = randn({out}, g), packed = pack_linear(weight);
    for (int m : {1, 2, 4, 8, 16, 32, 64, 768}) {
      const Tensor x = randn({m, in}, g);
      compare(
          fmt::format("{} x {} -> {}", m, in, out), [&] { linear(x, weight, bias); }, [&] { linear(x, packed, bias); });
    }
  }
  const Tensor up = randn({3072, 768}, g), down = randn({768, 3072}, g), up_packed = pack_linear(up),
               down_packed = pack_linear(down);
  for (int m : {1, 16, 64}) {
    const Tensor x = randn({m, 768}, g);
    const auto run = [&](const Tensor& a, const Tensor& b) { mlp(x, a, {}, Activation::GeluTanh, b, {}, x); };
    compare(
        fmt::format("mlp of {} rows", m), [&] { run(up, down); }, [&] { run(up_packed, down_packed); });
  }
  fmt::print("load {}\n", load());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) measure();
  for (int i = 1; i < argc; ++i) {
    tessera::set_num_threads(std::max(1, std::atoi(argv[i])));
    measure();
  }
}
