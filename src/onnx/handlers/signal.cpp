// Signals: Fourier transforms, windows and mel filters.
#include "tessera/ops_signal.h"

#include "onnx/handler.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 33;  // of what a number asks for

Values transform(const Call& c) {
  const int64_t dim = c.opset() < 20 ? c.integer("axis", 1) : c.has(2) ? c.whole(2, -kMostElements, kMostElements) : -2;
  const FourierOptions o{.length = c.has(1) ? c.whole(1, 1, kMostElements) : 0,
                         .inverse = c.flag("inverse", false),
                         .onesided = c.flag("onesided", false)};
  return {dft(c.in(0), dim, o)};
}
Values transform_frames(const Call& c) {
  const Tensor& x = c.in(0);
  if (!c.has(2) && !c.has(3)) c.fail("neither a window nor a frame's length is given");
  const Tensor window =
      c.has(2) ? cast(c.in(2), x.dtype()) : ones({c.whole(3, 1, kMostElements)}, x.dtype(), x.device());
  const bool is_complex = x.dim() == 3 && x.size(2) == 2;
  return {stft(x, window, c.whole(1, 1, kMostElements), c.flag("onesided", true) && !is_complex)};
}

Values window_of(const Call& c, double a0, double a1, double a2) {
  const int64_t size = c.whole(0, 0, kMostElements);
  return {cosine_window(size, a0, a1, a2, c.flag("periodic", true), c.dtype("output_datatype", Float32), c.device())};
}
Values hann(const Call& c) { return window_of(c, 0.5, 0.5, 0); }
Values hamming(const Call& c) { return window_of(c, 25.0 / 46, 21.0 / 46, 0); }
Values blackman(const Call& c) { return window_of(c, 0.42, 0.5, 0.08); }

Values mel_filters(const Call& c) {
  const auto integer = [&](size_t i) { return c.whole(i, 1, kMostElements); };
  const MelOptions o{
      .bins = integer(0), .length = integer(1), .sample_rate = integer(2), .low = c.number(3), .high = c.number(4)};
  return {mel_weight_matrix(o, c.dtype("output_datatype", Float32), c.device())};
}

constexpr Entry entries[] = {
    {"BlackmanWindow", 17, blackman},     {"DFT", 17, transform},
    {"HammingWindow", 17, hamming},       {"HannWindow", 17, hann},
    {"MelWeightMatrix", 17, mel_filters}, {"STFT", 17, transform_frames},
};

}  // namespace

std::span<const Entry> signal_handlers() { return entries; }

}  // namespace tessera::onnx
