#include "dist/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace tessera::dist {
namespace {

constexpr int kMostRanks = 1 << 20;
constexpr int kFirstPort = 20000, kPorts = 10000;  // that a job's number chooses from

const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  return text && *text ? text : nullptr;
}

std::string text_of(const char* name) {
  const char* const text = variable(name);
  return text ? text : "";
}

/// What a launcher calls it.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},  // torchrun
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},                                      // Open MPI's mpirun
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},  // srun
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},      // MPICH's mpiexec
};

int port_of_job(uint64_t number) { return kFirstPort + static_cast<int>(number % kPorts); }

Rendezvous rendezvous_of(const Names& names, int size) {
  if (const char* text = variable(kRendezvousVariable)) return parse_rendezvous(text);
  if (const char* host = variable("MASTER_ADDR")) {
    // torchrun's own store is at its port.
    const int port = number_of_variable("MASTER_PORT", 1, 65534);
    return {host, text_of("TORCHELASTIC_USE_AGENT_STORE") == "True" ? port + 1 : port};
  }
  if (const char* nodes = variable("SLURM_STEP_NODELIST"))
    return {first_of_nodes(nodes),
            port_of_job(std::hash<std::string>()(text_of("SLURM_JOB_ID") + "." + text_of("SLURM_STEP_ID")))};
  // All are children of one process.
  if (names.local_size && variable(names.local_size) && number_of_variable(names.local_size, 1, kMostRanks) == size)
    return {"127.0.0.1", port_of_job(static_cast<uint64_t>(getppid()))};
  throw Error(
      fmt::format("dist: {}={} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT, or start the program by "
                  "`tessera launch`",
                  names.size, size));
}

std::string secret_of_job() {
  for (const char* name : {kSecretVariable, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid"})
    if (const char* text = variable(name)) return text;
  return "";
}

}  // namespace

int number_of_variable(const char* name, int least, int most) {
  const char* const text = std::getenv(name);
  if (!text) throw Error(fmt::format("dist: {} is not set", name));
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [last, code] = std::from_chars(text, end, value);
  if (code != std::errc() || last != end || value < least || value > most)
    throw Error(fmt::format("dist: {}={} is not a number from {} to {}", name, text, least, most));
  return value;
}

std::string first_of_nodes(const std::string& list) {
  const size_t end = list.find_first_of(",[");
  if (end == std::string::npos || list[end] == ',') return list.substr(0, end);
  const size_t number = list.find_first_of(",-]", end);
  if (number == std::string::npos) throw Error(fmt::format("dist: \"{}\" is no list of hosts", list));
  const size_t close = list.find(']', end), comma = list.find(',', close);
  if (close == std::string::npos) throw Error(fmt::format("dist: \"{}\" is no list of hosts", list));
  return list.substr(0, end) + list.substr(end + 1, number - end - 1) +
         list.substr(close + 1, comma == std::string::npos ? comma : comma - close - 1);
}

double timeout_of_variable() {
  constexpr double kTimeout = 1800;
  const char* const text = std::getenv(kTimeoutVariable);
  if (!text || !*text) return kTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds > 0)) throw Error(fmt::format("dist: {} is no number of seconds: {}", kTimeoutVariable, text));
  return seconds;
}

std::optional<Launched> launched_by_others() {
  for (const Names& names : kLaunchers) {
    if (!variable(names.size)) continue;
    Launched out;
    out.size = number_of_variable(names.size, 1, kMostRanks);
    if (out.size == 1) continue;
    out.rank = number_of_variable(names.rank, 0, out.size - 1);
    if (variable(names.local_rank)) out.local_rank = number_of_variable(names.local_rank, 0, out.rank);
    out.rendezvous = rendezvous_of(names, out.size);
    out.secret = secret_of_job();
    return out;
  }
  return {};
}

}  // namespace tessera::dist
