#include "tessera/random.h"

#include "core/capture_state.h"
#include "core/gpu/backend.h"

namespace tessera {

constinit thread_local CaptureState* current_capture = nullptr;

Tensor draw_later(Generator& generator, Dim elements, Device device) {
  return current_capture ? current_capture->draw(generator, elements, device) : empty({2}, Int64, device);
}

Tensor Generator::reserve(Dim count, Device device) {
  if (device.meta || is_capturing()) return draw_later(*this, count, device);
  const int64_t elements = count.value();
  if (device.is_gpu())
    if (gpu::Capture* capture = gpu::capture_on(gpu::state(device)))
      return gpu::capture_draw(*capture, *this, elements);
  Tensor state = empty({2}, Int64, cpu());
  state.data<int64_t>()[0] = static_cast<int64_t>(seed_);
  state.data<int64_t>()[1] = static_cast<int64_t>(offset_);
  offset_ += static_cast<uint64_t>((elements + 3) / 4);  // a block of Philox 4x32-10 gives four numbers
  if (!device.is_gpu()) return state;
  Tensor there = empty({2}, Int64, device);
  gpu::copy(there, state.data_ptr(), *state.storage());
  return there;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}
void manual_seed(uint64_t seed) { default_generator().seed(seed); }

}  // namespace tessera
