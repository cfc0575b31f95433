// Attributes of a convolution with what is behind it.
#pragma once
#include <limits>

#include "core/attrs.h"

namespace tessera {

/// As ConvAttrs; then the activation, where ReLU gives at most `high`.
struct ConvActAttrs {
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
  Activation activation = Activation::None;
  double high = std::numeric_limits<double>::infinity();
  static constexpr std::string_view attr_names = "stride, padding, dilation, groups, activation, high";
  auto members() { return std::tie(stride, padding, dilation, groups, activation, high); }
  auto members() const { return std::tie(stride, padding, dilation, groups, activation, high); }

  ConvAttrs conv() const {
    return {.stride = {stride[0], stride[1]},
            .padding = {padding[0], padding[1]},
            .dilation = {dilation[0], dilation[1]},
            .groups = groups};
  }
};

}  // namespace tessera
