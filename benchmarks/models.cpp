// Plainly written models on one device: training steps and inference, milliseconds and GiB.
//   bench_models [resnet50|resnet50-first|mobilenet|unet]... ("first": channels first)
// TESSERA_BENCH_DEVICE names the device (cuda:0), TESSERA_BENCH_BATCH another batch, TESSERA_BENCH_PROFILE a folder for
// recordings. Training: autocast to bf16 on a card, SGD with momentum; inference: weights and images in f16 on a card.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

struct Work {
  std::string name;
  std::function<std::shared_ptr<nn::Module>()> model;
  int64_t batch, size, classes;
  bool channels_last = true, pixels = false;  // pixels: each one has a class
};

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

// The median of five times `calls`, in milliseconds, and the most memory.
void time(const std::string& what, Device device, const std::function<void()>& call) {
  const auto wait = [&] {
    if (device.is_gpu()) current_stream(device).synchronize();
  };
  reset_peak_memory(device);
  const int calls = device.is_gpu() ? 10 : 1;
  for (int i = 0; i < (device.is_gpu() ? 5 : 2); ++i) call();
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    wait();
    const auto passed = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin);
    times.push_back(passed.count() / calls);
  }
  std::sort(times.begin(), times.end());
  fmt::print("{:<32} {:9.3f} ms  (least {:.3f})  {:.2f} GiB\n", what, times[2], times[0],
             static_cast<double>(memory_stats(device).peak_allocated) / (1 << 30));
  std::fflush(stdout);
}

void profile(const std::string& name, Device device, const std::function<void()>& call) {
  const std::string folder = variable("TESSERA_BENCH_PROFILE", "");
  if (folder.empty()) return;
  profiler::Profile recording({.schedule = {.warmup = 1, .active = 3}, .folder = folder + "/" + name});
  for (int i = 0; i < 5; ++i) {
    call();
    recording.step();
  }
  if (device.is_gpu()) current_stream(device).synchronize();
  fmt::print("{}\n", recording.summary());
}

void run(const Work& work, Device device) {
  const DeviceGuard guard(device);
  const bool card = device.is_gpu();
  const std::string batch = variable("TESSERA_BENCH_BATCH", "");
  const int64_t n = batch.empty() ? work.batch : std::stoll(batch);
  const auto model = work.model();
  Tensor images = randn({n, 3, work.size, work.size});
  if (work.channels_last) {
    model->to(ChannelsLast);
    images = images.to(ChannelsLast);
  }
  const Tensor target = randint(0, work.classes, work.pixels ? Shape{n, work.size, work.size} : Shape{n});
  {
    optim::SGD optimizer(model->parameters(), {.lr = 0.1, .momentum = 0.9});
    const auto step = [&] {
      optimizer.zero_grad();
      Tensor loss;
      {
        std::optional<amp::Autocast> region;
        if (card) region.emplace(BFloat16);
        Tensor logits = (*model)(images);
        if (work.pixels) logits = logits.permute({0, 2, 3, 1});
        loss = cross_entropy(logits, target);
      }
      loss.backward();
      optimizer.step();
    };
    time(work.name + " step", device, step);
    profile(work.name + "-step", device, step);
    optimizer.zero_grad();
  }
  if (card) {
    model->to(Float16);
    images = images.to(Float16);
  }
  model->eval();
  const NoGrad no_grad;
  const auto infer = [&] { (*model)(images); };
  time(work.name + " inference", device, infer);
  profile(work.name + "-inference", device, infer);
}

}  // namespace

int main(int argc, char** argv) {
  const auto resnet = [] { return std::make_shared<models::ResNet50>(); };
  const Work all[] = {
      {"resnet50", resnet, 64, 224, 1000},
      {"resnet50-first", resnet, 64, 224, 1000, false},
      {"mobilenet", [] { return std::make_shared<models::MobileNetV2>(); }, 128, 224, 1000},
      {"unet", [] { return std::make_shared<models::UNet>(); }, 4, 512, 2, true, true},
  };
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  try {
    const Device device = parse_device(variable("TESSERA_BENCH_DEVICE", "cuda:0"));
    for (const Work& work : all)
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), work.name) != wanted.end()) run(work, device);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
