#include "ops/output_layout.h"

#include <algorithm>

#include "core/util/plans_epoch.h"

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

bool pads_rows(const Op& op, std::span<const TensorMeta> in, const TensorMeta& meta) {
  if (op.pitched == Pitched::None || !is_floating(meta.dtype)) return false;
  if (padded_length(meta.shape, meta.dtype) == meta.shape.back().value()) return needs_more_rows(meta);
  return op.pitched == Pitched::All || is_large_matrix(meta) ||
         std::any_of(in.begin(), in.end(),
                     [&](const TensorMeta& t) { return t.shape == meta.shape && lies_in_padded_rows(t); });
}

// Dense images [n, c, h, w] in the order n, h, w, c.
DimStrides channels_last(const Shape& shape) {
  return {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]};
}
bool has_symbols(const DimStrides& strides) {
  return std::any_of(strides.begin(), strides.end(), [](Dim s) { return s.is_symbolic(); });
}
// Whether they lie in this order, perhaps with gaps, and not in their own as well.
bool lies_channels_last(const TensorMeta& t) {
  if (t.shape.rank() != 4 || t.strides.empty() || t.shape[1] == Dim(1) || !(t.strides[1] == Dim(1))) return false;
  if (t.shape.is_symbolic() || has_symbols(t.strides)) return false;
  int64_t extent = t.shape[1].value();
  for (size_t d : {3, 2, 0}) {
    if (t.shape[d] == Dim(1)) continue;
    if (t.strides[d].value() < extent) return false;
    extent += t.strides[d].value() * (t.shape[d].value() - 1);
  }
  return true;
}
bool gives_channels_last(const Op& op, std::span<const TensorMeta> in, const TensorMeta& meta) {
  if (!op.keeps_layout || meta.shape.rank() != 4) return false;
  if (op.layout_of != kAnyInput) return lies_channels_last(in[op.layout_of]);
  return std::any_of(in.begin(), in.end(), lies_channels_last);
}

}  // namespace

TensorMeta output_layout(const Op& op, std::span<const TensorMeta> in, const TensorMeta& meta, bool hidden) {
  TensorMeta out{meta.shape, meta.dtype, meta.device};
  const bool statistic = hidden && op.pitched != Pitched::All;
  out.packing = meta.packing;
  if (meta.packing) out.storage_bytes = meta.storage_bytes;
  if (out.shape.is_symbolic() || out.packing) return out;
  if (gives_channels_last(op, in, out)) {
    out.strides = channels_last(out.shape);
  } else if (out.device.is_gpu() && out.shape.rank() >= 2 && !statistic && pads_rows(op, in, out)) {
    out.pitch = padded_length(out.shape, out.dtype);
    Shape padded = out.shape;
    padded.back() = out.pitch;
    out.strides = contiguous_dim_strides(padded);
    out.padded_row_length = out.shape.back().value();
    out.padded_rows = out.shape.numel().value() / std::max<int64_t>(out.padded_row_length, 1);
    out.storage_bytes =
        rows_with_spare(out.padded_rows, out.dtype) * out.pitch * static_cast<int64_t>(size_of(out.dtype));
  }
  return out;
}

Tensor make_output(const TensorMeta& layout) {
  if (layout.pitch) return empty_pitched(layout.shape, layout.pitch, layout.dtype, layout.device);
  if (layout.packing) {
    const Ref<Storage> storage = allocate(static_cast<size_t>(layout.storage_bytes), layout.device);
    storage->packing = layout.packing;
    return as_strided(storage, layout.shape, contiguous_strides(layout.shape), 0, layout.dtype);
  }
  const Tensor t = empty(layout.shape, layout.dtype, layout.device);
  return layout.strides.empty() ? t : as_strided_dims(t.storage(), layout.shape, layout.strides, 0, layout.dtype);
}

bool lies_in_padded_rows(const TensorMeta& t) {
  if (t.strides.empty() || t.shape.rank() < 2 || t.shape.is_symbolic() || is_absent(t)) return false;
  Shape padded = t.shape;
  padded.back() = padded_length(t.shape, t.dtype);
  return t.strides == contiguous_dim_strides(padded);
}

Tensor zeros_beside(const Tensor& t, DType dtype) {
  if (TensorMeta meta{t.shape(), dtype, t.device()}; t.dim() == 4 && lies_channels_last(t.meta())) {
    meta.strides = channels_last(t.shape());
    return make_output(meta).zero_();
  }
  if (!t.device().is_gpu() || !lies_in_padded_rows(t) || t.size(-1) < 2048)
    return empty(t.shape(), dtype, t.device()).zero_();
  return empty_pitched(t.shape(), t.stride(-2), dtype, t.device()).zero_();
}

void pad_small_rows(bool on) {
  least_length = on ? least_of_tests : usual_least;
  forget_plans();
}

}  // namespace tessera
