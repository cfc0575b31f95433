#include "latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/cpu/peak.h"
#include "run_cost.h"
#include "tessera/parallel.h"
#include "tessera/profiler.h"
#include "tessera/stream.h"

namespace tessera::app {

const char* const kTimedInPython = R"(
import json, sys, time
threads, seconds, arguments = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
def timed(name, call):
    for _ in range(3): call()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        t = time.perf_counter(); call(); times.append((time.perf_counter() - t) * 1e3)
    times.sort()
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    print(json.dumps({'name': name, 'p50': at(.5), 'p90': at(.9), 'p99': at(.99), 'calls': len(times)}), flush=True)
def failed(name, error):
    print(json.dumps({'name': name, 'error': (str(error).splitlines() or [type(error).__name__])[0]}), flush=True)
)";

namespace {

/// What one system takes for one batch, in milliseconds.
struct Latency {
  double p50 = 0, p90 = 0, p99 = 0;
  size_t calls = 0;
};
Latency summary_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))];
  };
  return {at(0.5), at(0.9), at(0.99), times.size()};
}

std::vector<int64_t> counts(const std::string& text, const char* what, int64_t most) {
  std::vector<int64_t> all;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t n = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, n);
    if (error != std::errc() || stop != text.data() + end || n < 1 || n > most)
      throw UsageError(fmt::format("'{}' is no list of {}", text, what));
    all.push_back(n);
    begin = end + 1;
  }
  return all;
}

std::vector<int64_t> batches_of(const LatencyOptions& o) { return counts(o.batches, "batch sizes", int64_t(1) << 31); }
std::vector<int64_t> threads_of(const LatencyOptions& o) {
  return o.threads.empty() ? std::vector<int64_t>{num_threads()} : counts(o.threads, "threads", 1024);
}

Latency latency_of(const TimedCall& call, const LatencyOptions& o) {
  const Device device = o.common.target();
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    const auto begin = Clock::now();
    call.once();
    if (device.is_gpu()) current_stream(device).synchronize();
    const double time = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    profiler::step();
    return time;
  };
  for (int i = 0; i < 3; ++i) once();
  std::vector<double> times;
  const auto begin = Clock::now();
  while (times.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < o.seconds)
    times.push_back(once());
  return summary_of(times);
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<nlohmann::json> peers(const LatencyOptions& o, const std::string& script,
                                  const std::vector<std::string>& arguments, int64_t threads) {
  std::string command = fmt::format("{} -c {} {} {}", quoted(o.python), quoted(script), threads, o.seconds);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  std::vector<nlohmann::json> all;
  FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) throw Error(fmt::format("cannot start {}", o.python));
  std::string line;
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    nlohmann::json one = nlohmann::json::parse(line, nullptr, false);
    if (one.is_object()) all.push_back(std::move(one));
    line.clear();
  }
  if (pclose(pipe) != 0)
    fmt::print(stderr, "note: {} could not measure peers: is it a Python with their packages?\n", o.python);
  return all;
}

}  // namespace

void check(const LatencyOptions& o) {
  (void)batches_of(o);
  (void)threads_of(o);
  if (!o.python.empty() && std::system((quoted(o.python) + " -c '' 2>/dev/null").c_str()) != 0)
    throw UsageError(fmt::format("--python: {} is no Python that starts", o.python));
}

void time_model(const LatencyOptions& o, const TimedModel& model) {
  Results results("bench model", o.common);
  fmt::print("{:>5} {:>7}  {:<22} {:>10} {:>10} {:>10} {:>11} {:>8} {:>10} {:>9}\n", "batch", "threads", "", "p50 ms",
             "p90 ms", "p99 ms", "samples/s", "of peak", "memory", "ours/this");
  const bool on_cpu = !o.common.target().is_gpu();
  for (const int64_t batch : batches_of(o))
    for (const int64_t n : threads_of(o)) {
      set_num_threads(static_cast<int>(n));
      const TimedCall call = model.with_batch(batch);
      const double flops = flops_of_run(call.once);
      const double peak = on_cpu ? 1e9 * cpu_kernels::measure_fma_peak(static_cast<int>(n), 0.1).gflops : 0;
      reset_peak_memory(o.common.target());
      const Latency ours = latency_of(call, o);
      const auto memory = static_cast<double>(memory_stats(o.common.target()).peak_allocated);
      const auto line = [&](const std::string& name, const Latency& l, const std::string& bytes) {
        const double rate = static_cast<double>(batch) * 1e3 / l.p50, share = flops / (l.p50 * 1e-3) / peak;
        fmt::print("{:>5} {:>7}  {:<22} {:>10.3f} {:>10.3f} {:>10.3f} {:>11.1f} {:>8} {:>10} {:>9.2f}\n", batch, n,
                   name, l.p50, l.p90, l.p99, rate, peak > 0 ? fmt::format("{:.1f} %", 100 * share) : "-", bytes,
                   ours.p50 / l.p50);
        const std::string of = fmt::format("{} batch {} threads {} ", name, batch, n);
        results.add(of + "p50", l.p50, "ms", false);
        results.add(of + "p90", l.p90, "ms", false);
        results.add(of + "p99", l.p99, "ms", false);
        results.add(of + "throughput", rate, "samples/s", true);
        if (peak > 0) results.add(of + "share of the peak", share, "fraction", true);
        std::fflush(stdout);
      };
      line("Tessera", ours, decimal(memory, "B"));
      results.add(fmt::format("Tessera batch {} threads {} peak memory", batch, n), memory, "bytes", false);
      if (o.python.empty() || call.arguments.empty()) continue;
      for (const nlohmann::json& peer : peers(o, model.peers, call.arguments, n)) {
        const std::string name = peer.value("name", "?");
        if (peer.contains("error")) fmt::print(stderr, "note: {}: {}\n", name, peer["error"].get<std::string>());
        else line(name, {peer["p50"], peer["p90"], peer["p99"], peer["calls"]}, "-");
      }
    }
  results.write();
}

}  // namespace tessera::app
