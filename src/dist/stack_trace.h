// Where a process is: written by itself when it is asked to, and read by who watches it.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

/// The calls that a rank's first thread is in, in memory that its launcher shares.
struct StackTrace {
  static constexpr int kFrames = 48, kText = 232;
  struct Frame {
    uint64_t at;       ///< within its file, as addr2line takes it
    char text[kText];  ///< the file, empty for the program; behind a zero the function; cut where too long
  };
  std::atomic<uint32_t> is_shown;  ///< 1: the process answers
  std::atomic<uint32_t> written;   ///< how often it has
  std::atomic<uint32_t> count;
  Frame frames[kFrames];
};

/// From now on this process writes its stack there when it is asked. It is the first thread's; a process has one such
/// place.
void show_stack(StackTrace& to);
/// Asks a process of this host. False where it does not answer such questions, as all that have no World.
bool ask_for_stack(const StackTrace& of, pid_t process);
/// A line for each call, the innermost first. Functions that the dynamic linker does not know are asked of addr2line,
/// where there is one.
std::vector<std::string> lines_of(const StackTrace& stack, pid_t process);

}  // namespace tessera::dist
