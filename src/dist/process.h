// Processes that a launcher begins: how they begin, and what they say.
#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::dist {

/// A pipe that is read line by line.
struct Lines {
  int fd = -1;
  std::string rest;
  std::string error;  // the last line that says so

  /// Gives whole lines to `fn`; closes at the end.
  void read_some(const std::function<void(const std::string&)>& fn);
  void close();
};

/// A child with its standard output and error as pipes.
struct Process {
  pid_t pid = -1;
  Lines out, err;
  std::optional<int> status;  // of waitpid

  bool is_open() const { return out.fd >= 0 || err.fd >= 0; }
  /// Begins it, in a group of its own, which ends with its launcher. `input`: what it reads; `variables`: "NAME=value",
  /// all of its environment; `prepare` runs in the child. Throws Error where it cannot.
  void begin(const std::vector<std::string>& command, const std::vector<std::string>& variables,
             const std::string& input = "", const std::function<void()>& prepare = {});
  /// Whether it has ended, and what it has begun and left is ended, too.
  bool reap();
  void signal(int number) const;
};

/// This process's environment.
std::vector<std::string> environment();

}  // namespace tessera::dist
