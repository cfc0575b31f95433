// A product on a GPU whose epilogue is an expression in text.
#include "tessera/fused_gemm.h"

#include <algorithm>
#include <charconv>
#include <climits>

#include "ops/check.h"
#include "ops/cost.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

constexpr size_t kMostAddends = 16;

void check(bool holds, const std::string& what) {
  if (!holds) throw Error("fused_gemm: " + what);
}

// ---- the operator: a [m, k], b [k, n], addends [m, n] -> y [m, n]

Metas infer_fused_gemm(std::span<const TensorMeta> in, const Attrs& attrs) {
  const std::string& epilogue = attrs.as<FusedGemmAttrs>().epilogue;
  check(in.size() >= 2, "needs two operands");
  require_inputs("fused_gemm", in);
  const TensorMeta &a = in[0], &b = in[1];
  for (const TensorMeta& t : in) check(is_floating(t.dtype), fmt::format("takes floats, not {}", describe(t)));
  check(a.dtype == b.dtype, fmt::format("operands differ in type: {} and {}", describe(a), describe(b)));
  check(a.shape.rank() == 2 && b.shape.rank() == 2,
        fmt::format("operands are matrices, not {} and {}", describe(a), describe(b)));
  check(a.shape[1] == b.shape[0],
        fmt::format("inner dimensions differ: {} x {}", to_string(a.shape), to_string(b.shape)));
  for (const Dim d : {a.shape[0], a.shape[1], b.shape[1]})
    check(d.is_symbolic() || d.value() <= INT_MAX,
          fmt::format("{} x {} x {} is too large: sizes are below 2^31", a.shape[0].to_string(), a.shape[1].to_string(),
                      b.shape[1].to_string()));
  check(in.size() - 2 <= kMostAddends, fmt::format("takes at most 16 addends, not {}", in.size() - 2));
  const Shape shape{a.shape[0], b.shape[1]};
  for (const TensorMeta& d : in.subspan(2)) require_shape("fused_gemm", "an addend", d, shape);
  check(epilogue.find_first_not_of(' ') != epilogue.npos, "the epilogue is empty");
  check(epilogue.find('\n') == epilogue.npos, "the epilogue must be one line");
  return {{shape, a.dtype, a.device}};
}

// ---- its reference: what the epilogue says, by the references of the operators that it names

class Epilogue {
 public:
  Epilogue(std::string_view text, Tensor acc, std::span<const Tensor> addends)
      : text_(text), acc_(std::move(acc)), addends_(addends) {}
  Tensor value() {
    Tensor found = sum();
    if (!at_end()) refuse();
    return found;
  }

 private:
  [[noreturn]] void refuse() const { throw Error("fused_gemm: epilogue " + std::string(text_) + ": no reference"); }
  bool at_end() {
    while (place_ < text_.size() && text_[place_] == ' ') ++place_;
    return place_ == text_.size();
  }
  bool take(char c) { return !at_end() && text_[place_] == c && ++place_; }
  Tensor call(std::string_view op, std::vector<Tensor> in) const { return find_op(op).reference(in, Attrs())[0]; }

  Tensor sum() {
    Tensor left = factors();
    while (true)
      if (take('+')) left = call("add", {left, factors()});
      else if (take('-')) left = call("sub", {left, factors()});
      else return left;
  }
  Tensor factors() {
    Tensor left = factor();
    while (true)
      if (take('*')) left = call("mul", {left, factor()});
      else if (take('/')) left = call("div", {left, factor()});
      else return left;
  }
  Tensor factor() {
    if (take('-')) return call("neg", {factor()});
    if (take('(')) return closed(sum());
    if (at_end()) refuse();
    double number;
    const char* const from = text_.data() + place_;
    if (const auto [end, fault] = std::from_chars(from, text_.data() + text_.size(), number); fault == std::errc()) {
      place_ += static_cast<size_t>(end - from);
      return full(acc_.shape(), number, Float64, cpu());
    }
    return named(word());
  }
  std::string_view word() {
    const size_t from = place_;
    while (place_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[place_])) || text_[place_] == '_'))
      ++place_;
    return text_.substr(from, place_ - from);
  }
  Tensor named(std::string_view name) {
    if (name == "acc") return acc_;
    if (!take('(')) refuse();
    if (name == "load") {
      const std::string_view which = (at_end(), word());
      for (size_t i = 0; i < addends_.size(); ++i)
        if (which == fmt::format("d{}", i)) return closed(addends_[i]);
      refuse();
    }
    std::vector<Tensor> in{sum()};
    while (take(',')) in.push_back(sum());
    return closed(call(name, std::move(in)));
  }
  Tensor closed(Tensor value) {
    if (!take(')')) refuse();
    return value;
  }

  std::string_view text_;
  Tensor acc_;
  std::span<const Tensor> addends_;
  size_t place_ = 0;
};

Tensors fused_gemm_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor acc = find_op("matmul").reference(in.first(2), Attrs())[0];
  return {Epilogue(attrs.as<FusedGemmAttrs>().epilogue, acc, in.subspan(2)).value()};
}

const Op fused_gemm_op = {.name = "fused_gemm",
                          .inputs = "a, b, addends...",
                          .outputs = "y",
                          .attrs = attrs_of<FusedGemmAttrs>,
                          .infer = infer_fused_gemm,
                          .reference = fused_gemm_reference,
                          .pitched = Pitched::None,
                          .flops = product_flops};

}  // namespace

std::span<const Op* const> fused_gemm_ops() {
  static constexpr const Op* ops[] = {&fused_gemm_op};
  return ops;
}

Tensor fused_gemm(const Tensor& a, const Tensor& b, std::string_view epilogue, const Tensors& addends,
                  const std::optional<GemmConfig>& config) {
  Tensors in{a, b};
  for (const Tensor& d : addends) in.push_back(d);
  for (const Tensor& t : in) {
    check(t.device().is_gpu() && t.device() == a.device(),
          fmt::format("needs all tensors on one GPU: {} and {}", describe(a), describe(t)));
    check(t.dtype() == Float16 || t.dtype() == BFloat16 || t.dtype() == Float32,
          fmt::format("takes f16, bf16 and f32, not {}", describe(t)));
    check(!(grad_enabled() && t.requires_grad()), "has no gradient: call it under NoGrad, or with detached tensors");
  }
  FusedGemmAttrs attrs{.epilogue = std::string(epilogue), .own_config = config.has_value()};
  if (config) {
    const int64_t given[] = {config->tile_m, config->tile_n, config->tile_k, config->warps, config->stages};
    std::copy(given, given + 5, attrs.config);
  }
  if (a.dim() == 2 && b.dim() == 2)
    for (size_t i = 2; i < in.size(); ++i) in[i] = in[i].expand({a.shape()[0], b.shape()[1]});
  return dispatch_one(fused_gemm_op, std::move(in), attrs);
}

}  // namespace tessera
