#include "tessera/random.h"

namespace tessera {

Tensor Generator::reserve(int64_t elements, Device device) {
  Tensor state = empty({2}, Int64);
  state.data<int64_t>()[0] = static_cast<int64_t>(seed_);
  state.data<int64_t>()[1] = static_cast<int64_t>(offset_);
  offset_ += static_cast<uint64_t>((elements + 3) / 4);  // a block of Philox 4x32-10 gives four numbers
  return device == cpu() ? state : state.to(device);
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}
void manual_seed(uint64_t seed) { default_generator().seed(seed); }

}  // namespace tessera
