// Convolutions drawn at random, and what each of their three passes takes: a line each, which convolutions_torch.py
// reads and puts PyTorch's time beside.
//   bench_convolutions [COUNT=200] [SEED=1] > ours.txt && python3 benchmarks/convolutions_torch.py ours.txt
// Without a count, of "-", it times those whose lines it reads from its input: so the script takes turns with it.
// TESSERA_BENCH_DEVICE names the device (cuda:0). TESSERA_BENCH_CLOCK=process counts processor time: with one thread,
// on a machine with other work. TESSERA_BENCH_KERNEL forces a kernel where it takes the call. bf16 on a card, f32 on
// the CPU, where problems are smaller.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>

#include "ops/call_plan.h"
#include "ops/conv.h"
#include "ops/op_table.h"
#include "tessera/observer.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

struct Problem {
  int64_t images, channels, size[2], filters, taps[2], groups;
  Conv2dOptions options;
  bool channels_last;

  // None where the window does not fit: a quotient of integers would round up to one.
  int64_t places(int d) const {
    const int64_t room = size[d] + 2 * options.padding[d] - options.dilation[d] * (taps[d] - 1) - 1;
    return room < 0 ? 0 : room / options.stride[d] + 1;
  }
  double multiplications() const {
    return static_cast<double>(images * filters * places(0) * places(1)) *
           static_cast<double>(channels / groups * taps[0] * taps[1]);
  }
  double elements() const {
    return static_cast<double>(images) *
           static_cast<double>(channels * size[0] * size[1] + filters * places(0) * places(1));
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  // Of at most so many multiplications and elements.
  Problem problem(double multiplications, double elements) {
    while (true) {
      Problem p{};
      const int64_t kind = between(0, 19);  // 14 of 20 in one group, 3 depthwise, 3 in a few groups
      p.groups = 1;
      p.channels = scaled(3, 1024);
      p.filters = scaled(3, 1024);
      if (kind >= 17) {
        p.groups = int64_t{1} << between(1, 5);
        p.channels = (p.channels + p.groups - 1) / p.groups * p.groups;
        p.filters = (p.filters + p.groups - 1) / p.groups * p.groups;
      } else if (kind >= 14) {
        p.groups = p.filters = p.channels;
      }
      p.size[0] = scaled(7, 224);
      p.size[1] = between(0, 3) ? p.size[0] : scaled(7, 224);
      p.taps[0] = between(1, 7);
      p.taps[1] = between(0, 3) ? p.taps[0] : between(1, 7);
      for (int d = 0; d < 2; ++d) {
        p.options.stride[d] = between(0, 2) ? 1 : between(2, 3);
        p.options.dilation[d] = p.taps[d] == 1 || between(0, 4) ? 1 : 2;
        p.options.padding[d] = between(0, 2) ? p.taps[d] / 2 * p.options.dilation[d] : 0;
      }
      p.options.groups = p.groups;
      p.channels_last = between(0, 1);
      if (p.places(0) < 1 || p.places(1) < 1) continue;
      p.images = scaled(1, 128);
      while (p.images > 1 && (p.multiplications() > multiplications || p.elements() > elements)) p.images /= 2;
      if (p.multiplications() <= multiplications && p.elements() <= elements) return p;
    }
  }

 private:
  // As likely in each doubling.
  int64_t scaled(int64_t low, int64_t high) {
    std::uniform_real_distribution<> exponent(std::log(static_cast<double>(low)),
                                              std::log(static_cast<double>(high) + 1));
    return std::min(high, static_cast<int64_t>(std::exp(exponent(random_))));
  }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  std::mt19937_64 random_;
};

// The kernels that a call picked, of the operators' lists.
std::string kernels_of(const std::function<void()>& call) {
  struct Names final : Observer {
    void launched(const LaunchSeen& launch) override { all += (all.empty() ? "" : "+") + std::string(launch.kernel); }
    std::string all;
  } names;
  const Observing guard(names);
  call();
  return names.all;
}

// Microseconds now, or of the processor's work for this process where TESSERA_BENCH_CLOCK=process.
double now() {
  static const char* const clock = std::getenv("TESSERA_BENCH_CLOCK");
  if (clock && std::string_view(clock) == "process") return 1e6 / CLOCKS_PER_SEC * static_cast<double>(std::clock());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Microseconds of a call: the least of some rounds of as many as take a millisecond, or ten on a card.
double time(Device device, const std::function<void()>& call) {
  const auto passed = [&](int calls) {
    const double begin = now();
    for (int i = 0; i < calls; ++i) call();
    if (device.is_gpu()) current_stream(device).synchronize();
    return now() - begin;
  };
  passed(2);
  const double length = device.is_gpu() ? 10000 : 1000;
  const int calls = static_cast<int>(std::clamp(length / passed(1), 1.0, 200.0));
  double least = passed(calls), all = least;
  for (int round = 1; round < 5 || all < 20000; ++round) {
    const double round_time = passed(calls);
    least = std::min(least, round_time), all += round_time;
  }
  return least / calls;
}

void run(const Problem& p, Device device) {
  const DType dtype = device.is_gpu() ? BFloat16 : Float32;
  const auto make = [&](const Shape& shape) {
    const Tensor t = randn(shape).to(dtype);
    return p.channels_last ? t.to(ChannelsLast) : t;
  };
  const Tensor x = make({p.images, p.channels, p.size[0], p.size[1]});
  const Tensor w = make({p.filters, p.channels / p.groups, p.taps[0], p.taps[1]});
  const Tensor y = conv2d(x, w, {}, p.options), dy = make(y.shape());
  const auto sized = [&](const int64_t(&size)[2]) {
    ConvAttrs a = conv_attrs(p.options);
    std::copy(size, size + 2, a.size);
    return a;
  };
  const std::function<void()> passes[] = {
      [&] { conv2d(x, w, {}, p.options); },
      [&] {
        dispatch_one(conv2d_input_grad_op, {dy, w}, sized(p.size));
      },
      [&] {
        dispatch_one(conv2d_weight_grad_op, {x, dy, w}, sized(p.taps));
      },
  };
  std::string times, kernels;
  const char* const kernel = std::getenv("TESSERA_BENCH_KERNEL");
  constexpr std::string_view ops[] = {"conv2d", "conv2d_input_grad", "conv2d_weight_grad"};
  for (int i = 0; i < 3; ++i) {
    const auto& pass = passes[i];
    std::optional<ForceKernel> forced;
    if (kernel) try {
        forced.emplace(ops[i], kernel);
        pass();
      } catch (const Error&) {
        forced.reset();
      }
    times += fmt::format(" {:.2f}", time(device, pass));
    kernels += " " + kernels_of(pass);
  }
  const Conv2dOptions& o = p.options;
  fmt::print("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}{}{}\n", p.images, p.channels, p.size[0], p.size[1],
             p.filters, p.taps[0], p.taps[1], p.groups, o.stride[0], o.stride[1], o.padding[0], o.padding[1],
             o.dilation[0], o.dilation[1], p.channels_last ? "last" : "first", times, kernels);
  std::fflush(stdout);
}

// The problem of a line that run() prints.
Problem problem_of(const std::string& line) {
  std::istringstream words(line);
  Problem p{};
  Conv2dOptions& o = p.options;
  std::string layout;
  words >> p.images >> p.channels >> p.size[0] >> p.size[1] >> p.filters >> p.taps[0] >> p.taps[1] >> p.groups >>
      o.stride[0] >> o.stride[1] >> o.padding[0] >> o.padding[1] >> o.dilation[0] >> o.dilation[1] >> layout;
  if (!words || (layout != "last" && layout != "first"))
    throw Error(fmt::format("bench_convolutions: not a convolution: {}", line));
  o.groups = p.groups;
  p.channels_last = layout == "last";
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  const bool reads = argc > 1 && std::string_view(argv[1]) == "-";
  const int count = argc > 1 ? std::atoi(argv[1]) : 200;
  const auto seed = static_cast<uint64_t>(argc > 2 ? std::atoll(argv[2]) : 1);
  try {
    const char* name = std::getenv("TESSERA_BENCH_DEVICE");
    const Device device = parse_device(name ? name : "cuda:0");
    const DeviceGuard guard(device);
    const NoGrad no_grad;
    allow_nondeterministic(true);  // as in PyTorch, unless told otherwise
    std::string line;
    while (reads && std::getline(std::cin, line)) run(problem_of(line), device);
    if (reads) return 0;
    fmt::print(
        "# seed {}: images channels h w filters taps taps groups strides paddings dilations layout | us forward, "
        "input gradient, weight gradient\n",
        seed);
    Draw draw(seed);
    for (int i = 0; i < count; ++i) run(device.is_gpu() ? draw.problem(2e10, 2e8) : draw.problem(5e8, 2e7), device);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
