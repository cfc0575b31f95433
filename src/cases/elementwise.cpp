#include <cmath>
#include <limits>

#include "cases/cases.h"
#include "ops/op_table.h"
#include "ops/schema.h"

namespace tessera {
namespace {

using Inputs = std::function<Tensors(Generator&)>;

constexpr double kBytesOf4096x768 = 4096.0 * 768 * 4;

// A uniform input per shape.
Inputs uniform(std::vector<Shape> shapes, double low = -2, double high = 2) {
  return [=](Generator& g) {
    Tensors in;
    for (const Shape& s : shapes) in.push_back(uniform64(s, g, low, high));
    return in;
  };
}

// Whole numbers, so that there are ties.
Inputs whole(std::vector<Shape> shapes, double largest = 2) {
  return [=](Generator& g) {
    Tensors in;
    for (const Shape& s : shapes) {
      in.push_back(uniform64(s, g, -largest - 0.5, largest + 0.5));
      for (int64_t i = 0; i < in.back().numel(); ++i)
        in.back().data<double>()[i] = std::nearbyint(in.back().data<double>()[i]);
    }
    return in;
  };
}

Tensors special_values(Generator& g) {
  Tensor x = uniform64({3, 29}, g);
  double* p = x.data<double>();
  p[0] = std::numeric_limits<double>::quiet_NaN();
  p[5] = std::numeric_limits<double>::infinity();
  p[70] = -std::numeric_limits<double>::infinity();
  return {x};
}

Tensor coin(const Shape& shape, Generator& g) {
  Tensor bits = indices(shape, 2, g), out = empty(shape, Bool);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<bool>()[i] = bits.data<int64_t>()[i] != 0;
  return out;
}

std::vector<std::pair<std::string, std::vector<Shape>>> pairs_of_shapes() {
  return {{"one", {{1}, {1}}},           {"primes", {{7, 13}, {7, 13}}},
          {"rows", {{5, 67}, {67}}},     {"columns", {{5, 1}, {5, 67}}},
          {"both", {{5, 1, 3}, {4, 1}}}, {"number", {{3, 5}, {}}},
          {"empty", {{0, 3}, {1}}}};
}

bool gives_bool(const Op& op, size_t inputs) {
  const TensorMeta one{{}, Float64, {}}, in[] = {one, one};
  return op.infer({in, inputs}, {})[0].dtype == Bool;
}

// What every operator of tensors alone is tried on, from its entry.
void add_unary(std::vector<OpCase>& all, const Op& op) {
  if (gives_bool(op, 1)) {
    all.push_back({.op = op.name, .label = "special values", .inputs = special_values});
    all.push_back({.op = op.name, .label = "zeros", .inputs = whole({{7, 13}}, 1)});
    return;
  }
  for (const Shape& shape : {Shape{1}, Shape{}, Shape{7, 13}, Shape{3, 5, 67}})
    all.push_back({.op = op.name,
                   .label = to_string(shape),
                   .inputs = uniform({shape}, op.domain.low, op.domain.high),
                   .gradients = op.vjp ? 1u : 0});
}

void add_binary(std::vector<OpCase>& all, const Op& op) {
  for (const auto& [label, shapes] : pairs_of_shapes()) {
    if (gives_bool(op, 2)) {
      all.push_back({.op = op.name, .label = label + ", ties", .inputs = whole(shapes, 1)});
      continue;
    }
    const bool empty = shapes[0].numel() == Dim(0);
    all.push_back({.op = op.name,
                   .label = label,
                   .inputs = uniform(shapes, op.domain.low, op.domain.high),
                   .gradients = op.vjp && !empty ? 3u : 0});
  }
}

void add_maps(std::vector<OpCase>& all) {
  for (const Op* op : elementwise_ops()) {
    if (op->in_place || &op->attrs().type() != &Attrs().type()) continue;
    const size_t inputs = inputs_of(*op).size();
    if (inputs == 1) add_unary(all, *op);
    if (inputs == 2) add_binary(all, *op);
  }
}

// What is special about some of them.
void add_particular(std::vector<OpCase>& all) {
  for (const char* op : {"round", "relu", "abs"})
    all.push_back({.op = op, .label = "whole numbers", .inputs = whole({{5, 11}})});
  for (const char* op : {"maximum", "minimum"})
    for (const auto& [label, shapes] : pairs_of_shapes())
      all.push_back({.op = op, .label = label + ", ties", .inputs = whole(shapes, 1)});
  for (const char* op : {"floor_div", "remainder"})
    all.push_back({.op = op, .label = "signs", .inputs = [](Generator& g) {
                     Tensors in = whole({{3, 31}, {3, 31}}, 7)(g);
                     for (int64_t i = 0; i < in[1].numel(); ++i)
                       if (double& d = in[1].data<double>()[i]; d == 0) d = 3;
                     return in;
                   }});
}

void add_benchmarks(std::vector<OpCase>& all) {
  const Shape shape = {4096, 768};
  for (const char* op : {"exp", "tanh", "gelu_tanh"})
    all.push_back({.op = op,
                   .label = "4096x768",
                   .inputs = uniform({shape}),
                   .dtypes = {Float32},
                   .benchmark = true,
                   .bytes = 2 * kBytesOf4096x768});
  for (const char* op : {"add", "gelu_tanh_backward"})
    all.push_back({.op = op,
                   .label = "4096x768",
                   .inputs = uniform({shape, shape}),
                   .dtypes = {Float32},
                   .benchmark = true,
                   .bytes = 3 * kBytesOf4096x768});
}

void add_with_parameters(std::vector<OpCase>& all) {
  for (const char* op : {"add_scalar", "mul_scalar"})
    for (double v : {-1.5, 3.0})
      all.push_back({.op = op,
                     .label = std::to_string(v),
                     .attrs = ScalarAttrs{v},
                     .inputs = uniform({{7, 13}}),
                     .gradients = 1});
  for (double e : {-0.5, 0.0, 0.5, 3.0})
    all.push_back({.op = "pow_scalar",
                   .label = std::to_string(e),
                   .attrs = ScalarAttrs{e},
                   .inputs = uniform({{7, 13}}, 0.3, 2),
                   .gradients = 1});
  all.push_back({.op = "clamp",
                 .label = "both sides",
                 .attrs = ClampAttrs{-1, 0.5},
                 .inputs = uniform({{7, 13}}),
                 .gradients = 1});
  all.push_back({.op = "clamp",
                 .label = "one side",
                 .attrs = ClampAttrs{0.25, std::numeric_limits<double>::infinity()},
                 .inputs = uniform({{7, 13}}),
                 .gradients = 1});
  all.push_back({.op = "clamp_backward",
                 .label = "inside and outside",
                 .attrs = ClampAttrs{-1, 0.5},
                 .inputs = uniform({{7, 13}, {7, 13}})});
  all.push_back(
      {.op = "cast", .label = "f64", .attrs = CastAttrs{Float64}, .inputs = uniform({{7, 13}}), .gradients = 1});
  for (DType to : {Bool, UInt8, Int8, Int32, Int64, Float16, BFloat16, Float32})
    all.push_back(
        {.op = "cast", .label = std::string(name(to)), .attrs = CastAttrs{to}, .inputs = uniform({{3, 67}}, 0, 100)});
  all.push_back({.op = "where",
                 .label = "primes",
                 .inputs =
                     [](Generator& g) {
                       return Tensors{coin({7, 13}, g), uniform64({7, 13}, g), uniform64({7, 13}, g)};
                     },
                 .gradients = 6});
  all.push_back({.op = "where",
                 .label = "broadcast",
                 .inputs =
                     [](Generator& g) {
                       return Tensors{coin({7, 1}, g), uniform64({13}, g), uniform64({}, g)};
                     },
                 .gradients = 6});
}

void add_in_place(std::vector<OpCase>& all) {
  const std::vector<std::pair<const char*, std::vector<Shape>>> shapes = {
      {"one", {{1}, {1}}}, {"primes", {{7, 13}, {7, 13}}}, {"rows", {{5, 67}, {67}}}, {"number", {{3, 5}, {}}}};
  for (auto& [label, s] : shapes) {
    all.push_back({.op = "add_", .label = label, .attrs = ScalarAttrs{-0.5}, .inputs = uniform(s), .gradients = 3});
    all.push_back({.op = "mul_", .label = label, .inputs = uniform(s), .gradients = 1});
    all.push_back({.op = "copy_", .label = label, .inputs = uniform(s), .gradients = 3});
    all.push_back(
        {.op = "mul_scalar_", .label = label, .attrs = ScalarAttrs{2.5}, .inputs = uniform({s[0]}), .gradients = 1});
    all.push_back({.op = "fill_", .label = label, .attrs = ScalarAttrs{-7}, .inputs = uniform({s[0]}), .gradients = 1});
  }
}

}  // namespace

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> all;
  add_maps(all);
  add_particular(all);
  add_benchmarks(all);
  add_with_parameters(all);
  add_in_place(all);
  return all;
}

}  // namespace tessera
