#include "ops/fourier.h"

#include <cmath>
#include <deque>
#include <mutex>
#include <numbers>
#include <vector>

#include "kernels/cpu/fourier.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"
#include "tessera/custom_op.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

Tensor host_transform(const Tensor& x, const FourierMap& t) {
  const Tensor from = contiguous(x), to = empty({from.shape()[0], Dim(t.out), Dim(t.out_parts)}, from.dtype());
  cpu_kernels::FourierArgs a{};
  a.type = from.dtype() == Float64 ? cpu_kernels::Scalar::f64 : cpu_kernels::Scalar::f32;
  const auto plan = cpu_kernels::fourier_plan(t.length, a.type);
  a.inverse = t.inverse, a.doubles_in = t.doubles_in, a.doubles_out = t.doubles_out;
  a.rows = from.size(0), a.in = t.in, a.out = t.out;
  a.parts = static_cast<int>(t.parts), a.out_parts = static_cast<int>(t.out_parts);
  a.scale = t.scale;
  a.plan = plan.get();
  a.x = from.data_ptr(), a.y = to.data_ptr();
  cpu_kernels::fourier_table().transform(a, executor());
  return to;
}

// ---- on a card

// What the kernel is told.
struct CardTransform {
  int64_t rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  int block_rows;  // of a block
  int passes, radix[16];
  double scale;
};

// An inverse is a transform with parts exchanged. Passes are Stockham's, which put results in order as they go.
CardKernel fourier_kernel("fourier_rows", R"(
#include <tessera/tile/kernels/fourier.h>
using Point = fourier::Complex<T>;
struct Work {
  i64 rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  int block_rows;
  int passes, radix[16];
  double scale;
};
constexpr int room = sizeof(T) == 8 ? 1024 : 2048;

// Of transforms of `span` elements each, of which `R` become one.
template <int R>
TESSERA_DEVICE void pass(const Point* from, Point* to, const Point* roots, int length, int rows, int span) {
  const int apart = length / R, step = apart / span;
  for (int i = thread_in_block(); i < rows * apart; i += 256) {
    const int row = i / apart, at = i - row * apart, k = at % span;
    Point a[R];
    unroll<R>([&](auto r) {
      a[r] = from[row * length + at + r * apart];
      if constexpr (r > 0) a[r] = fourier::times(a[r], roots[r * k * step]);
    });
    fourier::butterfly(a);
    unroll<R>([&](auto r) { to[row * length + (at - k) * R + k + r * span] = a[r]; });
  }
}

extern "C" TESSERA_KERNEL(256) void fourier_rows(const T* x, T* y, const Point* roots, const Work w) {
  TESSERA_SHARED Point held[2][room];
  const i64 first = block_in_grid() * w.block_rows;
  const int rows = static_cast<int>(min(i64(w.block_rows), w.rows - first)), all = rows * w.length;
  for (int i = thread_in_block(); i < all; i += 256) {
    const int row = i / w.length, n = i - row * w.length;
    Point v{T(0), T(0)};
    if (n < w.in) {
      const T* const at = x + ((first + row) * w.in + n) * w.parts;
      v.re = at[0];
      if (w.parts == 2) v.im = at[1];
      if (w.doubles_in && n > 0 && 2 * n < w.length) v = v * T(2);
    }
    held[0][i] = w.inverse ? Point{v.im, v.re} : v;
  }
  sync_block();
  int now = 0, span = 1;
  for (int p = 0; p < w.passes; ++p) {
    const int radix = w.radix[p];
    if (radix == 2) pass<2>(held[now], held[1 - now], roots, w.length, rows, span);
    else if (radix == 3) pass<3>(held[now], held[1 - now], roots, w.length, rows, span);
    else if (radix == 4) pass<4>(held[now], held[1 - now], roots, w.length, rows, span);
    else pass<5>(held[now], held[1 - now], roots, w.length, rows, span);
    span *= radix;
    now = 1 - now;
    sync_block();
  }
  for (int i = thread_in_block(); i < rows * w.out; i += 256) {
    const int row = i / w.out, k = i - row * w.out;
    const Point found = held[now][row * w.length + k];
    Point v = w.inverse ? Point{found.im, found.re} : found;
    v = v * T(w.doubles_out && k > 0 && 2 * k < w.length ? 2 * w.scale : w.scale);
    T* const to = y + ((first + row) * w.out + k) * w.out_parts;
    to[0] = v.re;
    if (w.out_parts == 2) to[1] = v.im;
  }
}
)");

// Whether passes of the kernel do it, and which.
std::optional<CardTransform> card_transform_of(int64_t rows, const FourierMap& t, DType dtype) {
  const int64_t room = dtype == Float64 ? 1024 : 2048;  // numbers of a block, as the kernel has them in f32
  if (t.length > room || rows < 1) return {};
  CardTransform w{};
  w.rows = rows;
  w.length = static_cast<int>(t.length);
  w.in = static_cast<int>(t.in), w.parts = static_cast<int>(t.parts);
  w.out = static_cast<int>(t.out), w.out_parts = static_cast<int>(t.out_parts);
  w.inverse = t.inverse, w.doubles_in = t.doubles_in, w.doubles_out = t.doubles_out;
  w.block_rows = static_cast<int>(std::max<int64_t>(1, room / 2 / t.length));
  w.scale = t.scale;
  int left = w.length;
  for (const int radix : {4, 2, 3, 5})
    for (; left % radix == 0; left /= radix) w.radix[w.passes++] = radix;
  return left == 1 ? std::optional(w) : std::nullopt;
}

// e^(-2 pi i k / length) for each k, [length, 2]: of few lengths they are kept, on their devices.
Tensor kept_roots(int64_t length, DType dtype, Device device) {
  struct Kept {
    int64_t length;
    DType dtype;
    Device device;
    Tensor roots;
  };
  static std::mutex mutex;
  static auto* kept = new std::deque<Kept>;  // outlives what runs at exit
  const std::lock_guard lock(mutex);
  for (const Kept& k : *kept)
    if (k.length == length && k.dtype == dtype && k.device == device) return k.roots;
  std::vector<double> values;
  for (int64_t k = 0; k < length; ++k) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(length);
    values.push_back(std::cos(angle));
    values.push_back(-std::sin(angle));
  }
  constexpr size_t most = 16;
  if (kept->size() == most) kept->pop_back();
  const NoGrad plain;
  kept->push_front({length, dtype, device, tensor(values, {length, 2}).to(dtype).to(device)});
  return kept->front().roots;
}

Tensor card_transform(const Tensor& x, const CardTransform& w) {
  const Tensor from = contiguous(x), roots = kept_roots(w.length, x.dtype(), x.device());
  const Tensor to = empty({from.shape()[0], Dim(w.out), Dim(w.out_parts)}, x.dtype(), x.device());
  const void *read = from.data_ptr(), *turns = roots.data_ptr();
  void* const written = to.data_ptr();
  fourier_kernel.launch(from, (w.rows + w.block_rows - 1) / w.block_rows, read, written, turns, w);
  return to;
}

}  // namespace

std::optional<Tensor> transform_rows(const Tensor& x, const FourierMap& map) {
  const bool host = on_host(x) && x.numel() > 0;
  if (!host && !(on_card(x) && card_transform_of(x.size(0), map, x.dtype()))) return {};
  const auto forward = [=](const Tensors& in) {
    return Tensors{host ? host_transform(in[0], map)
                        : card_transform(in[0], *card_transform_of(in[0].size(0), map, in[0].dtype()))};
  };
  const auto backward = [map](const Tensors&, const Tensors&, const Tensors& grads) {
    if (const auto back = transform_rows(grads[0], map.adjoint())) return Tensors{*back};
    throw Error("dft: the gradient of an eager call cannot be captured");
  };
  return custom_function("dft", {x}, forward, backward)[0];
}

}  // namespace tessera
