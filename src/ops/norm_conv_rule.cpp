// Where convolutions and batch norms are one operator. On an H200 these save a pass over the images; without the
// instructions of Hopper, and on the CPU, the operators that they are made of pass over them less often.
#include "core/gpu/backend.h"
#include "ops/norm_conv.h"

namespace tessera {
namespace {

constexpr int64_t kMostCounted = (int64_t{1} << 31) - 1024;  // pixels and elements that a copy of boxes counts

bool is_of_halves(const Tensor& t) { return t.dtype() == Float16 || t.dtype() == BFloat16; }
int64_t pixels_of(const Tensor& t) { return t.size(2) * t.size(3); }
int64_t stride_of(const Tensor& t, size_t d) { return t.strides()[d]; }
bool starts_at_16_bytes(const Tensor& t) { return t.offset() % 8 == 0; }  // of halves

bool is_on_hopper(Device device) {
  if (device.type != DeviceType::CUDA) return false;
  if (device.index < 0) return device == parse_device("cuda:sm90");
  if (device.meta && !why_unavailable({device.type, device.index}).empty()) return false;
  return gpu::state({device.type, device.index}).properties.architecture.starts_with("sm_90");
}

bool all_lie_dense(std::span<const Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (t.defined() && !t.is_contiguous()) return false;
  return true;
}

// Planes of pixels that are neighbours.
bool has_dense_planes(const Tensor& t) {
  return (t.size(3) == 1 || stride_of(t, 3) == 1) && (t.size(2) == 1 || stride_of(t, 2) == t.size(3));
}
bool channels_lie_last(const Tensor& t) {
  int64_t step = 1;
  for (int64_t d : {1, 3, 2, 0}) {
    if (t.size(d) != 1 && stride_of(t, static_cast<size_t>(d)) != step) return false;
    step *= t.size(d);
  }
  return !t.is_contiguous() && starts_at_16_bytes(t);
}

// 1x1 windows over planes, each pixel multiplied by all filters at once.
bool fuses_pointwise(const Tensor& x, const Tensor& filters, const ConvAttrs& conv) {
  constexpr int64_t most = 256;  // channels, filters
  for (int d = 0; d < 2; ++d)
    if (filters.size(2 + d) != 1 || conv.stride[d] != 1 || conv.padding[d] != 0) return false;
  if (conv.groups != 1 || x.size(1) > most || filters.size(0) > most || pixels_of(x) % 8 != 0 ||
      pixels_of(x) > kMostCounted)
    return false;
  return has_dense_planes(x) && starts_at_16_bytes(x) && (x.size(1) == 1 || stride_of(x, 1) % 8 == 0) &&
         (x.size(0) == 1 || stride_of(x, 0) % 8 == 0);
}

// Boxes of windows over images whose channels lie last; not as large as 256x512x7x7 with 512 filters, whose tiles fill
// an H100 one and a half times.
bool fuses_windows(const Tensor& x, const Tensor& filters, const ConvAttrs& conv) {
  constexpr double most = 16e9;  // multiplications
  if (conv.groups != 1 || x.size(1) % 8 != 0 || filters.size(0) % 8 != 0 || !channels_lie_last(x)) return false;
  int64_t windows = x.size(0);
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = (filters.size(2 + d) - 1) * conv.dilation[d];
    if (conv.stride[d] > 8 || conv.padding[d] > 100 || reach > 100) return false;
    const int64_t free = x.size(2 + d) + 2 * conv.padding[d] - reach - 1;
    windows *= free < 0 ? 0 : free / conv.stride[d] + 1;
  }
  const int64_t of_filter = x.size(1) * pixels_of(filters);
  return windows >= 2 && windows <= kMostCounted && x.size(0) * pixels_of(x) <= kMostCounted &&
         of_filter <= kMostCounted &&
         static_cast<double>(windows * filters.size(0)) * static_cast<double>(of_filter) <= most;
}

bool fuses_norm_conv2d(std::span<const Tensor> in, const NormConvAttrs& attrs) {
  const Tensor &x = in[0], &filters = in[1], &mean = in[3];
  if (!all_lie_dense(in.subspan(2))) return false;
  if (fuses_pointwise(x, filters, attrs.conv)) return true;
  return mean.defined() && !attrs.norm.training && attrs.norm.relu && pixels_of(filters) <= 32 && x.size(1) <= 1024 &&
         fuses_windows(x, filters, attrs.conv);
}

}  // namespace

bool fuses_norm(const Op& op, std::span<const Tensor> in, const Attrs& attrs) {
  const Tensor& x = in[0];
  if (!x.defined() || x.dim() != 4 || !is_of_halves(x) || x.shape().is_symbolic() || x.numel() == 0) return false;
  if (&op == &batch_norm_known_op)
    return x.device().is_gpu() && x.size(1) % 8 == 0 && !has_dense_planes(x) && channels_lie_last(x);
  const Tensor& filters = in[1];
  if (!is_on_hopper(x.device()) || !filters.defined() || filters.dim() != 4 || filters.dtype() != x.dtype() ||
      filters.numel() == 0)
    return false;
  if (&op == &conv2d_moments_op) return fuses_windows(x, filters, attrs.as<ConvAttrs>());
  return fuses_norm_conv2d(in, attrs.as<NormConvAttrs>());
}

}  // namespace tessera
