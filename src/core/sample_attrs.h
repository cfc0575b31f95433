// Attributes of operators that read images at points.
#pragma once
#include "core/attrs.h"

namespace tessera {

/// Numbers are those of Interpolation and Beyond (tessera/ops_image.h). In `elements` the grid has coordinates of
/// elements, from 0 on, and not from -1 to 1.
struct GridSampleAttrs {
  int64_t interpolation = 1, beyond = 0;
  bool align_corners = false, elements = false;
  static constexpr std::string_view attr_names = "interpolation, beyond, align_corners, elements";
  auto members() { return std::tie(interpolation, beyond, align_corners, elements); }
  auto members() const { return std::tie(interpolation, beyond, align_corners, elements); }
};

struct RoiAlignAttrs {
  int64_t rows = 1, columns = 1;
  double spatial_scale = 1;
  int64_t sampling_ratio = 0;
  bool aligned = true;
  static constexpr std::string_view attr_names = "rows, columns, spatial_scale, sampling_ratio, aligned";
  auto members() { return std::tie(rows, columns, spatial_scale, sampling_ratio, aligned); }
  auto members() const { return std::tie(rows, columns, spatial_scale, sampling_ratio, aligned); }
};

}  // namespace tessera
