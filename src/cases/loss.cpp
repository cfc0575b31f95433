#include "cases/cases.h"

#include "tessera/ops.h"

namespace tessera {
namespace {

constexpr int64_t kIgnored = 1;  // a class as good as any, so that some rows are ignored

OpCase cross_entropy_case(std::string label, Shape rows, int64_t classes, LossAttrs attrs, DType target = Int64) {
  return {.op = "cross_entropy",
          .label = std::move(label),
          .attrs = attrs,
          .inputs = [=](Generator& g) -> Tensors {
            Shape logits = rows;
            logits.push_back(classes);
            return {uniform64(logits, g, -4, 4), indices(rows, classes, g).to(target)};
          },
          .gradients = 1};
}

OpCase cross_entropy_backward_case(std::string_view op, std::string label, Shape rows, int64_t classes,
                                   LossAttrs attrs) {
  return {.op = op,
          .label = std::move(label),
          .attrs = attrs,
          .inputs = [=](Generator& g) -> Tensors {
            Shape shape = rows;
            shape.push_back(classes);
            Tensor logits = uniform64(shape, g, -4, 4);
            return {logits, normal64(attrs.reduction == Reduction::None ? rows : Shape(), g), indices(rows, classes, g),
                    logsumexp(logits, {-1})};
          },
          .dtypes = {Float32, Float64}};
}

OpCase both_case(std::string label, Shape rows, int64_t classes, LossAttrs attrs) {
  return {.op = "cross_entropy_and_gradient_",
          .label = std::move(label),
          .attrs = attrs,
          .inputs = [=](Generator& g) -> Tensors {
            Shape shape = rows;
            shape.push_back(classes);
            return {uniform64(shape, g, -4, 4), normal64({}, g), indices(rows, classes, g), normal64({}, g)};
          },
          .dtypes = {Float32, Float64}};
}

}  // namespace

std::vector<OpCase> loss_cases() {
  using enum Reduction;
  std::vector<OpCase> cases;
  for (auto make :
       {+[](std::string l, Shape r, int64_t c, LossAttrs a) { return cross_entropy_case(std::move(l), r, c, a); },
        +[](std::string l, Shape r, int64_t c, LossAttrs a) {
          return cross_entropy_backward_case("cross_entropy_backward", std::move(l), r, c, a);
        },
        +[](std::string l, Shape r, int64_t c, LossAttrs a) {
          return cross_entropy_backward_case("cross_entropy_backward_", std::move(l), r, c, a);
        }}) {
    cases.push_back(make("one class", {3}, 1, {}));
    cases.push_back(make("a single row", {}, 7, {}));
    cases.push_back(make("prime sizes", {5, 7}, 53, {}));
    cases.push_back(make("sum", {11}, 131, {.reduction = Sum}));
    cases.push_back(make("none", {11, 3}, 17, {.reduction = None}));
    cases.push_back(make("ignored rows", {23}, 3, {.ignore_index = kIgnored}));
    cases.push_back(make("ignored rows, none", {23}, 3, {.ignore_index = kIgnored, .reduction = None}));
    cases.push_back(make("label smoothing", {13}, 19, {.label_smoothing = 0.1}));
    cases.push_back(make("smoothed and ignored", {29}, 5, {.ignore_index = kIgnored, .label_smoothing = 0.3}));
    cases.push_back(make("many classes", {3}, 5003, {}));
  }
  cases.push_back(both_case("one class", {3}, 1, {}));
  cases.push_back(both_case("a single row", {}, 7, {}));
  cases.push_back(both_case("prime sizes", {5, 7}, 53, {}));
  cases.push_back(both_case("ignored rows", {23}, 3, {.ignore_index = kIgnored}));
  cases.push_back(both_case("smoothed and ignored", {29}, 5, {.ignore_index = kIgnored, .label_smoothing = 0.3}));
  cases.push_back(cross_entropy_case("i32 target", {5, 2}, 7, {}, Int32));
  OpCase timed = cross_entropy_case("1024 rows of 50257 classes", {1024}, 50257, {});
  timed.benchmark = true;
  timed.gradients = 0;
  timed.bytes = 1024.0 * 50257 * 4;
  cases.push_back(timed);
  return cases;
}

}  // namespace tessera
