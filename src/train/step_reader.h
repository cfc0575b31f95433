// What steps came to, read after the device has gone on.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/stream.h"
#include "tessera/trainer.h"

namespace tessera::train {

/// A step whose numbers may still be on their way.
struct MadeStep {
  int64_t step = 0;
  double lr = 0;
  Tensor loss, norm, skipped, loss_scale;  ///< the last one is undefined where losses are not scaled
};

/// Lets the numbers of steps follow them, and reads those that were sent before: a GPU never waits for whoever reads,
/// who has queued more work for it by then.
class StepReader {
 public:
  /// `on_read` gets the steps that were sent together.
  StepReader(Device device, std::function<void(std::vector<StepInfo>)> on_read);
  /// Before a step.
  void begin();
  void add(MadeStep step) { pending_.push_back(std::move(step)); }
  int64_t waiting() const { return static_cast<int64_t>(pending_.size()); }
  /// Sends what waits, and reads what was sent before.
  void send();
  /// Reads what was sent.
  void receive();
  /// Reads what all steps so far came to.
  void report();

 private:
  using Clock = std::chrono::steady_clock;
  // A moment of the device's work.
  struct Mark {
    Clock::time_point host = Clock::now();
    Event event;
    explicit Mark(Device device) : event(device, true) { event.record(current_stream(device)); }
    double milliseconds_since(const Mark& before, Device device) const {
      if (device.is_gpu()) return event.milliseconds_since(before.event);
      return std::chrono::duration<double, std::milli>(host - before.host).count();
    }
  };
  struct Sent {
    std::vector<MadeStep> steps;
    Tensor numbers;  // four of each
    Mark began, made;
  };

  Device device_;
  std::function<void(std::vector<StepInfo>)> on_read_;
  std::vector<MadeStep> pending_;
  std::optional<Sent> sent_;
  Stream reader_;             // beside that of the steps
  std::optional<Mark> last_;  // where the steps that were not sent began
};

}  // namespace tessera::train
