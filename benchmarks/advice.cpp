// Whether advice is right: steps that are slow for a known reason, what the profiler says that mending it would win,
// and what it does win. TESSERA_BENCH_DEVICE names the card; most rules are about cards.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "profiler/advice.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;
using Step = std::function<void()>;

Device card() {
  const char* name = std::getenv("TESSERA_BENCH_DEVICE");
  return parse_device(name ? name : "cuda:0");
}
void wait() { current_stream(card()).synchronize(); }

// Seconds of a step, the best of five times ten.
double seconds_of(const Step& step) {
  for (int i = 0; i < 5; ++i) step();
  double best = 1e9;
  for (int turn = 0; turn < 5; ++turn) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) step();
    wait();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 10);
  }
  return best;
}

// Recordings go to a folder each, if TESSERA_BENCH_FOLDER names one for them.
std::vector<profiler::Advice> advice_on(const Step& step, const std::string& name) {
  std::vector<profiler::Advice> all;
  const char* folder = std::getenv("TESSERA_BENCH_FOLDER");
  profiler::Profile profile({.schedule = {.warmup = 2, .active = 10},
                             .folder = folder ? folder + ("/" + name) : "",
                             .on_trace = [&](const profiler::Recording& r) { all = profiler::advice(r.trace()); }});
  for (int i = 0; i < 12; ++i) {
    step();
    profile.step();
  }
  return all;
}

void compare(const std::string& rule, const Step& slow, const Step& mended) {
  const double before = seconds_of(slow), after = seconds_of(mended);
  double said = 0;
  std::string others;
  for (const profiler::Advice& a : advice_on(slow, rule))
    if (a.rule == rule) said += a.seconds;
    else others += (others.empty() ? "" : ", ") + a.rule;
  const double won = before - after;
  std::string left;
  for (const profiler::Advice& a : advice_on(mended, rule + " mended")) left += (left.empty() ? "" : ", ") + a.rule;
  fmt::print("{:<18} step {:8.3f} ms, mended {:8.3f} ms, won {:8.3f}, said {:8.3f} ms ({:+.0f} %){}{}\n", rule,
             before * 1e3, after * 1e3, won * 1e3, said * 1e3, (said / won - 1) * 100,
             others.empty() ? "" : "; also: " + others, left.empty() ? "" : "; left: " + left);
  std::fflush(stdout);
}

// Images planes first, and channels last.
void layouts() {
  const auto step_of = [](bool last) {
    auto model = std::make_shared<models::ResNet50>();
    auto optimizer = std::make_shared<optim::AdamW>(model->parameters());
    Tensor x = randn({64, 3, 224, 224});
    const Tensor y = randint(0, 1000, {64});
    if (last) x = x.to(ChannelsLast);
    return [=] {
      optimizer->zero_grad();
      Tensor loss;
      {
        const amp::Autocast region(BFloat16);
        loss = cross_entropy((*model)(x), y);
      }
      loss.backward();
      optimizer->step();
    };
  };
  compare("layout copies", step_of(false), step_of(true));
}

struct Wide : nn::Module {
  std::vector<nn::Child<nn::Linear>> layers;
  explicit Wide(int64_t width, int depth) {
    for (int i = 0; i < depth; ++i) layers.push_back(add("layer" + std::to_string(i), nn::Linear(width, width)));
  }
  Tensors forward(const Tensors& in) const override {
    Tensor x = one_input(in);
    for (const auto& layer : layers) x = relu(layer(x));
    return {x};
  }
};
Step wide_step(int64_t rows, int64_t width, int depth) {
  auto model = std::make_shared<Wide>(width, depth);
  auto optimizer = std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions{.lr = 1e-3});
  const Tensor x = randn({rows, width});
  return [=] {
    optimizer->zero_grad();
    mean((*model)(x)).backward();
    optimizer->step();
  };
}

// f32 without tf32, and with it.
void matrix_cores() {
  const Step step = wide_step(4096, 4096, 4);
  const auto with = [&](bool tf32) {
    return [=] {
      allow_tf32(tf32);
      step();
    };
  };
  compare("matrix cores", with(false), with(true));
  allow_tf32(false);
}

// A step whose kernels are shorter than their launches, and the same from a captured graph.
void launches() {
  const Step step = wide_step(64, 128, 24);
  for (int i = 0; i < 3; ++i) step();
  auto graph = std::make_shared<DeviceGraph>();
  graph->capture(card(), step);
  compare("host-bound", step, [=] { graph->replay(); });
}

// Batches that are not there in time.
void data() {
  const Step step = wide_step(4096, 2048, 8);
  const auto with = [&](bool late) {
    return [=] {
      if (late) {
        wait();
        const profiler::Range range("data");
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      step();
      wait();
    };
  };
  compare("data loader", with(true), with(false));
}

// A value that is read after each layer, and none.
void reads() {
  const auto step = [](bool reading) {
    const Tensor w = randn({1024, 1024}) * 0.03, x = randn({1024, 1024});
    return [=] {
      const NoGrad no_grad;
      Tensor y = x;
      for (int i = 0; i < 40; ++i) {
        y = tanh(matmul(y, w));
        if (reading) (void)mean(y).item();
        else (void)mean(y);
      }
    };
  };
  compare("synchronisation", step(true), step(false));
}

}  // namespace

int main() {
  const DeviceGuard guard(card());
  layouts();
  matrix_cores();
  launches();
  data();
  reads();
}
