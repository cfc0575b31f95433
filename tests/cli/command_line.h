// Runs the command in a process of its own and keeps what it said.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::cli {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
inline void write_file(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// A folder that goes away with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

struct Finished {
  int code = -1;  // 128 + signal where killed
  std::string out, err;
};

/// A run in progress.
class Running {
 public:
  Running(const Words& words, rlim_t file_limit = RLIM_INFINITY) {
    Words all{TESSERA_COMMAND};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (auto& w : all) argv.push_back(w.data());
    argv.push_back(nullptr);
    std::string out = folder_ / "out", err = folder_ / "err";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(open("/dev/null", O_RDONLY), 0);
      dup2(open(out.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), 1);
      dup2(open(err.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), 2);
      if (file_limit != RLIM_INFINITY) {
        rlimit limit{file_limit, file_limit};
        setrlimit(RLIMIT_FSIZE, &limit);
        signal(SIGXFSZ, SIG_IGN);
      }
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  void signal_with(int number) { kill(pid_, number); }
  std::string output() const { return read_file(folder_ / "out"); }
  /// Waits until the output contains `text`; false if the run ends or a minute passes first.
  bool wait_for(const std::string& text) {
    for (int i = 0; i < 6000; ++i) {
      if (output().find(text) != std::string::npos) return true;
      if (waitpid(pid_, &status_, WNOHANG) == pid_) {
        done_ = true;
        return output().find(text) != std::string::npos;
      }
      usleep(10000);
    }
    return false;
  }
  Finished finish() {
    if (!done_) waitpid(pid_, &status_, 0);
    int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    return {code, output(), read_file(folder_ / "err")};
  }

 private:
  Folder folder_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool done_ = false;
};

inline Finished run(const Words& words) { return Running(words).finish(); }

/// One line `error: ...` that contains `text`, nothing more on stderr, and that exit code.
inline void expect_error(const Finished& f, int code, const std::string& text) {
  EXPECT_EQ(f.code, code) << f.err << f.out;
  EXPECT_EQ(f.err.rfind("error: ", 0), 0u) << f.err;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
}

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tessera::cli
