#include "profiler/counters.h"

#include <linux/perf_event.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace tessera::profiler {
namespace {

constexpr uint64_t kCounted[] = {PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_CACHE_MISSES};

// Of what the thread does outside of the kernel; negative: the reason is in errno.
int open_counter(int thread, uint64_t what) {
  perf_event_attr wanted{};
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.config = what;
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  return static_cast<int>(syscall(SYS_perf_event_open, &wanted, thread, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

// What the system counts without permission.
StepCounters system_counts() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  StepCounters counted;
  counted.context_switches = used.ru_nvcsw + used.ru_nivcsw;
  counted.page_faults = used.ru_minflt + used.ru_majflt;
  return counted;
}

std::string reason(int error) {
  if (error == EACCES || error == EPERM)
    return "no permission for the processor's counters: see /proc/sys/kernel/perf_event_paranoid";
  if (error == ENOENT || error == ENODEV) return "this machine has no processor's counters";
  return fmt::format("the processor's counters cannot be read: {}", std::strerror(error));
}

}  // namespace

Counters::~Counters() { end(); }

void Counters::end() {
  for (const auto& [file, what] : files_) close(file);
  files_.clear();
}

std::string Counters::begin() {
  end();
  start_ = system_counts();
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    const int thread = std::atoi(task.path().filename().c_str());
    for (size_t what = 0; what < std::size(kCounted); ++what) {
      const int file = open_counter(thread, kCounted[what]);
      if (file < 0 && errno == ESRCH) break;  // the thread has ended
      if (file < 0) {
        const int error = errno;
        end();
        return reason(error);
      }
      files_.emplace_back(file, what);
    }
  }
  return "";
}

StepCounters Counters::read() const {
  StepCounters now = system_counts();
  now.context_switches -= start_.context_switches;
  now.page_faults -= start_.page_faults;
  int64_t* const sums[] = {&now.cycles, &now.instructions, &now.cache_misses};
  for (const auto& [file, what] : files_) {
    int64_t value = 0;
    if (::read(file, &value, sizeof value) == sizeof value) *sums[what] += value;
  }
  return now;
}

}  // namespace tessera::profiler
