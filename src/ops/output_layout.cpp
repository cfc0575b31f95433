#include "ops/output_layout.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t usual_least = 64, least_of_tests = 4;
int64_t least_length = usual_least;

// The length of rows that are padded to whole 16 bytes: a vocabulary of 50257 is then read as fast as one of 50264.
// Long ones to whole 128 bytes, as caches have them: of these 1001 cubed takes a fifth less time.
int64_t padded_length(const Shape& shape, DType dtype) {
  const int64_t bytes = static_cast<int64_t>(size_of(dtype)), length = shape.back().value(), unit = 16 / bytes;
  if (length < least_length || length % unit == 0) return length;
  const int64_t whole = length * bytes < 1024 ? unit : 128 / bytes;
  return (length + whole - 1) / whole * whole;
}

// Of halves or f32, 64 KB and more; planes of images stay in one piece.
bool is_large_matrix(const TensorMeta& meta) {
  const auto bytes = static_cast<int64_t>(size_of(meta.dtype));
  return bytes <= 4 && meta.shape.rank() <= 3 &&
         (least_length < usual_least || meta.shape.numel().value() * bytes >= 1 << 16);
}

// Dense f32 of another number of rows than whole fours: spare ones follow, for products whose sums run down columns.
bool needs_more_rows(const TensorMeta& meta) {
  const int64_t numel = meta.shape.numel().value();
  return meta.dtype == Float32 && numel > 0 && is_large_matrix(meta) && numel / meta.shape.back().value() % 4 != 0;
}

bool pads_rows(const Op& op, const Tensors& in, const TensorMeta& meta) {
  if (op.pitched == Pitched::None || !is_floating(meta.dtype)) return false;
  if (padded_length(meta.shape, meta.dtype) == meta.shape.back().value()) return needs_more_rows(meta);
  return op.pitched == Pitched::All || is_large_matrix(meta) || std::any_of(in.begin(), in.end(), [&](const Tensor& t) {
           return lies_in_padded_rows(t) && t.shape() == meta.shape;
         });
}

// Whether images [n, c, h, w] lie in the order n, h, w, c, and not in their own as well.
bool lies_channels_last(const Tensor& t) {
  if (!t.defined() || t.dim() != 4 || t.is_contiguous()) return false;
  int64_t step = 1;
  for (int64_t d : {1, 3, 2, 0}) {
    if (t.size(d) != 1 && t.strides()[static_cast<size_t>(d)] != step) return false;
    step *= t.size(d);
  }
  return true;
}
Tensor empty_channels_last(const TensorMeta& meta, Device device) {
  const Tensor t = empty(meta.shape, meta.dtype, device);
  const int64_t c = t.size(1), w = t.size(3);
  return as_strided(t.storage(), meta.shape, {t.numel() / std::max<int64_t>(t.size(0), 1), 1, w * c, c}, 0, meta.dtype);
}

}  // namespace

Tensor make_output(const Op& op, const Tensors& in, const TensorMeta& meta, Device device, bool hidden) {
  const bool statistic = hidden && op.pitched != Pitched::All;
  if (device.is_gpu() && meta.shape.rank() >= 2 && !statistic) {
    if (op.keeps_layout && meta.shape.rank() == 4 && lies_channels_last(in[op.layout_of]))
      return empty_channels_last(meta, device);
    if (pads_rows(op, in, meta))
      return empty_pitched(meta.shape, padded_length(meta.shape, meta.dtype), meta.dtype, device);
  }
  return empty(meta.shape, meta.dtype, device);
}

bool lies_in_padded_rows(const Tensor& t) {
  if (!t.defined() || t.is_contiguous() || t.dim() < 2) return false;
  Shape padded = t.shape();
  padded.back() = padded_length(t.shape(), t.dtype());
  return t.strides() == contiguous_strides(padded);
}

Tensor zeros_beside(const Tensor& t, DType dtype) {
  if (!t.device().is_gpu() || !lies_in_padded_rows(t) || t.size(-1) < 2048)
    return empty(t.shape(), dtype, t.device()).zero_();
  return empty_pitched(t.shape(), t.stride(-2), dtype, t.device()).zero_();
}

void pad_small_rows(bool on) { least_length = on ? least_of_tests : usual_least; }

}  // namespace tessera
