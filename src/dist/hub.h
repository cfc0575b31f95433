// Where the hosts of a run meet: it counts them, lets their ranks begin, tells each what it must know of the others,
// and notices who is gone. It runs in a thread of the first host's launcher.
#pragma once
#include <memory>

#include "dist/socket.h"

namespace tessera::dist {

constexpr int kBadUsage = 2;      ///< the exit code of a command that was called wrongly: it would be again
constexpr double kBeat = 0.2;     ///< seconds between signs of life
constexpr double kSilence = 4.0;  ///< seconds without one, after which a host is cut off

struct HubOptions {
  int port = 0;  ///< 0: a free one
  Key key{};
  int hosts = 1;
  int max_restarts = 0;
  int min_procs = 0;          ///< with fewer ranks a run does not begin anew; 0: with fewer than at first
  double join_timeout = 300;  ///< seconds in which all hosts come
};

class Hub {
 public:
  /// Throws Error where it cannot listen.
  explicit Hub(const HubOptions& options);
  /// Waits until all hosts have ended.
  ~Hub();
  int port() const;

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tessera::dist
