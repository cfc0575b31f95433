// A stand-in for libroctracer64.so: the part of it that libtessera_hip.so calls, which hears from the stand-in for
// libamdhip64.so and tells as ROCm's does: records of 64 bytes in one of a pool's two buffers, names of kernels behind
// them, and a thread that hands over the buffer that is full or flushed while the other one is written.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "control.h"

namespace {

enum Status { Success = 0, Failure = -1, BadDomain = -2, BadArgument = -3 };
enum Domain : uint32_t { Work = 2, Calls = 3 };

// activity_record_t of version 4.1, by offsets, apart from what the plugin has of it.
constexpr size_t record_bytes = 64;
struct RecordWriter {
  char bytes[record_bytes] = {};
  template <class T>
  void put(size_t offset, T value) {
    std::memcpy(bytes + offset, &value, sizeof value);
  }
};

// roctracer_properties_t
struct Properties {
  uint32_t mode;
  size_t buffer_size;
  void (*allocate)(char**, size_t, void*);
  void* allocate_argument;
  void (*callback)(const char* begin, const char* end, void* argument);
  void* argument;
};

class Pool {
 public:
  explicit Pool(const Properties& properties) : properties_(properties) {
    for (auto& buffer : buffers_) buffer.resize(properties.buffer_size);
    name_at_ = properties.buffer_size;
    std::thread(&Pool::hand_over, this).detach();  // nobody closes a pool
  }

  void write(RecordWriter record, const char* name) {
    std::lock_guard lock(writing_);
    const size_t name_bytes = name ? std::strlen(name) + 1 : 0;
    if (at_ + record_bytes + name_bytes > name_at_) give();
    std::vector<char>& buffer = buffers_[current_];
    if (name) {
      name_at_ -= name_bytes;
      std::memcpy(&buffer[name_at_], name, name_bytes);
      record.put(56, static_cast<const char*>(&buffer[name_at_]));
    }
    std::memcpy(&buffer[at_], record.bytes, record_bytes);
    at_ += record_bytes;
  }

  void flush() {
    {
      std::lock_guard lock(writing_);
      if (at_ == 0) return;
      give();
    }
    wait();
  }

 private:
  void give() {
    wait();
    {
      std::lock_guard lock(giving_);
      given_begin_ = buffers_[current_].data();
      given_end_ = given_begin_ + at_;
    }
    changed_.notify_all();
    current_ = 1 - current_;
    at_ = 0;
    name_at_ = properties_.buffer_size;
  }
  void wait() {
    std::unique_lock lock(giving_);
    changed_.wait(lock, [this] { return !given_begin_; });
  }
  void hand_over() {
    std::unique_lock lock(giving_);
    while (true) {
      changed_.wait(lock, [this] { return given_begin_ != nullptr; });
      lock.unlock();
      properties_.callback(given_begin_, given_end_, properties_.argument);
      std::memset(const_cast<char*>(given_begin_), 0xFF, properties_.buffer_size);  // nothing of it can be kept
      lock.lock();
      given_begin_ = nullptr;
      changed_.notify_all();
    }
  }

  const Properties properties_;
  std::vector<char> buffers_[2];
  int current_ = 0;
  size_t at_ = 0, name_at_ = 0;
  std::mutex writing_, giving_;
  std::condition_variable changed_;
  const char *given_begin_ = nullptr, *given_end_ = nullptr;
};

struct State {
  std::mutex mutex;
  Pool* calls = nullptr;  // null: they are not asked for
  Pool* work[2] = {};
  std::set<std::string> without;  // calls
  std::deque<std::string> names;
  std::atomic<uint64_t> correlation{0};
};
State& state() {
  static State* const one = new State;
  return *one;
}

uint32_t number_of(const std::string& function) {  // under the lock
  std::deque<std::string>& names = state().names;
  for (uint32_t i = 0; i < names.size(); ++i)
    if (names[i] == function) return i;
  names.push_back(function);
  return static_cast<uint32_t>(names.size()) - 1;
}

uint64_t entered(const char* function) {
  std::lock_guard lock(state().mutex);
  return state().calls && !state().without.contains(function) ? ++state().correlation : 0;
}
void left(const char* function, uint64_t correlation, uint64_t begin) {
  Pool* pool = nullptr;
  RecordWriter record;
  {
    std::lock_guard lock(state().mutex);
    pool = state().calls;
    record.put(8, number_of(function));
  }
  if (!pool) return;
  record.put(0, static_cast<uint32_t>(Calls));
  record.put(16, correlation);
  record.put(24, begin);
  record.put(32, stand_in_clock());
  record.put(40, static_cast<uint32_t>(getpid()));
  record.put(44, static_cast<uint32_t>(syscall(SYS_gettid)));
  pool->write(record, nullptr);
}
void worked(const StandInWork& work) {
  const uint32_t operation = work.kernel ? 0 : 1;
  Pool* pool = nullptr;
  {
    std::lock_guard lock(state().mutex);
    pool = state().work[operation];
  }
  if (!pool) return;
  RecordWriter record;
  record.put(0, static_cast<uint32_t>(Work));
  record.put(4, static_cast<uint32_t>(work.kind));
  record.put(8, operation);
  record.put(16, work.correlation);
  record.put(24, work.begin);
  record.put(32, work.end);
  record.put(40, int{0});
  record.put(48, work.queue);
  record.put(56, work.bytes);
  pool->write(record, work.kernel);
}

constexpr StandInTracer tracer{entered, left, worked};
void tell_or_not() {  // under the lock
  const bool asked = state().calls || state().work[0] || state().work[1];
  stand_in_trace(asked ? &tracer : nullptr);
}

const char* name_of(uint32_t kind) {
  switch (kind) {
    case StandInWork::Read:
      return "CopyDeviceToHost";
    case StandInWork::Write:
      return "CopyHostToDevice";
    case StandInWork::Copy:
      return "CopyDeviceToDevice";
    case StandInWork::ReadRows:
      return "CopyDeviceToHost2D";
    case StandInWork::WriteRows:
      return "CopyHostToDevice2D";
    case StandInWork::CopyRows:
      return "CopyDeviceToDevice2D";
    case StandInWork::Fill:
      return "FillBuffer";
    default:
      return "KernelExecution";
  }
}

}  // namespace

// Begins every function that a test can tell to fail.
#define STAND_IN_CALL                                                      \
  if (const int status = stand_in_called(__func__); status) return status; \
  (void)0

extern "C" {

uint32_t roctracer_version_major() { return 4 + static_cast<uint32_t>(stand_in_called(__func__)); }
const char* roctracer_error_string() { return strdup("told to fail"); }

const char* roctracer_op_string(uint32_t domain, uint32_t operation, uint32_t kind) {
  if (domain == Work) return name_of(kind);
  std::lock_guard lock(state().mutex);
  return domain == Calls && operation < state().names.size() ? state().names[operation].c_str() : nullptr;
}
int roctracer_op_code(uint32_t domain, const char* name, uint32_t* operation, uint32_t*) {
  STAND_IN_CALL;
  if (domain != Calls) return BadDomain;
  std::lock_guard lock(state().mutex);
  *operation = number_of(name);
  return Success;
}

int roctracer_open_pool_expl(const Properties* properties, void** pool) {
  STAND_IN_CALL;
  *pool = new Pool(*properties);
  return Success;
}
int roctracer_enable_domain_activity_expl(uint32_t domain, void* pool) {
  STAND_IN_CALL;
  if (domain != Calls) return BadDomain;
  std::lock_guard lock(state().mutex);
  state().calls = static_cast<Pool*>(pool);
  state().without.clear();
  tell_or_not();
  return Success;
}
int roctracer_enable_op_activity_expl(uint32_t domain, uint32_t operation, void* pool) {
  STAND_IN_CALL;
  if (domain != Work || operation > 1) return BadArgument;
  std::lock_guard lock(state().mutex);
  state().work[operation] = static_cast<Pool*>(pool);
  tell_or_not();
  return Success;
}
int roctracer_disable_domain_activity(uint32_t domain) {
  STAND_IN_CALL;
  if (domain != Calls) return BadDomain;
  std::lock_guard lock(state().mutex);
  state().calls = nullptr;
  tell_or_not();
  return Success;
}
int roctracer_disable_op_activity(uint32_t domain, uint32_t operation) {
  STAND_IN_CALL;
  std::lock_guard lock(state().mutex);
  if (domain == Calls && operation < state().names.size()) state().without.insert(state().names[operation]);
  else if (domain == Work && operation < 2) state().work[operation] = nullptr;
  else return BadArgument;
  tell_or_not();
  return Success;
}
int roctracer_flush_activity_expl(void* pool) {
  STAND_IN_CALL;
  static_cast<Pool*>(pool)->flush();
  return Success;
}
#if !defined(STAND_IN_OF_ROCM_5_2)  // whose headers had it
int roctracer_next_record(const char* record, const char** next) {
  *next = record + record_bytes;
  return Success;
}
#endif
int roctracer_get_timestamp(uint64_t* timestamp) {
  STAND_IN_CALL;
  *timestamp = stand_in_clock();
  return Success;
}

}  // extern "C"
