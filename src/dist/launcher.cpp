#include "dist/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <set>

#include "core/util/processors.h"
#include "dist/group.h"
#include "dist/waiting_ranks.h"

extern char** environ;

namespace tessera::dist {
namespace {

constexpr int kLook = 200;  // milliseconds between looks at who waits

double seconds() { return static_cast<double>(now_ns()) * 1e-9; }

Error failure(const std::string& what) { return Error(fmt::format("launch: {}: {}", what, std::strerror(errno))); }

/// Blocks signals for a scope, so that they are read from `fd`.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int s : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, s);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw failure("signalfd");
  }
  ~Signals() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  int fd() const { return fd_; }
  /// The next one that came; 0: none.
  int next() const {
    signalfd_siginfo info;
    return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  int fd_;
  sigset_t before_;
};

/// A pipe that is read line by line.
struct Lines {
  int fd = -1;
  std::string rest;
  bool has_error = false;  // a line that says so

  /// Gives whole lines to `fn`; closes at the end.
  template <class Fn>
  void read_some(const Fn& fn) {
    char buffer[1 << 14];
    for (;;) {
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // nothing more for now
      if (n == 0) break;
      rest.append(buffer, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
        give(rest.substr(begin, end - begin), fn);
      rest.erase(0, begin);
    }
    if (!rest.empty()) give(std::exchange(rest, {}), fn);
    close(std::exchange(fd, -1));
  }

 private:
  template <class Fn>
  void give(const std::string& line, const Fn& fn) {
    has_error |= line.starts_with("error:");
    fn(line);
  }
};

struct Process {
  pid_t pid = -1;
  Lines out, err;
  std::optional<int> status;  // of waitpid
};

std::string how_it_ended(int rank, int status) {
  if (WIFEXITED(status)) return fmt::format("rank {} ended with exit code {}", rank, WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  const char* const name = sigabbrev_np(number);
  return fmt::format("rank {} was ended by SIG{}{}", rank, name ? name : std::to_string(number).c_str(),
                     number == SIGKILL ? " (out of memory?)" : "");
}

int threads_of_rank(const LaunchOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, available_processors() / options.procs);
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// All ranks, from their beginning to their end.
class Run {
 public:
  Run(const LaunchOptions& options, const Signals& signals, int restart, std::string began)
      : options_(options),
        signals_(signals),
        launched_(std::move(began)),
        control_(create_run(options.procs)),
        watch_(*control_, options.patience),
        ranks_(static_cast<size_t>(options.procs)) {
    control_->memory().inherit();
    for (int r = 0; r < options.procs; ++r) begin(r, restart);
  }
  ~Run() {
    for (Process& p : ranks_)
      if (p.pid > 0 && !p.status) kill(-p.pid, SIGKILL), waitpid(p.pid, nullptr, 0);
  }
  Run(const Run&) = delete;

  /// The code of the run.
  int wait() {
    while (living() > 0 || any_open()) step();
    if (first_failure_ < 0)
      for (const std::string& line : waiting_table(*control_, seconds() - began_)) say("note: " + line);
    if (first_failure_ < 0) return 0;
    for (const Process& p : ranks_) was_said_ |= p.err.has_error;
    if (!was_said_ && !interrupted_) say("error: " + control_->abort_reason());
    return interrupted_ ? 128 + interrupted_ : code_;
  }
  bool was_interrupted() const { return interrupted_ != 0; }

 private:
  void begin(int r, int restart) {
    Process& p = ranks_[static_cast<size_t>(r)];
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw failure("pipe");
    p.out.fd = out[0], p.err.fd = err[0];
    for (const int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
    const std::vector<std::string> environment = environment_of(r, restart);
    std::vector<char*> arguments, variables;
    for (const std::string& a : options_.command) arguments.push_back(const_cast<char*>(a.c_str()));
    for (const std::string& v : environment) variables.push_back(const_cast<char*>(v.c_str()));
    arguments.push_back(nullptr), variables.push_back(nullptr);
    const pid_t launcher = getpid();
    p.pid = fork();
    if (p.pid < 0) throw failure("fork");
    if (p.pid == 0) become_rank(r, launcher, out[1], err[1], arguments.data(), variables.data());
    control_->place(r).pid = static_cast<int32_t>(p.pid);
    close(out[1]), close(err[1]);
  }

  [[noreturn]] void become_rank(int r, pid_t launcher, int out, int err, char** arguments, char** variables) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its launcher
    if (getppid() != launcher) _exit(1);
    setpgid(0, 0);  // a terminal's Ctrl-C comes from the launcher alone, once
    const int none = open("/dev/null", O_RDONLY);
    dup2(none, 0), dup2(out, 1), dup2(err, 2);
    if (options_.pins) pin(r);
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, nullptr);
    execvpe(arguments[0], arguments, variables);
    dprintf(2, "error: cannot run %s: %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }

  void pin(int r) const {
    cpu_set_t all, own;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    CPU_ZERO(&own);
    const int first = r * threads_of_rank(options_);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &all)) continue;
      if (seen >= first && seen < first + threads_of_rank(options_)) CPU_SET(cpu, &own);
      ++seen;
    }
    if (CPU_COUNT(&own) > 0) sched_setaffinity(0, sizeof own, &own);
  }

  std::vector<std::string> environment_of(int r, int restart) const {
    std::map<std::string, std::string> all;
    for (char** v = environ; *v; ++v)
      if (const char* end = std::strchr(*v, '=')) all[std::string(*v, static_cast<size_t>(end - *v))] = end + 1;
    all[kRankVariable] = all["LOCAL_RANK"] = std::to_string(r);
    all[kSizeVariable] = all["LOCAL_WORLD_SIZE"] = std::to_string(options_.procs);
    all[kMemoryVariable] = std::to_string(control_->memory().fd());
    all["TESSERA_RESTART"] = std::to_string(restart);
    all["TESSERA_LAUNCHED"] = launched_;  // seconds since 1970: what is older is of another run
    if (options_.threads > 0 || !all.contains("TESSERA_THREADS"))
      all["TESSERA_THREADS"] = std::to_string(threads_of_rank(options_));
    std::vector<std::string> out;
    for (const auto& [name, value] : all) out.push_back(name + "=" + value);
    return out;
  }

  int living() const {
    int n = 0;
    for (const Process& p : ranks_) n += !p.status;
    return n;
  }
  bool any_open() const {
    for (const Process& p : ranks_)
      if (p.out.fd >= 0 || p.err.fd >= 0) return true;
    return false;
  }

  void step() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    for (const Process& p : ranks_)
      for (const int fd : {p.out.fd, p.err.fd})
        if (fd >= 0) fds.push_back({fd, POLLIN, 0});
    poll(fds.data(), fds.size(), kLook);
    read_lines();
    while (const int signal = signals_.next())
      if (signal != SIGCHLD) pass_on(signal);
    reap();
    if (living() == 0) close_abandoned();
    if (ends_at_ == 0)
      for (const std::string& line : watch_.look()) say("note: " + line);
    end_late_ones();
  }

  void read_lines() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const std::string label = ranks_.size() > 1 ? fmt::format("[{}] ", r) : "";
      Process& p = ranks_[r];
      if (p.out.fd >= 0) p.out.read_some([&](const std::string& line) { options_.print(label + line, false); });
      if (p.err.fd >= 0)
        p.err.read_some([&](const std::string& line) {
          const bool is_known = line.starts_with("error:") && !errors_.insert(line).second;  // of another rank
          if (!is_known) options_.print(label + line, true);
        });
    }
  }

  // What children of ranks that have ended keep open is not waited for.
  void close_abandoned() {
    read_lines();
    for (Process& p : ranks_)
      for (Lines* lines : {&p.out, &p.err})
        if (lines->fd >= 0) close(std::exchange(lines->fd, -1));
  }

  void pass_on(int signal) {
    const bool again = std::exchange(interrupted_, signal) != 0;
    if (again) control_->abort("the run was interrupted twice");
    for (const Process& p : ranks_)
      if (!p.status) kill(p.pid, again ? SIGKILL : signal), kill(p.pid, SIGCONT);
  }

  void reap() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Process& p = ranks_[r];
      int status = 0;
      siginfo_t ended{};
      if (p.status || waitid(P_PID, static_cast<id_t>(p.pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          !ended.si_pid)
        continue;
      kill(-p.pid, SIGKILL);  // what it has begun and left
      waitpid(p.pid, &status, 0);
      p.status = status;
      control_->place(static_cast<int>(r)).has_left = 1;
      if (status != 0) failed(static_cast<int>(r), status);
    }
  }

  void failed(int r, int status) {
    if (first_failure_ >= 0) return;
    first_failure_ = r;
    code_ = code_of(status);
    const std::string what = how_it_ended(r, status);
    read_lines();
    const bool speaks_for_itself = WIFEXITED(status) && ranks_[static_cast<size_t>(r)].err.has_error;
    if (control_->abort_reason().empty() && !speaks_for_itself && !interrupted_) {
      say("error: " + what);
      was_said_ = true;
    }
    control_->abort(what);
    ends_at_ = seconds() + options_.grace;
  }

  // Ranks that neither wait nor end: first asked, then killed.
  void end_late_ones() {
    if (ends_at_ == 0 || seconds() < ends_at_) return;
    const int signal = std::exchange(asked_, true) ? SIGKILL : SIGTERM;
    ends_at_ = seconds() + options_.grace;
    for (const Process& p : ranks_)
      if (!p.status) kill(p.pid, signal), kill(p.pid, SIGCONT);
  }

  void say(const std::string& line) { options_.print(line, true); }

  const LaunchOptions& options_;
  const Signals& signals_;
  std::string launched_;
  std::shared_ptr<Control> control_;
  WaitingRanks watch_;
  std::vector<Process> ranks_;
  int first_failure_ = -1, code_ = 0, interrupted_ = 0;
  bool was_said_ = false, asked_ = false;
  std::set<std::string> errors_;
  double began_ = seconds();
  double ends_at_ = 0;  // when ranks of an ended run are made to end
};

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.command.empty()) throw Error("launch: there is no command");
  if (const int each = threads_of_rank(options); options.pins && each * options.procs > available_processors())
    throw Error(fmt::format("launch: {} ranks of {} threads are not pinned to {} processors", options.procs, each,
                            available_processors()));
  const std::string began = std::to_string(std::time(nullptr));
  const Signals signals;
  for (int restart = 0;; ++restart) {
    Run run(options, signals, restart, began);
    const int code = run.wait();
    constexpr int kBadUsage = 2;
    if (code == 0 || code == kBadUsage || run.was_interrupted() || restart >= options.max_restarts) return code;
    options.print(fmt::format("note: all ranks begin anew, {} of {} times", restart + 1, options.max_restarts), true);
  }
}

}  // namespace tessera::dist
