#include "cases/cases.h"

#include <cmath>
#include <random>

namespace tessera {
namespace {

// Inputs are drawn on the host with a generator of their own: a broken random op must not hide behind itself.
std::mt19937_64 engine(Generator& generator, int64_t elements) {
  Tensor state = generator.reserve(elements);
  const int64_t* s = state.data<int64_t>();
  return std::mt19937_64(static_cast<uint64_t>(s[0]) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(s[1]));
}

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> all;
  for (auto family : {creation_cases, elementwise_cases, reduction_cases, shape_cases, indexing_cases, bit_cases,
                      recurrent_cases, line_cases, plane_cases, sample_cases, matmul_cases, conv_cases, norm_cases,
                      loss_cases, attention_cases, random_cases, optim_cases, function_cases}) {
    auto cases = family();
    all.insert(all.end(), std::make_move_iterator(cases.begin()), std::make_move_iterator(cases.end()));
  }
  return all;
}

// Sums over k terms lose about sqrt(k) roundings; half types also round inputs, intermediate outputs and results.
double tolerance(std::string_view, DType dtype) {
  switch (dtype) {
    case Float64:
      return 1e-12;
    case Float32:
      return 2e-6;
    case Float16:
      return 2e-3;
    case BFloat16:
      return 1.6e-2;
    default:
      return 0;
  }
}

Tensor uniform64(const Shape& shape, Generator& generator, double low, double high) {
  Tensor out = empty(shape, Float64);
  auto rng = engine(generator, out.numel());
  std::uniform_real_distribution<double> draw(low, high);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<double>()[i] = draw(rng);
  return out;
}

Tensor normal64(const Shape& shape, Generator& generator) {
  Tensor out = empty(shape, Float64);
  auto rng = engine(generator, out.numel());
  std::normal_distribution<double> draw;
  for (int64_t i = 0; i < out.numel(); ++i) out.data<double>()[i] = draw(rng);
  return out;
}

Tensor indices(const Shape& shape, int64_t n, Generator& generator) {
  Tensor out = empty(shape, Int64);
  auto rng = engine(generator, out.numel());
  std::uniform_int_distribution<int64_t> draw(0, n - 1);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<int64_t>()[i] = draw(rng);
  return out;
}

}  // namespace tessera
