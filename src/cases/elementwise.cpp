#include <cmath>
#include <limits>

#include "cases/cases.h"

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

void add_unary(std::vector<OpCase>& all) {
  struct Unary {
    const char* op;
    double low = -2, high = 2;
    bool differentiable = true;
  };
  for (Unary u : {Unary{"neg"},
                  {"abs"},
                  {"sign"},
                  {"square"},
                  {"exp"},
                  {"expm1"},
                  {"log", 0.1, 4},
                  {"log1p", -0.7, 3},
                  {"sqrt", 0.1, 4},
                  {"rsqrt", 0.2, 4},
                  {"reciprocal", 0.3, 3},
                  {"sin", -9, 9},
                  {"cos", -9, 9},
                  {"tanh", -4, 4},
                  {"sigmoid", -6, 6},
                  {"erf", -3, 3},
                  {"relu"},
                  {"gelu", -4, 4},
                  {"gelu_tanh", -4, 4},
                  {"silu", -6, 6},
                  {"softplus", -6, 6},
                  {"floor", -5, 5},
                  {"ceil", -5, 5},
                  {"round", -5, 5},
                  {"trunc", -5, 5}})
    for (const Shape& shape : {Shape{1}, Shape{}, Shape{7, 13}, Shape{3, 5, 67}})
      all.push_back({.op = u.op, .label = to_string(shape), .inputs = uniform({shape}, u.low, u.high), .gradients = 1});
  for (const char* op : {"round", "relu", "abs"})
    all.push_back({.op = op, .label = "whole numbers", .inputs = whole({{5, 11}})});
  for (const char* op : {"isnan", "isinf", "isfinite"})
    all.push_back({.op = op, .label = "special values", .inputs = special_values});
  all.push_back({.op = "logical_not", .label = "zeros", .inputs = whole({{7, 13}}, 1)});
  for (const char* op : {"exp", "tanh", "gelu_tanh"})
    all.push_back({.op = op,
                   .label = "4096x768",
                   .inputs = uniform({{4096, 768}}),
                   .dtypes = {Float32},
                   .benchmark = true,
                   .bytes = 2 * kBytesOf4096x768});
}

void add_binary(std::vector<OpCase>& all) {
  struct Binary {
    const char* op;
    double low = -2, high = 2;
    uint32_t gradients = 3;
  };
  const std::vector<std::pair<const char*, std::vector<Shape>>> shapes = {
      {"one", {{1}, {1}}},           {"primes", {{7, 13}, {7, 13}}},
      {"rows", {{5, 67}, {67}}},     {"columns", {{5, 1}, {5, 67}}},
      {"both", {{5, 1, 3}, {4, 1}}}, {"number", {{3, 5}, {}}},
      {"empty", {{0, 3}, {1}}}};
  for (Binary b : {Binary{"add"},
                   {"sub"},
                   {"mul"},
                   {"div", 0.3, 3},
                   {"pow", 0.3, 2},
                   {"maximum"},
                   {"minimum"},
                   {"remainder", 0.3, 5},
                   {"floor_div", 0.3, 5, 0}})
    for (auto& [label, s] : shapes)
      all.push_back({.op = b.op,
                     .label = label,
                     .inputs = uniform(s, b.low, b.high),
                     .gradients = s[0].numel() == Dim(0) ? 0 : b.gradients});
  for (const char* op :
       {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "maximum", "minimum"})
    for (auto& [label, s] : shapes)
      all.push_back({.op = op, .label = label + std::string(", ties"), .inputs = whole(s, 1)});
  for (const char* op : {"floor_div", "remainder"})
    all.push_back({.op = op, .label = "signs", .inputs = [](Generator& g) {
                     Tensors in = whole({{3, 31}, {3, 31}}, 7)(g);
                     for (int64_t i = 0; i < in[1].numel(); ++i)
                       if (double& d = in[1].data<double>()[i]; d == 0) d = 3;
                     return in;
                   }});
  for (const char* op : {"relu_backward", "tanh_backward", "sigmoid_backward", "gelu_backward", "gelu_tanh_backward",
                         "silu_backward", "softplus_backward"})
    for (int i : {0, 1}) all.push_back({.op = op, .label = shapes[i].first, .inputs = uniform(shapes[i].second)});
  all.push_back({.op = "clamp_backward",
                 .label = "inside and outside",
                 .attrs = ClampAttrs{-1, 0.5},
                 .inputs = uniform({{7, 13}, {7, 13}})});
  for (const char* op : {"add", "gelu_tanh_backward"})
    all.push_back({.op = op,
                   .label = "4096x768",
                   .inputs = uniform({{4096, 768}, {4096, 768}}),
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
  add_unary(all);
  add_binary(all);
  add_with_parameters(all);
  add_in_place(all);
  return all;
}

}  // namespace tessera
