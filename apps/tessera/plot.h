// Line plots as SVG: loss curves, ladders, rooflines.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace tessera::app {

struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;
  bool faint = false;  ///< drawn thin and pale, behind the others
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;
  bool labels_left = false;  ///< where curves rise to the right
};

/// A stand-alone SVG document. Points that are not finite (or not positive on a logarithmic axis) are left out.
std::string to_svg(const Plot& plot);

}  // namespace tessera::app
