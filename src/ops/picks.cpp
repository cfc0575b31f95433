#include "ops/picks.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <optional>
#include <set>

#include "core/gpu/backend.h"
#include "core/util/median.h"
#include "kernels/kernel_lists.h"
#include "tessera/stream.h"
#include "tessera/version.h"

namespace tessera {
namespace {

// A kernel of the list's end is picked only if it takes at most this share of the time of what stands before it, so
// that noise does not decide.
constexpr double kClearlyFaster = 0.97;
constexpr int kRounds = 5;

std::atomic<bool> used{false};

struct PickTables {
  std::recursive_mutex mutex;  // also held while a call is measured, whose kernels may ask for other calls
  std::shared_ptr<PickBook> book;
  std::map<std::pair<DeviceType, int>, Picks> devices;
  std::set<std::string> warned;  // calls
};
PickTables& table() {
  static auto* table = new PickTables;
  return *table;
}

// Seconds of `runs` runs of a kernel, one after the other.
double time_runs(const Kernel& kernel, const Call& call, Device device, int runs) {
  Call again = call;
  Tensor workspace;
  if (kernel.workspace_bytes)
    if (size_t bytes = kernel.workspace_bytes(call)) {
      workspace = empty({static_cast<int64_t>(bytes)}, UInt8, device);
      again.workspace = workspace.data_ptr();
    }
  if (!device.is_gpu()) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) kernel.run(again);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Event begin(device, true), end(device, true);
  begin.record(current_stream(device));
  for (int i = 0; i < runs; ++i) kernel.run(again);
  end.record(current_stream(device));
  end.synchronize();
  return end.milliseconds_since(begin) * 1e-3;
}

struct Candidate {
  const Kernel* kernel;
  double once = 0;  // seconds, warm
  std::vector<double> times = {};
  double median() const { return times.empty() ? once : tessera::median(times); }
};

// Every run writes all of the call's outputs, and the one that counts comes last.
std::optional<Pick> measure(const Call& call, KernelList list) {
  const Device device = call_device(call);
  std::vector<Candidate> candidates;
  double least = 1e300;
  std::string failures;
  for (const Kernel& kernel : list) {
    if (kernel.supports && kernel.supports(call) != Reason::Ok) continue;
    Candidate candidate{&kernel};
    try {
      time_runs(kernel, call, device, 2);
      candidate.once = time_runs(kernel, call, device, 1);
    } catch (const OutOfMemoryError&) {
      continue;
    } catch (const Error& error) {
      failures += fmt::format("warning: {} is not measured for {}: {}\n", kernel.name, call_text(call), error.what());
      continue;
    }
    least = std::min(least, candidate.once);
    candidates.push_back(std::move(candidate));
  }
  if (!candidates.empty()) fmt::print(stderr, "{}", failures);  // else the call itself will say why
  if (candidates.size() < 2) return std::nullopt;
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& c : candidates) {
      if (c.once > 10 * least) continue;  // no round changes that
      const int runs = static_cast<int>(std::clamp(1e-3 / c.once, 1.0, 100.0));
      c.times.push_back(time_runs(*c.kernel, call, device, runs) / runs);
    }
  Pick pick;
  double best = 0;
  for (Candidate& c : candidates) {
    const double time = c.median();
    pick.microseconds.emplace_back(c.kernel->name, std::round(time * 1e8) / 100);  // what a record keeps
    if (!pick.kernel.empty() && time > kClearlyFaster * best) continue;
    pick.kernel = c.kernel->name;
    best = time;
  }
  pick.when = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  return pick;
}

bool can_be_measured(const Call& call) {
  if (call.op.in_place || call.op.transfers) return false;
  return !call_device(call).is_gpu() || !gpu::capture_on(gpu::calling());
}

const Kernel* find_kernel(KernelList list, const std::string& name) {
  for (const Kernel& kernel : list)
    if (name == kernel.name) return &kernel;
  return nullptr;
}

void add_tensor(std::string& text, const Tensor& t) {
  if (!t.defined()) {
    text += " none";
    return;
  }
  text += fmt::format(" {}[", name(t.dtype()));
  for (int64_t d = 0; d < t.dim(); ++d) text += fmt::format("{}{}", d ? "," : "", t.size(d));
  text += ']';
  if (!t.is_contiguous()) text += fmt::format("{{{}}}", fmt::join(t.strides(), ","));
}

}  // namespace

std::string call_text(const Call& call) {
  std::string text(call.op.name);
  for (const Tensor& t : call.in) add_tensor(text, t);
  text += fmt::format(" -> {}", std::count_if(call.out.begin(), call.out.end(), [](auto& t) { return t.defined(); }));
  // What is allowed decides what a list offers.
  if (tf32_allowed()) text += "; tf32";
  if (nondeterministic_allowed()) text += "; nondeterministic";
  const std::string attrs = call.attrs.describe();
  return attrs.empty() ? text : text + "; " + attrs;
}

std::string card_of(Device device) {
  if (!device.is_gpu()) return cpu_description();
  const DeviceProperties p = properties(device);
  return p.name + ' ' + p.architecture;
}

std::string libraries_of(Device device) {
  std::string text = std::string("tessera ") + TESSERA_VERSION;
  if (!device.is_gpu()) return text;
  gpu::begin_call(device);
  const std::string vendor = gpu_libraries();
  return vendor.empty() ? text : text + ", " + vendor;
}

void use_picks(std::shared_ptr<PickBook> book) {
  PickTables& t = table();
  const std::lock_guard lock(t.mutex);
  t.book = std::move(book);
  t.devices.clear();
  t.warned.clear();
  used = t.book != nullptr;
}

bool picks_are_used() { return used.load(std::memory_order_relaxed); }

const Kernel* picked_kernel(const Call& call, KernelList list, Pick* known) {
  const Device device = call_device(call);
  PickTables& t = table();
  const std::lock_guard lock(t.mutex);
  if (!t.book) return nullptr;
  auto [of_device, fresh] = t.devices.try_emplace({device.type, device.index});
  if (fresh) of_device->second = t.book->read(device);
  const std::string text = call_text(call);
  auto found = of_device->second.find(text);
  if (found == of_device->second.end()) {
    if (!t.book->measures() || !can_be_measured(call)) return nullptr;
    const std::optional<Pick> pick = measure(call, list);
    if (!pick) return nullptr;
    found = of_device->second.emplace(text, *pick).first;
    t.book->keep(device, text, *pick);
  }
  if (known) *known = found->second;
  const Kernel* kernel = find_kernel(list, found->second.kernel);
  if (kernel && (!kernel->supports || kernel->supports(call) == Reason::Ok)) return kernel;
  if (t.warned.insert(text).second)
    fmt::print(stderr, "warning: {} picks '{}' for {}, which {}: ignored\n", t.book->name(device), found->second.kernel,
               text, kernel ? sentence(kernel->supports(call)) : "is not in the list");
  return nullptr;
}

}  // namespace tessera
