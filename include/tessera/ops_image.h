// Images: resizing, sampling at points, rearranging, padding, regions, and norms over channels. Every function throws
// Error naming itself, the shapes and the rule broken.
#pragma once
#include <limits>
#include <vector>

#include "tessera/ops.h"
#include "tessera/ops_pool.h"

namespace tessera {

enum class Interpolation : uint8_t { Nearest, Linear, Cubic };

// ---- resizing: src/ops/resize.cpp -----------------------------------------------------------------------------------
/// Where element i of m lies on a dim of n elements, with scale s: those of ONNX's Resize, of the same names.
enum class Coordinates : uint8_t {
  HalfPixel,           ///< (i + 1/2) / s - 1/2: PyTorch's without align_corners
  HalfPixelSymmetric,  ///< the same about the middle, where m is not n s
  PytorchHalfPixel,    ///< the same, and -1/2 for a single element
  AlignCorners,        ///< i (n - 1) / (m - 1)
  Asymmetric,          ///< i / s: PyTorch's for nearest elements
  TfCropAndResize,     ///< on the part of the dim that ResizeOptions::region names
};
/// Which element is the nearest.
enum class NearestRule : uint8_t { RoundPreferFloor, RoundPreferCeil, Floor, Ceil };
/// Whether sizes are taken as they are, or one scale for all dims makes none of them larger or smaller than wanted.
enum class AspectRatio : uint8_t { Stretch, NotLarger, NotSmaller };

struct ResizeOptions {
  Interpolation interpolation = Interpolation::Linear;
  Coordinates coordinates = Coordinates::HalfPixel;
  NearestRule nearest = NearestRule::RoundPreferFloor;
  double cubic = -0.75;          ///< a in Keys 1981
  bool exclude_outside = false;  ///< elements beyond the edge get no weight; otherwise the edge repeats
  bool antialias = false;        ///< kernels of smaller results grow by 1 / s. PyTorch's excludes what is outside, too
  AspectRatio aspect = AspectRatio::Stretch;
  std::vector<double> region = {};  ///< of TfCropAndResize: where it begins along each dim, then where it ends, 0 to 1
  double extrapolation = 0;         ///< of TfCropAndResize: the value of what lies outside
};
/// `dims` of x resized to `sizes`, one after the other. Other elements than floating-point ones take Nearest only.
Tensor resize(const Tensor& x, const Dims& dims, const Shape& sizes, const ResizeOptions& options = {});
/// The same to floor(size * scale), with these scales. Of sizes that are symbols, scales are multiples of 1/64, and
/// coordinates HalfPixel, AlignCorners or Asymmetric.
Tensor resize_by(const Tensor& x, const Dims& dims, const std::vector<double>& scales,
                 const ResizeOptions& options = {});

// ---- sampling at points: src/ops/sample.cpp -------------------------------------------------------------------------
/// What lies beyond an image: zeros, the elements of its border, or the image mirrored.
enum class Beyond : uint8_t { Zeros, Border, Reflection };
struct GridSampleOptions {
  Interpolation interpolation = Interpolation::Linear;  ///< Cubic is that of Keys 1981 with a = -0.75
  Beyond beyond = Beyond::Zeros;
  bool align_corners = false;  ///< -1 and 1 are the middles of the outermost elements, and not their outer edges
};
/// x [n, c, h, w] at grid [n, h', w', 2] -> [n, c, h', w'], and x [n, c, d, h, w] at grid [n, d', h', w', 3]. Points
/// are (x, y) or (x, y, z), from -1 to 1, and may have a wider dtype than x. Differentiable in both.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});
/// The grid of an affine map theta [n, 2, 3] or [n, 3, 4] for images of `sizes`, h and w or d, h and w:
/// [n, sizes..., 2 or 3].
Tensor affine_grid(const Tensor& theta, const Dims& sizes, bool align_corners = false);
/// Of two spatial dims, with a shift for each tap of each window: x [n, c, h, w], weight [out, c / groups, r, s],
/// offset [n, 2 r s k, h', w'] as pairs of rows and columns, mask [n, r s k, h', w'] or undefined: a factor for each
/// tap, bias [out] or undefined -> [n, out, h', w']. Each of k equal parts of the channels has offsets of its own.
/// Elements beyond x are 0. Dai et al. 2017, Zhu et al. 2019.
Tensor deform_conv(const Tensor& x, const Tensor& weight, const Tensor& offset, const Tensor& mask = {},
                   const Tensor& bias = {}, const ConvOptions& options = {});

// ---- regions: src/ops/regions.cpp -----------------------------------------------------------------------------------
struct RoiAlignOptions {
  int64_t rows = 1, columns = 1;  ///< of the result
  double spatial_scale = 1;       ///< from the regions' coordinates to those of x
  int64_t sampling_ratio = 0;     ///< samples of a bin along each dim; 0: by the region's size, which the host reads
  bool aligned = true;            ///< elements have their middles at halves; otherwise regions are at least 1 x 1
  bool max = false;  ///< the largest product of an element and its weight, as in ONNX, and not the mean of samples
};
/// x [n, c, h, w], regions [r, 4] as (x1, y1, x2, y2), batch [r] (i64 or i32): the image of each -> [r, c, rows,
/// columns]. He et al. 2017.
Tensor roi_align(const Tensor& x, const Tensor& regions, const Tensor& batch, const RoiAlignOptions& options = {});
/// The largest element of each bin: regions [r, 5] as (image, x1, y1, x2, y2), whose ends are scaled, rounded and
/// included -> [r, c, rows, columns]; 0 for a bin without elements. The host reads the regions. Girshick 2015.
Tensor roi_max_pool(const Tensor& x, const Tensor& regions, int64_t rows, int64_t columns, double spatial_scale = 1);
struct SuppressionOptions {
  int64_t most = 0;          ///< boxes of a class
  double iou_threshold = 0;  ///< a box is dropped that overlaps with a better one by more than that
  double score_threshold = -std::numeric_limits<double>::infinity();  ///< scores must exceed it
  bool centered = false;  ///< boxes are (x, y, width, height), and not two corners (y1, x1, y2, x2) in any order
};
/// boxes [n, boxes, 4], scores [n, classes, boxes] -> i64 [count, 3]: image, class and box of what remains, best first
/// in each class. Values decide how many there are, so it runs on CPUs alone.
Tensor non_max_suppression(const Tensor& boxes, const Tensor& scores, const SuppressionOptions& options);

// ---- rearranging: src/ops/image.cpp ---------------------------------------------------------------------------------
/// Blocks of channels become squares: x [n, c factor², h, w] -> [n, c, h factor, w factor]. The place in the square is
/// the inner part of a channel (ONNX: CRD), and the outer one in depth_to_space (DCR). The first takes any dims before
/// the channels. Shi et al. 2016.
Tensor pixel_shuffle(const Tensor& x, int64_t factor);
Tensor depth_to_space(const Tensor& x, int64_t factor);
// Their reverses.
Tensor pixel_unshuffle(const Tensor& x, int64_t factor);
Tensor space_to_depth(const Tensor& x, int64_t factor);
/// Channels [groups, c / groups] of x [n, c, ...] transposed. Zhang et al. 2018.
Tensor channel_shuffle(const Tensor& x, int64_t groups);
enum class Padding : uint8_t {
  Constant,
  Reflect,  ///< mirrored about the outermost elements, by fewer than there are
  Edge,     ///< the outermost elements repeated
  Wrap,     ///< from the other end
};
/// The same as pad(), by any amount: negative numbers cut off first.
Tensor pad(const Tensor& x, const Dims& low, const Dims& high, Padding padding, double value = 0);
/// The middle of `dims`, cut or padded with zeros to `sizes`. Of an odd difference the larger half is behind.
Tensor center_crop_pad(const Tensor& x, const Dims& dims, const Dims& sizes);

// ---- norms: src/ops/image.cpp ---------------------------------------------------------------------------------------
/// x / (bias + alpha / size * sum of x² over `size` channels about each)^beta; of an even size one more lies behind.
/// x [n, c, ...]. Krizhevsky et al. 2012.
Tensor local_response_norm(const Tensor& x, int64_t size, double alpha = 1e-4, double beta = 0.75, double bias = 1);
/// Each plane of x [n, c, ...] with mean 0 and variance 1, times weight [c] plus bias [c]. Ulyanov et al. 2016.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / (sum of |x|^p along `dim`)^(1/p), and 0 where that is 0.
Tensor lp_normalize(const Tensor& x, double p = 2, int64_t dim = -1);
/// (x - mean) / (standard deviation + eps) over `dims`, of n elements and not n - 1.
Tensor mean_variance_norm(const Tensor& x, const Dims& dims, double eps = 1e-9);

}  // namespace tessera
