#include "cases/cases.h"

#include <cmath>

#include "tessera/ops.h"

namespace tessera {
namespace {

struct Options {
  double step = 3, grad_scale = 0;  // a scale of 0: none given
  int found_inf = -1;               // -1: none given
  bool copies = false;              // in halves
};

// The inputs of a step over parameters of these shapes with `states` moments each.
Tensors step_inputs(const std::vector<Shape>& shapes, int states, Options o, Generator& g) {
  Tensors in;
  for (const Shape& s : shapes) in.push_back(normal64(s, g));
  for (int i = 0; i < states; ++i)
    for (const Shape& s : shapes) in.push_back(i == 0 ? normal64(s, g) : uniform64(s, g, 0.01, 1));
  for (size_t i = 0; o.copies && i < shapes.size(); ++i) in.push_back(in[i].to(i % 2 ? Float16 : BFloat16));
  in.push_back(full({}, o.step, Float64));
  for (const Shape& s : shapes) in.push_back(normal64(s, g));
  in.push_back(full({}, 0.05, Float64));
  in.push_back(o.grad_scale != 0 ? full({}, o.grad_scale, Float64) : Tensor());
  in.push_back(o.found_inf >= 0 ? full({}, o.found_inf, Bool) : Tensor());
  return in;
}

OpCase step_case(std::string_view op, std::string label, std::vector<Shape> shapes, OptimAttrs attrs,
                 Options options = {}) {
  int states = op == "adam_" ? 2 : attrs.momentum != 0 ? 1 : 0;
  options.copies = attrs.copies;
  return {.op = op,
          .label = std::move(label),
          .attrs = attrs,
          .inputs = [=](Generator& g) { return step_inputs(shapes, states, options, g); },
          .dtypes = {Float32, Float64}};
}

OpCase norm_case(std::string label, std::vector<Shape> shapes) {
  return {.op = "global_norm",
          .label = std::move(label),
          .attrs = {},
          .inputs =
              [=](Generator& g) {
                Tensors in;
                for (const Shape& s : shapes) in.push_back(normal64(s, g));
                return in;
              },
          .dtypes = {Float32, Float64}};
}

// Gradients of these shapes; `bad` is put into the last one.
OpCase unscale_case(std::string label, std::vector<Shape> shapes, double scale, bool found_before = false,
                    double bad = 1) {
  return {.op = "unscale_",
          .label = std::move(label),
          .attrs = {},
          .inputs =
              [=](Generator& g) {
                Tensors in;
                for (const Shape& s : shapes) in.push_back(normal64(s, g));
                if (bad != 1) in.back().reshape({-1}).select(0, in.back().numel() / 2).fill_(bad);
                in.push_back(full({}, found_before, Bool));
                in.push_back(full({}, scale, Float64));
                return in;
              },
          .dtypes = {Float32, Float64}};
}

OpCase scale_case(std::string label, double scale, int64_t tracker, bool found_inf) {
  return {.op = "update_scale_",
          .label = std::move(label),
          .attrs = ScaleAttrs{.growth = 2, .backoff = 0.25, .interval = 20},
          .inputs =
              [=](Generator&) {
                return Tensors{full({}, scale, Float64), full({}, static_cast<double>(tracker), Int32),
                               full({}, found_inf, Bool)};
              },
          .dtypes = {Float32, Float64}};
}

}  // namespace

std::vector<OpCase> optim_cases() {
  const std::vector<Shape> several = {{7, 53}, {1}, {131}, {}, {3, 5, 2}, {0}};
  const std::vector<Shape> big = {{768, 768}, {3072, 768}, {768, 3072}, {768}};
  std::vector<OpCase> cases = {
      step_case("adam_", "adamw", several, {.weight_decay = 0.1}),
      step_case("adam_", "adam", several, {.weight_decay = 0.1, .decoupled = false}),
      step_case("adam_", "first step", {{37}}, {}, {.step = 0}),
      step_case("adam_", "scaled gradients", several, {.beta1 = 0.8, .beta2 = 0.95}, {.grad_scale = 0.125}),
      step_case("adam_", "skipped", several, {}, {.grad_scale = 0.5, .found_inf = 1}),
      step_case("adam_", "not skipped", several, {}, {.found_inf = 0}),
      step_case("adam_", "one large tensor", {{100003}}, {.weight_decay = 0.01}),
      step_case("adam_", "copies", several, {.weight_decay = 0.1, .copies = true}),
      step_case("adam_", "copies, skipped", several, {.copies = true}, {.found_inf = 1}),
      step_case("sgd_", "copies", several, {.copies = true}),
      step_case("sgd_", "copies with momentum", several, {.momentum = 0.9, .copies = true}),
      step_case("sgd_", "plain", several, {}),
      step_case("sgd_", "weight decay", several, {.weight_decay = 0.1}, {.grad_scale = 0.5}),
      step_case("sgd_", "momentum", several, {.weight_decay = 0.1, .momentum = 0.9}),
      step_case("sgd_", "first step", several, {.momentum = 0.9, .dampening = 0.1}, {.step = 0}),
      step_case("sgd_", "dampening", several, {.momentum = 0.9, .dampening = 0.1}),
      step_case("sgd_", "nesterov", several, {.momentum = 0.9, .nesterov = true}),
      step_case("sgd_", "skipped", several, {.momentum = 0.9}, {.found_inf = 1}),
      norm_case("one element", {{}}),
      norm_case("several", several),
      norm_case("large", {{100003}, {7}}),
      unscale_case("several", several, 65536),
      unscale_case("small scale", {{100003}, {7}}, 0.125),
      unscale_case("found before", {{5}}, 3, true),
      unscale_case("NaN", {{17}, {100003}}, 1024, false, NAN),
      unscale_case("inf at the end", {{70000}, {3, 11}}, 1024, false, -INFINITY),
      unscale_case("nothing", {{0}}, 1024),
      scale_case("counts", 1024, 7, false),
      scale_case("grows", 1024, 19, false),
      scale_case("backs off", 1024, 19, true),
      scale_case("does not overflow", 0x1p127, 19, false),
      step_case("adam_", "adamw of 5.3 million", big, {.weight_decay = 0.1}),
  };
  cases.back().benchmark = true;
  cases.back().bytes = 4.0 * 7 * (768.0 * 768 + 2 * 3072.0 * 768 + 768);  // four read, three written
  return cases;
}

}  // namespace tessera
