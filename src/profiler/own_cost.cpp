// What recording costs the program that is recorded.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "core/gpu/backend.h"
#include "profiler/assemble.h"
#include "profiler/recorder.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::profiler {
namespace {

constexpr int kTurns = 9, kLaunches = 64;  // of which a device's queue holds all

// Nanoseconds of the host for a call that launches one short kernel: the median of turns.
int64_t time_of_launch(const Tensor& x) {
  std::array<int64_t, kTurns> times;
  for (int64_t& time : times) {
    synchronize(x.device());
    const int64_t begin = now();
    for (int i = 0; i < kLaunches; ++i) (void)mul(x, x);
    time = (now() - begin) / kLaunches;
  }
  std::nth_element(times.begin(), times.begin() + kTurns / 2, times.end());
  return times[kTurns / 2];
}

int64_t measured(Device device, const Options& options) {
  const NoGrad no_grad;
  const Tensor x = full({1}, 1.0, Float32, device);
  (void)time_of_launch(x);
  const int64_t plain = time_of_launch(x);
  gpu::Runtime& runtime = gpu::state(device).runtime;
  Recorder recorder(options);
  bool watched = false;
  recorder.on_card = [&](Device) { return !(watched = runtime.start_activities(options.most_bytes).empty()); };
  recorder.begin();
  int64_t recorded = 0;
  {
    const Observing observing(recorder, {.all_threads = true, .call_sites = options.call_sites});
    (void)time_of_launch(x);
    recorded = time_of_launch(x);
  }
  (void)recorder.end();
  if (watched) (void)runtime.stop_activities([](const gpu::Activity&) {});
  return std::max<int64_t>(recorded - plain, 0);
}

}  // namespace

int64_t cost_of_recording_a_launch(Device device, const Options& options) {
  static auto* const known = new std::map<std::pair<DeviceType, int>, int64_t>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known->try_emplace({device.type, device.index});
  if (fresh) at->second = measured(device, options);
  return at->second;
}

}  // namespace tessera::profiler
