// What a profile costs the program that it watches: training steps with and without one, by turns
// (--benchmark_enable_random_interleaving=true --benchmark_repetitions=8), and what is left of it where there is none.
// TESSERA_BENCH_DEVICE names the device, which is the CPU else; TESSERA_BENCH_FOLDER where recordings go, if anywhere.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "models/step_cost.h"
#include "tessera/ops.h"
#include "tessera/profiler.h"
#include "tessera/stream.h"

namespace {

using namespace tessera;

Device device() {
  const char* name = std::getenv("TESSERA_BENCH_DEVICE");
  return parse_device(name ? name : "cpu");
}

// Ten steps, until the device is done; what making and writing a recording takes is not among it.
void ten_steps(benchmark::State& state, const models::StepOptions& options, bool active) {
  models::TrainingStep step(options);
  for (int i = 0; i < 5; ++i) step.run();
  current_stream(options.device).synchronize();
  for (auto _ : state) {
    state.PauseTiming();
    std::unique_ptr<profiler::Profile> profile;
    if (active) {
      profiler::Options wanted;
      if (const char* folder = std::getenv("TESSERA_BENCH_FOLDER")) wanted.folder = folder + ("/" + options.model);
      wanted.schedule.warmup = 1;
      profile = std::make_unique<profiler::Profile>(std::move(wanted));
      step.run();  // begins to watch the device
      current_stream(options.device).synchronize();
      profile->step();
    }
    state.ResumeTiming();
    for (int i = 0; i < 10; ++i) {
      step.run();
      profiler::step();
    }
    current_stream(options.device).synchronize();
    state.PauseTiming();
    profile = nullptr;
    state.ResumeTiming();
  }
  state.SetLabel("ten steps");
}

void range_off(benchmark::State& state) {
  for (auto _ : state) profiler::Range range("nothing");
}
void scope_off(benchmark::State& state) {
  for (auto _ : state) NamedScope scope("nothing");
}

const int registered = [] {
  const Device on = device();
  const bool card = on.is_card();
  const models::Amp amp = card ? models::Amp::BFloat16 : models::Amp::Off;
  for (const char* model : {card ? "gpt2-124m" : "shakespeare-char-cpu", card ? "resnet50" : "resnet20"})
    for (const bool active : {false, true})
      benchmark::RegisterBenchmark(
          (std::string(model) + (active ? "/active" : "/off")).c_str(),
          [=](benchmark::State& state) {
            const DeviceGuard guard(on);
            ten_steps(state, {model, std::string(model) == "gpt2-124m" ? 12 : 0, on, amp}, active);
          })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
  benchmark::RegisterBenchmark("range/off", range_off);
  benchmark::RegisterBenchmark("scope/off", scope_off);
  return 0;
}();

}  // namespace
