// Whether advice is right: steps that are slow for a known reason, what the profiler says that mending it would win,
// and what it does win. TESSERA_BENCH_DEVICE names the device, "cuda:0" where it does not; on "cpu" there are only the
// rules that are about hosts, too. Arguments name rules; without any all are tried.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "profiler/advice.h"
#include "profiler/summary.h"
#include "profiler/trace_json.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;
using Step = std::function<void()>;

Device card() {
  const char* name = std::getenv("TESSERA_BENCH_DEVICE");
  return parse_device(name ? name : "cuda:0");
}
void wait_for(Device device) { current_stream(device).synchronize(); }

// Seconds of a step, the best of five times ten.
double seconds_of(const Step& step, Device device = card()) {
  for (int i = 0; i < 5; ++i) step();
  double best = 1e9;
  for (int turn = 0; turn < 5; ++turn) {
    wait_for(device);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) step();
    wait_for(device);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 10);
  }
  return best;
}

// Recordings go to a folder each, if TESSERA_BENCH_FOLDER names one for them.
std::vector<profiler::Advice> advice_on(const Step& step, const std::string& name) {
  std::vector<profiler::Advice> all;
  const char* folder = std::getenv("TESSERA_BENCH_FOLDER");
  profiler::Profile profile({.schedule = {.wait = 5, .warmup = 1, .active = 10},
                             .folder = folder ? folder + ("/" + name) : "",
                             .on_trace = [&](const profiler::Recording& r) { all = profiler::advice(r.trace()); }});
  for (int i = 0; i < 16; ++i) {
    step();
    profile.step();
  }
  return all;
}

void tell(const std::string& name, const std::string& rule, double before, double after,
          const std::vector<profiler::Advice>& found, const std::vector<profiler::Advice>& left) {
  double said = 0, at_most = 0;
  std::string others, rest;
  for (const profiler::Advice& a : found)
    if (a.rule == rule) said += a.seconds, at_most += std::max(a.seconds, a.at_most);
    else others += (others.empty() ? "" : ", ") + a.rule;
  for (const profiler::Advice& a : left) rest += (rest.empty() ? "" : ", ") + a.rule;
  const double won = before - after;
  const std::string range = at_most > said ? fmt::format(" to {:.3f}", at_most * 1e3) : "";
  fmt::print("{:<24} step {:8.3f} ms, mended {:8.3f} ms, won {:8.3f}, said {:8.3f}{} ms ({:+.0f} %){}{}\n", name,
             before * 1e3, after * 1e3, won * 1e3, said * 1e3, range, (std::clamp(won, said, at_most) / won - 1) * 100,
             others.empty() ? "" : "; also: " + others, rest.empty() ? "" : "; left: " + rest);
  std::fflush(stdout);
}

void compare(const std::string& rule, const Step& slow, const Step& mended, const std::string& name) {
  const double before = seconds_of(slow), after = seconds_of(mended);
  const auto found = advice_on(slow, name);
  tell(name, rule, before, after, found, advice_on(mended, name + " mended"));
}
void compare(const std::string& rule, const Step& slow, const Step& mended) { compare(rule, slow, mended, rule); }

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
  const Step step = card().is_gpu() ? wide_step(4096, 2048, 8) : wide_step(64, 256, 8);
  const auto with = [&](bool late) {
    return [=] {
      if (late) {
        wait_for(card());
        const profiler::Range range("data");
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      step();
      wait_for(card());
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

// On a card a captured graph, which leaves the host out of it.
Step without_host(const Step& step) {
  if (!card().is_gpu()) return step;
  for (int i = 0; i < 3; ++i) step();
  auto graph = std::make_shared<DeviceGraph>();
  graph->capture(card(), step);
  return [=] { graph->replay(); };
}

// GELU written out, and as the one operator that it is; and a step of an optimizer for each parameter, and for all.
void small_kernels() {
  const Tensor x = card().is_gpu() ? randn({64, 256}) : randn({8, 64}), w = randn({x.size(1), x.size(1)});
  const auto chain = [=](bool written_out) {
    return [=] {
      const NoGrad no_grad;
      for (int i = 0; i < 20; ++i) {
        const Tensor h = matmul(x, w);  // between two rows
        if (written_out) (void)(0.5 * h * (1.0 + tanh(0.7978845608 * (h + 0.044715 * (h * h * h)))));
        else (void)gelu_tanh(h);
      }
    };
  };
  compare("small kernels", without_host(chain(true)), without_host(chain(false)), "small kernels, a chain");

  std::vector<Tensor> parameters;
  for (int i = 0; i < 64; ++i) {
    parameters.push_back(randn({256}).set_requires_grad());
    parameters.back().set_grad(randn({256}));
  }
  const auto optimizer = std::make_shared<optim::SGD>(parameters, optim::SGDOptions{.lr = 1e-4});
  const Step each = [=] {
    const NoGrad no_grad;
    for (Tensor p : parameters) p.add_(p.grad(), -1e-4);
  };
  compare("small kernels", without_host(each), without_host([=] { optimizer->step(); }), "small kernels, steps");
}

// ---- ranks

// What two processes share, in which each is a rank.
struct Ranks {
  pthread_barrier_t barrier;
  double seconds = 0;  // of a step
};

// Pieces of work, of which rank 0 has three times as many as the other or as many, and then both wait for each other. A
// piece is a product where there are two cards; otherwise a pause, since processes on one card, or on few cores, take
// time from each other.
void work_as_rank(int rank, bool even, Ranks& ranks, const std::string& folder) {
  const bool on_cards = card().is_gpu() && device_count(card().type) > 1;
  const Device device = on_cards ? Device{card().type, static_cast<int8_t>(rank)} : cpu();
  const int64_t n = on_cards ? 4096 : 1;
  const Tensor a = randn({n, n}).to(device), b = randn({n, n}).to(device);
  const int pieces = even ? 4 : rank == 0 ? 6 : 2;
  const Step step = [&] {
    const NoGrad no_grad;
    for (int i = 0; i < pieces; ++i) {
      (void)matmul(a, b);
      if (!on_cards) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (on_cards) synchronize(device);
    const profiler::Range range("all_reduce");
    pthread_barrier_wait(&ranks.barrier);
  };
  const double seconds = seconds_of(step, device);
  if (rank == 0) ranks.seconds = seconds;
  profiler::Profile profile({.schedule = {.warmup = 2, .active = 10}, .folder = folder, .rank = rank, .ranks = 2});
  for (int i = 0; i < 12; ++i) {
    step();
    profile.step();
  }
  profile.stop();
  for (const std::string& what : profile.trouble()) throw Error(what);
}

// Runs both ranks. Gives a step's seconds, and the advice on their traces as one.
double with_ranks(bool even, std::vector<profiler::Advice>& found) {
  std::string folder = (std::filesystem::temp_directory_path() / "advice-XXXXXX").string();
  if (!mkdtemp(folder.data())) throw Error("cannot make a folder for traces");
  void* const memory = mmap(nullptr, sizeof(Ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("cannot share memory with ranks");
  Ranks& ranks = *new (memory) Ranks;
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&ranks.barrier, &shared, 2);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    try {
      work_as_rank(rank, even, ranks, fmt::format("{}/{}", folder, rank));
      _exit(0);
    } catch (const std::exception& e) {
      fmt::print(stderr, "rank {}: {}\n", rank, e.what());
      _exit(1);
    }
  }
  bool failed = false;
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    (void)wait(&status);
    if (status != 0 && !std::exchange(failed, true))
      for (const pid_t child : children) kill(child, SIGKILL);  // the other would wait for ever
  }
  if (failed) throw Error("a rank failed");
  std::vector<profiler::Trace> traces;
  for (int rank = 0; rank < 2; ++rank)
    for (const auto& entry : std::filesystem::directory_iterator(fmt::format("{}/{}", folder, rank)))
      if (entry.path().string().ends_with(".pt.trace.json")) traces.push_back(profiler::read_trace(entry.path()));
  found = profiler::advice(profiler::merge(traces));
  const double seconds = ranks.seconds;
  munmap(memory, sizeof(Ranks));
  std::filesystem::remove_all(folder);
  return seconds;
}

// Two processes, of which one has more to do. Before anything else here touches a card: its driver does not survive a
// fork.
void imbalance() {
  std::vector<profiler::Advice> found, left;
  const double before = with_ranks(false, found), after = with_ranks(true, left);
  tell("imbalance", "imbalance", before, after, found, left);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  const auto wants = [&](const char* rule) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), rule) != wanted.end();
  };
  if (wants("imbalance")) imbalance();
  const DeviceGuard guard(card());
  const bool on_card = card().is_gpu();
  if (on_card && wants("layout copies")) layouts();
  if (on_card && wants("matrix cores")) matrix_cores();
  if (on_card && wants("host-bound")) launches();
  if (on_card && wants("synchronisation")) reads();
  if (wants("data loader")) data();
  if (wants("small kernels")) small_kernels();
}
