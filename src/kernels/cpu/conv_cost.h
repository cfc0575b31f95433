// About how long the CPU's convolutions take, in cycles of a core with vectors of 16: sums of what each kernel
// multiplies, copies and begins anew. The factors were fitted to some hundred random convolutions, each timed by every
// kernel.
#pragma once
#include "core/conv_attrs.h"
#include "core/kernel.h"

namespace tessera::cpu_kernels {

/// Sizes of one pass. Channels and filters are those of a group.
struct ConvCost {
  double images, groups, channels, filters, taps[2], size[2], places[2], stride[2], dilation[2], tap_rows_inside;
  bool padded, rows_lie;

  ConvCost(const ConvAttrs& a, const Operand& x, const Operand& weight, const Operand& y);

  /// From each image's window to results, or to the gradient of images: by products of pixels with all taps, which are
  /// then added up (tile/kernels/conv_scatter.h); by kernels that compute a result of a pixel from its window.
  double scatter(bool gradient) const;
  double direct(bool gradient) const;
  /// If all lanes were at work.
  double full_vectors() const;
  /// The same of few results a group where channels lie last: over planes that are turned round on the way, and by the
  /// direct kernel, with what is done once a line or a pixel.
  double turned_planes(bool gradient) const;
  double direct_of_few(bool gradient) const;

  /// Whether a product of pixels whose rows lie takes less time along planes than as one of matrices, which packs them.
  bool point_by_planes(bool gradient) const;

  /// The same of groups, whose filters all are lanes of copies.
  double spread(bool gradient) const;

  /// The gradient of filters.
  double filters_by_spread() const;
  double filters_by_planes() const;
  double filters_by_direct() const;
  double filters_by_gemm() const;

 protected:
  /// Residues of the strides that meet taps: planes to copy, and products of a gradient.
  double met() const;
  /// Elements of lines that groups read or write once more each, from beyond the caches.
  double again(bool gradient) const;
  /// Pixels of images that each residue of the strides writes, with gaps between them.
  double written_apart(bool gradient) const;
  /// The same of both images and the gradient of outputs: all kernels but the direct one sum a group at a time.
  double filters_again() const;
  /// Whether outputs of a row see what their neighbours see, one place on.
  bool slides() const;
  /// A product of pixels.
  bool is_point() const { return taps[0] * taps[1] * stride[0] * stride[1] == 1 && !padded; }
  double spread_pixels() const;
  double elements_x() const { return images * groups * channels * size[0] * size[1]; }
  double elements_y() const { return images * groups * filters * places[0] * places[1]; }
  double elements_w() const { return groups * channels * filters * taps[0] * taps[1]; }
};

enum class Pass { Forward, Images, Filters };

/// A filter for each channel, where rows lie one after the other.
struct DepthwiseCost : ConvCost {
  using ConvCost::ConvCost;

  double planes(Pass pass) const;  // whose vectors run along rows
  double copies(Pass pass) const;  // whose vectors run along channels

 private:
  double window() const { return taps[0] * taps[1]; }
};

/// Forward or the gradient of images, of windows of several taps where rows lie one after the other: in cycles of the
/// instruction set in use, whose picks differ. Those of channels that lie last became no better by that.
struct RowsCost : ConvCost {
  bool gradient;

  RowsCost(const ConvAttrs& a, const Operand& from, const Operand& weight, const Operand& to, bool gradient);

  double planes() const;  // whose vectors run along rows
  double copies() const;  // the direct kernel, between copies whose channels lie last
  double gemm() const;    // implicit matrices
  double scatter() const;
  double winograd() const;

 protected:
  // Channels of a group that a result sums; results of a place.
  double summed() const { return gradient ? filters : channels; }
  double each() const { return gradient ? channels : filters; }
  double read() const { return gradient ? elements_y() : elements_x(); }
  double written() const { return gradient ? elements_x() : elements_y(); }
  double rows() const;
  double columns() const;
  double steps() const { return summed() * taps[0] * taps[1] / (gradient ? met() : 1); }
};

/// The same of windows of one tap a stride apart.
struct PointsCost : RowsCost {
  using RowsCost::RowsCost;

  double planes() const;
  double copies() const;
  double gemm() const;
  double scatter() const;

 private:
  double lines() const { return images * groups * places[0]; }
  double points() const { return lines() * places[1]; }
  // Elements beyond the caches, of the rows that are read.
  double far_read() const;
};

}  // namespace tessera::cpu_kernels
