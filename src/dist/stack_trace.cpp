#include "dist/stack_trace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>

#include "dist/process.h"
#include "dist/socket.h"

namespace tessera::dist {
namespace {

constexpr int kAsks = SIGURG;    // ignored by processes that do not know it
constexpr double kPatience = 3;  // seconds that addr2line may take

std::atomic<StackTrace*> shown_to{nullptr};

// Where the thread was when the signal came.
const void* interrupted_at([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  return nullptr;
#endif
}

// Calls nothing that takes memory: the thread may be within malloc.
void write_stack(int, siginfo_t*, void* context) {
  const int before = errno;
  StackTrace* const to = shown_to.load();
  if (!to) return;
  constexpr int kOwn = 16;  // at most, of this function and of how the signal came
  void* at[StackTrace::kFrames + kOwn];
  const int count = backtrace(at, StackTrace::kFrames + kOwn);
  int first = static_cast<int>(std::find(at, at + count, interrupted_at(context)) - at);
  if (first == count) first = std::min(count, 2);
  // A handler that passes the signal on, such as Python's, was itself called through the same return address.
  for (int i = 2; i < std::min(count, kOwn); ++i)
    if (at[i] == at[1]) first = std::max(first, i + 1);
  const int all = std::min(count, first + StackTrace::kFrames);
  for (int i = first; i < all; ++i) {
    StackTrace::Frame& frame = to->frames[i - first];
    std::memset(frame.text, 0, sizeof frame.text);
    Dl_info info{};
    link_map* file = nullptr;
    const auto call = reinterpret_cast<uint64_t>(at[i]) - 1;  // a return address is behind its call
    const bool is_known =
        dladdr1(reinterpret_cast<void*>(call), &info, reinterpret_cast<void**>(&file), RTLD_DL_LINKMAP);
    frame.at = call - (file ? file->l_addr : 0);
    size_t used = 0;
    for (const char* text : {file ? file->l_name : "?", is_known ? info.dli_sname : nullptr}) {
      const size_t room = StackTrace::kText - 1 - std::min<size_t>(used, StackTrace::kText - 1);
      const size_t length = text ? std::min(std::strlen(text), room) : 0;
      if (length) std::memcpy(frame.text + used, text, length);
      used += length + 1;
    }
  }
  to->count = static_cast<uint32_t>(all - first);
  to->written.fetch_add(1);
  errno = before;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

// What addr2line says of places in a file, a line each; nothing where it says nothing.
std::vector<std::string> asked(const std::string& file, const std::vector<uint64_t>& places) {
  std::vector<std::string> command{"addr2line", "-Cfpe", file}, out;
  for (const uint64_t at : places) command.push_back(fmt::format("{:#x}", at));
  Process process;
  process.begin(command, environment());
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
  while (process.is_open() && std::chrono::steady_clock::now() < until) {
    std::vector<int> fds;
    for (const int fd : {process.out.fd, process.err.fd})
      if (fd >= 0) fds.push_back(fd);
    wait_readable(fds, 0.1);
    if (process.out.fd >= 0) process.out.read_some([&](const std::string& line) { out.push_back(line); });
    if (process.err.fd >= 0) process.err.read_some([](const std::string&) {});
  }
  process.out.close(), process.err.close();
  process.signal(SIGKILL);
  while (!process.reap()) usleep(1000);
  out.resize(places.size());
  return out;
}

}  // namespace

void show_stack(StackTrace& to) {
  void* none[1];
  backtrace(none, 1);  // loads what it needs now
  shown_to = &to;
  struct sigaction action {};
  action.sa_sigaction = write_stack;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(kAsks, &action, nullptr) == 0) to.is_shown = 1;
}

bool ask_for_stack(const StackTrace& of, pid_t process) {
  return of.is_shown != 0 && process > 0 && syscall(SYS_tgkill, process, process, kAsks) == 0;
}

std::vector<std::string> lines_of(const StackTrace& stack, pid_t process) {
  std::error_code gone;
  const std::string program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", process), gone);
  const size_t count = std::min<size_t>(stack.count, StackTrace::kFrames);
  std::vector<std::string> functions(count), files(count);
  std::map<std::string, std::vector<size_t>> unknown;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view text(stack.frames[i].text, StackTrace::kText - 1);
    files[i] = text.substr(0, text.find('\0'));
    const size_t behind = files[i].size() + 1;
    if (files[i].empty()) files[i] = program;
    const char* const name = behind < text.size() ? text.data() + behind : "";
    if (*name) functions[i] = demangled(name);
    else unknown[files[i]].push_back(i);
  }
  for (const auto& [file, frames] : unknown) {
    std::vector<uint64_t> places;
    for (const size_t i : frames) places.push_back(stack.frames[i].at);
    const std::vector<std::string> found = asked(file, places);
    for (size_t k = 0; k < frames.size(); ++k)
      if (const std::string& line = found[k]; !line.empty() && line[0] != '?')
        functions[frames[k]] = line.ends_with(" at ??:?") ? line.substr(0, line.size() - 8) : line;
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < count; ++i) {
    const std::string file = files[i].substr(files[i].rfind('/') + 1);
    lines.push_back(functions[i].empty() ? fmt::format("{} + {:#x}", file, stack.frames[i].at)
                                         : fmt::format("{} ({})", functions[i], file));
  }
  return lines;
}

}  // namespace tessera::dist
