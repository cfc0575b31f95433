// What a call costs before its kernel has anything to do: operators on one element.
#include <benchmark/benchmark.h>

#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

void add_without_grad(benchmark::State& state) {
  Tensor a = ones({1}), b = ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_without_grad);

void add_with_grad(benchmark::State& state) {
  Tensor a = ones({1}).set_requires_grad(), b = ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_with_grad);

void mul_with_grad(benchmark::State& state) {
  Tensor a = ones({1}).set_requires_grad(), b = ones({1}).set_requires_grad();
  for (auto _ : state) benchmark::DoNotOptimize(mul(a, b));
}
BENCHMARK(mul_with_grad);

void exp_without_grad(benchmark::State& state) {
  Tensor a = ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(exp(a));
}
BENCHMARK(exp_without_grad);

void exp_with_grad(benchmark::State& state) {
  Tensor a = ones({1}).set_requires_grad();
  for (auto _ : state) benchmark::DoNotOptimize(exp(a));
}
BENCHMARK(exp_with_grad);

void add_under_autocast(benchmark::State& state) {
  Tensor a = ones({1}), b = ones({1});
  amp::Autocast guard(BFloat16);
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_under_autocast);

void sum_without_grad(benchmark::State& state) {
  Tensor a = ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(sum(a));
}
BENCHMARK(sum_without_grad);

void add_in_place(benchmark::State& state) {
  Tensor a = ones({1}), b = ones({1});
  for (auto _ : state) a.add_(b);
}
BENCHMARK(add_in_place);

void reshape_without_grad(benchmark::State& state) {
  Tensor a = ones({2, 3});
  for (auto _ : state) benchmark::DoNotOptimize(reshape(a, {3, 2}));
}
BENCHMARK(reshape_without_grad);

void transpose_with_grad(benchmark::State& state) {
  Tensor a = ones({2, 3}).set_requires_grad();
  for (auto _ : state) benchmark::DoNotOptimize(transpose(a, 0, 1));
}
BENCHMARK(transpose_with_grad);

void add_on_four_elements_of_a_view(benchmark::State& state) {
  Tensor a = ones({2, 3}).slice(1, 0, 2), b = ones({2, 1});
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
BENCHMARK(add_on_four_elements_of_a_view);

}  // namespace
}  // namespace tessera
