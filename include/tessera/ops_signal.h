// Signals: Fourier transforms, windows and mel filters. Complex numbers are a last dim of 2, real and imaginary part; a
// last dim of 1 is real. Every function throws Error naming itself, the shapes and the rule broken.
#pragma once
#include "tessera/ops.h"

namespace tessera {

// ---- src/ops/signal.cpp ---------------------------------------------------------------------------------------------
struct FourierOptions {
  int64_t length = 0;  ///< of the transform, to which x is cut or padded with zeros; 0: that of x
  bool inverse = false;
  /// Of real signals, whose transform mirrors itself: its first length / 2 + 1 elements. The inverse takes these and
  /// gives a real signal of `length`, by default 2 (size - 1).
  bool onesided = false;
};
/// The discrete Fourier transform along `dim`: x [..., 1 or 2] -> [..., 2], or [..., 1] of an inverse onesided one. The
/// sum of x[n] exp(-2 pi i k n / length); the inverse divides by the length. A product with the transform's matrix, so
/// its work is proportional to length².
Tensor dft(const Tensor& x, int64_t dim = -2, const FourierOptions& options = {});
/// Transforms of frames: x [batch, length] or [batch, length, 1 or 2] -> [batch, frames, bins, 2]. Frames have the size
/// of `window` [frame] and begin `step` apart; all of them lie on x. Onesided unless x is complex.
Tensor stft(const Tensor& x, const Tensor& window, int64_t step, bool onesided = true);
/// Its reverse: y [batch, frames, bins, 2] -> [batch, length, 1 or 2], where frames overlap weighted by the window's
/// squares (Griffin & Lim 1984). Throws where the windows leave elements out.
Tensor istft(const Tensor& y, const Tensor& window, int64_t step, bool onesided = true);

// Windows of `size` elements with cosines; a periodic one leaves out the last of size + 1.
Tensor hann_window(int64_t size, bool periodic = true, DType dtype = Float32, Device device = default_device());
Tensor hamming_window(int64_t size, bool periodic = true, DType dtype = Float32, Device device = default_device());
Tensor blackman_window(int64_t size, bool periodic = true, DType dtype = Float32, Device device = default_device());
/// a0 - a1 cos(t) + a2 cos(2 t) for t from 0 to 2 pi.
Tensor cosine_window(int64_t size, double a0, double a1, double a2, bool periodic = true, DType dtype = Float32,
                     Device device = default_device());

/// Triangular filters, evenly spaced in mel: [length / 2 + 1, bins], from the spectrum of a transform of `length`
/// elements. Their edges are rounded down to its bins, as in ONNX. Frequencies are in Hz.
struct MelOptions {
  int64_t bins = 0, length = 0, sample_rate = 0;
  double low = 0, high = 0;
};
Tensor mel_weight_matrix(const MelOptions& options, DType dtype = Float32, Device device = default_device());

}  // namespace tessera
