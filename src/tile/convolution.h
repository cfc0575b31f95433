// Convolutions as views of matrix multiplication. Images are (n, h, w, c) views of any strides: permute NCHW
// first, transform(x, pass<0>(), pass<2>(), pass<3>(), pass<1>()).
#pragma once
#include "view.h"

TESSERA_TILE_BEGIN

/// One spatial dimension of a convolution.
struct Window {
  i64 length, filter, stride, dilation, pad_low, pad_high;
  constexpr TESSERA_HD i64 output() const {
    return (length + pad_low + pad_high - dilation * (filter - 1) - 1) / stride + 1;
  }
};

/// What each output position sees: (n, r, ho, s, wo, c) over an input (n, h, w, c), invalid in the padding.
/// As a matrix merge<0, 2, 4>() are the rows; merge<1, 3, 5>() the columns for channels-last, merge<5, 1,
/// 3>() for NCHW. Swapped, it is the operand of the gradient of the weights.
template <class T, class D>
constexpr TESSERA_HD auto convolution_taps(const View<T, D>& input, const Window& h, const Window& w) {
  const auto padded = transform(input, pass(), pad(h.pad_low, h.pad_high), pad(w.pad_low, w.pad_high), pass());
  return transform(padded, pass(), embed({h.filter, h.output()}, {h.dilation, h.stride}),
                   embed({w.filter, w.output()}, {w.dilation, w.stride}), pass());
}

/// The input positions `first + stride * t`, t < count, of the gradient of the input. They all meet the
/// filter taps `tap + tap_step * j`, j < taps, and no other, at output `output + t - output_step * j`: a
/// convolution of stride 1. Without taps the gradient is zero.
struct Residue {
  i64 first, stride, count;
  i64 tap, tap_step, taps;
  i64 output, output_step, outputs;
};

/// Residue class `first` of a window, 0 <= first < stride: together they cover every input position.
constexpr TESSERA_HD Residue residue(const Window& window, i64 first) {
  const i64 stride = window.stride, common = gcd(static_cast<int>(stride), static_cast<int>(window.dilation));
  Residue r{first,
            stride,
            max(i64{0}, ceil_div(window.length - first, stride)),
            0,
            stride / common,
            0,
            0,
            window.dilation / common,
            window.output()};
  const i64 at = first + window.pad_low;  // = output * stride + tap * dilation
  while (r.tap < r.tap_step && (at - r.tap * window.dilation) % stride != 0) ++r.tap;
  if (r.tap >= min(r.tap_step, window.filter)) return r;
  r.taps = ceil_div(window.filter - r.tap, r.tap_step);
  r.output = (at - r.tap * window.dilation) / stride;
  return r;
}

/// The gradient of the output (n, ho, wo, k) as the input positions of two residues see it: (n, jh, th, jw,
/// tw, k).
template <class T, class D>
constexpr TESSERA_HD auto backward_taps(const View<T, D>& grad_output, const Residue& h, const Residue& w) {
  const auto low = [](const Residue& r) { return max(i64{0}, r.output_step * (r.taps - 1) - r.output); };
  const auto high = [](const Residue& r) { return max(i64{0}, r.output + r.count - r.outputs); };
  const auto window = [&](const Residue& r) {
    return affine(tuple(r.taps, r.count), tuple(-r.output_step, Int<1>{}), r.output + low(r));
  };
  const auto padded = transform(grad_output, pass(), pad(low(h), high(h)), pad(low(w), high(w)), pass());
  return transform(padded, pass(), window(h), window(w), pass());
}
/// The input positions (n, th, tw, c) of two residues.
template <class T, class D>
constexpr TESSERA_HD auto residue_positions(const View<T, D>& grad_input, const Residue& h, const Residue& w) {
  return transform(grad_input, pass(), slice(h.first, h.count, h.stride), slice(w.first, w.count, w.stride), pass());
}
/// The weights (k, jh, jw, c) that two residues meet, of (k, r, s, c).
template <class T, class D>
constexpr TESSERA_HD auto residue_weights(const View<T, D>& weights, const Residue& h, const Residue& w) {
  return transform(weights, pass(), slice(h.tap, h.taps, h.tap_step), slice(w.tap, w.taps, w.tap_step), pass());
}

TESSERA_TILE_END
