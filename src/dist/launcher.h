// Begins the ranks of a run as processes of this host and of others, looks after them, and says why a run ended.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dist/flight_recorder.h"

namespace tessera::dist {

/// A host and how many processes it takes.
struct HostSlots {
  std::string name;
  int slots = 1;
};

/// What a rank of this host did before a run failed.
struct RankHistory {
  int rank = 0, ranks = 0, process = 0;
  std::vector<CallRecord> calls;  ///< its last collectives
};

struct LaunchOptions {
  std::vector<std::string> command;   ///< looked up in PATH
  int procs = 1;                      ///< of each host
  int threads = 0;                    ///< of each rank; 0: the processors divided by the ranks
  bool pins = false;                  ///< each rank to processors of its own, as many as it has threads
  int max_restarts = 0;               ///< how often all ranks begin anew after one failed
  int min_procs = 0;                  ///< with fewer they do not; 0: with fewer than at first
  double patience = 5;                ///< seconds after which a rank that others wait for is named
  double timeout = 0;                 ///< seconds after which a rank that waits ends the run; 0: as ranks have it
  double grace = 5;                   ///< seconds that ranks of an ended run have to end themselves
  std::vector<HostSlots> hosts = {};  ///< this one, and others that ssh reaches
  int nodes = 1, node_rank = 0;       ///< of launchers that somebody begins on each host
  std::string rendezvous = {};        ///< HOST:PORT of the first of them
  double join_timeout = 300;          ///< seconds in which all hosts come
  bool ordered = false;               ///< sums of GPUs as of the host: TESSERA_REDUCTION
  std::function<void(const std::string& line, bool is_error)> print = {};  ///< gets whole lines
  std::function<void(const std::vector<RankHistory>&)> on_failure = {};    ///< where ranks called collectives
};

/// The hosts of a file with lines such as "a slots=4", or of "a,b". Throws Error at what is none.
std::vector<HostSlots> parse_hostfile(const std::string& text, int slots);
std::vector<HostSlots> parse_hosts(const std::string& list, int slots);

/// Throws Error where options do not go together.
void check(const LaunchOptions& options);

/// Runs until all ranks have ended. Returns 0, or the code of the rank that failed first, 128 and its number after a
/// signal. Throws Error where a process cannot be begun. The first SIGINT or SIGTERM goes to all ranks, a second kills.
int launch(const LaunchOptions& options);

}  // namespace tessera::dist
