#include <set>

#include "cases/cases.h"

namespace tessera {
namespace {

Tensor state(Generator& g) {
  return tensor<int64_t>({0x123456789abcdef + static_cast<int64_t>(g.offset()), (int64_t{1} << 32) - 5}, {2});
}

std::function<Tensors(Generator&)> only_state() {
  return [](Generator& g) { return Tensors{state(g)}; };
}
std::function<Tensors(Generator&)> with_state(Shape x) {
  return [=](Generator& g) { return Tensors{uniform64(x, g, 0.5, 2), state(g)}; };
}

// Draws lie in range, never repeat without replacement and avoid what has no weight.
void check_draws(const Tensors& in, const Tensors& out) {
  Tensor weights = in[0].to(Float64);
  std::vector<double> w = weights.to_vector<double>();
  std::vector<int64_t> drawn = out[0].to_vector<int64_t>();
  int64_t n = in[0].size(-1), samples = out[0].size(-1);
  for (size_t row = 0; row * samples < drawn.size(); ++row)
    for (int64_t k = 0; k < samples; ++k) {
      int64_t i = drawn[row * samples + k];
      if (i < 0 || i >= n || w[row * n + i] == 0) throw Error("multinomial drew " + std::to_string(i));
    }
}
void check_distinct_draws(const Tensors& in, const Tensors& out) {
  check_draws(in, out);
  std::vector<int64_t> drawn = out[0].to_vector<int64_t>();
  int64_t samples = out[0].size(-1);
  for (auto row = drawn.begin(); row != drawn.end(); row += samples)
    if (std::set<int64_t>(row, row + samples).size() != static_cast<size_t>(samples))
      throw Error("multinomial drew twice");
}

}  // namespace

std::vector<OpCase> random_cases() {
  std::vector<OpCase> all;
  for (DType dtype : {Float16, BFloat16, Float32, Float64})
    for (Shape shape : {Shape{1}, Shape{7, 13}, Shape{3, 1031}}) {
      std::string label = std::string(name(dtype)) + to_string(shape);
      all.push_back({.op = "uniform",
                     .label = label,
                     .attrs = CreateAttrs{DimList(shape), dtype, -1, 3},
                     .inputs = only_state(),
                     .dtypes = {Float64}});
      all.push_back({.op = "normal",
                     .label = label,
                     .attrs = CreateAttrs{DimList(shape), dtype, 0.5, 2},
                     .inputs = only_state(),
                     .dtypes = {Float64}});
    }
  for (int64_t high : {1, 97, 1 << 30})
    all.push_back({.op = "randint",
                   .label = "below " + std::to_string(high),
                   .attrs = CreateAttrs{DimList({3, 401}), Int64, -7, static_cast<double>(high)},
                   .inputs = only_state(),
                   .dtypes = {Float64}});
  for (double p : {0.0, 0.1, 0.5})
    for (Shape shape : {Shape{1}, Shape{7, 13}, Shape{3, 1031}})
      all.push_back({.op = "dropout",
                     .label = std::to_string(p) + to_string(shape),
                     .attrs = DropoutAttrs{p},
                     .inputs = with_state(shape),
                     .gradients = 1});
  for (bool replacement : {true, false})
    for (Shape shape : {Shape{1}, Shape{5}, Shape{7, 13}})
      all.push_back({.op = "multinomial",
                     .label = (replacement ? "with replacement " : "without replacement ") + to_string(shape),
                     .attrs = MultinomialAttrs{shape == Shape{1} ? 1 : 4, replacement},
                     .inputs =
                         [=](Generator& g) {
                           Tensor p = uniform64(shape, g, 0, 1);
                           if (p.numel() > 1) p.data<double>()[1] = 0;
                           return Tensors{p, state(g)};
                         },
                     .check = replacement ? check_draws : check_distinct_draws});
  for (const char* op : {"uniform", "normal"})
    all.push_back({.op = op,
                   .label = "4096x768",
                   .attrs = CreateAttrs{DimList({4096, 768}), Float32, 0, 1},
                   .inputs = only_state(),
                   .dtypes = {Float32},
                   .benchmark = true,
                   .bytes = 4096.0 * 768 * 4});
  all.push_back({.op = "dropout",
                 .label = "4096x768",
                 .attrs = DropoutAttrs{0.1},
                 .inputs = with_state({4096, 768}),
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 2 * 4096.0 * 768 * 4});
  all.push_back({.op = "draw",
                 .attrs = DrawAttrs{{}, 10, cpu()},
                 .inputs = [](Generator&) { return Tensors{}; },
                 .dtypes = {Float64},
                 .check =
                     [](const Tensors&, const Tensors& out) {
                       const Tensor next = default_generator().reserve(1, out[0].device());
                       if (next.to_vector<int64_t>()[1] < out[0].to_vector<int64_t>()[1] + 3)
                         throw Error("the generator has not moved on");
                     }});
  return all;
}

}  // namespace tessera
