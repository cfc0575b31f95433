// What the tile examples share besides their operators: random data, a comparison with float64, a clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace example {

using Sizes = std::vector<long long>;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline Floats random_floats(long long count) {
  static std::mt19937 generator(2024);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats values(count);
  for (float& x : values) x = uniform(generator);
  return values;
}

/// |result - reference| / |reference|, which no missing or infinite element passes.
inline double relative_error(const Floats& result, const Doubles& reference) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    error += (result[i] - reference[i]) * (result[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(error / norm);
}

/// Seconds of the fastest of several runs.
template <class Fn>
double seconds(const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || (i < 50 && Clock::now() - start < std::chrono::seconds(1)); ++i) {
    const auto begin = Clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

inline std::string text(const Sizes& sizes) {
  std::string s;
  for (auto n : sizes) s.append(s.empty() ? 0 : 1, 'x').append(std::to_string(n));
  return s;
}

/// Checks a problem at each of `odd` sizes and times it at `large`, or does both at the sizes of the command line.
/// A Problem is made from Sizes and has compute(), which fills `result`, reference() in float64, and flops().
template <class Problem>
int run(int argc, char** argv, const char* names, std::vector<Sizes> odd, Sizes large) {
  if (argc > 1) {
    Sizes sizes;
    for (int i = 1; i < argc; ++i) {
      char* end = nullptr;
      sizes.push_back(std::strtoll(argv[i], &end, 10));
      if (*end != 0 || sizes.back() < 1 || sizes.back() > 1 << 20) sizes.clear(), i = argc;
    }
    if (sizes.size() != large.size()) {
      std::fprintf(stderr, "error: usage: %s [%s], each from 1 to 1048576\n", argv[0], names);
      return 2;
    }
    odd = {sizes};
    large = sizes;
  }
  for (const Sizes& sizes : odd) {
    Problem problem(sizes);
    std::fill(problem.result.begin(), problem.result.end(), NAN);
    problem.compute();
    const double error = relative_error(problem.result, problem.reference());
    const bool ok = error < 1e-5;
    std::printf("%s relative error %.1e at %s\n", ok ? "ok" : "wrong:", error, text(sizes).c_str());
    if (!ok) return 1;
  }
  Problem problem(large);
  problem.compute();
  const double time = seconds([&] { problem.compute(); });
  std::printf("%s: %.3f ms, %.1f GFLOP/s\n", text(large).c_str(), time * 1e3, problem.flops() / time * 1e-9);
  return 0;
}

}  // namespace example
