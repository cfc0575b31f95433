// For tests that take most of a GPU's memory.
#pragma once
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

namespace tessera {

/// While one of these lives, no other process's does: tests that fill the card go one after the other, whatever runs
/// them.
class WholeCard {
 public:
  WholeCard()
      : file_(::open((std::filesystem::temp_directory_path() / "tessera_gpu_memory").c_str(), O_RDWR | O_CREAT, 0666)) {
    ::flock(file_, LOCK_EX);
  }
  ~WholeCard() { ::close(file_); }
  WholeCard(const WholeCard&) = delete;
  WholeCard& operator=(const WholeCard&) = delete;

 private:
  int file_;
};

}  // namespace tessera
