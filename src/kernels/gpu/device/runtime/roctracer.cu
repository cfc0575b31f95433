// roctracer writes to a pool of its own while the program runs, and lends a thread of its own each part that is full.
// What a record says is kept there in less room, since its memory is written again behind that.
#include "activities.h"

#if defined(__HIP__)
#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "driver_nodes.h"
#include "graph_nodes.h"
#include "roctracer_abi.h"
#include "tracing.h"

namespace tessera::gpu_kernels {
namespace roctracer {
namespace {

using gpu::Activity;
using tracing::Take;
using Pool = void*;

/// roctracer's functions. None may be called unless why_not() is empty.
struct Library : tracing::Library {
  char* (*error_text)() = nullptr;
  const char* (*name_of)(uint32_t domain, uint32_t operation, uint32_t kind) = nullptr;
  int (*number_of)(uint32_t domain, const char* name, uint32_t* operation, uint32_t* kind) = nullptr;
  int (*open_pool)(const PoolProperties*, Pool*) = nullptr;
  int (*enable_all)(Domain, Pool) = nullptr;
  int (*enable)(Domain, uint32_t operation, Pool) = nullptr;
  int (*disable_all)(Domain) = nullptr;
  int (*disable)(Domain, uint32_t operation) = nullptr;
  int (*flush)(Pool) = nullptr;
  int (*next_record)(const Record*, const Record**) = nullptr;
  int (*read_clock)(uint64_t*) = nullptr;

  Library()
      : tracing::Library("roctracer", candidates(), refusal,
                         "libroctracer64.so.4 was not found: install roctracer, or let TESSERA_ROCTRACER name it or "
                         "its folder") {
    load(error_text, "roctracer_error_string");
    load(name_of, "roctracer_op_string");
    load(number_of, "roctracer_op_code");
    load(open_pool, "roctracer_open_pool_expl");
    load(enable_all, "roctracer_enable_domain_activity_expl");
    load(enable, "roctracer_enable_op_activity_expl");
    load(disable_all, "roctracer_disable_domain_activity");
    load(disable, "roctracer_disable_op_activity");
    load(flush, "roctracer_flush_activity_expl");
    load(next_record, "roctracer_next_record");
    load(read_clock, "roctracer_get_timestamp");
  }

 private:
  static std::vector<std::string> candidates() {
    std::vector<std::string> folders = {"/opt/rocm/lib/"};
    if (const char* home = std::getenv("ROCM_PATH"); home && *home)
      folders.insert(folders.begin(), std::string(home) + "/lib/");
    return tracing::files_of("TESSERA_ROCTRACER", {"libroctracer64.so.4", "libroctracer64.so"}, folders);
  }

  static std::string refusal(void* handle) {
    const auto version = find<uint32_t (*)()>(handle, "roctracer_version_major");
    if (!version) return "this roctracer has no roctracer_version_major";
    if (version() == major_version) return "";
    return "roctracer " + std::to_string(version()) + " is of another version than " + std::to_string(major_version) +
           ", which this was built for";
  }
};

const Library& library() {
  static const Library* const loaded = new Library;
  return *loaded;
}

std::string refusal(const std::string& what) {
  char* const text = library().error_text();
  const std::string reason = text && *text ? text : "for an unknown reason";
  std::free(text);
  return "roctracer does not " + what + ": " + reason;
}

/// Calls that are made all the time and take none.
constexpr const char* noise[] = {"__hipPushCallConfiguration",
                                 "__hipPopCallConfiguration",
                                 "hipCtxSetCurrent",
                                 "hipDeviceGetAttribute",
                                 "hipDeviceGetStreamPriorityRange",
                                 "hipDevicePrimaryCtxGetState",
                                 "hipDriverGetVersion",
                                 "hipEventCreate",
                                 "hipEventCreateWithFlags",
                                 "hipEventDestroy",
                                 "hipEventQuery",
                                 "hipFuncGetAttributes",
                                 "hipFuncSetAttribute",
                                 "hipGetDevice",
                                 "hipGetDeviceCount",
                                 "hipGetDeviceProperties",
                                 "hipGetDevicePropertiesR0000",
                                 "hipGetDevicePropertiesR0600",
                                 "hipGetErrorString",
                                 "hipGetLastError",
                                 "hipGraphGetNodes",
                                 "hipModuleGetFunction",
                                 "hipPeekAtLastError",
                                 "hipPointerGetAttributes",
                                 "hipRuntimeGetVersion",
                                 "hipSetDevice",
                                 "hipStreamGetCaptureInfo",
                                 "hipStreamGetCaptureInfo_v2",
                                 "hipStreamIsCapturing",
                                 "hipStreamQuery",
                                 "hipThreadExchangeStreamCaptureMode"};

/// What a record says, without a name of its own.
struct Kept {
  uint64_t begin, end;  // of roctracer's clock
  uint64_t at;          // the queue, or the thread
  uint64_t bytes;
  uint32_t name;  // in Seen::names
  uint32_t correlation;
  int number;  // the device, or the call's
  Activity::Kind kind;
};

/// A moment on both clocks.
struct Moment {
  int64_t since_1970 = 0, clock = 0;
};

struct Seen {
  std::deque<Kept> all;
  std::vector<std::string> names;  // as roctracer has them
  int64_t dropped = 0;
  Moment begin, end;
};

/// As CUPTI's are called. HIP tells copies between memory that it knows, which page-locked memory is, from others.
std::string name_of_copy(const std::string& kind) {
  if (kind.starts_with("CopyDeviceToHost")) return "Memcpy DtoH (Device -> Pageable)";
  if (kind.starts_with("CopyHostToDevice")) return "Memcpy HtoD (Pageable -> Device)";
  if (kind.starts_with("CopyDeviceToDevice")) return "Memcpy (Device or Pinned)";
  return kind.starts_with("Fill") ? "Memset" : "Memcpy (" + kind + ')';
}

/// Keeps what is seen, never more than was asked for. Records come on a thread of roctracer's.
class Keeper {
 public:
  void begin(size_t most_bytes, const Moment& moment) {
    std::lock_guard lock(mutex_);
    on_ = true;
    most_ = most_bytes / sizeof(Kept);
    seen_ = {};
    seen_.begin = moment;
    calls_.clear();
    copies_.clear();
    kernels_.clear();
    last_started_ = last_done_ = 0;
  }

  Seen end() {
    std::lock_guard lock(mutex_);
    on_ = false;
    return std::exchange(seen_, {});
  }

  void take(const Record* record, const Record* end) {
    std::lock_guard lock(mutex_);
    while (on_ && record < end) {
      const bool is_earlier = record->end != 0 && static_cast<int64_t>(record->begin) < seen_.begin.clock;
      if (!is_earlier && record->domain == HipCalls) take_call(*record);
      if (!is_earlier && record->domain == HipWork && record->operation <= Copies) take_work(*record);
      if (library().next_record(record, &record) != success) return;
    }
  }

  /// Whether the work of the last call that starts any was seen: of an earlier one it is, too, but for other queues'.
  bool has_all() {
    std::lock_guard lock(mutex_);
    return last_done_ >= last_started_;
  }

 private:
  struct Call {
    uint32_t name = 0;
    bool is_noise = false, starts_work = false;
  };

  uint32_t add_name(std::string name) {
    seen_.names.push_back(std::move(name));
    return static_cast<uint32_t>(seen_.names.size()) - 1;
  }
  static std::string told_name(uint32_t domain, uint32_t operation, uint32_t kind) {
    const char* const text = library().name_of(domain, operation, kind);
    return text ? text : "";
  }

  void take_call(const Record& r) {
    const auto [at, fresh] = calls_.try_emplace(r.operation);
    Call& call = at->second;
    if (fresh) {
      const std::string name = told_name(HipCalls, r.operation, 0);
      call.is_noise = std::find(std::begin(noise), std::end(noise), name) != std::end(noise);
      call.starts_work =
          name.find("Launch") != name.npos || name.starts_with("hipMemcpy") || name.starts_with("hipMemset");
      call.name = add_name(name.empty() ? "a call" : name);
    }
    if (call.is_noise) return;
    if (call.starts_work) last_started_ = std::max(last_started_, r.correlation);
    keep(r, Activity::Call, call.name);
  }

  void take_work(const Record& r) {
    last_done_ = std::max(last_done_, r.correlation);
    if (r.operation == Kernels) {
      const auto [at, fresh] = kernels_.try_emplace(r.kernel ? r.kernel : "", 0);
      if (fresh) at->second = add_name(at->first);
      keep(r, Activity::Kernel, at->second);
    } else {
      const auto [at, fresh] = copies_.try_emplace(r.kind, 0);
      if (fresh) at->second = add_name(name_of_copy(told_name(HipWork, r.operation, r.kind)));
      keep(r, seen_.names[at->second] == "Memset" ? Activity::Fill : Activity::Copy, at->second);
    }
  }

  void keep(const Record& r, Activity::Kind kind, uint32_t name) {
    if (r.end == 0 || seen_.all.size() >= most_) return void(++seen_.dropped);  // without times, or without room
    const bool is_call = kind == Activity::Call, has_bytes = !is_call && kind != Activity::Kernel;
    seen_.all.push_back({.begin = r.begin,
                         .end = r.end,
                         .at = is_call ? r.call.thread : r.work.queue,
                         .bytes = has_bytes ? r.bytes : 0,
                         .name = name,
                         .correlation = static_cast<uint32_t>(r.correlation),
                         .number = is_call ? static_cast<int>(r.operation) : r.work.device,
                         .kind = kind});
  }

  std::mutex mutex_;
  bool on_ = false;
  size_t most_ = 0;
  Seen seen_;
  std::unordered_map<uint32_t, Call> calls_;       // by operation
  std::unordered_map<uint32_t, uint32_t> copies_;  // by kind
  std::unordered_map<std::string, uint32_t> kernels_;
  uint64_t last_started_ = 0, last_done_ = 0;  // correlations
};

/// Never destroyed: roctracer's thread lives as long as the program.
Keeper& keeper() {
  static Keeper* const all = new Keeper;
  return *all;
}

void take_buffer(const char* begin, const char* end, void*) {
  keeper().take(reinterpret_cast<const Record*>(begin), reinterpret_cast<const Record*>(end));
}

/// The closest of a few tries; false where roctracer has no clock.
bool read_clocks(Moment& moment) {
  int64_t closest = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const auto before = static_cast<int64_t>(tracing::now());
    uint64_t clock = 0;
    if (library().read_clock(&clock) != success || clock == 0) return false;
    const int64_t took = static_cast<int64_t>(tracing::now()) - before;
    if (took < 0 || took >= closest) continue;  // the system's clock may be set meanwhile
    closest = took;
    moment = {before + took / 2, static_cast<int64_t>(clock)};
  }
  return closest != INT64_MAX;
}

/// Waits for the devices that this process uses.
void synchronize_devices() {
  int count = 0, before = 0;
  if (hipGetDeviceCount(&count) != hipSuccess || hipGetDevice(&before) != hipSuccess) return void(hipGetLastError());
  for (int device = 0; device < count; ++device)
    if (was_chosen(device) && hipSetDevice(device) == hipSuccess)
      (void)hipDeviceSynchronize();  // a lost one says so where it is used
  (void)hipSetDevice(before);
  (void)hipGetLastError();
}

/// Indices of devices by what records call them.
class Devices {
 public:
  Devices() {
    int version = 0;
    constexpr int with_driver_numbers = 50400000;
    if (hipGetDeviceCount(&count_) == hipSuccess && count_ > 1 && hipRuntimeGetVersion(&version) == hipSuccess &&
        version >= with_driver_numbers)
      by_node_ = devices_by_node("/sys/class/kfd/kfd/topology/nodes", places());
    (void)hipGetLastError();
  }
  int index_of(int told) const {
    const auto known = by_node_.find(told);
    return known != by_node_.end() ? known->second : count_ == 1 ? 0 : told;
  }

 private:
  std::vector<PciPlace> places() const {
    std::vector<PciPlace> all;
    for (int device = 0; device < count_; ++device) {
      hipDeviceProp_t p{};
      (void)hipGetDeviceProperties(&p, device);
      all.push_back({static_cast<unsigned>(p.pciDomainID), static_cast<unsigned>(p.pciBusID),
                     static_cast<unsigned>(p.pciDeviceID)});
    }
    return all;
  }

  int count_ = 0;
  std::map<int, int> by_node_;
};

class Tracer {
 public:
  static constexpr const char* name = "roctracer";
  using Seen = roctracer::Seen;
  static const std::string& why_not() { return library().why_not(); }

  std::string begin(size_t most_bytes) {
    if (!pool_ && open_pool() != success) return refusal("begin");
    Moment moment;
    if (!read_clocks(moment)) return "roctracer has no clock: it sees no device";
    (void)library().flush(pool_);  // of what came behind an earlier end, which nobody keeps
    keeper().begin(std::max(most_bytes, 4 * buffer_bytes) - 2 * buffer_bytes, moment);
    const std::string why = enable();
    if (why.empty()) return why;
    disable_work();
    (void)library().disable_all(HipCalls);
    (void)keeper().end();
    return why;
  }

  /// The pool stays: a call of another thread may be about to write to it.
  Seen end() {
    (void)library().disable_all(HipCalls);
    synchronize_devices();
    (void)library().flush(pool_);
    // HIP lets go of whoever waits for a command before it tells of it.
    for (int i = 0; i < 50 && !keeper().has_all(); ++i) {
      usleep(1000);
      (void)library().flush(pool_);
    }
    disable_work();
    (void)library().flush(pool_);
    Seen seen = keeper().end();
    if (!read_clocks(seen.end)) seen.end = seen.begin;
    return seen;
  }

  static int64_t hand_over(Seen& seen, const Take& take) {
    const Devices devices;
    for (std::string& name : seen.names) {
      if (name.empty()) name = "a kernel";
      if (name.starts_with("_Z")) name = demangled(name.c_str());
    }
    for (const Kept& kept : seen.all) {
      Activity a;
      a.kind = kept.kind;
      a.name = seen.names[kept.name];
      a.begin = since_1970(seen, kept.begin);
      a.end = since_1970(seen, kept.end);
      a.correlation = kept.correlation;
      a.bytes = static_cast<int64_t>(kept.bytes);
      if (kept.kind == Activity::Call) {
        a.thread = static_cast<int64_t>(kept.at);
        a.function = kept.number;
      } else {
        a.stream = static_cast<int64_t>(kept.at);
        a.device = devices.index_of(kept.number);
      }
      take(a);
    }
    return seen.dropped;
  }

 private:
  static constexpr size_t buffer_bytes = size_t{64} << 10;

  int open_pool() {
    PoolProperties properties;
    properties.buffer_bytes = buffer_bytes;
    properties.take = take_buffer;
    return library().open_pool(&properties, &pool_);
  }

  std::string enable() {
    if (library().enable_all(HipCalls, pool_) != success) return refusal("tell of calls");
    // What stays on costs time, and is left out when it is read.
    for (const char* call : noise)
      if (uint32_t operation = 0; library().number_of(HipCalls, call, &operation, nullptr) == success)
        (void)library().disable(HipCalls, operation);
    if (library().enable(HipWork, Kernels, pool_) != success) return refusal("tell of kernels");
    if (library().enable(HipWork, Copies, pool_) != success) return refusal("tell of copies");
    return "";
  }
  static void disable_work() {
    for (const uint32_t work : {Kernels, Copies}) (void)library().disable(HipWork, work);
  }

  /// Between the two moments the clocks may run apart.
  static int64_t since_1970(const Seen& seen, uint64_t clock) {
    const int64_t passed = static_cast<int64_t>(clock) - seen.begin.clock, all = seen.end.clock - seen.begin.clock;
    const int64_t apart = seen.end.since_1970 - seen.begin.since_1970 - all;
    const double share = all > 0 ? static_cast<double>(passed) / static_cast<double>(all) : 0;
    return seen.begin.since_1970 + passed + static_cast<int64_t>(static_cast<double>(apart) * share);
  }

  Pool pool_ = nullptr;
};

tracing::Session<Tracer> session;

}  // namespace
}  // namespace roctracer

std::string start_activities(size_t most_bytes) { return roctracer::session.start(most_bytes); }
int64_t stop_activities(const std::function<void(const gpu::Activity&)>& take) { return roctracer::session.stop(take); }

}  // namespace tessera::gpu_kernels
#endif
