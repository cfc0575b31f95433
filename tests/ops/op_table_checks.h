// What the tests of the operator table share, on every device: cases, layouts, gradients and errors.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "cases/cases.h"
#include "cases/compare.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera::op_table_test {

inline std::vector<OpCase> cases_of(std::string_view op) {
  std::vector<OpCase> found;
  for (OpCase& c : op_cases())
    if (c.op == op && !c.benchmark) found.push_back(std::move(c));
  return found;
}

// Elements in row-major order, through the strides and without any operator.
inline std::vector<double> elements(const Tensor& t) {
  std::vector<double> out;
  out.reserve(t.numel());
  std::vector<int64_t> index(t.dim(), 0);
  auto at = [&](int64_t offset) -> double {
    const auto* base = static_cast<const std::byte*>(t.storage()->data) + offset * size_of(t.dtype());
    switch (t.dtype()) {
      case Bool:
        return *reinterpret_cast<const bool*>(base);
      case UInt8:
        return *reinterpret_cast<const uint8_t*>(base);
      case Int8:
        return *reinterpret_cast<const int8_t*>(base);
      case Int16:
        return *reinterpret_cast<const int16_t*>(base);
      case UInt16:
        return *reinterpret_cast<const uint16_t*>(base);
      case Int32:
        return *reinterpret_cast<const int32_t*>(base);
      case UInt32:
        return *reinterpret_cast<const uint32_t*>(base);
      case UInt64:
        return static_cast<double>(*reinterpret_cast<const uint64_t*>(base));
      case Int64:
        return static_cast<double>(*reinterpret_cast<const int64_t*>(base));
      case Float16:
        return static_cast<float>(*reinterpret_cast<const f16*>(base));
      case BFloat16:
        return static_cast<float>(*reinterpret_cast<const bf16*>(base));
      case Float32:
        return *reinterpret_cast<const float*>(base);
      default:
        return *reinterpret_cast<const double*>(base);
    }
  };
  for (int64_t n = 0; n < t.numel(); ++n) {
    int64_t offset = t.offset();
    for (int64_t d = 0; d < t.dim(); ++d) offset += index[d] * t.strides()[d];
    out.push_back(at(offset));
    for (int64_t d = t.dim() - 1; d >= 0 && ++index[d] == t.size(d); --d) index[d] = 0;
  }
  return out;
}

// The same elements laid out with gaps: pitched rows, or every other element.
inline Tensor with_gaps(const Tensor& t, int64_t step) {
  if (t.dim() == 0) return t.clone();
  Shape wide = t.shape();
  wide.back() = Dim(t.size(-1) * step + 3);
  Tensor base = empty(wide, t.dtype(), t.device());
  Strides strides = base.strides();
  strides.back() = step;
  Tensor out = as_strided(base.storage(), t.shape(), strides, 0, t.dtype());
  out.copy_(t);
  return out;
}

enum class Form { Contiguous, Pitched, Strided };

struct Prepared {
  Tensors run, exact;  // for the kernel; the same values in float64 for the reference
};

inline Prepared prepare(const OpCase& c, DType dtype, Form form) {
  Generator generator(std::hash<std::string>{}(std::string(c.op) + c.label));
  Prepared p;
  for (const Tensor& t : c.inputs(generator)) {
    if (!t.defined()) {
      p.run.push_back({});
      p.exact.push_back({});
      continue;
    }
    Tensor x = t.dtype() == Float64 ? t.to(dtype).clone() : t.clone();
    p.exact.push_back(t.dtype() == Float64 ? x.to(Float64).clone() : x.clone());
    p.run.push_back(form == Form::Contiguous ? x : with_gaps(x, form == Form::Pitched ? 1 : 2));
  }
  return p;
}

inline std::string where(const OpCase& c, DType dtype, Form form) {
  return fmt::format("{} '{}' {} {}", c.op, c.label, name(dtype),
                     form == Form::Contiguous ? "contiguous"
                     : form == Form::Pitched  ? "pitched"
                                              : "strided");
}

inline Tensors analytic_gradients(const Op& op, const OpCase& c, const Tensors& in,
                                  const std::vector<std::vector<double>>& weights, DType dtype, bool composed) {
  Tensors leaves, wanted, outputs, seeds;
  for (size_t i = 0; i < in.size(); ++i) {
    leaves.push_back(in[i].defined() ? in[i].detach() : Tensor());
    if (i < 32 && (c.gradients >> i & 1)) wanted.push_back(leaves.back().set_requires_grad());
  }
  Tensors arguments = leaves;
  if (op.in_place)  // a leaf cannot be overwritten
    for (Tensor& t : arguments)
      if (t.defined()) t = t.clone();
  Tensors out = dispatch(op, Tensors(arguments), c.attrs);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!is_floating(out[i].dtype()) || !out[i].requires_grad()) continue;
    outputs.push_back(out[i]);
    seeds.push_back(tensor(weights[i], out[i].shape()).to(dtype).to(out[i].device()));
  }
  return grad(outputs, wanted, seeds, false, composed, true);
}

inline std::vector<std::vector<double>> random_weights(const Tensors& out) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> draw(0.5, 1.5);
  std::vector<std::vector<double>> weights(out.size());
  for (size_t i = 0; i < out.size(); ++i)
    for (int64_t j = 0; j < out[i].numel(); ++j) weights[i].push_back(rng() & 1 ? draw(rng) : -draw(rng));
  return weights;
}
/// Of a case's outputs, by its inputs in float64.
inline std::vector<std::vector<double>> random_weights(const Op& op, const OpCase& c, const Prepared& p) {
  const NoGrad guard;
  Tensors in = p.exact;
  if (op.in_place)
    for (Tensor& t : in)
      if (t.defined()) t = t.clone();
  return random_weights(dispatch(op, std::move(in), c.attrs));
}

}  // namespace tessera::op_table_test
