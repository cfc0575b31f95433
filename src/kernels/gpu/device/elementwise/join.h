// What the threads of a team or a block have, put together in the same order each time: tile/arch/gpu/group.h.
#pragma once
#include "loops.h"
#include "tile/arch/gpu/group.h"

namespace tessera::gpu_kernels {

using tile::from_lane, tile::join_block, tile::join_lanes, tile::Sums, tile::Team, tile::team_lanes;
using Plus = tile::Add;

}  // namespace tessera::gpu_kernels
