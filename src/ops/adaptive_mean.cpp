#include "ops/adaptive_mean.h"

#include <array>
#include <cstdint>

#include "ops/on_card.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// Window i of `count` over `size` elements is [floor(i size / count), ceil((i + 1) size / count)).
CardKernel mean_kernel("adaptive_means", R"(
struct Sizes {
  int of[3];
  TESSERA_DEVICE int places() const { return of[0] * of[1] * of[2]; }
};
struct Span {
  int begin[3], length[3];
  TESSERA_DEVICE Span(int place, const Sizes& from, const Sizes& to) {
    for (int d = 2; d >= 0; --d) {
      const i64 i = place % from.of[d], size = to.of[d];
      place /= from.of[d];
      begin[d] = int(i * size / from.of[d]);
      length[d] = int(((i + 1) * size + from.of[d] - 1) / from.of[d]) - begin[d];
    }
  }
  TESSERA_DEVICE int volume() const { return length[0] * length[1] * length[2]; }
  TESSERA_DEVICE int at(int k, const Sizes& to) const {
    const int row = k / length[2], column = begin[2] + k - row * length[2], plane = row / length[1];
    return ((begin[0] + plane) * to.of[1] + begin[1] + row - plane * length[1]) * to.of[2] + column;
  }
};

// A group of `lanes` threads, a power of 2, has a window.
extern "C" TESSERA_KERNEL(256) void adaptive_means(const T* x, T* y, Sizes in, Sizes out, i64 count, int lanes) {
  TESSERA_SHARED T room[256];
  const int thread = thread_in_block(), lane = thread % lanes;
  const i64 window = (block_in_grid() * 256 + thread) / lanes, plane = window / out.places();
  T* const own = room + thread - lane;
  const Span span(int(window - plane * out.places()), out, in);
  T sum(0);
  if (window < count)
    for (int k = lane; k < span.volume(); k += lanes) sum += x[plane * in.places() + span.at(k, in)];
  own[lane] = sum;
  for (int half = lanes / 2; half > 0; half /= 2) {
    sync_block();
    if (lane < half) own[lane] += own[lane + half];
  }
  if (lane == 0 && window < count) y[window] = own[0] / T(span.volume());
}
)");

using Sizes = std::array<int, 3>;
// The spatial ones, with 1 for those that are not there.
Sizes sizes_of(const Shape& shape) {
  Sizes sizes{1, 1, 1};
  const auto spatial = static_cast<int64_t>(shape.size()) - 2;
  for (int64_t d = 0; d < spatial; ++d)
    sizes[static_cast<size_t>(3 - spatial + d)] = static_cast<int>(shape[2 + d].value());
  return sizes;
}

}  // namespace

bool card_takes_adaptive_mean(const Tensor& x, const Dims& sizes) {
  if (!on_card(x) || (x.dtype() != Float32 && x.dtype() != Float64) || x.dim() > 5) return false;
  double places = 1, windows = 1;
  for (int64_t d = 2; d < x.dim(); ++d)
    places *= static_cast<double>(x.size(d)), windows *= static_cast<double>(sizes[d - 2]);
  return places <= INT32_MAX && windows <= INT32_MAX;
}

Tensor card_adaptive_mean(const Tensor& given, const Dims& sizes, const std::vector<SparseDim>& products) {
  Shape shape{given.shape()[0], given.shape()[1]};
  for (const int64_t size : sizes) shape.push_back(size);
  const Sizes in = sizes_of(given.shape()), out = sizes_of(shape);
  const auto forward = [=](const Tensors& inputs) {
    const Tensor x = contiguous(inputs[0]), y = empty(shape, x.dtype(), x.device());
    if (y.numel() == 0) return Tensors{y};
    int lanes = 1;
    for (int64_t each = x.numel() / y.numel(); lanes < 32 && lanes * 4 <= each;) lanes *= 2;
    const void* const from = x.data_ptr();
    mean_kernel.launch(x, (y.numel() * lanes + 255) / 256, from, y.data_ptr(), in, out, y.numel(), lanes);
    return Tensors{y};
  };
  const auto backward = [=](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{sparse_slopes(grads[0], products)};
  };
  return custom_function("adaptive_avg_pool", {given}, forward, backward)[0];
}

}  // namespace tessera
