// Places in streams of random numbers as an operator, for graphs whose runs each draw anew.
#pragma once
#include "tessera/random.h"

namespace tessera {

/// What Generator::reserve does, as a node: an i64[2] tensor {seed, first block} on the device.
Tensor draw_state(Generator& generator, Dim elements, Device device);

}  // namespace tessera
