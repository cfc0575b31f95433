// The files that a recording is kept in.
#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/profiler.h"

namespace tessera::profiler {

struct WrittenFiles {
  std::string trace;                 ///< empty: it could not be written
  std::vector<std::string> trouble;  ///< a line for each file that could not be
};
/// As Recording::write has it, but goes on where a file cannot be written, and throws nothing.
WrittenFiles write_files(const Recording& recording, const std::string& folder);

/// Writes them on a thread of its own, one recording at a time.
class FileWriter {
 public:
  FileWriter() = default;
  /// Waits, but in a child of fork, which has no such thread.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  /// Waits for what was begun before, of which wait() then says nothing.
  void begin(std::shared_ptr<const Recording> recording, const std::string& folder);
  /// Until all is written. Says what came of it, once.
  WrittenFiles wait();

 private:
  const pid_t owner_ = getpid();
  std::thread thread_;
  WrittenFiles written_;  // by the thread
};

}  // namespace tessera::profiler
