// tessera launch: a command as several processes that work on one thing.
#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <filesystem>

#include "command.h"
#include "dist/launcher.h"
#include "flight_record.h"
#include "tessera/error.h"
#include "tessera/io.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

struct LaunchCommand : dist::LaunchOptions {
  std::string host_list, host_file, record_file, reduction = "default";
  std::vector<std::string> behind;  // --
  int instances = 0, cores = 0;
  LaunchCommand() { procs = 0; }  // not given

  // --ninstances and --ncores-per-instance in the words of the rest.
  void translate_instances() {
    if (cores > 0 && instances == 0) throw UsageError("launch: --ncores-per-instance goes with --ninstances");
    if (instances == 0) return;
    if (procs > 0) throw UsageError("launch: --ninstances is --procs with --pin: give one of the two");
    if (threads > 0) throw UsageError("launch: --ncores-per-instance is --threads: give one of the two");
    procs = instances;
    threads = cores;
    pins = true;
  }
  void read_hosts() {
    if (!host_list.empty() && !host_file.empty()) throw UsageError("launch: give --hosts or --hostfile");
    if (!host_list.empty()) hosts = dist::parse_hosts(host_list, procs);
    if (!host_file.empty()) hosts = dist::parse_hostfile(read_file(host_file), procs);
    if (!hosts.empty() && nodes > 1) throw UsageError("launch: --nodes is for hosts that ssh does not reach");
  }

  void keep_record(const std::vector<dist::RankHistory>& ranks) const {
    const std::string file =
        record_file.empty() ? fmt::format("{}/tessera-{}.pt.trace.json", fs::temp_directory_path().string(), getpid())
                            : record_file;
    try {
      write_flight_record(ranks, file);
      print(fmt::format("note: the last collectives of each rank are in {}: tessera profile {}", file, file), true);
    } catch (const Error& e) {
      print(fmt::format("note: the last collectives of each rank were not kept: {}", e.what()), true);
    }
  }

  void check_restarts() const {
    if (min_procs == 0) return;
    if (max_restarts == 0) throw UsageError("launch: --min-procs goes with --max-restarts");
    if (min_procs > procs && nodes == 1 && hosts.size() < 2)
      throw UsageError(fmt::format("launch: --min-procs {} exceeds --procs {}", min_procs, procs));
  }

  void run() {
    translate_instances();
    if (procs == 0) procs = 1;
    try {
      read_hosts();
      dist::check(*this);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
    check_restarts();
    command.insert(command.end(), behind.begin(), behind.end());
    if (command.empty()) throw UsageError("launch: give a command behind --, such as: -- tessera train gpt ...");
    ordered = reduction == "ordered";
    on_failure = [this](const std::vector<dist::RankHistory>& ranks) { keep_record(ranks); };
    print = [](const std::string& line, bool is_error) {
      FILE* const out = is_error ? stderr : stdout;
      fmt::print(out, "{}\n", line);
      std::fflush(out);
    };
    const int code = dist::launch(*this);
    if (std::ferror(stdout)) throw Error("cannot write to the standard output");
    if (code != 0) std::exit(code);
  }
};

}  // namespace

void add_launch(Command app) {
  const Command command =
      app.command("launch", "Run a command as several processes, which know each other: ranks of one World.");
  auto c = std::make_shared<LaunchCommand>();
  command.option("--procs", c->procs, "how many processes, on each host; else 1").range(1, 1024);
  command.option("--threads", c->threads, "threads of each; 0: the processors divided by the processes")
      .range(0, 1024)
      .with_default();
  command.flag("--pin", c->pins, "hold each process to processors of its own");
  command.option("--max-restarts", c->max_restarts, "how often all begin anew after one failed")
      .range(0, INT_MAX)
      .with_default();
  command
      .option("--min-procs", c->min_procs,
              "begin anew with fewer, where hosts or processes cannot come back: at least so many")
      .range(1, 1024);
  command.option("--ninstances", c->instances, "as --procs with --pin").range(1, 1024);
  command.option("--ncores-per-instance", c->cores, "processors of each of them: as --threads").range(1, 1024);
  command.option("--hosts", c->host_list, "this host and others that ssh reaches: a,b");
  command.option("--hostfile", c->host_file, "the same as a file, of lines such as: a slots=4");
  command.option("--nodes", c->nodes, "how many hosts, on each of which this command is begun").range(1, 1024);
  command.option("--node-rank", c->node_rank, "which of them this is, from 0").range(0, 1023);
  command.option("--rendezvous", c->rendezvous, "HOST:PORT of the first one, where they meet");
  command.option("--join-timeout", c->join_timeout, "seconds in which all hosts come").range(0.1, 1e9).with_default();
  command.option("--patience", c->patience, "seconds after which a process that others wait for is named")
      .range(0.1, 1e9)
      .with_default();
  command
      .option("--timeout", c->timeout, "seconds after which a process that waits for another ends the run; else 1800")
      .range(0.1, 1e9);
  command.option("--grace", c->grace, "seconds that the others have to end themselves after one failed")
      .range(0.1, 1e9)
      .with_default();
  command.option("--flight-record", c->record_file, "where a failed run's last collectives go; else a temporary file");
  command.option("--reduction", c->reduction, "the order of sums on GPUs: NCCL's own, or ordered as on the host")
      .one_of({"default", "ordered"})
      .with_default();
  command.option("command", c->command, "the command and its arguments, behind --").take_all();
  command.behind_dashes(c->behind);
  command.run([c] { c->run(); });
}

}  // namespace tessera::app
