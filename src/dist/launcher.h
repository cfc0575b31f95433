// Begins the ranks of a run as processes of this host, looks after them, and says why a run ended.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace tessera::dist {

struct LaunchOptions {
  std::vector<std::string> command;  ///< looked up in PATH
  int procs = 1;
  int threads = 0;       ///< of each rank; 0: the processors divided by the ranks
  bool pins = false;     ///< each rank to processors of its own, as many as it has threads
  int max_restarts = 0;  ///< how often all ranks begin anew after one failed
  double patience = 5;   ///< seconds after which a rank that others wait for is named
  double grace = 5;      ///< seconds that ranks of an ended run have to end themselves
  std::function<void(const std::string& line, bool is_error)> print = {};  ///< gets whole lines
};

/// Runs until all ranks have ended. Returns 0, or the code of the rank that failed first, 128 and its number after a
/// signal. Throws Error where a process cannot be begun. The first SIGINT or SIGTERM goes to all ranks, a second kills.
int launch(const LaunchOptions& options);

}  // namespace tessera::dist
