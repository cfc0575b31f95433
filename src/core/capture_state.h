// What the lowest rooms ask while a function is captured: allocations make tensors without memory, draws and changes of
// gradients are noted. ops/capture.cpp is what asks and answers.
#pragma once
#include "tessera/random.h"
#include "tessera/tensor.h"

namespace tessera {

/// The capture of this thread; null: functions run as they are.
class CaptureState {
 public:
  virtual ~CaptureState() = default;
  /// A place of random numbers, reserved anew at each run.
  virtual Tensor draw(Generator& generator, Dim elements, Device device) = 0;
  /// Before the gradient of a leaf is set or added to.
  virtual void gradient_changes(const TensorImpl& leaf) = 0;
};
extern constinit thread_local CaptureState* current_capture;
inline bool is_capturing() { return current_capture; }

/// While alive, memory is memory: for constants that a captured function makes of the host's values.
class PauseCapture {
 public:
  PauseCapture() : paused_(current_capture) { current_capture = nullptr; }
  ~PauseCapture() { current_capture = paused_; }
  PauseCapture(const PauseCapture&) = delete;

 private:
  CaptureState* paused_;
};

/// What Generator::reserve gives where nothing can be written: a state without memory.
Tensor draw_later(Generator& generator, Dim elements, Device device);

}  // namespace tessera
