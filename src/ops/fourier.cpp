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

// Which side is real: of its rows two neighbours are one complex number of half the length.
enum class RealSide : int { None, In, Out };

// What the kernel is told.
struct CardTransform {
  int64_t rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  RealSide real;
  int points;      // of a row in the passes
  int block_rows;  // of a block
  int passes, radix[16];
  double scale;
};

// Passes are Stockham's, which put results in order as they go. A complex inverse is a transform with parts exchanged,
// that from or to real numbers has the conjugates. Real rows are transformed by halves (Cooley, Lewis and Welch, "The
// fast Fourier transform algorithm: programming considerations", 1970).
CardKernel fourier_kernel("fourier_rows", R"(
#include <tessera/tile/kernels/fourier.h>
using Point = fourier::Complex<T>;
enum class RealSide : int { None, In, Out };
struct Work {
  i64 rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  RealSide real;
  int points;
  int block_rows;
  int passes, radix[16];
  double scale;
};
constexpr int room = sizeof(T) == 8 ? 1024 : 2048;

// Quotients of numbers below 2^11 by one of up to 2^11.
struct Divisor {
  u32 factor;
  TESSERA_DEVICE explicit Divisor(int by) : factor(((1u << 22) + static_cast<u32>(by) - 1) / static_cast<u32>(by)) {}
  TESSERA_DEVICE int operator()(int i) const { return static_cast<int>(u64{static_cast<u32>(i)} * factor >> 22); }
};

TESSERA_DEVICE Point conjugate(Point a) { return {a.re, -a.im}; }

// Of transforms of `span` elements each, of which `R` become one.
template <int R>
TESSERA_DEVICE void pass(const Point* from, Point* to, const Point* roots, int points, int rows, int span, int stretch) {
  const int apart = points / R, step = apart / span * stretch;
  const Divisor by_apart(apart), by_span(span);
  for (int i = thread_in_block(); i < rows * apart; i += 256) {
    const int row = by_apart(i), at = i - row * apart, k = at - by_span(at) * span;
    Point a[R];
    unroll<R>([&](auto r) {
      a[r] = from[row * points + at + r * apart];
      if constexpr (r > 0) a[r] = fourier::times(a[r], roots[r * k * step]);
    });
    fourier::butterfly(a);
    unroll<R>([&](auto r) { to[row * points + (at - k) * R + k + r * span] = a[r]; });
  }
}

TESSERA_DEVICE Point element_of(const T* x, const Work& w, i64 row, int n) {
  if (n >= w.in) return {T(0), T(0)};
  const T* const at = x + (row * w.in + n) * w.parts;
  const Point v{at[0], w.parts == 2 ? at[1] : T(0)};
  return w.doubles_in && n > 0 && 2 * n < w.length ? v * T(2) : v;
}

// Of what only the real part of a transform's results is wanted.
TESSERA_DEVICE Point hermitian(const T* x, const Work& w, i64 row, int n) {
  const Point both = (element_of(x, w, row, n) + conjugate(element_of(x, w, row, n > 0 ? w.length - n : 0))) * T(0.5);
  return w.inverse ? conjugate(both) : both;
}

TESSERA_DEVICE Point loaded(const T* x, const Work& w, const Point* roots, i64 row, int n) {
  if (w.real == RealSide::In) return {element_of(x, w, row, 2 * n).re, element_of(x, w, row, 2 * n + 1).re};
  if (w.real == RealSide::Out) {
    const Point low = hermitian(x, w, row, n), high = hermitian(x, w, row, n + w.points);
    return low + high - fourier::times(low - high, roots[n]).turned();
  }
  const Point v = element_of(x, w, row, n);
  return w.inverse ? Point{v.im, v.re} : v;
}

// The k-th of a row's results.
TESSERA_DEVICE Point result(const Point* row, const Work& w, const Point* roots, int k) {
  if (w.real == RealSide::None) return w.inverse ? Point{row[k].im, row[k].re} : row[k];
  const int half = w.points, near = k <= half ? k : w.length - k;
  const Point a = row[near < half ? near : 0], b = conjugate(row[near > 0 ? half - near : 0]);
  const Point v = (a + b + fourier::times((a - b).turned(), roots[near])) * T(0.5);
  return (k > half) != (w.inverse != 0) ? conjugate(v) : v;
}

extern "C" TESSERA_KERNEL(256) void fourier_rows(const T* x, T* y, const Point* roots, const Work w) {
  TESSERA_SHARED Point held[2][room];
  const i64 first = block_in_grid() * w.block_rows;
  const int rows = static_cast<int>(min(i64(w.block_rows), w.rows - first));
  const Divisor by_points(w.points);
  for (int i = thread_in_block(); i < rows * w.points; i += 256) {
    const int row = by_points(i);
    held[0][i] = loaded(x, w, roots, first + row, i - row * w.points);
  }
  sync_block();
  int now = 0, span = 1;
  const int stretch = w.real == RealSide::None ? 1 : 2;
  for (int p = 0; p < w.passes; ++p) {
    const int radix = w.radix[p];
    if (radix == 2) pass<2>(held[now], held[1 - now], roots, w.points, rows, span, stretch);
    else if (radix == 3) pass<3>(held[now], held[1 - now], roots, w.points, rows, span, stretch);
    else if (radix == 4) pass<4>(held[now], held[1 - now], roots, w.points, rows, span, stretch);
    else pass<5>(held[now], held[1 - now], roots, w.points, rows, span, stretch);
    span *= radix;
    now = 1 - now;
    sync_block();
  }
  const auto scaled = [&](T v, int k) {
    return v * T(w.doubles_out && k > 0 && 2 * k < w.length ? 2 * w.scale : w.scale);
  };
  if (w.real == RealSide::Out) {
    for (int i = thread_in_block(); i < rows * w.points; i += 256) {
      const int row = by_points(i), k = 2 * (i - row * w.points);
      T* const to = y + (first + row) * w.out + k;
      if (k < w.out) to[0] = scaled(held[now][i].re, k);
      if (k + 1 < w.out) to[1] = scaled(held[now][i].im, k + 1);
    }
    return;
  }
  const u32 out = static_cast<u32>(w.out);
  for (u32 i = static_cast<u32>(thread_in_block()); i < static_cast<u32>(rows) * out; i += 256) {
    const u32 row = i / out;
    const int k = static_cast<int>(i - row * out);
    const Point v = result(held[now] + row * w.points, w, roots, k);
    T* const to = y + ((first + row) * w.out + k) * w.out_parts;
    to[0] = scaled(v.re, k);
    if (w.out_parts == 2) to[1] = scaled(v.im, k);
  }
}
)");

// Whether passes of the kernel do it, and which.
std::optional<CardTransform> card_transform_of(int64_t rows, const FourierMap& t, DType dtype) {
  const int64_t room = dtype == Float64 ? 1024 : 2048;  // numbers of a block, as the kernel has them in f32
  const bool even = t.length % 2 == 0;
  const RealSide real = even && t.parts == 1 ? RealSide::In : even && t.out_parts == 1 ? RealSide::Out : RealSide::None;
  const int64_t points = real == RealSide::None ? t.length : t.length / 2;
  if (points > room || rows < 1) return {};
  CardTransform w{};
  w.rows = rows;
  w.length = static_cast<int>(t.length);
  w.in = static_cast<int>(t.in), w.parts = static_cast<int>(t.parts);
  w.out = static_cast<int>(t.out), w.out_parts = static_cast<int>(t.out_parts);
  w.inverse = t.inverse, w.doubles_in = t.doubles_in, w.doubles_out = t.doubles_out;
  w.real = real, w.points = static_cast<int>(points);
  w.block_rows = static_cast<int>(std::max<int64_t>(1, room / 2 / points));
  w.scale = t.scale;
  int left = w.points;
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
