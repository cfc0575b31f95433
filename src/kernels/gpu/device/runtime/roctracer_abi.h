// roctracer's binary interface as far as it is used, which is that of its versions 4.1: of ROCm 5.3 to 7. Before 5.3 a
// record had no name of a kernel, and its library no roctracer_next_record. From 5.4 on HIP tells names, and devices by
// the driver's numbers instead of its own.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tessera::gpu_kernels::roctracer {

inline constexpr uint32_t major_version = 4;
inline constexpr int success = 0;

enum Domain : int { HipWork = 2, HipCalls = 3 };
/// Of HipWork, of which roctracer calls the first a dispatch. The third are barriers.
enum Work : uint32_t { Kernels = 0, Copies = 1 };

struct Record {
  uint32_t domain, kind, operation;  // kind: of work, OpenCL's number of such commands
  uint64_t correlation, begin, end;  // the times are nanoseconds of roctracer's clock
  union {
    struct {
      int device;
      uint64_t queue;
    } work;
    struct {
      uint32_t process, thread;  // the system's numbers
    } call;
  };
  union {
    size_t bytes;        // copied or filled
    const char* kernel;  // mangled, in the same buffer; null: HIP tells none
  };
};
static_assert(sizeof(Record) == 64 && offsetof(Record, correlation) == 16 && offsetof(Record, work) == 40 &&
              offsetof(Record, work.queue) == 48 && offsetof(Record, call.thread) == 44 &&
              offsetof(Record, kernel) == 56);

struct PoolProperties {
  uint32_t mode = 0;
  size_t buffer_bytes = 0;  // of each of two
  void (*allocate)(char** memory, size_t bytes, void* argument) = nullptr;
  void* allocate_argument = nullptr;
  /// A buffer, or part of one, from `begin` to `end`; it is written again when this returns. On a thread of
  /// roctracer's.
  void (*take)(const char* begin, const char* end, void* argument) = nullptr;
  void* take_argument = nullptr;
};
static_assert(sizeof(PoolProperties) == 48 && offsetof(PoolProperties, take) == 32);

}  // namespace tessera::gpu_kernels::roctracer
