// Attributes of operators of planes: of windows in one to three dims, and of products along two.
#pragma once
#include "core/attrs.h"

namespace tessera {

/// Of depth, rows and columns, with 1 for those that a plane lacks. A window of 0 is adaptive: `count` windows share
/// the elements.
struct PlaneWindowsAttrs {
  int64_t dims = 2;  // of a plane
  int64_t size[3] = {1, 1, 1}, count[3] = {1, 1, 1}, window[3] = {1, 1, 1}, stride[3] = {1, 1, 1};
  int64_t dilation[3] = {1, 1, 1}, low[3] = {0, 0, 0};
  static constexpr std::string_view attr_names = "dims, size, count, window, stride, dilation, low";
  auto members() { return std::tie(dims, size, count, window, stride, dilation, low); }
  auto members() const { return std::tie(dims, size, count, window, stride, dilation, low); }
};

/// sparse_planes: whether every row of both matrices has one entry, of weight 1, and every column.
struct SparsePlanesAttrs {
  bool selects = false, selects_back = false;
  static constexpr std::string_view attr_names = "selects, selects_back";
  auto members() { return std::tie(selects, selects_back); }
  auto members() const { return std::tie(selects, selects_back); }
};

}  // namespace tessera
