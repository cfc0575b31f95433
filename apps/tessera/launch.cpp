// tessera launch: a command as several processes that work on one thing.
#include <fmt/format.h>

#include <climits>
#include <cstdio>

#include "command.h"
#include "dist/launcher.h"

namespace tessera::app {
namespace {

struct LaunchCommand : dist::LaunchOptions {
  void run() {
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
  command.option("--procs", c->procs, "how many processes").range(1, 1024).with_default();
  command.option("--threads", c->threads, "threads of each; 0: the processors divided by the processes")
      .range(0, 1024)
      .with_default();
  command.flag("--pin", c->pins, "hold each process to processors of its own");
  command.option("--max-restarts", c->max_restarts, "how often all begin anew after one failed")
      .range(0, INT_MAX)
      .with_default();
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
