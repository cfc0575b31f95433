#include "dist/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "tessera/error.h"

extern char** environ;

namespace tessera::dist {
namespace {

Error launch_failure(const char* what) { return Error(fmt::format("launch: {}: {}", what, std::strerror(errno))); }

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

void Lines::read_some(const std::function<void(const std::string&)>& fn) {
  const auto give = [&](const std::string& line) {
    if (line.starts_with("error:")) error = line;
    fn(line);
  };
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // nothing more for now
    if (n == 0) break;
    rest.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      give(rest.substr(begin, end - begin));
    rest.erase(0, begin);
  }
  if (!rest.empty()) give(std::exchange(rest, {}));
  close();
}

void Lines::close() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

std::vector<std::string> environment() {
  std::vector<std::string> out;
  for (char** v = environ; *v; ++v) out.emplace_back(*v);
  return out;
}

void Process::begin(const std::vector<std::string>& command, const std::vector<std::string>& variables,
                    const std::string& input, const std::function<void()>& prepare) {
  int in[2], o[2], e[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(o, O_CLOEXEC) != 0 || pipe2(e, O_CLOEXEC) != 0) throw launch_failure("pipe");
  out.fd = o[0], err.fd = e[0];
  for (const int fd : {o[0], e[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  const std::vector<char*> arguments = pointers(command), all = pointers(variables);
  const pid_t launcher = getpid();
  pid = fork();
  if (pid < 0) throw launch_failure("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing outlives its launcher
    if (getppid() != launcher) _exit(1);
    setpgid(0, 0);  // a terminal's Ctrl-C comes from the launcher alone, once
    dup2(input.empty() ? open("/dev/null", O_RDONLY) : in[0], 0), dup2(o[1], 1), dup2(e[1], 2);
    if (prepare) prepare();
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, nullptr);
    execvpe(arguments[0], arguments.data(), all.data());
    dprintf(2, "error: cannot run %s: %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }
  const bool is_given = write(in[1], input.data(), input.size()) == static_cast<ssize_t>(input.size());
  close(in[0]), close(in[1]), close(o[1]), close(e[1]);
  if (!is_given) throw launch_failure("a pipe of input");
}

bool Process::reap() {
  siginfo_t ended{};
  if (status || waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || !ended.si_pid)
    return false;
  kill(-pid, SIGKILL);
  int code = 0;
  waitpid(pid, &code, 0);
  status = code;
  return true;
}

void Process::signal(int number) const {
  if (pid > 0 && !status) kill(pid, number), kill(pid, SIGCONT);
}

}  // namespace tessera::dist
