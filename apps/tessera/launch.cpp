// tessera launch: a command as several processes that work on one thing.
#include <fmt/format.h>

#include <climits>
#include <cstdio>

#include "command.h"
#include "dist/launcher.h"
#include "tessera/io.h"

namespace tessera::app {
namespace {

struct LaunchCommand : dist::LaunchOptions {
  std::string host_list, host_file;
  int instances = 0, cores = 0;

  // --ninstances and --ncores-per-instance in the words of the rest.
  void translate_instances() {
    if (cores > 0 && instances == 0) throw UsageError("launch: --ncores-per-instance goes with --ninstances");
    if (instances == 0) return;
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

  void run() {
    translate_instances();
    read_hosts();
    if (command.empty()) throw UsageError("launch: give a command behind --, such as: -- tessera train gpt ...");
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
  command.option("--procs", c->procs, "how many processes, on each host").range(1, 1024).with_default();
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
  command.option("--grace", c->grace, "seconds that the others have to end themselves after one failed")
      .range(0.1, 1e9)
      .with_default();
  command.option("command", c->command, "the command and its arguments, behind --").take_all();
  command.run([c] { c->run(); });
}

}  // namespace tessera::app
