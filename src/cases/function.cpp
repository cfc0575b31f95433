#include "cases/cases.h"
#include "ops/custom_function.h"
#include "ops/map_graph.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// A function of two inputs and a number, with parts that are steps, that repeat and that are computed twice.
Tensor product_of_parts(const Tensor* in, const double* numbers) {
  const Tensor positive = gt(in[0], full({}, 0, in[0].dtype(), in[0].device()));
  const Tensor a = where(positive, exp(in[0]) * numbers[0], square(in[0])), b = exp(in[0]) + in[1];
  return a * b / (square(b) + 1.0);
}

std::vector<OpCase> map_graph_cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {Float32, Float64, Float16, BFloat16}) {
    const DType wide = dtype == Float64 ? Float64 : Float32, types[] = {dtype, dtype};
    const Attrs attrs = FunctionAttrs{trace({product_of_parts, wide, dtype, {0.7}}, types)};
    const auto add = [&](const char* label, const Shape& a, const Shape& b) {
      all.push_back({.op = "map_graph",
                     .label = std::string(label) + " of " + std::string(name(dtype)),
                     .attrs = attrs,
                     .inputs =
                         [a, b](Generator& g) {
                           return Tensors{normal64(a, g), normal64(b, g)};
                         },
                     .gradients = dtype == Float64 ? 0b11u : 0,
                     .dtypes = {dtype},
                     .symbolic = dtype == Float64});
    };
    add("elements", {37, 61}, {37, 61});
    add("an element", {1}, {1});
    add("a number", {5, 130}, {});
    add("rows and columns", {5, 1, 7}, {3, 1});
  }
  return all;
}

}  // namespace

std::vector<OpCase> function_cases() {
  const auto forward = [](const Tensors& in) { return Tensors{in[0] * in[1], exp(in[0])}; };
  const auto backward = [](const Tensors& in, const Tensors& out, const Tensors& grads) {
    Tensor da, db;
    if (grads[0].defined()) da = grads[0] * in[1], db = grads[0] * in[0];
    if (grads[1].defined()) da = da.defined() ? da + grads[1] * out[1] : grads[1] * out[1];
    return Tensors{da, db};
  };
  std::vector<OpCase> all = map_graph_cases();
  all.push_back({.op = "custom_function",
                 .label = "product and exponential",
                 .attrs = function_attrs("product and exponential", forward, backward),
                 .inputs =
                     [](Generator& g) {
                       return Tensors{normal64({5, 7}, g), normal64({5, 7}, g)};
                     },
                 .gradients = 0b11,
                 .symbolic = false});
  return all;
}

}  // namespace tessera
