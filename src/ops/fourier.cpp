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
#include "tile/numbers.h"

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

constexpr int most_passes = 12;  // of 2048 points

// What the kernel is told.
struct CardTransform {
  int64_t rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  RealSide real;
  int points, stretch;  // of a row in the passes; of the table's roots for them
  int block_rows;       // of a block
  int passes, radix[most_passes];
  tile::Inverse by_points, by_items, by_apart[most_passes], by_span[most_passes];  // items: results found at once
  double scale;
};

// Passes are Stockham's, which put results in order as they go. A complex inverse is a transform with parts exchanged,
// that from or to real numbers has the conjugates. Real rows are transformed by halves (Cooley, Lewis and Welch, "The
// fast Fourier transform algorithm: programming considerations", 1970).
CardKernel fourier_kernel("fourier_rows", R"(
#include <tessera/tile/kernels/fourier.h>
using Point = fourier::Complex<T>;
enum class RealSide : int { None, In, Out };
constexpr int most_passes = 12;
struct Work {
  i64 rows;
  int length, in, parts, out, out_parts;
  int inverse, doubles_in, doubles_out;
  RealSide real;
  int points, stretch;
  int block_rows;
  int passes, radix[most_passes];
  Inverse by_points, by_items, by_apart[most_passes], by_span[most_passes];
  double scale;
};
constexpr int room = sizeof(T) == 8 ? 1024 : 2048;

TESSERA_DEVICE Point conjugate(Point a) { return {a.re, -a.im}; }

// Of transforms of `span` elements each, of which `R` become one.
template <int R>
TESSERA_DEVICE void pass(const Point* from, Point* to, const Point* roots, const Work& w, int rows, int number, int span) {
  const int apart = w.points / R, step = w.by_span[number](apart) * w.stretch;
  for (int i = thread_in_block(); i < rows * apart; i += 256) {
    const int row = w.by_apart[number](i), at = i - row * apart, k = at - w.by_span[number](at) * span;
    Point a[R];
    unroll<R>([&](auto r) { a[r] = from[row * w.points + at + r * apart]; });
    if (k > 0) unroll<R - 1>([&](auto r) { a[r + 1] = fourier::times(a[r + 1], roots[(r + 1) * k * step]); });
    fourier::butterfly(a);
    unroll<R>([&](auto r) { to[row * w.points + (at - k) * R + k + r * span] = a[r]; });
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

struct Results {
  T* y;
  const Work& w;
  TESSERA_DEVICE void operator()(i64 row, int k, Point v) const {
    if (k >= w.out) return;
    const T scale = T(w.doubles_out && k > 0 && 2 * k < w.length ? 2 * w.scale : w.scale);
    T* const to = y + (row * w.out + k) * w.out_parts;
    to[0] = v.re * scale;
    if (w.out_parts == 2) to[1] = v.im * scale;
  }
};

// The k-th of a real row's results, that as far from the middle, and their mirror images.
TESSERA_DEVICE void store_mirrored(const Results& results, const Point* held, const Point* roots, i64 row, int k) {
  const int half = results.w.points;
  const Point a = held[k], b = conjugate(held[k > 0 ? half - k : 0]);
  const Point even = (a + b) * T(0.5), odd = fourier::times((a - b).turned(), roots[k]) * T(0.5);
  const bool turns = results.w.inverse != 0;
  const Point low = turns ? conjugate(even + odd) : even + odd, high = turns ? even - odd : conjugate(even - odd);
  results(row, k, low);
  if (2 * k < half) results(row, half - k, high);
  if (results.w.out <= half + 1) return;
  if (k > 0) results(row, results.w.length - k, conjugate(low));
  if (k > 0 && 2 * k < half) results(row, half + k, conjugate(high));
}

extern "C" TESSERA_KERNEL(256) void fourier_rows(const T* x, T* y, const Point* roots, const Work w) {
  TESSERA_SHARED Point held[2][room];
  const i64 first = block_in_grid() * w.block_rows;
  const int rows = static_cast<int>(min(i64(w.block_rows), w.rows - first));
  for (int i = thread_in_block(); i < rows * w.points; i += 256) {
    const int row = w.by_points(i);
    held[0][i] = loaded(x, w, roots, first + row, i - row * w.points);
  }
  sync_block();
  int now = 0, span = 1;
  for (int p = 0; p < w.passes; ++p) {
    const int radix = w.radix[p];
    if (radix == 2) pass<2>(held[now], held[1 - now], roots, w, rows, p, span);
    else if (radix == 3) pass<3>(held[now], held[1 - now], roots, w, rows, p, span);
    else if (radix == 4) pass<4>(held[now], held[1 - now], roots, w, rows, p, span);
    else pass<5>(held[now], held[1 - now], roots, w, rows, p, span);
    span *= radix;
    now = 1 - now;
    sync_block();
  }
  const Results results{y, w};
  const int items = w.real == RealSide::In ? w.points / 2 + 1 : w.real == RealSide::Out ? w.points : w.out;
  for (int i = thread_in_block(); i < rows * items; i += 256) {
    const int row = w.by_items(i), k = i - row * items;
    const Point* const of_row = held[now] + row * w.points;
    if (w.real == RealSide::In) {
      store_mirrored(results, of_row, roots, first + row, k);
    } else if (w.real == RealSide::Out) {
      results(first + row, 2 * k, of_row[k]);
      results(first + row, 2 * k + 1, {of_row[k].im, T(0)});
    } else {
      results(first + row, k, w.inverse ? Point{of_row[k].im, of_row[k].re} : of_row[k]);
    }
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
  w.real = real, w.points = static_cast<int>(points), w.stretch = real == RealSide::None ? 1 : 2;
  w.block_rows = static_cast<int>(std::max<int64_t>(1, room / 2 / points));
  w.scale = t.scale;
  int left = w.points, span = 1;
  for (const int radix : {4, 2, 3, 5})
    for (; left % radix == 0; left /= radix, span *= radix) {
      w.by_apart[w.passes] = tile::Inverse::of(points / radix);
      w.by_span[w.passes] = tile::Inverse::of(span);
      w.radix[w.passes++] = radix;
    }
  if (left != 1) return {};
  w.by_points = tile::Inverse::of(points);
  w.by_items = tile::Inverse::of(real == RealSide::In ? points / 2 + 1 : real == RealSide::Out ? points : t.out);
  return w;
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
