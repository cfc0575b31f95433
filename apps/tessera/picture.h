// Grey pictures side by side as SVG.
#pragma once
#include <string>
#include <vector>

namespace tessera::app {

/// Rows of pixels from black (0) to white (1); what lies outside is cut.
struct Picture {
  std::string title;
  int width = 0, height = 0;
  std::vector<float> pixels;
};

/// A stand-alone SVG document; pictures of more than 256 pixels are averaged down to that.
std::string side_by_side(const std::vector<Picture>& pictures);

}  // namespace tessera::app
