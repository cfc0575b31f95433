#include "kernels/cpu/fourier.h"

#include <bit>
#include <cmath>
#include <complex>
#include <deque>
#include <mutex>
#include <numbers>
#include <vector>

namespace tessera::cpu_kernels {
namespace {

using Number = std::complex<double>;

// e^(-2 pi i k / n)
Number root(int64_t k, int64_t n) {
  const double angle = -2 * std::numbers::pi * static_cast<double>(k % n) / static_cast<double>(n);
  return {std::cos(angle), std::sin(angle)};
}

std::vector<Number> transformed(std::vector<Number> x) {  // of a power of 2
  const auto n = x.size();
  for (size_t i = 1, j = 0; i < n; ++i) {
    size_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (size_t half = 1; half < n; half *= 2)
    for (size_t k = 0; k < half; ++k) {
      const Number w = root(static_cast<int64_t>(k), static_cast<int64_t>(2 * half));
      for (size_t i = k; i < n; i += 2 * half) {
        const Number a = x[i], b = x[i + half] * w;
        x[i] = a + b, x[i + half] = a - b;
      }
    }
  return x;
}

class Planned {
 public:
  Planned(int64_t length, Scalar type) : type_(type) {
    plan.length = length;
    int64_t rest = length;
    std::vector<int> radices;
    for (int radix : {4, 2, 3, 5})
      for (; rest % radix == 0; rest /= radix) radices.push_back(radix);
    for (int radix = 7; radix <= FourierPlan::largest_radix; radix += 2)
      for (; rest % radix == 0; rest /= radix) radices.push_back(radix);
    if (rest > 1) add_chirp();
    else add_passes(radices);
  }
  FourierPlan plan{};

 private:
  void add_passes(const std::vector<int>& radices) {
    int64_t n = plan.length;
    for (const int radix : radices) {
      std::vector<Number> factors, roots;
      for (int64_t p = 0; p < n / radix; ++p)
        for (int k = 1; k < radix; ++k) factors.push_back(root(p * k, n));
      for (int j = 0; radix > 5 && j < radix; ++j) roots.push_back(root(j, radix));
      plan.pass[plan.passes++] = {radix, kept(factors), kept(roots)};
      n /= radix;
    }
  }

  // Bluestein 1970: n k = (n² + k² - (k - n)²) / 2, so that the sum over n is a convolution.
  void add_chirp() {
    const int64_t n = plan.length;
    const auto longer = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * n - 1)));
    longer_ = std::make_unique<Planned>(longer, type_);
    plan.longer = &longer_->plan;
    std::vector<Number> chirp, around(static_cast<size_t>(longer));
    for (int64_t i = 0; i < n; ++i) chirp.push_back(root(i * i % (2 * n), 2 * n));
    for (int64_t i = 0; i < n; ++i)
      around[static_cast<size_t>(i)] = around[static_cast<size_t>((longer - i) % longer)] =
          std::conj(chirp[static_cast<size_t>(i)]) / static_cast<double>(longer);
    plan.chirp = kept(chirp);
    plan.spectrum = kept(transformed(std::move(around)));
  }

  const void* kept(const std::vector<Number>& numbers) {
    if (type_ == Scalar::f64) {
      wide_.emplace_back();
      for (const Number& v : numbers) wide_.back().insert(wide_.back().end(), {v.real(), v.imag()});
      return wide_.back().data();
    }
    narrow_.emplace_back();
    for (const Number& v : numbers)
      narrow_.back().insert(narrow_.back().end(), {static_cast<float>(v.real()), static_cast<float>(v.imag())});
    return narrow_.back().data();
  }

  Scalar type_;
  std::unique_ptr<Planned> longer_;
  std::deque<std::vector<double>> wide_;
  std::deque<std::vector<float>> narrow_;
};

}  // namespace

std::shared_ptr<const FourierPlan> fourier_plan(int64_t length, Scalar type) {
  struct Entry {
    int64_t length;
    Scalar type;
    std::shared_ptr<const FourierPlan> plan;
  };
  constexpr size_t most = 16;
  static std::mutex mutex;
  static auto* kept = new std::deque<Entry>;  // outlives what runs at exit
  const std::lock_guard lock(mutex);
  for (const Entry& e : *kept)
    if (e.length == length && e.type == type) return e.plan;
  if (kept->size() == most) kept->pop_back();
  const auto made = std::make_shared<const Planned>(length, type);
  return kept->emplace_front(Entry{length, type, {made, &made->plan}}).plan;
}

}  // namespace tessera::cpu_kernels
