// The life of a profile: which steps are recorded, who is asked for what, and where it goes.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "core/gpu/backend.h"
#include "core/util/observers.h"
#include "profiler/assemble.h"
#include "profiler/files.h"
#include "profiler/trace_json.h"
#include "tessera/autograd.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

std::atomic<Recorder*> recording{nullptr};  // while one does, for ranges
std::atomic<Profile*> living{nullptr};
std::atomic<int> fork_count{0};

// A child has none of the threads and devices that are recorded: there the profile is silent.
void after_fork_in_child() {
  ++fork_count;
  if (recording.exchange(nullptr)) observers::count.fetch_sub(1);
  living = nullptr;
}

const Options& checked(const Options& options) {
  const Schedule& s = options.schedule;
  if (s.wait < 0 || s.warmup < 0 || s.active < 0 || s.repeat < 0)
    throw Error("profile: steps of a schedule cannot be negative");
  if (options.most_bytes < size_t{1} << 20) throw Error("profile: needs at least 1 MiB for what it keeps");
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks)
    throw Error(fmt::format("profile: rank {} of {} is none", options.rank, options.ranks));
  return options;
}

}  // namespace

enum class Phase { Off, Wait, Warmup, Active, Done };

struct Profile::State {
  Options options;
  Recorder recorder{options};
  Observing* observing = nullptr;
  Phase phase = Phase::Off;
  int64_t step = 0, cycle = 0, in_cycle = 0;
  int64_t plain_from = 0, plain_until = 0, plain_steps = 0;  // of this cycle: steps that are not recorded
  int forks = fork_count;
  std::map<DeviceType, std::string> watched;  // and why its library tells nothing
  Assembly::Kinds kinds;
  std::vector<std::string> files, trouble;
  std::optional<Trace> ended;  // which waits for a step to compare with
  int64_t ended_at = 0;
  std::shared_ptr<const Recording> last;
  FileWriter writer;

  explicit State(Options o) : options(std::move(o)) {
    recorder.on_card = [this](Device device) { return watch(device); };
    recorder.on_ran_out = [this](const std::string& what) { return snapshot(what); };
  }

  bool is_foreign() const { return forks != fork_count; }

  // Begins to watch the vendor's devices; true: nobody tells of their kernels, so that events must.
  bool watch(Device device) {
    const auto [at, fresh] = watched.emplace(device.type, "");
    if (fresh) at->second = gpu::state(device).runtime.start_activities(options.most_bytes);
    return !at->second.empty();
  }

  void start() {
    if (observing) return;
    recording = &recorder;
    observing = new Observing(recorder, {.all_threads = true, .call_sites = options.call_sites});
  }

  Trace end() {
    recording = nullptr;
    delete std::exchange(observing, nullptr);
    Assembly all(recorder.end());
    for (auto& [type, why] : std::exchange(watched, {})) {
      if (!why.empty()) {
        all.note(fmt::format("kernels were timed by events, a call at a time: {}", why));
        continue;
      }
      const int64_t dropped =
          gpu::state({type, 0}).runtime.stop_activities([&](const gpu::Activity& a) { all.add(a); });
      if (dropped > 0) all.note(fmt::format("{} activities of devices were dropped: there was no room", dropped));
    }
    Trace trace = all.take(kinds);
    if (plain_steps > 0) trace.plain_step = (plain_until - plain_from) / plain_steps;
    trace.rank = options.rank;
    trace.ranks = options.ranks;
    trace.process = getpid();
    char host[256] = "host";
    (void)gethostname(host, sizeof host - 1);
    trace.host = host;
    return trace;
  }

  void finish() {
    try {
      ended = end();
    } catch (const Error& e) {  // the program goes on
      trouble.emplace_back(e.what());
    }
  }

  // Gives what was recorded to who wants it.
  void hand_over() {
    if (!ended || is_foreign()) return;
    Trace trace = *std::exchange(ended, std::nullopt);
    try {
      describe_devices(trace);
      last = std::make_shared<const Recording>(std::make_shared<const Trace>(std::move(trace)));
      wait_for_files();
      if (!options.folder.empty()) writer.begin(last, options.folder);
      if (options.on_trace) options.on_trace(*last);
    } catch (const Error& e) {  // the program goes on
      trouble.emplace_back(e.what());
    }
  }

  void wait_for_files() {
    WrittenFiles written = writer.wait();
    if (!written.trace.empty()) files.push_back(std::move(written.trace));
    std::move(written.trouble.begin(), written.trouble.end(), std::back_inserter(trouble));
  }

  // What was seen until memory ran out, while the program hears of it.
  std::string snapshot(const std::string& what) {
    if (options.folder.empty()) return "";
    const std::string file = options.folder + "/out_of_memory.json.gz";
    try {
      Assembly all(recorder.copy());
      all.note("memory ran out: " + what);
      std::filesystem::create_directories(options.folder);
      write_trace(all.take(kinds), file);
      return "; what was held is in " + file;
    } catch (const std::exception& e) {
      return fmt::format("; what was held could not be written: {}", e.what());
    }
  }

  // The phase of the step that begins now. Only the last step of a warm-up warms the recording up.
  Phase next() const {
    const Schedule& s = options.schedule;
    if (s.repeat > 0 && cycle >= s.repeat) return Phase::Done;
    if (in_cycle < s.wait + std::max<int64_t>(s.warmup - 1, 0)) return Phase::Wait;
    return in_cycle < s.wait + s.warmup ? Phase::Warmup : Phase::Active;
  }
  void enter(Phase to) {
    if (to == Phase::Warmup || to == Phase::Active) {
      if (phase != to) recorder.begin();
      start();
    }
    if (to == Phase::Active) recorder.begin_step(fmt::format("ProfilerStep#{}", step));
    phase = to;
  }
  void advance() {
    if (ended) {
      ended->plain_step = moment() - ended_at;
      hand_over();
    }
    if (phase == Phase::Done) return;
    if (!observing) count_plain_step();
    ++step;
    ++in_cycle;
    recorder.end_step();
    const Schedule& s = options.schedule;
    if (s.active > 0 && in_cycle == s.wait + s.warmup + s.active) {
      finish();
      in_cycle = 0;
      ++cycle;
      phase = Phase::Off;
    }
    const Phase to = next();
    // Where no step was timed before a recording, the one behind it is, until when nobody writes files beside it.
    if (ended && (ended->plain_step > 0 || to == Phase::Warmup || to == Phase::Active)) hand_over();
    if (ended) ended_at = moment();
    enter(to);
  }

  // Now, with devices that are not behind the host.
  static int64_t moment() {
    try {
      if (default_device().is_card()) synchronize(default_device());
    } catch (const Error&) {  // the program hears of it by itself
    }
    return now();
  }

  // The first of a cycle is left out, which may be a program's first.
  void count_plain_step() {
    const Schedule& s = options.schedule;
    const int64_t last = s.wait + std::max<int64_t>(s.warmup - 1, 0) - 1;
    if (last < 1 || (in_cycle != 0 && in_cycle != last)) return;
    (in_cycle == 0 ? plain_from : plain_until) = moment();
    plain_steps = in_cycle;
  }
};

Profile::Profile(Options options) {
  static const bool told = pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
  (void)told;
  checked(options);
  Profile* none = nullptr;
  if (!living.compare_exchange_strong(none, this)) throw Error("profile: another one lives; only one can at a time");
  try {
    state_ = std::make_unique<State>(std::move(options));
    state_->enter(state_->next());
  } catch (...) {
    living = nullptr;
    throw;
  }
}

Profile::~Profile() { stop(); }

void Profile::step() {
  if (!state_->is_foreign() && (state_->phase != Phase::Done || state_->ended)) state_->advance();
}

void Profile::stop() {
  if (state_->is_foreign() || living != this) return;
  if (state_->phase == Phase::Active) {
    state_->finish();
  } else if (state_->observing) {
    try {
      state_->end();
    } catch (const Error& e) {
      state_->trouble.emplace_back(e.what());
    }
  }
  state_->hand_over();
  state_->wait_for_files();
  state_->phase = Phase::Done;
  living = nullptr;
}

static void tell(Assembly::Kinds& kinds, const std::vector<Tensor>& tensors, MemoryKind kind) {
  for (const Tensor& t : tensors) {
    if (!t.defined() || t.device().meta) continue;
    const int device = t.device().is_gpu() ? t.device().index : -1;
    kinds[{device, reinterpret_cast<uint64_t>(t.storage()->data)}] = {kind, static_cast<int64_t>(t.storage()->bytes)};
  }
}
void Profile::parameters(const std::vector<Tensor>& tensors) { tell(state_->kinds, tensors, MemoryKind::Parameter); }
void Profile::optimizer_state(const std::vector<Tensor>& tensors) {
  tell(state_->kinds, tensors, MemoryKind::OptimizerState);
}

std::string Profile::summary(size_t rows) const {
  state_->hand_over();
  if (!state_->last) return "";
  return state_->last->notes() + state_->last->steps() + state_->last->table(rows) + state_->last->advice();
}
const std::vector<std::string>& Profile::files() const {
  state_->hand_over();
  state_->wait_for_files();
  return state_->files;
}
const std::vector<std::string>& Profile::trouble() const {
  state_->hand_over();
  state_->wait_for_files();
  return state_->trouble;
}

void step() {
  if (Profile* const profile = living) profile->step();
}
void parameters(const std::vector<Tensor>& tensors) {
  if (Profile* const profile = living) profile->parameters(tensors);
}
void optimizer_state(const std::vector<Tensor>& tensors) {
  if (Profile* const profile = living) profile->optimizer_state(tensors);
}
bool is_recording() { return recording.load(std::memory_order_relaxed) != nullptr; }

Range::Range(std::string_view name) : open_(false) {
  if (Recorder* const to = recording.load(std::memory_order_relaxed)) {
    to->begin_range(name);
    open_ = true;
  }
}
Range::~Range() {
  if (!open_) return;
  if (Recorder* const to = recording.load(std::memory_order_relaxed)) to->end_range();
}

}  // namespace tessera::profiler
