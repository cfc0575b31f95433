// The variables by which launchers tell a process its place.
#pragma once
#include <optional>
#include <string>

#include "dist/uplink.h"

namespace tessera::dist {

constexpr const char* kMemoryVariable = "TESSERA_WORLD_MEMORY";  // a file descriptor
constexpr const char* kRankVariable = "RANK";
constexpr const char* kSizeVariable = "WORLD_SIZE";
constexpr const char* kSecretVariable = "TESSERA_SECRET";
constexpr const char* kTimeoutVariable = "TESSERA_TIMEOUT";
constexpr const char* kRendezvousVariable = "TESSERA_RENDEZVOUS";  // HOST:PORT, before what others say

/// A variable's number. Throws Error if it is not set, or none from `least` to `most`.
int number_of_variable(const char* variable, int least, int most);

/// TESSERA_TIMEOUT in seconds, or what it is where nothing says so. Throws Error if it is none.
double timeout_of_variable();

/// A rank that another launcher began.
struct Launched {
  int rank = 0, size = 1, local_rank = 0;
  Rendezvous rendezvous;
  std::string secret;  ///< the job's name where TESSERA_SECRET is not set
};
/// What torchrun, srun or mpirun said; none: nothing did. Throws Error where it is not enough.
std::optional<Launched> launched_by_others();

/// The first name of a list as Slurm writes it: "n[03-05,9],m" -> "n03".
std::string first_of_nodes(const std::string& list);

}  // namespace tessera::dist
