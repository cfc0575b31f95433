// tessera bench comm: collectives of the ranks that `tessera launch` began, from a few bytes up.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "command.h"
#include "remote_choice.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;
using dist::World;

/// A collective of x, which has as many bytes as the row of the table says, and the share of them that a link carries:
/// bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md there).
struct Row {
  const char* name;
  std::function<void(const Tensor& x, const World& world)> call;
  std::function<double(double ranks)> bus;
  bool shares = true;  // x is made of the ranks' rows
};

double others(double n) { return (n - 1) / n; }

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"all_reduce", [](const Tensor& x, const World& w) { dist::all_reduce_({x}, w); },
       [](double n) { return 2 * others(n); }, false},
      {"all_gather", [](const Tensor& x, const World& w) { dist::all_gather(x.slice(0, 0, x.size(0) / w.size()), w); },
       others},
      {"reduce_scatter", [](const Tensor& x, const World& w) { dist::reduce_scatter(x, w); }, others},
      {"all_to_all", [](const Tensor& x, const World& w) { dist::all_to_all(x, w); }, others},
      {"broadcast", [](const Tensor& x, const World& w) { dist::broadcast(x, 0, w); }, [](double) { return 1.0; },
       false},
      {"reduce", [](const Tensor& x, const World& w) { dist::reduce(x, 0, w); }, [](double) { return 1.0; }, false},
      {"gather", [](const Tensor& x, const World& w) { dist::gather(x.slice(0, 0, x.size(0) / w.size()), 0, w); },
       others},
      {"scatter", [](const Tensor& x, const World& w) { dist::scatter(x, 0, w); }, others},
      {"send_recv",
       [](const Tensor& x, const World& w) {  // round in a ring; the first rank begins
         const int next = (w.rank() + 1) % w.size(), before = (w.rank() + w.size() - 1) % w.size();
         const TensorMeta meta{x.shape(), x.dtype(), x.device()};
         if (w.rank() == 0) dist::send(x, next, w);
         dist::recv(meta, before, w);
         if (w.rank() != 0) dist::send(x, next, w);
       },
       [](double n) { return n; }, false}};
  return all;
}

struct CommCommand : CommonOptions {
  std::string smallest = "4", largest = "64M";
  double seconds = 0.2;
  std::string only, dtype = "f32";

  // Microseconds of each call, in order; as many on all ranks.
  std::vector<double> measure(const Row& row, const Tensor& x, const World& world) const {
    for (int i = 0; i < 3; ++i) row.call(x, world);
    std::vector<double> times;
    const Clock::time_point begin = Clock::now();
    const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
    for (int64_t more = 1; more > 0;) {
      for (int i = 0; i < 10; ++i) {
        dist::barrier(world);
        const Clock::time_point start = Clock::now();
        row.call(x, world);
        if (x.device().is_gpu()) synchronize(x.device());
        times.push_back(since(start) * 1e6);
      }
      more = dist::all_reduce(full({1}, since(begin) < seconds, Int32), world, dist::Min).item<int32_t>();
    }
    // A call has taken as long as the rank that it took longest.
    const auto count = static_cast<int64_t>(times.size());
    times = dist::all_reduce(tensor(times, {count}), world, dist::Max).to_vector<double>();
    std::sort(times.begin(), times.end());
    return times;
  }

  DType chosen_dtype() const {
    try {
      return parse_dtype(dtype);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
  }

  void run() {
    apply();
    const World world;
    if (world.size() == 1)
      throw UsageError("one rank has nobody to exchange with: tessera launch --procs 2 -- tessera bench comm");
    const int64_t least = parse_size("--min", smallest), most = parse_size("--max", largest);
    if (least > most) throw UsageError(fmt::format("--min {} exceeds --max {}", smallest, largest));
    const DType type = chosen_dtype();
    std::vector<std::string> names;
    for (const Row& row : rows()) names.push_back(row.name);
    if (!only.empty() && std::find(names.begin(), names.end(), only) == names.end())
      throw UsageError(fmt::format("--only {} is none of {}", only, fmt::join(names, ", ")));
    Results results("bench comm", *this);
    results.extra()["ranks"] = world.size();
    const Device device = world.device(target());
    dist::all_reduce(full({1}, 0, Float32, device), world);
    const std::string engine = world.engine(device);
    results.extra()["engine"] = engine;
    const bool leads = world.rank() == 0;
    if (leads) {
      fmt::print("{} ranks, engine {}, {}\n\n", world.size(), engine, dtype);
      fmt::print("{:<15} {:>11} {:>10} {:>10} {:>10} {:>9}\n", "collective", "bytes", "p50 us", "p90 us", "p99 us",
                 "bus GB/s");
    }
    for (const Row& row : rows()) {
      if (!only.empty() && only != row.name) continue;
      for (int64_t bytes = least, last = 0; bytes <= most; bytes *= 4) {
        const int64_t each = row.shares ? world.size() : 1,
                      count = std::max<int64_t>(bytes / static_cast<int64_t>(size_of(type)), 1);
        if (std::exchange(last, (count + each - 1) / each) == last) continue;  // there is at least an element
        Generator generator(1);
        const Tensor x = cast(rand({(count + each - 1) / each * each}, generator), type).to(device);
        const std::vector<double> times = measure(row, x, world);
        if (!leads) continue;
        const auto at = [&](double q) { return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))]; };
        const double moved = static_cast<double>(x.numel()) * static_cast<double>(size_of(type));
        const double bus = moved * row.bus(world.size()) / at(0.5) * 1e-3;
        fmt::print("{:<15} {:>11.0f} {:>10.1f} {:>10.1f} {:>10.1f} {:>9.2f}\n", row.name, moved, at(0.5), at(0.9),
                   at(0.99), bus);
        std::fflush(stdout);
        results.add(fmt::format("{} {:.0f}", row.name, moved), at(0.5), "us", false);
      }
    }
    if (leads) results.write();
  }
};

}  // namespace

void add_bench_comm(Command bench) {
  const Command command = bench.command("comm", "Measure collectives between the ranks of `tessera launch`.");
  auto c = std::make_shared<CommCommand>();
  command.option("--min", c->smallest, "bytes of the smallest tensor").with_default();
  command.option("--max", c->largest, "bytes of the largest, such as 1G").with_default();
  command.option("--only", c->only, "one collective, such as all_reduce");
  command.option("--dtype", c->dtype, "of the elements").with_default();
  command.option("--seconds", c->seconds, "of each measurement").range(1e-3, 3600.0).with_default();
  c->add_to(command, true);
  command.run([c] { c->run(); });
}

}  // namespace tessera::app
