// Fourier transforms, by passes where there are such kernels and elsewhere as products with their matrices, and what
// goes with them.
#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <numbers>
#include <tuple>

#include "core/capture_state.h"
#include "core/util/allocation_limit.h"
#include "ops/check.h"
#include "ops/fourier.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"
#include "tessera/ops_pool.h"
#include "tessera/ops_signal.h"

namespace tessera {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;
constexpr int64_t kLongestTransform = int64_t(1) << 15;  // its matrix has 4 * 2^30 elements

// A transform's sizes: `in` elements of `parts` numbers become `out` of `out_parts`.
struct Transform {
  int64_t length, in, parts, out, out_parts;
  bool inverse, onesided;
};

// The matrix [in * parts, out * out_parts] that a real signal's rows are multiplied with.
std::vector<double> fourier_matrix(const Transform& t) {
  check_allocation({t.in, t.parts, t.out, t.out_parts});
  std::vector<double> matrix(static_cast<size_t>(t.in * t.parts * t.out * t.out_parts));
  const double scale = t.inverse ? 1 / static_cast<double>(t.length) : 1, sign = t.inverse ? 1 : -1;
  size_t at = 0;
  for (int64_t n = 0; n < t.in; ++n) {
    const bool is_mirrored = t.inverse && t.onesided && n > 0 && 2 * n < t.length;
    for (int64_t part = 0; part < t.parts; ++part)
      for (int64_t k = 0; k < t.out; ++k) {
        const double angle = kTurn * static_cast<double>(n * k % t.length) / static_cast<double>(t.length);
        const double real = scale * (is_mirrored ? 2 : 1) * std::cos(angle),
                     imaginary = scale * (is_mirrored ? 2 : 1) * sign * std::sin(angle);
        matrix[at++] = part == 0 ? real : -imaginary;
        if (t.out_parts == 2) matrix[at++] = part == 0 ? imaginary : real;
      }
  }
  return matrix;
}

// Of few sizes the matrices are kept, on their devices: to make one takes as long as to transform many rows.
Tensor kept_fourier_matrix(const Transform& t, DType dtype, Device device) {
  const Shape shape{t.in * t.parts, t.out * t.out_parts};
  const auto make = [&] { return tensor(fourier_matrix(t), shape).to(dtype).to(device); };
  constexpr size_t most = 8, largest = 1 << 20;
  if (device.meta || is_capturing() || shape.numel().value() > static_cast<int64_t>(largest)) return make();
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, DType, std::string>;
  static std::mutex mutex;
  static auto* kept = new std::deque<std::pair<Key, Tensor>>;  // outlives what runs at exit
  const Key key{t.length, t.in, t.parts, t.out, t.out_parts, t.inverse, t.onesided, dtype, to_string(device)};
  const std::lock_guard lock(mutex);
  for (const auto& [other, matrix] : *kept)
    if (other == key) return matrix;
  if (kept->size() == most) kept->pop_back();
  const NoGrad plain;
  return kept->emplace_front(key, make()).second;
}

FourierMap map_of(const Transform& t) {
  const double scale = t.inverse ? 1 / static_cast<double>(t.length) : 1;
  return {t.length, t.in, t.parts, t.out, t.out_parts, t.inverse, t.inverse && t.onesided, false, scale};
}

Transform transform_of(const Tensor& x, int64_t dim, const FourierOptions& o) {
  const int64_t size = x.size(dim);
  const bool to_real = o.inverse && o.onesided;
  const int64_t length = o.length > 0 ? o.length : to_real ? 2 * (size - 1) : size;
  if (length < 1 || o.length < 0)
    fail("dft", "a length of {} for {}", o.length ? o.length : length, to_string(x.shape()));
  if (length > kLongestTransform) fail("dft", "a length of {} exceeds {}", length, kLongestTransform);
  const int64_t half = length / 2 + 1;
  return {length,          to_real ? half : length,
          x.size(-1),      o.onesided && !o.inverse ? half : length,
          to_real ? 1 : 2, o.inverse,
          o.onesided};
}

Tensor cut_or_padded(const Tensor& x, int64_t dim, int64_t size) {
  if (x.size(dim) >= size) return slice(x, dim, 0, size);
  Dims low(std::vector<int64_t>(static_cast<size_t>(x.dim() - dim), 0)), high = low;
  high[0] = size - x.size(dim);
  return pad(x, low, high);
}

void require_frames(std::string_view op, const Tensor& x, const Tensor& window, int64_t step) {
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  if (window.dim() != 1 || window.size(0) < 1)
    fail(op, "window must have shape [frame], not {}", to_string(window.shape()));
  if (window.dtype() != x.dtype()) fail(op, "window is {} for x of {}", name(window.dtype()), name(x.dtype()));
  if (step < 1) fail(op, "a step of {}", step);
}

}  // namespace

Tensor dft(const Tensor& x, int64_t dim, const FourierOptions& options) {
  constexpr std::string_view op = "dft";
  if (!is_floating(x.dtype())) fail(op, "takes floating-point tensors, not {}", describe(x));
  if (x.dim() < 2 || x.size(-1) < 1 || x.size(-1) > 2)
    fail(op, "the last dim of {} must be 1 or 2", to_string(x.shape()));
  dim = normalize_dim(op, dim, x.shape());
  if (dim == x.dim() - 1) fail(op, "dim {} of {} holds the parts of numbers", dim, to_string(x.shape()));
  const Transform t = transform_of(x, dim, options);
  const Tensor signal = transpose(cut_or_padded(x, dim, t.in), dim, -2);
  Shape shape = signal.shape();
  shape.back() = t.out_parts;
  shape[shape.size() - 2] = t.out;
  if ((on_host(x) || on_card(x)) && x.numel() > 0) {
    const Tensor single = signal.dtype() == Float64 ? signal : cast(signal, Float32);
    if (const auto rows = transform_rows(reshape(single, {-1, t.in, t.parts}), map_of(t)))
      return transpose(reshape(cast(*rows, x.dtype()), shape), dim, -2);
  }
  const Tensor matrix = kept_fourier_matrix(t, x.dtype(), x.device());
  return transpose(reshape(matmul(flatten(signal, -2, -1), matrix), shape), dim, -2);
}

Tensor stft(const Tensor& x, const Tensor& window, int64_t step, bool onesided) {
  constexpr std::string_view op = "stft";
  require_frames(op, x, window, step);
  if (x.dim() == 2) return stft(unsqueeze(x, -1), window, step, onesided);
  if (x.dim() != 3 || x.size(2) < 1 || x.size(2) > 2)
    fail(op, "x must have shape [batch, length] or [batch, length, 1 or 2], not {}", to_string(x.shape()));
  if (onesided && x.size(2) == 2) fail(op, "complex signals have no onesided transform");
  if (x.size(1) < window.size(0)) fail(op, "a frame of {} exceeds {}", window.size(0), to_string(x.shape()));
  const Tensor frames = mul(sliding_windows(x, {1}, {window.size(0)}, {step}), window);
  return dft(transpose(frames, 2, 3), 2, {.onesided = onesided});
}

Tensor istft(const Tensor& y, const Tensor& window, int64_t step, bool onesided) {
  constexpr std::string_view op = "istft";
  require_frames(op, y, window, step);
  const int64_t frame = window.size(0), bins = onesided ? frame / 2 + 1 : frame;
  if (y.dim() != 4 || y.size(3) != 2 || y.size(2) != bins || y.size(1) < 1)
    fail(op, "y must have shape [batch, frames, {}, 2], not {}", bins, to_string(y.shape()));
  const int64_t count = y.size(1), length = frame + step * (count - 1);
  const Tensor frames =
      mul(transpose(dft(y, 2, {.length = frame, .inverse = true, .onesided = onesided}), 2, 3), window);
  const Tensor sums = fold_windows(frames, {1}, {length}, {step});
  const Tensor weights = fold_windows(expand(square(window), {count, frame}), {0}, {length}, {step});
  if (amin(weights).item() < 1e-11) fail(op, "windows {} apart leave out elements", step);
  return div(sums, unsqueeze(weights, 1));
}

Tensor cosine_window(int64_t size, double a0, double a1, double a2, bool periodic, DType dtype, Device device) {
  if (size < 1 || size > int64_t(1) << 40) fail("cosine_window", "a size of {}", size);
  const auto last = static_cast<double>(periodic ? size : std::max<int64_t>(1, size - 1));
  check_allocation({size});
  std::vector<double> values;
  for (int64_t i = 0; i < size; ++i) {
    const double t = kTurn * static_cast<double>(i) / last;
    values.push_back(size == 1 ? 1 : a0 - a1 * std::cos(t) + a2 * std::cos(2 * t));
  }
  return tensor(values, {size}).to(dtype).to(device);
}
Tensor hann_window(int64_t size, bool periodic, DType dtype, Device device) {
  return cosine_window(size, 0.5, 0.5, 0, periodic, dtype, device);
}
Tensor hamming_window(int64_t size, bool periodic, DType dtype, Device device) {
  return cosine_window(size, 0.54, 0.46, 0, periodic, dtype, device);
}
Tensor blackman_window(int64_t size, bool periodic, DType dtype, Device device) {
  return cosine_window(size, 0.42, 0.5, 0.08, periodic, dtype, device);
}

Tensor mel_weight_matrix(const MelOptions& o, DType dtype, Device device) {
  constexpr std::string_view op = "mel_weight_matrix";
  if (o.bins < 1 || o.length < 1 || o.sample_rate < 1 || o.bins > int64_t(1) << 20 || o.length > int64_t(1) << 30)
    fail(op, "{} bins, a length of {} and a rate of {}", o.bins, o.length, o.sample_rate);
  if (!(0 <= o.low && o.low < o.high && o.high <= static_cast<double>(o.sample_rate) / 2))
    fail(op, "frequencies {} to {} at a rate of {}", o.low, o.high, o.sample_rate);
  const int64_t rows = o.length / 2 + 1;
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double step = (mel(o.high) - mel(o.low)) / static_cast<double>(o.bins + 2);
  const auto edge = [&](int64_t i) {
    const double hertz = 700 * (std::pow(10, (mel(o.low) + static_cast<double>(i) * step) / 2595) - 1);
    const auto bin =
        static_cast<int64_t>(static_cast<double>(o.length + 1) * hertz / static_cast<double>(o.sample_rate));
    return std::min(bin, rows - 1);
  };
  check_allocation({rows, o.bins});
  std::vector<double> weights(static_cast<size_t>(rows * o.bins), 0);
  for (int64_t i = 0; i < o.bins; ++i) {
    const int64_t low = edge(i), center = edge(i + 1), high = edge(i + 2);
    const auto at = [&](int64_t row) -> double& { return weights[static_cast<size_t>(row * o.bins + i)]; };
    for (int64_t row = low; row < center; ++row)
      at(row) = static_cast<double>(row - low) / static_cast<double>(center - low);
    at(center) = 1;
    for (int64_t row = center + 1; row < high; ++row)
      at(row) = static_cast<double>(high - row) / static_cast<double>(high - center);
  }
  return tensor(weights, {rows, o.bins}).to(dtype).to(device);
}

}  // namespace tessera
