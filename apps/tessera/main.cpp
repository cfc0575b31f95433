// tessera: the command. One line `error: ...` and exit code 2 for bad usage or input, 1 for a failure.
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "command.h"
#include "tessera/version.h"

namespace {

int fail(int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "error: {}\n", message);
  return code;
}

// CLI11 does not say which word it did not know, or which ones it knows.
void check_commands(const CLI::App& top, int argc, char** argv) {
  std::string path;
  const CLI::App* app = &top;
  for (int i = 1; app->get_require_subcommand_min() > 0; ++i) {
    if (i < argc && argv[i][0] == '-') return;  // options of `app` itself, such as --help
    std::string known;
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
      known += (known.empty() ? "" : ", ") + sub->get_name();
      if (i < argc && sub->get_name() == argv[i]) next = sub;
    }
    if (i == argc) throw tessera::app::UsageError(fmt::format("tessera{}: give one of {}", path, known));
    if (!next) throw tessera::app::UsageError(fmt::format("unknown command '{}': give one of {}", argv[i], known));
    path += fmt::format(" {}", argv[i]);
    app = next;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera;
  CLI::App app{"Trains, samples and measures models on CPUs and GPUs."};
  app.set_version_flag("--version", std::string("tessera ") + TESSERA_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app::add_train(app);
  app::add_sample(app);
  app::add_bench(app);
  app::add_explain(app);
  app::add_devices(app);
  app::add_cache(app);
  try {
    check_commands(app, argc, argv);
    app.parse(argc, argv);
    return std::fflush(stdout) == 0 ? 0 : fail(1, "cannot write to the standard output");
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return fail(2, e.what());
  } catch (const app::UsageError& e) {
    return fail(2, e.what());
  } catch (const FileError& e) {
    return fail(2, e.what());
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory");
  } catch (const std::exception& e) {
    return fail(1, e.what());
  }
}
