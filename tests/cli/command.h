// Runs the tessera command as a user does, for tests: in a process of its own, with its output and exit code caught.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace command {

using Arguments = std::vector<std::string>;

struct Result {
  int code = -1;  ///< exit code, or -1 when a signal ended the process
  int signal = 0;
  std::string out, err;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A folder of its own that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-cli-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  /// The path of a file in the folder.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A running command. `shell` is run before it in the same process, for example `ulimit -v 1000000;`.
class Process {
 public:
  explicit Process(const Arguments& arguments, const std::string& shell = "") {
    pid_ = fork();
    if (pid_ != 0) return;
    const int in = open("/dev/null", O_RDONLY);
    const int out = open((folder_ / "out").c_str(), O_WRONLY | O_CREAT, 0600);
    const int err = open((folder_ / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(in, 0), dup2(out, 1), dup2(err, 2);
    const std::string script = shell + " exec \"$0\" \"$@\"";
    std::vector<const char*> argv = {"bash", "-c", script.c_str(), TESSERA_COMMAND};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    execvp("bash", const_cast<char**>(argv.data()));
    _exit(127);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid_ > 0) send(SIGKILL), wait();
  }

  void send(int signal) { kill(pid_, signal); }
  Result wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            read_file(folder_ / "out"), read_file(folder_ / "err")};
  }
  /// Waits until `ready()` is true; false if that takes more than a minute.
  template <class Ready>
  bool wait_until(Ready ready) {
    for (int i = 0; i < 6000; ++i) {
      if (ready()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

inline Result run(const Arguments& arguments, const std::string& shell = "") {
  return Process(arguments, shell).wait();
}

}  // namespace command
