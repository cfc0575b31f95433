// Random numbers: a counter-based generator (Philox 4x32-10), so that draws do not depend on threads.
#pragma once
#include <cstdint>

#include "tessera/tensor.h"

namespace tessera {

/// A seed and how many 128-bit blocks of its stream have been used. Not synchronised: one per thread of control.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  void seed(uint64_t seed) {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t seed() const { return seed_; }
  uint64_t offset() const { return offset_; }
  void set_state(uint64_t seed, uint64_t offset) {
    seed_ = seed;
    offset_ = offset;
  }
  /// Reserves randomness for `elements` numbers: an i64[2] tensor {seed, first block} for the random operators.
  Tensor reserve(Dim elements, Device device = cpu());

 private:
  uint64_t seed_, offset_ = 0;
};

/// The generator used where none is given.
Generator& default_generator();
void manual_seed(uint64_t seed);

}  // namespace tessera
