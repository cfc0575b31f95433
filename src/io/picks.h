// Files of measured picks: lines of JSON, the first of which says where they were measured.
#pragma once
#include <string_view>

#include "ops/picks.h"

namespace tessera {

struct PicksFile {
  std::string device;  // "cpu", "cuda" or "hip"
  std::string card, libraries;
  Picks picks;
};

/// Throws FileError naming `name` and the line.
PicksFile parse_picks(std::string_view text, const std::string& name = "picks");
std::string format_picks(const PicksFile& file);

}  // namespace tessera
