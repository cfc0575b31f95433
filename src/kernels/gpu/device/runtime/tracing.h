// What the vendors' tracing libraries have in common: each is opened at run time where it is installed, and is on for
// one recording at a time, of the process that began.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/gpu/runtime.h"

namespace tessera::gpu_kernels::tracing {

using Take = std::function<void(const gpu::Activity&)>;

/// Nanoseconds since 1970.
inline uint64_t now() {
  timespec t{};
  (void)clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

/// Files of these names, the likeliest first: what a variable of the environment names, a file or a folder, and nothing
/// else; or the system's, and those in these folders.
inline std::vector<std::string> files_of(const char* variable, const std::vector<std::string>& names,
                                         std::vector<std::string> folders) {
  std::vector<std::string> files;
  if (const char* named = std::getenv(variable); named && *named) {
    files = {named};
    folders = {std::string(named) + '/'};
  } else {
    folders.insert(folders.begin(), "");
  }
  for (const std::string& name : names)
    for (const std::string& folder : folders) files.push_back(folder + name);
  return files;
}

/// Functions of a library, which are null, with a reason, where it cannot be used. What was opened, also in vain,
/// stays: these libraries are not made to be closed.
class Library {
 public:
  /// Empty, or one line: then none of the functions may be called.
  const std::string& why_not() const { return why_not_; }

 protected:
  /// The first of the files that `refusal` takes: refusal(handle) is empty, or says why not. Where there is none, the
  /// reason is that of the first that was refused, or that none was found.
  template <class Refusal>
  Library(const char* name, const std::vector<std::string>& files, const Refusal& refusal, const std::string& not_found)
      : name_(name) {
    for (const std::string& file : files) {
      void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!handle) continue;
      const std::string why = refusal(handle);
      if (why.empty()) {
        handle_ = handle;
        why_not_.clear();
        return;
      }
      if (why_not_.empty()) why_not_ = why;
    }
    if (why_not_.empty()) why_not_ = not_found;
  }

  template <class Function>
  static Function find(void* handle, const char* name) {
    return reinterpret_cast<Function>(dlsym(handle, name));
  }
  template <class Function>
  void load(Function& function, const char* name) {
    if (!handle_) return;
    function = find<Function>(handle_, name);
    if (!function && why_not_.empty()) why_not_ = std::string("this ") + name_ + " has no " + name;
  }

 private:
  const char* name_;
  void* handle_ = nullptr;
  std::string why_not_;
};

/// A Tracer has a `name`, why_not() of its library, begin(most_bytes), which gives a reason or nothing, end(), which
/// gives what was Seen, and hand_over(seen, take), which returns how many were dropped.
template <class Tracer>
class Session {
 public:
  std::string start(size_t most_bytes) {
    const pid_t owner = owner_;
    if (owner != 0 && owner != getpid())
      return std::string(Tracer::name) + " was begun by the process that this one was forked from";
    std::lock_guard lock(mutex_);
    if (on_) return std::string(Tracer::name) + " is already on";
    if (const std::string& why = Tracer::why_not(); !why.empty()) return why;
    owner_ = getpid();
    const std::string why = tracer_.begin(most_bytes);
    on_ = why.empty();
    return why;
  }

  int64_t stop(const Take& take) {
    if (owner_ != getpid()) return 0;  // also a child's, whose locks and devices are in no state to be used
    std::optional<typename Tracer::Seen> seen;
    {
      std::lock_guard lock(mutex_);
      if (!std::exchange(on_, false)) return 0;
      seen = tracer_.end();
    }
    return Tracer::hand_over(*seen, take);
  }

 private:
  std::mutex mutex_;
  std::atomic<pid_t> owner_{0};
  bool on_ = false;
  Tracer tracer_;
};

}  // namespace tessera::gpu_kernels::tracing
