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
#include "ops/call_plan.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"
#include "tessera/version.h"

namespace tessera {
namespace {

// A kernel of the list's end, or one that is estimated to be slower, is picked only if it takes at most this share of
// the time of what stands before it, so that noise does not decide.
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

// Tensors that lie as a call's, with random numbers where they are floating and zeros elsewhere.
Tensor example(const Operand& t, Generator& generator) {
  if (!t.defined()) return {};
  int64_t elements = 1;
  for (int64_t d = 0; d < t.dim(); ++d) elements += std::abs(t.stride(d)) * std::max<int64_t>(t.size(d) - 1, 0);
  const Tensor memory = is_floating(t.dtype())
                            ? randn({elements}, generator, Float32, cpu()).to(t.dtype()).to(t.device())
                            : zeros({elements}, t.dtype(), t.device());
  return as_strided(memory.storage(), t.shape(), t.strides(), 0, t.dtype());
}

// A call like one that is asked for, on tensors of its own.
struct Example {
  const Op& op;
  const Attrs& attrs;
  Tensors in, out;
  Device device;
  explicit Example(const Call& call) : op(call.op), attrs(call.attrs), device(call_device(call)) {
    Generator generator(1);
    for (const Operand& t : call.in) in.push_back(example(t, generator));
    for (const Operand& t : call.out) out.push_back(example(t, generator));
  }

  Ref<Plan> plan(const Kernel& kernel) const {
    const auto ins = metas_of({in.data(), in.size()}, device), outs = metas_of({out.data(), out.size()}, device);
    return make_plan(kernel, op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()});
  }
  void run(const Plan& plan) const { run_plan(plan, {in.data(), in.size()}, {out.data(), out.size()}); }

  // Seconds of `runs` runs, one after the other.
  double time(const Plan& plan, int runs) const {
    if (!device.is_gpu()) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < runs; ++i) run(plan);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    Event begin(device, true), end(device, true);
    begin.record(current_stream(device));
    for (int i = 0; i < runs; ++i) run(plan);
    end.record(current_stream(device));
    end.synchronize();
    return end.milliseconds_since(begin) * 1e-3;
  }
};

struct Candidate {
  const Kernel* kernel;
  Reason reason;
  Ref<Plan> plan = {};
  double once = 0;  // seconds, warm
  std::vector<double> times = {};
  double median() const { return times.empty() ? once : tessera::median(times); }
};

std::optional<Pick> measure(const Call& call, KernelList list) {
  NoGrad plain;
  std::optional<Example> made;
  try {
    made.emplace(call);
  } catch (const OutOfMemoryError&) {
    return std::nullopt;  // the call itself may still fit
  }
  const Example& example = *made;
  std::vector<Candidate> candidates;
  double least = 1e300;
  std::string failures;
  for (const Kernel& kernel : list) {
    const Reason reason = supports(kernel, call);
    if (!can_run(reason)) continue;
    Candidate candidate{&kernel, reason};
    try {
      candidate.plan = example.plan(kernel);
      example.time(*candidate.plan, 2);
      candidate.once = example.time(*candidate.plan, 1);
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
  std::ranges::stable_partition(candidates, [](const Candidate& c) { return c.reason == Reason::Ok; });
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& c : candidates) {
      if (c.once > 10 * least) continue;  // no round changes that
      const int runs = static_cast<int>(std::clamp(1e-3 / c.once, 1.0, 100.0));
      c.times.push_back(example.time(*c.plan, runs) / runs);
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

void add_tensor(std::string& text, const Operand& t) {
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
  for (const Operand& t : call.in) add_tensor(text, t);
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
  forget_plans();
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
  if (kernel && can_run(supports(*kernel, call))) return kernel;
  if (t.warned.insert(text).second)
    fmt::print(stderr, "warning: {} picks '{}' for {}, which {}: ignored\n", t.book->name(device), found->second.kernel,
               text, kernel ? sentence(supports(*kernel, call)) : "is not in the list");
  return nullptr;
}

}  // namespace tessera
