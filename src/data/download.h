// One file of another machine: attempts, pauses between them, and an end to both.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "data/store.h"
#include "tessera/error.h"
#include "tessera/remote.h"

namespace tessera {

/// Until when to try, and who may end it before.
struct Patience {
  using Clock = std::chrono::steady_clock;
  Patience(const RemoteOptions& options, const std::atomic<bool>* stop = nullptr);
  int attempts;
  double stall, deadline;  // seconds
  Clock::time_point until;
  const std::atomic<bool>* stop;
  std::function<void(const std::string& line)> on_wait;

  double left() const { return std::chrono::duration<double>(until - Clock::now()).count(); }
  /// Also where DownloadsEnd says so. Throws what check_interrupt() throws.
  bool is_stopped() const;
  /// Sleeps, but not beyond the end. False where that has come.
  bool wait(double seconds) const;
};

/// While it lives, downloads of this thread end with FileError once `over` says so.
class DownloadsEnd {
 public:
  explicit DownloadsEnd(std::function<bool()> over);
  ~DownloadsEnd();
  DownloadsEnd(const DownloadsEnd&) = delete;

 private:
  friend struct Patience;
  bool is_now() const;
  std::function<bool()> over_;
  const DownloadsEnd* outer_;
};

/// Takes a file as it comes. A FileError of take() or finish() says that it came damaged: it is asked for once more.
/// Whatever else they throw ends the download.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void begin() = 0;  ///< of every attempt
  virtual void take(std::string_view bytes) = 0;
  virtual void finish() = 0;
};

/// There is no such file.
class MissingFile : public FileError {
 public:
  using FileError::FileError;
};

/// Throws FileError of one line that begins with the address of the file; MissingFile; what the receiver throws.
void download(const Store& store, const std::string& file, const Patience& patience, Receiver& receiver);

}  // namespace tessera
