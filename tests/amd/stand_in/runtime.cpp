// A stand-in for libamdhip64.so: the part of HIP's runtime that libtessera_hip.so calls, on a made-up card. Calls are
// counted and can be told to fail. Kernels are executed by an emulator where there is one (card.h), and done when the
// call that launches them returns; a capture keeps what it is given for the replays.
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "card.h"
#include "control.h"

using stand_in::card;
using stand_in::Card;
using stand_in::Kernel;
using stand_in::Shape;
// What a stream was given; of a kernel also which one, and how it is launched.
struct Step {
  std::function<hipError_t()> work;
  StandInWork what;
  std::string kernel = {};  // mangled
  const void* function = nullptr;
  Shape shape{};
  StandInBegin begin = {};  // instead of work: what goes on behind the call
};

struct ihipGraph {
  std::vector<Step> steps;
};
struct hipGraphExec {
  std::vector<Step> steps;
};
struct ihipStream_t {
  std::shared_ptr<ihipGraph> capture;  // null: nothing is captured
  uint64_t number = 0;
  Pendings pending = {};  // what goes on in it
};
struct ihipEvent_t {
  bool recorded = false;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<ihipGraph> capture;  // that it was recorded in
  Pendings pending = {};               // what went on then
};
struct ihipModule_t {
  std::map<std::string, Kernel> kernels;
};
struct ihipModuleSymbol_t {
  Kernel kernel;
};
struct _hiprtcProgram {
  std::string source, code, log;
};

namespace {

// ---- calls: counted, and failing where a test says so

struct Function {
  long calls = 0, fails_after = -1;  // -1: never
  hipError_t status = hipSuccess;
};
std::mutex calls_mutex;
std::map<std::string, Function>& functions() {
  static auto* all = new std::map<std::string, Function>;
  return *all;
}
thread_local hipError_t last_error = hipSuccess;

hipError_t done(hipError_t status) {
  if (status != hipSuccess) last_error = status;
  return status;
}

hipError_t called(const char* name) {
  std::lock_guard lock(calls_mutex);
  Function& function = functions()[name];
  ++function.calls;
  if (function.fails_after > 0) --function.fails_after;
  else if (function.fails_after == 0) return function.status;
  return hipSuccess;
}

// ---- a tracing library, which hears of calls and of what they had the card do

std::atomic<const StandInTracer*> tracer{nullptr};
std::atomic<int> tells_late{0};  // milliseconds
std::atomic<bool> tells_no_times{false};
thread_local uint64_t correlation_of_call = 0;

class Traced {
 public:
  explicit Traced(const char* function) : function_(function), to_(tracer) {
    if (to_) correlation_of_call = to_->entered(function);
    begin_ = stand_in_clock();
  }
  ~Traced() {
    if (const uint64_t correlation = std::exchange(correlation_of_call, 0)) to_->left(function_, correlation, begin_);
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

 private:
  const char* function_;
  const StandInTracer* to_;
  uint64_t begin_;
};

void tell(const StandInWork& work, const std::string& kernel) {
  const auto tell_now = [](StandInWork work, const std::string& kernel) {
    work.kernel = kernel.empty() ? nullptr : kernel.c_str();
    if (const StandInTracer* to = tracer) to->worked(work);
  };
  const int milliseconds = tells_late;
  if (milliseconds == 0) return tell_now(work, kernel);
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    tell_now(work, kernel);
  }).detach();
}

// Begins every function that can fail; the other those of hipRTC.
#define STAND_IN_CALL                                                                        \
  const Traced traced(__func__);                                                             \
  if (const hipError_t status = called(__func__); status != hipSuccess) return done(status); \
  (void)0
#define STAND_IN_COMPILER_CALL                                                                                 \
  if (const int status = called(__func__); status != HIPRTC_SUCCESS) return static_cast<hiprtcResult>(status); \
  (void)0

// ---- kernels of the program

// A bundle of code objects that a compiled unit of the plugin registers; loaded when a kernel of it is first launched.
struct Bundle {
  const void* image;
  std::map<std::string, Kernel> kernels;
  bool loaded = false;
};
struct Registered {
  Bundle* bundle;
  std::string name;
};
std::mutex kernels_mutex;
std::map<const void*, Registered>& registered() {
  static auto* all = new std::map<const void*, Registered>;
  return *all;
}

constexpr const char* target = "gfx90a";

const Kernel* kernel_of(const void* function) {
  std::lock_guard lock(kernels_mutex);
  const auto found = registered().find(function);
  if (found == registered().end()) return nullptr;
  Bundle& bundle = *found->second.bundle;
  if (!bundle.loaded) {
    const std::byte* code = stand_in::find_code(bundle.image, target);
    if (code) bundle.kernels = stand_in::load_code(code);
    bundle.loaded = true;
  }
  const auto kernel = bundle.kernels.find(found->second.name);
  return kernel == bundle.kernels.end() ? nullptr : &kernel->second;
}

// A kernel that the emulator cannot execute is a refused launch, so that a long run of tests goes on behind it.
hipError_t execute(const Kernel& kernel, const Shape& shape, const std::vector<std::byte>& arguments) {
  static std::FILE* const log = [] {
    const char* name = std::getenv("TESSERA_STAND_IN_LOG");
    return name ? std::fopen(name, "w") : nullptr;
  }();
  if (log) std::fprintf(log, "%u %u %s\n", shape.blocks[0], shape.threads[0], kernel.name.c_str());
  if (!Card::executes()) return hipSuccess;
  const std::string fault = card().run(kernel, shape, arguments);
  if (fault.empty()) return hipSuccess;
  std::fprintf(stderr, "%s: %s\n", kernel.name.c_str(), fault.c_str());
  return hipErrorUnknown;
}

bool are_done(Pendings& pending) {
  std::erase_if(pending, [](const auto& p) { return p->is_done(); });
  return pending.empty();
}
void wait_for(Pendings& pending) {
  for (const auto& p : pending) p->wait();
  pending.clear();
}

hipError_t queue(hipStream_t stream, const Step& step) {
  if (stream && stream->capture) return stream->capture->steps.push_back(step), hipSuccess;
  if (step.begin) {
    are_done(stream->pending);
    stream->pending.push_back(step.begin(stream->pending));
    return hipSuccess;
  }
  if (stream) wait_for(stream->pending);
  StandInWork what = step.what;
  what.correlation = correlation_of_call;
  what.queue = stream ? stream->number : 0;
  what.begin = stand_in_clock();
  const hipError_t status = step.work();
  what.end = stand_in_clock();
  if (tells_no_times) what.begin = what.end = 0;
  if (status == hipSuccess) tell(what, step.kernel);
  return done(status);
}

hipError_t launch(const Kernel& kernel, const void* function, const Shape& shape, void** values, hipStream_t stream) {
  const uint64_t threads = uint64_t{shape.threads[0]} * shape.threads[1] * shape.threads[2];
  const auto too_many = [&](int d) {
    return uint64_t{shape.blocks[d]} * shape.threads[d] > 0xFFFFFFFF;
  };  // as in AMD's
  if (too_many(0) || too_many(1) || too_many(2) || threads == 0 || threads > kernel.most_threads ||
      shape.blocks[0] == 0 || shape.blocks[1] == 0 || shape.blocks[2] == 0 ||
      kernel.group_bytes + shape.shared_bytes > 64 * 1024)
    return done(hipErrorInvalidConfiguration);
  const auto work = [kernel, shape, arguments = stand_in::argument_bytes(kernel, shape, values)] {
    return execute(kernel, shape, arguments);
  };
  return queue(stream, {work, {StandInWork::Kernel}, kernel.name, function, shape});
}

// HIP knows the memory that it gave, page-locked memory of the host included.
StandInWork::Kind kind_of_copy(const void* to, const void* from, bool of_rows) {
  using Kind = StandInWork::Kind;
  if (!card().has(from)) return of_rows ? Kind::WriteRows : Kind::Write;
  if (!card().has(to)) return of_rows ? Kind::ReadRows : Kind::Read;
  return of_rows ? Kind::CopyRows : Kind::Copy;
}

// What hipRTC compiles to here: this, and the name of the program's kernel, which does nothing.
constexpr const char* made_up = "a program of the stand-in with ";

// TESSERA_STAND_IN_CARDS of them; one where it says nothing.
int cards() {
  static const int count = [] {
    const char* const text = std::getenv("TESSERA_STAND_IN_CARDS");
    return text ? std::atoi(text) : 1;
  }();
  return count;
}
thread_local int current_device = 0;

struct Configuration {
  dim3 blocks, threads;
  size_t shared;
  hipStream_t stream;
};
thread_local Configuration configuration;

}  // namespace

extern "C" {

void stand_in_fail(const char* function, long skip, int status) {
  std::lock_guard lock(calls_mutex);
  if (function) {
    functions()[function].fails_after = status ? skip : -1;
    functions()[function].status = static_cast<hipError_t>(status);
    return;
  }
  for (auto& [name, known] : functions()) known.fails_after = -1;
}

long stand_in_calls(const char* function) {
  std::lock_guard lock(calls_mutex);
  return functions()[function].calls;
}

void stand_in_tell_late(int milliseconds) { tells_late = milliseconds; }
void stand_in_tell_no_times(bool none) { tells_no_times = none; }
void stand_in_queue(void* stream, const StandInBegin& begin) {
  Step step{{}, {StandInWork::Task}};
  step.begin = begin;
  (void)queue(static_cast<hipStream_t>(stream), step);  // cannot fail
}
int stand_in_called(const char* function) { return called(function); }
void stand_in_trace(const StandInTracer* to) { tracer = to; }

// ---- what clang's code for the host calls

void** __hipRegisterFatBinary(const void* data) {
  struct Wrapper {
    uint32_t magic, version;
    const void* binary;
  };
  return reinterpret_cast<void**>(new Bundle{static_cast<const Wrapper*>(data)->binary, {}, false});
}
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterFunction(void** modules, const void* function, char*, const char* name, unsigned, void*, void*, void*,
                           void*, int*) {
  std::lock_guard lock(kernels_mutex);
  registered()[function] = {reinterpret_cast<Bundle*>(modules), name};
}
hipError_t __hipPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared, hipStream_t stream) {
  const Traced traced(__func__);
  configuration = {blocks, threads, shared, stream};
  return hipSuccess;
}
hipError_t __hipPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, hipStream_t* stream) {
  const Traced traced(__func__);
  *blocks = configuration.blocks;
  *threads = configuration.threads;
  *shared = configuration.shared;
  *stream = configuration.stream;
  return hipSuccess;
}
hipError_t hipLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** values, size_t shared,
                           hipStream_t stream) {
  STAND_IN_CALL;
  const Kernel* kernel = kernel_of(function);
  if (!kernel) return done(hipErrorInvalidDeviceFunction);
  return launch(*kernel, function,
                {{blocks.x, blocks.y, blocks.z}, {threads.x, threads.y, threads.z}, static_cast<uint32_t>(shared)},
                values, stream);
}
hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute, int bytes) {
  STAND_IN_CALL;
  return kernel_of(function) && bytes <= 64 * 1024 ? hipSuccess : done(hipErrorInvalidValue);
}

// ---- devices, which share their memory

hipError_t hipGetDeviceCount(int* count) {
  STAND_IN_CALL;
  *count = cards();
  return hipSuccess;
}
hipError_t hipDriverGetVersion(int* version) {
  STAND_IN_CALL;
  *version = HIP_VERSION;
  return hipSuccess;
}
hipError_t hipRuntimeGetVersion(int* version) {
  STAND_IN_CALL;
  *version = HIP_VERSION;
  return hipSuccess;
}
hipError_t hipGetDevice(int* device) {
  STAND_IN_CALL;
  *device = current_device;
  return hipSuccess;
}
hipError_t hipSetDevice(int device) {
  STAND_IN_CALL;
  if (device < 0 || device >= cards()) return done(hipErrorInvalidDevice);
  current_device = device;
  return hipSuccess;
}
hipError_t hipGetDeviceProperties(hipDeviceProp_t* p, int device) {
  STAND_IN_CALL;
  if (device < 0 || device >= cards()) return done(hipErrorInvalidDevice);
  *p = {};
  std::strcpy(p->name, Card::executes() ? "emulated MI200" : "made-up MI200");
  std::strcpy(p->gcnArchName, "gfx90a:sramecc+:xnack-");
  p->totalGlobalMem = Card::memory_bytes;
  p->multiProcessorCount = 104;
  p->warpSize = 64;
  p->sharedMemPerBlock = 64 * 1024;
  p->maxThreadsPerBlock = 1024;
  return hipSuccess;
}
hipError_t hipGetLastError() {
  const Traced traced(__func__);
  const hipError_t status = last_error;
  last_error = hipSuccess;
  return status;
}
const char* hipGetErrorString(hipError_t status) {
  switch (status) {
    case hipErrorOutOfMemory:
      return "out of memory";
    case hipErrorLaunchFailure:
      return "unspecified launch failure";
    case hipErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case hipErrorECCNotCorrectable:
      return "uncorrectable ECC error encountered";
    case hipErrorInvalidConfiguration:
      return "invalid configuration argument";
    case hipErrorNoDevice:
      return "no ROCm-capable device is detected";
    default:
      return "error of the stand-in";
  }
}

// ---- memory

hipError_t hipMalloc(void** memory, size_t bytes) {
  STAND_IN_CALL;
  *memory = card().allocate(bytes);
  return *memory ? hipSuccess : done(hipErrorOutOfMemory);
}
hipError_t hipFree(void* memory) {
  STAND_IN_CALL;
  return !memory || card().release(memory) ? hipSuccess : done(hipErrorInvalidValue);
}
hipError_t hipHostMalloc(void** memory, size_t bytes, unsigned) {
  STAND_IN_CALL;
  *memory = card().allocate(bytes);
  return *memory ? hipSuccess : done(hipErrorOutOfMemory);
}
hipError_t hipHostFree(void* memory) {
  STAND_IN_CALL;
  return !memory || card().release(memory) ? hipSuccess : done(hipErrorInvalidValue);
}
hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  STAND_IN_CALL;
  *free = card().free_bytes();
  *total = Card::memory_bytes;
  return hipSuccess;
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t stream) {
  STAND_IN_CALL;
  return queue(stream,
               {[=] { return std::memmove(to, from, bytes), hipSuccess; }, {kind_of_copy(to, from, false), bytes}});
}
hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                            hipMemcpyKind, hipStream_t stream) {
  STAND_IN_CALL;
  const auto copy = [=] {
    for (size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return hipSuccess;
  };
  return queue(stream, {copy, {kind_of_copy(to, from, true), width * height}});
}
hipError_t hipMemsetAsync(void* memory, int byte, size_t bytes, hipStream_t stream) {
  STAND_IN_CALL;
  return queue(stream, {[=] { return std::memset(memory, byte, bytes), hipSuccess; }, {StandInWork::Fill, bytes}});
}

// ---- streams and events

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  STAND_IN_CALL;
  static std::atomic<uint64_t> last{0};
  *stream = new ihipStream_t{nullptr, ++last};
  return hipSuccess;
}
hipError_t hipStreamDestroy(hipStream_t stream) {
  STAND_IN_CALL;
  delete stream;
  return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
  STAND_IN_CALL;
  if (stream && stream->capture) return done(hipErrorStreamCaptureUnsupported);
  if (stream) wait_for(stream->pending);
  return hipSuccess;
}
hipError_t hipStreamQuery(hipStream_t stream) {
  STAND_IN_CALL;
  return !stream || are_done(stream->pending) ? hipSuccess : hipErrorNotReady;
}
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  STAND_IN_CALL;
  if (event->capture && stream) stream->capture = event->capture;  // a fork, or a join
  else if (stream) stream->pending.insert(stream->pending.end(), event->pending.begin(), event->pending.end());
  return hipSuccess;
}
hipError_t hipDeviceSynchronize() {
  STAND_IN_CALL;
  return hipSuccess;
}
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  STAND_IN_CALL;
  *event = new ihipEvent_t;
  return hipSuccess;
}
hipError_t hipEventDestroy(hipEvent_t event) {
  STAND_IN_CALL;
  delete event;
  return hipSuccess;
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  STAND_IN_CALL;
  event->capture = stream ? stream->capture : nullptr;
  event->pending = stream && !stream->capture ? stream->pending : Pendings();
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  return hipSuccess;
}
hipError_t hipEventQuery(hipEvent_t event) {
  STAND_IN_CALL;
  return are_done(event->pending) ? hipSuccess : hipErrorNotReady;
}
hipError_t hipEventSynchronize(hipEvent_t event) {
  STAND_IN_CALL;
  wait_for(event->pending);
  return hipSuccess;
}
hipError_t hipEventElapsedTime(float* ms, hipEvent_t from, hipEvent_t to) {
  STAND_IN_CALL;
  if (!from->recorded || !to->recorded) return done(hipErrorInvalidHandle);
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return hipSuccess;
}

// ---- graphs

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode) {
  STAND_IN_CALL;
  if (!stream || stream->capture) return done(hipErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<ihipGraph>();
  return hipSuccess;
}
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  const auto captured = std::exchange(stream->capture, nullptr);  // also where the call fails
  STAND_IN_CALL;
  if (!captured) return done(hipErrorStreamCaptureUnmatched);
  *graph = new ihipGraph{std::move(*captured)};
  return hipSuccess;
}
hipError_t hipStreamGetCaptureInfo_v2(hipStream_t stream, hipStreamCaptureStatus* capturing, unsigned long long*,
                                      hipGraph_t* graph, const hipGraphNode_t**, size_t*) {
  STAND_IN_CALL;
  *capturing = stream && stream->capture ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
  if (*capturing == hipStreamCaptureStatusActive) *graph = stream->capture.get();
  return hipSuccess;
}
hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph, hipGraphNode_t*, char*, size_t) {
  STAND_IN_CALL;
  *executable = new hipGraphExec{graph->steps};
  for (Step& step : (*executable)->steps)
    if (step.what.kind == StandInWork::Kernel) step.what.kind = StandInWork::Task;
  return hipSuccess;
}
hipError_t hipGraphLaunch(hipGraphExec_t graph, hipStream_t stream) {
  STAND_IN_CALL;
  for (const Step& step : graph->steps)
    if (const hipError_t status = queue(stream, step); status != hipSuccess) return status;
  return hipSuccess;
}
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, size_t* count) {
  STAND_IN_CALL;
  if (!nodes) return *count = graph->steps.size(), hipSuccess;
  for (size_t i = 0; i < *count; ++i) nodes[i] = reinterpret_cast<hipGraphNode_t>(&graph->steps[i]);
  return hipSuccess;
}
hipError_t hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType* type) {
  STAND_IN_CALL;
  *type = reinterpret_cast<Step*>(node)->function ? hipGraphNodeTypeKernel : hipGraphNodeTypeMemset;
  return hipSuccess;
}
hipError_t hipGraphKernelNodeGetParams(hipGraphNode_t node, hipKernelNodeParams* params) {
  STAND_IN_CALL;
  const Step& step = *reinterpret_cast<Step*>(node);
  const auto& [blocks, threads, shared_bytes] = step.shape;
  *params = {{threads[0], threads[1], threads[2]}, nullptr, const_cast<void*>(step.function),
             {blocks[0], blocks[1], blocks[2]},    nullptr, shared_bytes};
  return hipSuccess;
}
const char* hipKernelNameRefByPtr(const void* function, hipStream_t) {
  const Kernel* const kernel = kernel_of(function);
  return kernel ? kernel->name.c_str() : nullptr;
}
hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* function) {
  STAND_IN_CALL;
  const Kernel* const kernel = kernel_of(function);
  if (!kernel) return done(hipErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->sharedSizeBytes = kernel->group_bytes;
  return hipSuccess;
}
hipError_t hipGraphDestroy(hipGraph_t graph) {
  STAND_IN_CALL;
  delete graph;
  return hipSuccess;
}
hipError_t hipGraphExecDestroy(hipGraphExec_t graph) {
  STAND_IN_CALL;
  delete graph;
  return hipSuccess;
}

// ---- code that is compiled at run time

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  STAND_IN_CALL;
  if (const auto* text = static_cast<const char*>(image); std::strncmp(text, made_up, std::strlen(made_up)) == 0) {
    const std::string name = text + std::strlen(made_up);
    *module = new ihipModule_t{{{name, Kernel{name, 0, 0, 0, 0, 1024, {}}}}};
    return hipSuccess;
  }
  const std::byte* code = stand_in::find_code(image, target);
  if (!code) return done(hipErrorNoBinaryForGpu);
  try {
    *module = new ihipModule_t{stand_in::load_code(code)};
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return done(hipErrorInvalidImage);
  }
  return hipSuccess;
}
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  STAND_IN_CALL;
  const auto found = module->kernels.find(name);
  if (found == module->kernels.end()) return done(hipErrorNotFound);
  *function = new ihipModuleSymbol_t{found->second};  // as long as the module, which nobody unloads
  return hipSuccess;
}
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                                 unsigned threads_y, unsigned threads_z, unsigned shared, hipStream_t stream,
                                 void** values, void**) {
  STAND_IN_CALL;
  return launch(function->kernel, function, {{x, y, z}, {threads_x, threads_y, threads_z}, shared}, values, stream);
}

hiprtcResult hiprtcVersion(int* major, int* minor) {
  STAND_IN_COMPILER_CALL;
  *major = HIP_VERSION_MAJOR, *minor = HIP_VERSION_MINOR;
  return HIPRTC_SUCCESS;
}
const char* hiprtcGetErrorString(hiprtcResult status) {
  return status == HIPRTC_ERROR_OUT_OF_MEMORY ? "HIPRTC_ERROR_OUT_OF_MEMORY" : "HIPRTC_ERROR of the stand-in";
}
hiprtcResult hiprtcCreateProgram(hiprtcProgram* program, const char* source, const char*, int, const char**,
                                 const char**) {
  STAND_IN_COMPILER_CALL;
  *program = new _hiprtcProgram{source, "", ""};
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcDestroyProgram(hiprtcProgram* program) {
  STAND_IN_COMPILER_CALL;
  delete std::exchange(*program, nullptr);
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int, const char**) {
  program->log = "program:1:2: error: told to fail";  // kept where it is
  STAND_IN_COMPILER_CALL;
  program->log.clear();
  const std::string& source = program->source;
  const size_t begin = source.find("void ", source.find("extern \"C\"")) + 5;
  program->code = made_up + source.substr(begin, source.find('(', begin) - begin);
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t* bytes) {
  STAND_IN_COMPILER_CALL;
  *bytes = program->log.size() + 1;
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char* log) {
  STAND_IN_COMPILER_CALL;
  std::strcpy(log, program->log.c_str());
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t* bytes) {
  STAND_IN_COMPILER_CALL;
  *bytes = program->code.size() + 1;
  return HIPRTC_SUCCESS;
}
hiprtcResult hiprtcGetCode(hiprtcProgram program, char* code) {
  STAND_IN_COMPILER_CALL;
  std::strcpy(code, program->code.c_str());
  return HIPRTC_SUCCESS;
}

}  // extern "C"
