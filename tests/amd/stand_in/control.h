// What tests say to the stand-in for libamdhip64.so, and ask of it: look the functions up with dlsym(RTLD_DEFAULT) when
// the plugin is loaded. And what it tells that for libroctracer64.so.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

/// Work of the card's that is done, or a copy or fill.
struct StandInWork {
  enum Kind : uint32_t {  // OpenCL's numbers of commands, as HIP has them
    Kernel = 0x11F0,
    Task = 0x11F1,  // a kernel of a graph
    Read = 0x11F3,
    Write = 0x11F4,
    Copy = 0x11F5,
    ReadRows = 0x1201,
    WriteRows = 0x1202,
    CopyRows = 0x1203,
    Fill = 0x1207
  };
  Kind kind;
  size_t bytes = 0;
  const char* kernel = nullptr;  // mangled
  uint64_t queue = 0, correlation = 0, begin = 0, end = 0;
};

/// Who hears of calls and work.
struct StandInTracer {
  uint64_t (*entered)(const char* function);  // the call's correlation; 0: it is not asked for
  void (*left)(const char* function, uint64_t correlation, uint64_t begin);
  void (*worked)(const StandInWork& work);
};

/// Work that goes on behind the call that queued it.
struct StandInPending {
  virtual ~StandInPending() = default;
  virtual bool is_done() = 0;
  virtual void wait() = 0;
};
using Pendings = std::vector<std::shared_ptr<StandInPending>>;
/// Begins it behind what still goes on in the stream, which it gets.
using StandInBegin = std::function<std::shared_ptr<StandInPending>(const Pendings& before)>;

extern "C" {
/// For the stand-in for librccl.so: what is queued on the stream afterwards waits for it. In a captured graph it begins
/// with each replay.
using StandInQueue = void(void* stream, const StandInBegin& begin);
/// The call of `function` after the next `skip` ones, and all later ones, return `status`; 0: they work again. With a
/// null `function` everything works again.
using StandInFail = void(const char* function, long skip, int status);
/// How often `function` was called.
using StandInCalls = long(const char* function);
/// Work is told of so many milliseconds after it was done and waited for.
using StandInTellLate = void(int milliseconds);
/// Work is told of without times, or with them again.
using StandInTellNoTimes = void(bool);

/// For the stand-in for libroctracer64.so, which defines none of them: counts a call of its own, and says what it
/// returns; and begins to tell, or with null no longer does.
int stand_in_called(const char* function);
void stand_in_trace(const StandInTracer* tracer);
}

/// Their names there.
inline constexpr const char* stand_in_fail_name = "stand_in_fail";
inline constexpr const char* stand_in_calls_name = "stand_in_calls";
inline constexpr const char* stand_in_tell_late_name = "stand_in_tell_late";
inline constexpr const char* stand_in_tell_no_times_name = "stand_in_tell_no_times";

/// Nanoseconds of the clock that both tell times of.
inline uint64_t stand_in_clock() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}
