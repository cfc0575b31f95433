// Methods of Tensor that are operators.
#include <fmt/format.h>

#include "core/gpu/backend.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera {

Tensor Tensor::reshape(Shape shape) const { return tessera::reshape(*this, shape); }
Tensor Tensor::transpose(int64_t a, int64_t b) const { return tessera::transpose(*this, a, b); }
Tensor Tensor::permute(const Dims& dims) const { return tessera::permute(*this, dims); }
Tensor Tensor::expand(Shape shape) const { return tessera::expand(*this, shape); }
Tensor Tensor::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  return tessera::slice(*this, dim, start, end, step);
}
Tensor Tensor::select(int64_t dim, int64_t index) const { return tessera::select(*this, dim, index); }
Tensor Tensor::unsqueeze(int64_t dim) const { return tessera::unsqueeze(*this, dim); }
Tensor Tensor::squeeze(int64_t dim) const { return tessera::squeeze(*this, dim); }
Tensor Tensor::contiguous() const { return tessera::contiguous(*this); }
Tensor Tensor::clone() const { return tessera::clone(*this); }
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }
Tensor Tensor::to(MemoryFormat format) const {
  if (format == Contiguous) return contiguous();
  if (dim() != 4) throw Error(fmt::format("to: channels last takes [n, c, h, w], not shape {}", to_string(shape())));
  return is_contiguous(format) ? *this : permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
}
Tensor Tensor::sum() const { return tessera::sum(*this); }
Tensor Tensor::mean() const { return tessera::mean(*this); }

Tensor Tensor::prepared(DType dtype) const {
  NoGrad guard;
  return (is_packed() ? contiguous() : *this).to(cpu()).to(dtype).contiguous();
}

// ---- in place

namespace {

void check_writable(const char* op, const Tensor& self) {
  const DimStrides strides = strides_of(self.meta());
  for (int64_t d = 0; d < self.dim(); ++d)
    if (strides[d] == Dim(0) && self.shape()[d].high() > 1)
      throw Error(fmt::format("{}: {} repeats elements and cannot be written; use clone()", op, describe(self)));
}

// `source`, or a copy of it if writing to `self` would change it elsewhere than where it is being read.
Tensor unaliased(const Tensor& self, const Tensor& source) {
  if (!(source.storage() == self.storage())) return source;
  const bool has_symbols = source.impl().symbolic || self.impl().symbolic;
  const bool aligned = source.shape() == self.shape() && !has_symbols && source.offset() == self.offset() &&
                       source.strides() == self.strides();
  return aligned ? source : source.clone();
}

}  // namespace

Tensor& Tensor::copy_(const Tensor& source) {
  static const Op& op = find_op("copy_");
  check_writable("copy_", *this);
  dispatch(op, {*this, unaliased(*this, source.to(device()))});
  return *this;
}

void copy_async(Tensor& to, const Tensor& from) {
  const bool recorded = grad_enabled() && (to.requires_grad() || from.requires_grad());
  const bool dense = to.is_contiguous() && to.shape() == from.shape();
  if (recorded || !dense || !gpu::is_page_locked(to, from.device())) {
    to.copy_(from);
    return;
  }
  NoGrad guard;
  gpu::queue_copy(to, from.to(to.dtype()).contiguous());
}

Tensor& Tensor::fill_(double value) {
  static const Op& op = find_op("fill_");
  check_writable("fill_", *this);
  dispatch(op, {*this}, ScalarAttrs{value});
  return *this;
}

Tensor& Tensor::add_(const Tensor& other, double alpha) {
  static const Op& op = find_op("add_");
  check_writable("add_", *this);
  dispatch(op, {*this, unaliased(*this, other)}, ScalarAttrs{alpha});
  return *this;
}

Tensor& Tensor::mul_(const Tensor& other) {
  static const Op& op = find_op("mul_");
  check_writable("mul_", *this);
  if (grad_enabled() && other.requires_grad()) return copy_(mul(clone(), other));  // the gradient needs the old value
  dispatch(op, {*this, unaliased(*this, other)});
  return *this;
}

Tensor& Tensor::mul_(double factor) {
  static const Op& op = find_op("mul_scalar_");
  check_writable("mul_", *this);
  dispatch(op, {*this}, ScalarAttrs{factor});
  return *this;
}

// ---- printing

namespace {

constexpr int64_t kLongest = 12, kEdge = 4;  // a dimension longer than this shows so many elements at each end

void print(const Tensor& t, std::string& text) {
  if (t.dim() == 0) {
    if (t.dtype() == Bool) text += t.item<bool>() ? "true" : "false";
    else if (is_floating(t.dtype())) text += fmt::format("{:.6g}", t.item());
    else if (t.dtype() == UInt64) text += std::to_string(t.item<uint64_t>());
    else text += std::to_string(t.item<int64_t>());
    return;
  }
  text += '[';
  for (int64_t i = 0, n = t.size(0); i < n; ++i) {
    if (i) text += ", ";
    if (n > kLongest && i == kEdge) {
      text += "..., ";
      i = n - kEdge;
    }
    print(t.select(0, i), text);
  }
  text += ']';
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  NoGrad guard;
  std::string text;
  print(tensor.is_packed() ? tensor.contiguous() : tensor, text);
  return text;
}

}  // namespace tessera
