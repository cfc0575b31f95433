#include "dist/launcher.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "core/util/processors.h"
#include "dist/environment.h"
#include "dist/group.h"
#include "dist/hub.h"
#include "dist/remote_hosts.h"
#include "dist/waiting_ranks.h"

namespace tessera::dist {
namespace {

constexpr double kLook = 0.2;       // seconds between looks at who waits
constexpr double kHold = 1;         // seconds that a second rank's error waits for the end of the first
constexpr size_t kStackLines = 16;  // of a rank that others wait for

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

std::string name_of_this_host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// Which ranks of a run begin here.
struct Part {
  int ranks, first, procs;
};

/// All ranks of this host, from their beginning to their end.
class Run {
 public:
  /// `uplink` and `remotes` are null where there is no other host.
  Run(const LaunchOptions& options, const Signals& signals, std::shared_ptr<Control> control, const Part& part,
      int restart, std::string began, Uplink* uplink, RemoteHosts* remotes)
      : options_(options),
        signals_(signals),
        launched_(std::move(began)),
        control_(std::move(control)),
        part_(part),
        uplink_(uplink),
        remotes_(remotes),
        watch_(*control_, options.patience),
        ranks_(static_cast<size_t>(part.procs)) {
    control_->memory().inherit();
    for (int r = 0; r < part.procs; ++r) {
      Process& p = ranks_[static_cast<size_t>(r)];
      p.begin(options.command, environment_of(r, restart), "", [&] {
        if (options_.pins) pin(r);
      });
      control_->place(part.first + r).pid = static_cast<int32_t>(p.pid);
    }
  }
  ~Run() {
    for (Process& p : ranks_)
      if (p.pid > 0 && !p.status) kill(-p.pid, SIGKILL), waitpid(p.pid, nullptr, 0);
  }
  Run(const Run&) = delete;

  /// The code of the run.
  int wait() {
    while (living() > 0 || any_open()) step();
    tell_held(true);
    if (first_failure_ < 0 && leads())
      for (const std::string& line : waiting_table(*control_, seconds() - began_)) say("note: " + line);
    if (first_failure_ < 0) return 0;
    for (const Process& p : ranks_) was_said_ |= !p.err.error.empty();
    if (!was_said_ && !interrupted_) say("error: " + control_->abort_reason());
    if (!interrupted_ && code_ != kBadUsage) tell_history();
    return interrupted_ ? 128 + interrupted_ : code_;
  }
  bool was_interrupted() const { return interrupted_ != 0; }
  /// The rank of this host whose failure ended the run; -1: none.
  int culprit() const { return culprit_; }

 private:
  void tell_history() const {
    std::vector<RankHistory> all;
    for (int r = 0; r < part_.procs; ++r)
      all.push_back({part_.first + r, part_.ranks, static_cast<int>(ranks_[static_cast<size_t>(r)].pid),
                     control_->recorder(part_.first + r).records()});
    const bool any = std::any_of(all.begin(), all.end(), [](const RankHistory& h) { return !h.calls.empty(); });
    if (any && options_.on_failure) options_.on_failure(all);
  }

  void name_waiting() {
    for (const Waited& waited : watch_.look()) {
      say("note: " + waited.line);
      for (const int rank : waited.causes)
        if (control_->is_local(rank)) ask_here(rank);
        else if (uplink_) uplink_->ask_for_stack(rank);
    }
  }

  void ask_here(int rank) {
    const StackTrace& stack = control_->stack(rank);
    const uint32_t before = stack.written;
    if (ask_for_stack(stack, control_->place(rank).pid)) stacks_[rank] = before;
  }

  // Stacks come a moment after they are asked for; those of ranks that are stopped, never. The first host tells them.
  void tell_stacks() {
    if (uplink_)
      for (int rank; (rank = uplink_->next_asked()) >= 0;) ask_here(rank);
    std::erase_if(stacks_, [&](const auto& asked) {
      const auto& [rank, before] = asked;
      if (control_->stack(rank).written == before) return false;
      std::vector<std::string> lines = lines_of(control_->stack(rank), control_->place(rank).pid);
      lines.resize(std::min(lines.size(), kStackLines));
      if (leads()) say_stack(rank, lines);
      else uplink_->answer(rank, lines);
      return true;
    });
    while (const std::optional<RankStack> other = uplink_ ? uplink_->next_stack() : std::nullopt)
      say_stack(other->rank, other->lines);
  }

  void say_stack(int rank, const std::vector<std::string>& lines) {
    say(fmt::format("note: rank {} is in", rank));
    for (const std::string& line : lines) say("note:   " + line);
  }

  bool leads() const { return part_.first == 0; }

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
    for (const std::string& v : environment())
      if (const size_t end = v.find('='); end != std::string::npos) all[v.substr(0, end)] = v.substr(end + 1);
    all.erase(kSecretVariable);  // ranks find it in the memory
    all[kRankVariable] = std::to_string(part_.first + r);
    all["LOCAL_RANK"] = std::to_string(r);
    all[kSizeVariable] = std::to_string(part_.ranks);
    all["LOCAL_WORLD_SIZE"] = std::to_string(part_.procs);
    all[kMemoryVariable] = std::to_string(control_->memory().fd());
    all["TESSERA_RESTART"] = std::to_string(restart);
    all["TESSERA_LAUNCHED"] = launched_;  // seconds since 1970: what is older is of another run
    if (options_.ordered) all["TESSERA_REDUCTION"] = "ordered";
    if (options_.timeout > 0) all[kTimeoutVariable] = fmt::format("{}", options_.timeout);
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
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Process& p) { return p.is_open(); });
  }

  void step() {
    std::vector<int> fds{signals_.fd()};
    for (const Process& p : ranks_)
      for (const int fd : {p.out.fd, p.err.fd})
        if (fd >= 0) fds.push_back(fd);
    if (uplink_) fds.push_back(uplink_->fd());
    if (remotes_) remotes_->add_to(fds);
    wait_readable(fds, kLook);
    read_lines();
    while (const int signal = signals_.next())
      if (signal != SIGCHLD) pass_on(signal, true);
    while (const int signal = uplink_ ? uplink_->next_interrupt() : 0) pass_on(signal, false);
    reap();
    tell_held(false);
    if (living() == 0) close_abandoned();
    if (ends_at_ == 0 && leads()) name_waiting();
    if (ends_at_ == 0) tell_stacks();
    if (ends_at_ == 0 && uplink_ && !control_->abort_reason().empty()) ends_at_ = seconds() + options_.grace;
    end_late_ones();
  }

  void read_lines() {
    if (remotes_) remotes_->read(true);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const std::string label = part_.ranks > 1 ? fmt::format("[{}] ", part_.first + static_cast<int>(r)) : "";
      Process& p = ranks_[r];
      if (p.out.fd >= 0) p.out.read_some([&](const std::string& line) { options_.print(label + line, false); });
      if (p.err.fd >= 0)
        p.err.read_some([&](const std::string& line) {
          if (!line.starts_with("error:")) return options_.print(label + line, true);
          if (!errors_.insert(line).second) return;  // another rank has said so
          if (speaker_ < 0) speaker_ = static_cast<int>(r);
          if (speaker_ == static_cast<int>(r)) options_.print(label + line, true);
          else held_.push_back({label + line, seconds()});
        });
    }
  }

  // What ends one rank often ends others at the same moment: errors of others wait, and go where the first one to
  // speak fails.
  void tell_held(bool at_end) {
    if (held_.empty()) return;
    const std::optional<int>& status = ranks_[static_cast<size_t>(speaker_)].status;
    std::erase_if(held_, [&](const Held& held) {
      if (status && WIFEXITED(*status) && WEXITSTATUS(*status) != 0) return true;
      if (!at_end && !status && seconds() < held.since + kHold) return false;
      options_.print(held.line, true);
      return true;
    });
  }

  // What children of ranks that have ended keep open is not waited for.
  void close_abandoned() {
    read_lines();
    for (Process& p : ranks_) p.out.close(), p.err.close();
  }

  void pass_on(int signal, bool is_ours) {
    const bool again = std::exchange(interrupted_, signal) != 0;
    if (uplink_ && is_ours) uplink_->interrupt(signal);
    if (again) control_->abort("the run was interrupted twice");
    for (const Process& p : ranks_) p.signal(again ? SIGKILL : signal);
  }

  void reap() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r].reap()) continue;
      if (*ranks_[r].status != 0) failed(static_cast<int>(r), *ranks_[r].status);
      control_->place(part_.first + static_cast<int>(r)).has_left = 1;  // who waits for it reads first why it failed
    }
  }

  void failed(int r, int status) {
    if (first_failure_ >= 0) return;
    first_failure_ = r;
    code_ = code_of(status);
    read_lines();
    const std::string error = ranks_[static_cast<size_t>(r)].err.error;
    const bool speaks_for_itself = WIFEXITED(status) && !error.empty();
    std::string what = how_it_ended(part_.first + r, status);
    if (uplink_) what += fmt::format(", on host {} ({})", options_.node_rank, name_of_this_host());
    if (uplink_ && speaks_for_itself) what += ": " + error.substr(error.find(':') + 2);
    if (control_->abort_reason().empty()) {
      culprit_ = r;
      if (!speaks_for_itself && !interrupted_) {
        say("error: " + what);
        was_said_ = true;
      }
    }
    control_->abort(what);
    ends_at_ = seconds() + options_.grace;
  }

  // Ranks that neither wait nor end: first asked, then killed.
  void end_late_ones() {
    if (ends_at_ == 0 || seconds() < ends_at_) return;
    const int signal = std::exchange(asked_, true) ? SIGKILL : SIGTERM;
    ends_at_ = seconds() + options_.grace;
    for (const Process& p : ranks_) p.signal(signal);
  }

  void say(const std::string& line) { options_.print(line, true); }

  const LaunchOptions& options_;
  const Signals& signals_;
  std::string launched_;
  std::shared_ptr<Control> control_;
  Part part_;
  Uplink* uplink_;
  RemoteHosts* remotes_;
  WaitingRanks watch_;
  std::vector<Process> ranks_;
  int first_failure_ = -1, code_ = 0, interrupted_ = 0, culprit_ = -1;
  bool was_said_ = false, asked_ = false;
  struct Held {
    std::string line;
    double since;
  };
  std::set<std::string> errors_;
  int speaker_ = -1;                // the first rank of this host that said an error
  std::vector<Held> held_;          // errors of others
  std::map<int, uint32_t> stacks_;  // of ranks that were asked, and how many they had written
  double began_ = seconds();
  double ends_at_ = 0;  // when ranks of an ended run are made to end
};

/// Leaves out a rank that cannot come back: one that ended two runs in a row.
class Survivors {
 public:
  explicit Survivors(int procs) : procs_(procs) {}
  /// How many begin next, after that rank of this host ended the run; -1: none of them.
  int after(int culprit) {
    const bool again = culprit >= 0 && culprit == last_;
    last_ = again ? -1 : culprit;
    return procs_ -= again;
  }

 private:
  int procs_, last_ = -1;
};

int launch_here(const LaunchOptions& options, const Signals& signals, const std::string& began) {
  int procs = options.procs;
  Survivors survivors(procs);
  for (int restart = 0;; ++restart) {
    Run run(options, signals, create_run(procs), {procs, 0, procs}, restart, began, nullptr, nullptr);
    const int code = run.wait();
    // So many may not divide the work, which fewer may.
    if (code == kBadUsage && procs < options.procs && procs > std::max(options.min_procs, 1)) {
      options.print(fmt::format("note: {} ranks were refused: all begin anew as {}", procs, procs - 1), true);
      --procs, --restart;
      continue;
    }
    if (code == 0 || code == kBadUsage || run.was_interrupted() || restart >= options.max_restarts) return code;
    if (const int next = survivors.after(run.culprit());
        next >= std::max(options.min_procs, 1) && options.min_procs > 0)
      procs = next;
    options.print(
        fmt::format("note: all ranks begin anew{}, {} of {} times",
                    procs < options.procs ? fmt::format(" as {}", procs) : "", restart + 1, options.max_restarts),
        true);
  }
}

std::string secret_of(const LaunchOptions& options) {
  if (!options.hosts.empty()) return new_secret();
  const char* const secret = std::getenv(kSecretVariable);
  if (!secret || !*secret)
    throw Error(fmt::format("launch: several hosts need a secret: set {} to the same on each", kSecretVariable));
  return secret;
}

void check_not_interrupted(const Signals& signals) {
  while (const int signal = signals.next())
    if (signal != SIGCHLD) throw Error("launch: interrupted before all hosts had come");
}

// Until all hosts are there and the ranks begin; none: the run is over.
std::optional<Begin> wait_begin(Uplink& uplink, RemoteHosts& remotes, const Signals& signals, bool is_first) {
  for (;;) {
    if (const std::optional<Begin> begin = uplink.wait_begin(kLook)) return begin;
    if (uplink.end()) return {};
    remotes.read(!is_first);
    if (is_first) remotes.check();
    check_not_interrupted(signals);
  }
}

int launch_on_hosts(LaunchOptions options, const Signals& signals, const std::string& began) {
  const std::string secret = secret_of(options);
  const Key key = key_of(secret);
  Rendezvous at{options.hosts.empty() ? "" : options.hosts[0].name, 0};
  if (!options.rendezvous.empty()) at = parse_rendezvous(options.rendezvous);
  if (!options.hosts.empty())
    options.nodes = static_cast<int>(options.hosts.size()), options.procs = options.hosts[0].slots;
  std::optional<Hub> hub;
  if (options.node_rank == 0)
    hub.emplace(HubOptions{at.port, key, options.nodes, options.max_restarts, options.min_procs, options.join_timeout});
  if (hub) at.port = hub->port();
  RemoteHosts remotes(options, fmt::format("{}:{}", at.host, at.port), secret);
  Hello hello;
  hello.host = options.node_rank, hello.hosts = options.nodes, hello.procs = options.procs;
  hello.name = name_of_this_host();
  Uplink uplink(hub ? Rendezvous{"127.0.0.1", at.port} : at, key, hello, options.join_timeout,
                [&] { check_not_interrupted(signals); });
  Survivors survivors(options.procs);
  int code = 0;
  for (bool is_first = true;; is_first = false) {
    const std::optional<Begin> begin = wait_begin(uplink, remotes, signals, is_first);
    if (!begin) break;
    if (!is_first)
      options.print(fmt::format("note: all ranks begin anew as {}, the {}. time", begin->ranks, begin->generation),
                    true);
    const auto control = create_part(*begin, uplink.hub_address(), key);
    uplink.attach(control, begin->generation);
    Run run(options, signals, control, {begin->ranks, begin->first, begin->procs}, static_cast<int>(begin->generation),
            began, &uplink, &remotes);
    code = run.wait();
    const int next = survivors.after(run.culprit());
    uplink.ended(code, run.was_interrupted(), options.min_procs > 0 ? next : begin->procs);
  }
  remotes.wait();
  const End end = *uplink.end();
  if (!end.why.empty()) throw Error("launch: " + end.why);
  return end.code ? end.code : code;
}

HostSlots checked_host(const std::vector<HostSlots>& others, const std::string& name, int slots,
                       const std::string& line) {
  if (std::any_of(others.begin(), others.end(), [&](const HostSlots& other) { return other.name == name; }))
    throw Error(fmt::format("launch: host {} is given twice: --procs and slots=N say how many ranks it has", name));
  if (name.empty() || name.front() == '-' || name.find_first_of(" \t'\"\\") != std::string::npos || slots < 1)
    throw Error(fmt::format("launch: \"{}\" names no host", line));
  return {name, slots};
}

}  // namespace

std::vector<HostSlots> parse_hosts(const std::string& list, int slots) {
  std::vector<HostSlots> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    out.push_back(checked_host(out, name, slots, list));
    begin = end + 1;
  }
  return out;
}

std::vector<HostSlots> parse_hostfile(const std::string& text, int slots) {
  std::vector<HostSlots> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, rest;
    int of_host = slots;
    if (!(words >> name)) continue;
    while (words >> rest) {
      const char* const end = rest.data() + rest.size();
      if (!rest.starts_with("slots=") || std::from_chars(rest.data() + 6, end, of_host).ptr != end || rest.size() == 6)
        throw Error(fmt::format("launch: \"{}\" is no line such as \"host slots=4\"", line));
    }
    out.push_back(checked_host(out, name, of_host, line));
  }
  if (out.empty()) throw Error("launch: the list of hosts is empty");
  return out;
}

void check(const LaunchOptions& options) {
  if (const int each = threads_of_rank(options); options.pins && each * options.procs > available_processors())
    throw Error(fmt::format("launch: {} ranks with {} threads each cannot be pinned: there are {} processors",
                            options.procs, each, available_processors()));
  if (options.nodes > 1 && options.rendezvous.empty())
    throw Error("launch: several hosts meet somewhere: give --rendezvous HOST:PORT of the first one");
  if (options.node_rank < 0 || options.node_rank >= options.nodes)
    throw Error(fmt::format("launch: there is no host {} among {}", options.node_rank, options.nodes));
}

int launch(const LaunchOptions& options) {
  if (options.command.empty()) throw Error("launch: there is no command");
  check(options);
  const std::string began = std::to_string(std::time(nullptr));
  const Signals signals;
  if (options.nodes > 1 || options.hosts.size() > 1) return launch_on_hosts(options, signals, began);
  return launch_here(options, signals, began);
}

}  // namespace tessera::dist
