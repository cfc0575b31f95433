// Products of which an H100 has a multiprocessor for each tile: sums longer and shorter than the stages.
#pragma once
#include <cstdint>

namespace tessera {

constexpr int64_t sizes_of_one_round[][3] = {{300, 1032, 456}, {300, 3000, 456}, {300, 5000, 136}, {300, 4000, 64}};

}  // namespace tessera
