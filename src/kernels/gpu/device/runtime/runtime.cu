// The vendor's run-time library as the core's Runtime: each call checked, lost devices remembered.
#include <array>
#include <atomic>
#include <cstdio>
#include <string>

#if !defined(__HIP__)
#include <mutex>
#endif

#include "activities.h"
#include "core/gpu/architecture.h"
#include "core/gpu/runtime.h"
#include "gpu.h"
#include "graph_nodes.h"
#include "tessera/error.h"

namespace tessera::gpu_kernels {
namespace {

using Status = TESSERA_RT(Error_t);
constexpr Status success = TESSERA_RT(Success);

/// What a device was lost to; empty while it works. Which device is current takes 50 ns to ask: not while all work.
std::array<std::atomic<const char*>, 16> lost{};
std::atomic<bool> any_lost{false};
/// Of devices that were asked for their properties, as all are before a kernel runs there.
[[maybe_unused]] std::array<std::atomic<bool>, 16> without_matrix_cores{};
/// By this process, at any time.
std::array<std::atomic<bool>, 16> chosen{};

int current_device() {
  int device = 0;
  return TESSERA_RT(GetDevice)(&device) == success && device >= 0 && device < 16 ? device : 0;
}

/// Faults after which the run-time library refuses everything on the device.
bool is_fatal(Status status) {
  switch (status) {
    case TESSERA_RT(ErrorIllegalAddress):
    case TESSERA_RT(ErrorLaunchFailure):
    case TESSERA_RT(ErrorAssert):
#if defined(__HIP__)
    case hipErrorLaunchTimeOut:
    case hipErrorECCNotCorrectable:
#else
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorUnknown:
#endif
      return true;
    default:
      return false;
  }
}

void check(Status status, const char* what) {
  if (status == success) return;
  (void)TESSERA_RT(GetLastError)();  // or the next launch would find it
  const char* reason = TESSERA_RT(GetErrorString)(status);
  if (is_fatal(status)) {
    lost[current_device()] = reason;
    any_lost = true;
  }
  throw DeviceError(std::string(what) + " failed: " + reason);
}

/// Before anything is asked of the current device.
void check_alive() {
  if (!any_lost) return;
  if (const char* reason = lost[current_device()]) throw DeviceError(std::string("the device was lost: ") + reason);
}

std::string version_text(int version) {
#if defined(__HIP__)
  const int major = version / 10000000, minor = version / 100000 % 100;
#else
  const int major = version / 1000, minor = version % 1000 / 10;
#endif
  return std::to_string(major) + '.' + std::to_string(minor);
}

auto library_properties(int device) {
#if defined(__HIP__)
  hipDeviceProp_t p;
#else
  cudaDeviceProp p;
#endif
  check(TESSERA_RT(GetDeviceProperties)(&p, device), "asking for a device's properties");
  return p;
}

Queue queue(gpu::StreamHandle stream) { return static_cast<Queue>(stream); }
TESSERA_RT(Event_t) event_of(gpu::EventHandle event) { return static_cast<TESSERA_RT(Event_t)>(event); }

class VendorRuntime final : public gpu::Runtime {
 public:
  int device_count() override {
    int count = 0;
    const Status status = TESSERA_RT(GetDeviceCount)(&count);
    if (status == TESSERA_RT(ErrorNoDevice)) return 0;
    if (status == TESSERA_RT(ErrorInsufficientDriver)) {
      int driver = 0, built = 0;
      (void)TESSERA_RT(DriverGetVersion)(&driver);
      (void)TESSERA_RT(RuntimeGetVersion)(&built);
      throw DeviceError(driver == 0 ? "there is no driver"
                                    : "the driver takes programs up to version " + version_text(driver) +
                                          ", and this was built for " + version_text(built));
    }
    check(status, "counting devices");
    return count;
  }

  DeviceProperties properties(int device) override {
    const auto p = library_properties(device);
    DeviceProperties properties;
    properties.name = p.name;
    properties.memory = p.totalGlobalMem;
    properties.multiprocessors = p.multiProcessorCount;
    properties.warp_size = p.warpSize;
#if defined(__HIP__)
    properties.architecture = std::string(p.gcnArchName).substr(0, std::string(p.gcnArchName).find(':'));
    properties.shared_memory = p.sharedMemPerBlock;
    if (std::string_view held = TESSERA_HIP_TARGETS; held.find(properties.architecture) == held.npos)
      throw DeviceError(properties.name + " (" + properties.architecture +
                        ") is not supported: this was built for " TESSERA_HIP_TARGETS);
    if (device < 16) without_matrix_cores[device] = !gpu::has_matrix_cores(properties.architecture);
#else
    properties.architecture = "sm_" + std::to_string(p.major * 10 + p.minor);
    properties.shared_memory = p.sharedMemPerBlockOptin;
    if (p.major < 8)
      throw DeviceError(properties.name + " (" + properties.architecture +
                        ") is not supported: sm_80 is the oldest that is");
#endif
    return properties;
  }

  gpu::Multiprocessor multiprocessor(int device) override {
    const auto p = library_properties(device);
    gpu::Multiprocessor on;
    on.threads = p.maxThreadsPerMultiProcessor;
#if defined(__HIP__)
    on.shared_bytes = static_cast<int64_t>(p.maxSharedMemoryPerMultiProcessor);
#else
    on.blocks = p.maxBlocksPerMultiProcessor;
    on.registers = p.regsPerMultiprocessor;
    on.shared_bytes = static_cast<int64_t>(p.sharedMemPerMultiprocessor);
    on.reserved_bytes = static_cast<int64_t>(p.reservedSharedMemPerBlock);
#endif
    return on;
  }

  std::string versions() override {
    [[maybe_unused]] int library = 0, driver = 0;
    check(TESSERA_RT(RuntimeGetVersion)(&library), "asking for the library's version");
#if defined(__HIP__)
    return "HIP " + version_text(library);
#else
    check(cudaDriverGetVersion(&driver), "asking for the driver's version");
    return "CUDA " + version_text(library) + ", driver for " + version_text(driver);
#endif
  }

  void set_device(int device) override {
    check(TESSERA_RT(SetDevice)(device), "choosing a device");
    if (device < 16) chosen[device] = true;
  }

  void* allocate(size_t bytes) override {
    check_alive();
    void* memory = nullptr;
    const Status status = TESSERA_RT(Malloc)(&memory, bytes);
    if (status == TESSERA_RT(ErrorMemoryAllocation)) {
      (void)TESSERA_RT(GetLastError)();
      return nullptr;
    }
    check(status, "allocating memory");
    return memory;
  }
  void release(void* memory) noexcept override { (void)TESSERA_RT(Free)(memory); }

  void* allocate_host(size_t bytes) override {
    check_alive();
    void* memory = nullptr;
#if defined(__HIP__)
    const Status status = hipHostMalloc(&memory, bytes, hipHostMallocDefault);
#else
    const Status status = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
#endif
    if (status == TESSERA_RT(ErrorMemoryAllocation)) {
      (void)TESSERA_RT(GetLastError)();
      return nullptr;
    }
    check(status, "allocating page-locked memory");
    return memory;
  }
  void release_host(void* memory) noexcept override {
#if defined(__HIP__)
    (void)hipHostFree(memory);
#else
    (void)cudaFreeHost(memory);
#endif
  }

  gpu::FreeMemory memory() override {
    gpu::FreeMemory m{};
    check(TESSERA_RT(MemGetInfo)(&m.free, &m.total), "asking for free memory");
    return m;
  }

  void copy(void* to, const void* from, size_t bytes, gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(MemcpyAsync)(to, from, bytes, TESSERA_RT(MemcpyDefault), queue(stream)), "copying");
  }
  void copy_rows(void* to, size_t pitch, const void* from, size_t bytes, size_t rows,
                 gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(Memcpy2DAsync)(to, pitch, from, bytes, bytes, rows, TESSERA_RT(MemcpyDefault), queue(stream)),
          "copying");
  }
  void fill(void* memory, int byte, size_t bytes, gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(MemsetAsync)(memory, byte, bytes, queue(stream)), "filling memory");
  }

  gpu::StreamHandle create_stream() override {
    check_alive();
    Queue stream;
    check(TESSERA_RT(StreamCreateWithFlags)(&stream, TESSERA_RT(StreamNonBlocking)), "making a stream");
    return stream;
  }
  void destroy_stream(gpu::StreamHandle stream) noexcept override { (void)TESSERA_RT(StreamDestroy)(queue(stream)); }
  void synchronize(gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(StreamSynchronize)(queue(stream)), "waiting for the device");
  }
  bool is_idle(gpu::StreamHandle stream) override {
    check_alive();
    const Status status = TESSERA_RT(StreamQuery)(queue(stream));
    if (status == TESSERA_RT(ErrorNotReady)) return (void)TESSERA_RT(GetLastError)(), false;
    check(status, "asking for a stream's progress");
    return true;
  }
  void wait(gpu::StreamHandle stream, gpu::EventHandle event) override {
    check_alive();
    check(TESSERA_RT(StreamWaitEvent)(queue(stream), event_of(event), 0), "waiting for an event");
  }
  void synchronize_device() override {
    check_alive();
    check(TESSERA_RT(DeviceSynchronize)(), "waiting for the device");
  }

  gpu::EventHandle create_event(bool timed) override {
    check_alive();
    TESSERA_RT(Event_t) event;
    check(TESSERA_RT(EventCreateWithFlags)(&event, timed ? TESSERA_RT(EventDefault) : TESSERA_RT(EventDisableTiming)),
          "making an event");
    return event;
  }
  void destroy_event(gpu::EventHandle event) noexcept override { (void)TESSERA_RT(EventDestroy)(event_of(event)); }
  void record(gpu::EventHandle event, gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(EventRecord)(event_of(event), queue(stream)), "recording an event");
  }
  bool has_happened(gpu::EventHandle event) override {
    const Status status = TESSERA_RT(EventQuery)(event_of(event));
    if (status == TESSERA_RT(ErrorNotReady)) return (void)TESSERA_RT(GetLastError)(), false;
    check(status, "asking for an event");
    return true;
  }
  void synchronize_event(gpu::EventHandle event) override {
    check(TESSERA_RT(EventSynchronize)(event_of(event)), "waiting for an event");
  }
  float milliseconds(gpu::EventHandle from, gpu::EventHandle to) override {
    float ms = 0;
    check(TESSERA_RT(EventElapsedTime)(&ms, event_of(from), event_of(to)), "asking for the time between events");
    return ms;
  }

  void begin_capture(gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(StreamBeginCapture)(queue(stream), TESSERA_RT(StreamCaptureModeRelaxed)), "capturing a graph");
  }
  gpu::GraphHandle end_capture(gpu::StreamHandle stream) override {
    TESSERA_RT(Graph_t) graph = nullptr;
    check(TESSERA_RT(StreamEndCapture)(queue(stream), &graph), "ending the capture of a graph");
    TESSERA_RT(GraphExec_t) executable = nullptr;
#if defined(__HIP__)
    const Status status = hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
#else
    const Status status = cudaGraphInstantiate(&executable, graph, 0);
#endif
    (void)TESSERA_RT(GraphDestroy)(graph);
    check(status, "making a captured graph executable");
    return executable;
  }
  size_t captured_nodes(gpu::StreamHandle stream) override {
    TESSERA_RT(StreamCaptureStatus) capturing;
    TESSERA_RT(Graph_t) graph = nullptr;
    size_t count = 0;
#if defined(__HIP__)
    Status status = hipStreamGetCaptureInfo_v2(queue(stream), &capturing, nullptr, &graph, nullptr, nullptr);
#else
    Status status = cudaStreamGetCaptureInfo(queue(stream), &capturing, nullptr, &graph, nullptr, nullptr, nullptr);
#endif
    if (status == success && graph) status = TESSERA_RT(GraphGetNodes)(graph, nullptr, &count);
    check(status, "asking for the steps of a graph");
    return count;
  }
  std::vector<gpu::GraphNode> end_capture_nodes(gpu::StreamHandle stream) override {
    TESSERA_RT(Graph_t) graph = nullptr;
    check(TESSERA_RT(StreamEndCapture)(queue(stream), &graph), "ending the capture of a graph");
    size_t count = 0;
    Status status = TESSERA_RT(GraphGetNodes)(graph, nullptr, &count);
    std::vector<GraphNode> nodes(count);
    if (status == success && count > 0) status = TESSERA_RT(GraphGetNodes)(graph, nodes.data(), &count);
    std::vector<gpu::GraphNode> described;
    if (status == success)
      for (const GraphNode node : nodes) described.push_back(describe_node(node));
    (void)TESSERA_RT(GraphDestroy)(graph);
    (void)TESSERA_RT(GetLastError)();  // of what a kernel does not tell: the next launch would find it
    check(status, "reading a captured graph");
    return described;
  }
  void launch(gpu::GraphHandle graph, gpu::StreamHandle stream) override {
    check_alive();
    check(TESSERA_RT(GraphLaunch)(static_cast<TESSERA_RT(GraphExec_t)>(graph), queue(stream)), "replaying a graph");
  }
  void destroy_graph(gpu::GraphHandle graph) noexcept override {
    (void)TESSERA_RT(GraphExecDestroy)(static_cast<TESSERA_RT(GraphExec_t)>(graph));
  }

  std::string start_activities(size_t most_bytes) override { return gpu_kernels::start_activities(most_bytes); }
  int64_t stop_activities(const std::function<void(const gpu::Activity&)>& take) override {
    return gpu_kernels::stop_activities(take);
  }

  gpu::ModuleHandle load_module(const void* code) override {
    check_alive();
#if defined(__HIP__)
    hipModule_t module = nullptr;
    const Status status = hipModuleLoadData(&module, code);
#else
    cudaLibrary_t module = nullptr;
    const Status status = cudaLibraryLoadData(&module, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
#endif
    check(status, "loading a compiled program");
    return module;
  }
  gpu::KernelHandle find_kernel(gpu::ModuleHandle module, const char* name) override {
    check_alive();
#if defined(__HIP__)
    hipFunction_t kernel = nullptr;
    const Status status = hipModuleGetFunction(&kernel, static_cast<hipModule_t>(module), name);
    const bool missing = status == hipErrorNotFound;
#else
    cudaKernel_t kernel = nullptr;
    const Status status = cudaLibraryGetKernel(&kernel, static_cast<cudaLibrary_t>(module), name);
    const bool missing = status == cudaErrorSymbolNotFound || status == cudaErrorInvalidDeviceFunction;
#endif
    if (missing) return (void)TESSERA_RT(GetLastError)(), nullptr;
    check(status, "looking for a kernel");
    return kernel;
  }
  void launch(gpu::KernelHandle kernel, const gpu::Grid& grid, void** arguments, gpu::StreamHandle stream) override {
    check_alive();
    const unsigned blocks = static_cast<unsigned>(grid.blocks), threads = static_cast<unsigned>(grid.threads);
#if defined(__HIP__)
    check(hipModuleLaunchKernel(static_cast<hipFunction_t>(kernel), blocks, 1, 1, threads, 1, 1,
                                static_cast<unsigned>(grid.shared_bytes), queue(stream), arguments, nullptr),
          "launching a compiled kernel");
#else
    if (grid.shared_bytes > 48 * 1024)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(grid.shared_bytes)),
            "reserving shared memory");
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = queue(stream);
    config.attrs = &early;
    config.numAttrs = grid.early ? 1 : 0;
    check(cudaLaunchKernelExC(&config, kernel, arguments), "launching a compiled kernel");
#endif
  }
};

VendorRuntime runtime;

}  // namespace

#if defined(__HIP__)
bool was_chosen(int device) { return device < 16 && chosen[device]; }
#endif
#if defined(TESSERA_VECTOR_TARGETS)
bool has_matrix_cores() { return !without_matrix_cores[current_device()]; }
#endif

void check_launch(const char* what) {
  check_alive();
  const Status status = TESSERA_RT(GetLastError)();
  if (status != success) check(status, what);
}

#if !defined(__HIP__)
namespace {

/// What the driver calls the kernels that were launched, by address. Asked for by every launch: read without a lock.
class KernelHandles {
 public:
  cudaKernel_t of(const void* kernel) {
    for (size_t i = first(kernel);; i = (i + 1) % size) {
      const void* known = slots_[i].kernel.load(std::memory_order_acquire);
      if (known == kernel) return slots_[i].handle;
      if (!known) return add(kernel);
    }
  }

 private:
  static constexpr size_t size = 8192;  // three times as many as there are kernels; one slot at least stays empty
  static size_t first(const void* kernel) { return reinterpret_cast<size_t>(kernel) / 16 % size; }
  struct Slot {
    std::atomic<const void*> kernel{nullptr};
    cudaKernel_t handle = nullptr;
  };

  cudaKernel_t add(const void* kernel) {
    cudaKernel_t handle = nullptr;
    check(cudaGetKernel(&handle, kernel), "looking for a kernel");
    std::lock_guard lock(mutex_);
    size_t i = first(kernel);
    while (slots_[i].kernel && slots_[i].kernel != kernel) i = (i + 1) % size;
    if (!slots_[i].kernel && used_ + 1 < size) {
      ++used_;
      slots_[i].handle = handle;
      slots_[i].kernel.store(kernel, std::memory_order_release);
    }
    return handle;
  }

  std::array<Slot, size> slots_;
  size_t used_ = 0;
  std::mutex mutex_;
};
KernelHandles handles;

}  // namespace

void launch_kernel(const char* what, const void* kernel, unsigned blocks, unsigned threads, size_t shared,
                   const void* const* arguments, Queue queue) {
  static const auto launch = driver_function<decltype(&::cuLaunchKernel)>("cuLaunchKernel");
  check_alive();
  void** addresses = const_cast<void**>(arguments);
  if (shared > 48 * 1024 || !launch)  // which the run-time library was asked for
    return check(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), addresses, shared, queue), what);
  // The driver's numbers of errors are those of the run-time library.
  check(static_cast<Status>(launch(reinterpret_cast<CUfunction>(handles.of(kernel)), blocks, 1, 1, threads, 1, 1,
                                   static_cast<unsigned>(shared), queue, addresses, nullptr)),
        what);
}
#endif

void throw_unsupported(const char* what) {
  throw Error(std::string("this device's plugin has no such kernel: ") + what);
}

gpu::Runtime& vendor_runtime() { return runtime; }

}  // namespace tessera::gpu_kernels
