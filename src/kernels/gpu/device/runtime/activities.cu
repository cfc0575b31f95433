// CUPTI fills memory of ours while the program runs; nothing is read of it before the end.
#include "activities.h"

#if !defined(__HIP__)
#if __has_include(<cupti.h>)
#include <cuda_runtime.h>
#include <cupti.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver.h"
#include "graph_nodes.h"
#include "tracing.h"

namespace tessera::gpu_kernels {
namespace cupti {
namespace {

using gpu::Activity;
using tracing::Take;

/// Records of another major version are laid out otherwise.
constexpr uint32_t built_major = CUPTI_API_VERSION / 10000;

std::string version_text(uint32_t version) {
  if (version >= 10000) return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100);
  constexpr const char* of_12[] = {"12.0", "12.2", "12.3", "12.4", "12.5", "12.6", "12.6", "12.8", "12.9", "12.9"};
  constexpr uint32_t first = 19;  // CUPTI's numbers were its own before 13
  if (version < first) return "11 or older";
  return of_12[std::min<size_t>(version - first, std::size(of_12) - 1)];
}

/// Of the newest version that can be used first, and of the system before the toolkit.
std::vector<std::string> candidates() {
  const std::string name = "libcupti.so";
  std::vector<std::string> toolkits = {"/usr/local/cuda"}, folders;
  if (const char* home = std::getenv("CUDA_HOME"); home && *home) toolkits.insert(toolkits.begin(), home);
  for (const std::string& toolkit : toolkits)
    for (const char* folder : {"/extras/CUPTI/lib64/", "/lib64/"}) folders.push_back(toolkit + folder);
  return tracing::files_of(
      "TESSERA_CUPTI", {name + '.' + std::to_string(built_major), name, name + '.' + std::to_string(built_major - 1)},
      folders);
}

/// CUPTI's functions. None may be called unless why_not() is empty.
struct Library : tracing::Library {
  decltype(&::cuptiGetResultString) result_text = nullptr;
  decltype(&::cuptiGetCallbackName) call_name = nullptr;
  decltype(&::cuptiSetThreadIdType) set_thread_ids = nullptr;
  decltype(&::cuptiActivityRegisterTimestampCallback) set_clock = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) set_buffers = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityEnableRuntimeApi) enable_runtime_call = nullptr;
  decltype(&::cuptiActivityFlushAll) flush = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) count_dropped = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;

  Library()
      : tracing::Library("CUPTI", candidates(), refusal,
                         "libcupti.so." + std::to_string(built_major) +
                             " was not found: install CUPTI, or let TESSERA_CUPTI name it or its folder") {
    load(result_text, "cuptiGetResultString");
    load(call_name, "cuptiGetCallbackName");
    load(set_thread_ids, "cuptiSetThreadIdType");
    load(set_clock, "cuptiActivityRegisterTimestampCallback");
    load(set_buffers, "cuptiActivityRegisterCallbacks");
    load(enable, "cuptiActivityEnable");
    load(disable, "cuptiActivityDisable");
    load(enable_runtime_call, "cuptiActivityEnableRuntimeApi");
    load(flush, "cuptiActivityFlushAll");
    load(count_dropped, "cuptiActivityGetNumDroppedRecords");
    load(next_record, "cuptiActivityGetNextRecord");
  }

 private:
  static std::string refusal(void* handle) {
    const auto version = find<decltype(&::cuptiGetVersion)>(handle, "cuptiGetVersion");
    uint32_t number = 0;
    if (!version) return "this CUPTI has no cuptiGetVersion";
    if (version(&number) == CUPTI_SUCCESS && number / 10000 == built_major) return "";
    return "CUPTI " + version_text(number) + " is of another version than " + version_text(CUPTI_API_VERSION) +
           ", which this was built for";
  }
};

const Library& library() {
  static const Library* const loaded = new Library;
  return *loaded;
}

struct Buffer {
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data;
  size_t size = 0, filled = 0;  // bytes
};

template <class Use>
void each_record(const Buffer& buffer, Use&& use) {
  CUpti_Activity* record = nullptr;
  while (library().next_record(buffer.data.get(), buffer.filled, &record) == CUPTI_SUCCESS) use(record);
}

/// Memory lent to CUPTI and kept when that has filled it, never more than was asked for. Called by any thread.
class Buffers {
 public:
  void begin(size_t most) {
    std::lock_guard lock(mutex_);
    on_ = true;
    most_ = most;
    dropped_ = 0;
    size_ = std::clamp(most / 16, size_t{64} << 10, size_t{1} << 20) / page * page;
  }

  void lend(uint8_t** data, size_t* size) {
    std::lock_guard lock(mutex_);
    Buffer buffer;
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    } else if (on_ && total_ + size_ <= most_) {
      buffer.data.reset(static_cast<uint8_t*>(std::aligned_alloc(page, size_)));
      if (buffer.data) total_ += buffer.size = size_;
    }
    *size = buffer.size;
    *data = buffer.data.release();  // null: CUPTI counts what it drops
  }

  void take_back(uint8_t* data, size_t size, size_t filled) {
    Buffer buffer{std::unique_ptr<uint8_t, Buffer::Free>(data), size, filled};
    std::unique_lock lock(mutex_);
    if (!on_) {
      total_ -= size;
    } else if (filled > 0 && kept_bytes_ + size + in_turn() <= most_) {
      kept_bytes_ += size;
      kept_.push_back(std::move(buffer));
    } else {
      lock.unlock();  // other threads wait for their next one
      int64_t count = 0;
      each_record(buffer, [&](CUpti_Activity*) { ++count; });
      lock.lock();
      dropped_ += count;
      free_.push_back(std::move(buffer));
    }
  }

  /// What is still lent goes when it comes back.
  std::vector<Buffer> end(int64_t& dropped) {
    std::lock_guard lock(mutex_);
    on_ = false;
    dropped = dropped_;
    total_ -= kept_bytes_;
    kept_bytes_ = 0;
    for (const Buffer& buffer : free_) total_ -= buffer.size;
    free_.clear();
    return std::exchange(kept_, {});
  }

 private:
  static constexpr size_t page = 4096;
  /// So much goes round and round when there is no more room.
  size_t in_turn() const { return std::min(4 * size_, most_ / 2); }

  std::mutex mutex_;
  bool on_ = false;
  size_t most_ = 0, size_ = 0, total_ = 0, kept_bytes_ = 0;
  int64_t dropped_ = 0;
  std::vector<Buffer> free_, kept_;
};

/// Never destroyed: CUPTI may give memory back when the program ends.
Buffers& buffers() {
  static Buffers* const all = new Buffers;
  return *all;
}

void CUPTIAPI lend_buffer(uint8_t** data, size_t* size, size_t* most_records) {
  *most_records = 0;
  buffers().lend(data, size);
}
void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* data, size_t size, size_t filled) {
  if (data) buffers().take_back(data, size, filled);
}
uint64_t CUPTIAPI now() { return tracing::now(); }

#define TESSERA_CALL(name) CUPTI_RUNTIME_TRACE_CBID_##name
/// Calls that are made all the time and take none.
constexpr CUpti_CallbackId noise[] = {TESSERA_CALL(cudaDriverGetVersion_v3020),
                                      TESSERA_CALL(cudaRuntimeGetVersion_v3020),
                                      TESSERA_CALL(cudaGetDeviceCount_v3020),
                                      TESSERA_CALL(cudaGetDevice_v3020),
                                      TESSERA_CALL(cudaSetDevice_v3020),
                                      TESSERA_CALL(cudaDeviceGetAttribute_v5000),
                                      TESSERA_CALL(cudaDeviceGetStreamPriorityRange_v5050),
                                      TESSERA_CALL(cudaGetLastError_v3020),
                                      TESSERA_CALL(cudaPeekAtLastError_v3020),
                                      TESSERA_CALL(cudaGetErrorString_v3020),
                                      TESSERA_CALL(cudaGetErrorName_v6050),
                                      TESSERA_CALL(cudaFuncGetAttributes_v3020),
                                      TESSERA_CALL(cudaFuncSetAttribute_v9000),
                                      TESSERA_CALL(cudaPointerGetAttributes_v4000),
                                      TESSERA_CALL(cudaStreamQuery_v3020),
                                      TESSERA_CALL(cudaStreamQuery_ptsz_v7000),
                                      TESSERA_CALL(cudaEventCreate_v3020),
                                      TESSERA_CALL(cudaEventCreateWithFlags_v3020),
                                      TESSERA_CALL(cudaEventDestroy_v3020),
                                      TESSERA_CALL(cudaEventQuery_v3020),
                                      TESSERA_CALL(cudaStreamIsCapturing_v10000),
                                      TESSERA_CALL(cudaStreamIsCapturing_ptsz_v10000),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_v10010),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_ptsz_v10010),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_v2_v11030),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_v2_ptsz_v11030),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_v12030),
                                      TESSERA_CALL(cudaStreamGetCaptureInfo_ptsz_v12030),
                                      TESSERA_CALL(cudaThreadExchangeStreamCaptureMode_v10010),
                                      TESSERA_CALL(cudaGraphGetNodes_v10000),
                                      TESSERA_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor_v6000),
                                      TESSERA_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor_v6050),
                                      TESSERA_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_v7000),
                                      TESSERA_CALL(cudaOccupancyAvailableDynamicSMemPerBlock_v10200),
                                      TESSERA_CALL(cudaOccupancyMaxPotentialClusterSize_v11070),
                                      TESSERA_CALL(cudaOccupancyMaxActiveClusters_v11070),
                                      TESSERA_CALL(cudaGetFuncBySymbol_v11000),
                                      TESSERA_CALL(cudaGetDriverEntryPoint_v11030),
                                      TESSERA_CALL(cudaGetDriverEntryPoint_ptsz_v11030),
                                      TESSERA_CALL(cudaGetDriverEntryPointByVersion_v12050),
                                      TESSERA_CALL(cudaGetDriverEntryPointByVersion_ptsz_v12050),
                                      TESSERA_CALL(cudaGetKernel_v12000),
                                      TESSERA_CALL(__cudaPushCallConfiguration_v13000),
                                      TESSERA_CALL(__cudaPopCallConfiguration_v13000),
                                      TESSERA_CALL(__cudaGetKernel_v13000)};
#undef TESSERA_CALL

/// The driver's only: the run-time library's own calls of it tell nothing more.
constexpr CUpti_CallbackId launches[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz};

constexpr std::pair<CUpti_ActivityKind, const char*> kinds[] = {{CUPTI_ACTIVITY_KIND_RUNTIME, "calls"},
                                                                {CUPTI_ACTIVITY_KIND_DRIVER, "the driver's calls"},
                                                                {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels"},
                                                                {CUPTI_ACTIVITY_KIND_MEMCPY, "copies"},
                                                                {CUPTI_ACTIVITY_KIND_MEMCPY2, "copies between devices"},
                                                                {CUPTI_ACTIVITY_KIND_MEMSET, "fills"}};

const char* side_name(unsigned memory_kind) {
  constexpr const char* names[] = {"Unknown", "Pageable", "Pinned",        "Device",
                                   "Array",   "Managed",  "Device Static", "Managed Static"};
  return names[memory_kind < std::size(names) ? memory_kind : 0];
}
const char* way_name(unsigned copy_kind) {
  constexpr const char* names[] = {"<unknown>", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                   "AtoD",      "DtoA", "DtoD", "HtoH", "PtoP"};
  return names[copy_kind < std::size(names) ? copy_kind : 0];
}

/// As people write it: CUPTI appends the version that brought it, "_v7000", and "_ptsz" for streams of threads.
std::string plain_call(std::string_view name) {
  if (const size_t at = name.rfind("_v");
      at != name.npos && at + 2 < name.size() && name.find_first_not_of("0123456789", at + 2) == name.npos)
    name = name.substr(0, at);
  for (const std::string_view end : {"_ptsz", "_ptds"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  return std::string(name);
}

/// Hands over what buffers hold.
class Reader {
 public:
  explicit Reader(const Take& take) : take_(take) {
    for (const CUpti_CallbackId call : noise) is_noise_[call] = true;
  }

  /// All buffers before the first is read: a launch by the run-time library may be told of as the driver's, too.
  void look_for_calls(const Buffer& buffer) {
    each_record(buffer, [&](CUpti_Activity* record) {
      if (record->kind != CUPTI_ACTIVITY_KIND_RUNTIME) return;
      const uint32_t id = reinterpret_cast<const CUpti_ActivityAPI*>(record)->correlationId;
      sorted_ = sorted_ && (runtime_calls_.empty() || runtime_calls_.back() <= id);
      runtime_calls_.push_back(id);
    });
  }

  void read(const Buffer& buffer) {
    if (!std::exchange(sorted_, true)) std::sort(runtime_calls_.begin(), runtime_calls_.end());
    each_record(buffer, [&](CUpti_Activity* record) { read(record); });
  }

  int64_t dropped = 0;  // without times, for want of memory on the device

 private:
  void read(const CUpti_Activity* record) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_RUNTIME:
      case CUPTI_ACTIVITY_KIND_DRIVER:
        return read_call(*reinterpret_cast<const CUpti_ActivityAPI*>(record));
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return read_kernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        return read_copy(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record));
      case CUPTI_ACTIVITY_KIND_MEMCPY2:
        return read_copy(*reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record));
      case CUPTI_ACTIVITY_KIND_MEMSET:
        return read_fill(*reinterpret_cast<const CUpti_ActivityMemset4*>(record));
      default:
        return;
    }
  }

  void read_call(const CUpti_ActivityAPI& r) {
    const bool by_driver = r.kind == CUPTI_ACTIVITY_KIND_DRIVER;
    const uint32_t call = r.cbid, id = r.correlationId;
    const bool is_launch = std::find(std::begin(launches), std::end(launches), call) != std::end(launches);
    if (by_driver ? !is_launch || std::binary_search(runtime_calls_.begin(), runtime_calls_.end(), id)
                  : call < is_noise_.size() && is_noise_[call])
      return;
    std::string& name = calls_[by_driver][call];
    if (name.empty()) {
      const char* text = nullptr;
      const auto domain = by_driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API;
      const bool known = library().call_name(domain, call, &text) == CUPTI_SUCCESS && text && *text;
      name = known ? plain_call(text) : "a call";
    }
    Activity a;
    a.kind = Activity::Call;
    a.name = name;
    a.thread = r.threadId;
    a.function = static_cast<int>(call);
    a.correlation = id;
    hand_over(a, r.start, r.end);
  }

  template <class Record>
  static Activity on_device(const Record& r, Activity::Kind kind, std::string_view name) {
    Activity a;
    a.kind = kind;
    a.name = name;
    a.device = static_cast<int>(r.deviceId);
    a.stream = r.streamId;
    a.correlation = r.correlationId;
    a.graph_node = r.graphNodeId;
    return a;
  }

  void read_kernel(const CUpti_ActivityKernel10& r) {
    const char* const mangled = r.name;
    std::string& name = kernels_[mangled];
    if (name.empty()) name = mangled && *mangled ? demangled(mangled) : "a kernel";
    Activity a = on_device(r, Activity::Kernel, name);
    const int grid[] = {r.gridX, r.gridY, r.gridZ}, block[] = {r.blockX, r.blockY, r.blockZ};
    for (int i = 0; i < 3; ++i) {
      a.grid[i] = static_cast<unsigned>(grid[i]);
      a.block[i] = static_cast<unsigned>(block[i]);
    }
    a.registers = r.registersPerThread;
    a.shared_bytes = int64_t{r.staticSharedMemory} + r.dynamicSharedMemory;
    hand_over(a, r.start, r.end);
  }

  template <class Record>
  void read_copy(const Record& r) {
    std::string& name = copies_[r.copyKind << 16 | r.srcKind << 8 | r.dstKind];
    if (name.empty())
      name = std::string("Memcpy ") + way_name(r.copyKind) + " (" + side_name(r.srcKind) + " -> " +
             side_name(r.dstKind) + ')';
    Activity a = on_device(r, Activity::Copy, name);
    a.bytes = static_cast<int64_t>(r.bytes);
    hand_over(a, r.start, r.end);
  }

  void read_fill(const CUpti_ActivityMemset4& r) {
    std::string& name = fills_[r.memoryKind];
    if (name.empty()) name = std::string("Memset (") + side_name(r.memoryKind) + ')';
    Activity a = on_device(r, Activity::Fill, name);
    a.bytes = static_cast<int64_t>(r.bytes);
    hand_over(a, r.start, r.end);
  }

  void hand_over(Activity& a, uint64_t begin, uint64_t end) {
    if (begin == 0 || end == 0) return void(++dropped);
    a.begin = static_cast<int64_t>(begin);
    a.end = static_cast<int64_t>(end);
    take_(a);
  }

  const Take& take_;
  std::bitset<CUPTI_RUNTIME_TRACE_CBID_SIZE> is_noise_;
  std::vector<uint32_t> runtime_calls_;  // their correlations
  bool sorted_ = true;
  std::unordered_map<uint32_t, std::string> calls_[2], copies_, fills_;
  std::unordered_map<const char*, std::string> kernels_;  // CUPTI has each name once
};

/// Waits for the devices that this process uses; those that it does not would be initialised by it.
void synchronize_devices() {
  static const auto state_of = driver_function<decltype(&::cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  int count = 0, before = 0;
  if (!state_of || cudaGetDeviceCount(&count) != cudaSuccess || cudaGetDevice(&before) != cudaSuccess)
    return void(cudaGetLastError());
  for (int device = 0; device < count; ++device) {
    unsigned flags = 0;
    int used = 0;
    if (state_of(device, &flags, &used) != CUDA_SUCCESS || !used) continue;
    if (cudaSetDevice(device) == cudaSuccess) (void)cudaDeviceSynchronize();  // a lost one says so where it is used
  }
  (void)cudaSetDevice(before);
  (void)cudaGetLastError();
}

class Tracer {
 public:
  static constexpr const char* name = "CUPTI";
  struct Seen {
    std::vector<Buffer> buffers;
    int64_t dropped = 0;
  };
  static const std::string& why_not() { return library().why_not(); }

  std::string begin(size_t most_bytes) {
    if (std::string why = prepare(); !why.empty()) return why;
    buffers().begin(most_bytes);
    size_t earlier = 0;
    (void)library().count_dropped(nullptr, 0, &earlier);
    std::string why = enable();
    if (why.empty()) return why;
    disable_calls();
    disable_work();
    int64_t dropped = 0;
    (void)buffers().end(dropped);
    return why;
  }

  static Seen end() {
    Seen seen;
    disable_calls();
    synchronize_devices();
    (void)library().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    disable_work();
    (void)library().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);  // of what was lent meanwhile
    seen.buffers = buffers().end(seen.dropped);
    size_t unwritten = 0;
    if (library().count_dropped(nullptr, 0, &unwritten) == CUPTI_SUCCESS)
      seen.dropped += static_cast<int64_t>(unwritten);
    return seen;
  }

  static int64_t hand_over(Seen& seen, const Take& take) {
    Reader reader(take);
    for (const Buffer& buffer : seen.buffers) reader.look_for_calls(buffer);
    for (Buffer& buffer : seen.buffers) {
      reader.read(buffer);
      buffer.data.reset();
    }
    return seen.dropped + reader.dropped;
  }

 private:
  static std::string refusal(const std::string& what, CUptiResult status) {
    const char* reason = nullptr;
    if (library().result_text(status, &reason) != CUPTI_SUCCESS || !reason) reason = "for an unknown reason";
    return "CUPTI does not " + what + ": " + reason;
  }

  std::string prepare() {
    if (prepared_) return "";
    if (const auto status = library().set_clock(now); status != CUPTI_SUCCESS) return refusal("begin", status);
    if (const auto status = library().set_thread_ids(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM); status != CUPTI_SUCCESS)
      return refusal("begin", status);
    if (const auto status = library().set_buffers(lend_buffer, take_buffer); status != CUPTI_SUCCESS)
      return refusal("begin", status);
    prepared_ = true;
    return "";
  }

  static std::string enable() {
    for (const auto& [kind, name] : kinds)
      if (const auto status = library().enable(kind); status != CUPTI_SUCCESS)
        return refusal(std::string("tell of ") + name, status);
    // What this refuses costs time, and is left out when it is read. Asked for launches alone by
    // cuptiActivityEnableDriverApi, CUPTI 13.0 told of none.
    for (const CUpti_CallbackId call : noise) (void)library().enable_runtime_call(call, 0);
    return "";
  }
  static void disable_calls() {
    (void)library().disable(CUPTI_ACTIVITY_KIND_RUNTIME);
    (void)library().disable(CUPTI_ACTIVITY_KIND_DRIVER);
  }
  static void disable_work() {
    for (const auto& [kind, name] : kinds)
      if (kind != CUPTI_ACTIVITY_KIND_RUNTIME && kind != CUPTI_ACTIVITY_KIND_DRIVER) (void)library().disable(kind);
  }

  bool prepared_ = false;
};

tracing::Session<Tracer> session;

}  // namespace
}  // namespace cupti

std::string start_activities(size_t most_bytes) { return cupti::session.start(most_bytes); }
int64_t stop_activities(const std::function<void(const gpu::Activity&)>& take) { return cupti::session.stop(take); }

}  // namespace tessera::gpu_kernels

#else

namespace tessera::gpu_kernels {

std::string start_activities(size_t) { return "this was built without CUPTI's headers"; }
int64_t stop_activities(const std::function<void(const gpu::Activity&)>&) { return 0; }

}  // namespace tessera::gpu_kernels

#endif
#endif
