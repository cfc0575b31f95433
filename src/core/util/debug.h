// Switches for tests.
#pragma once

namespace tessera {

/// Fills memory with 0xff (NaN, -1) whenever the CPU's allocator hands it out, so that an element nobody writes shows.
void poison_allocations(bool on);

}  // namespace tessera
