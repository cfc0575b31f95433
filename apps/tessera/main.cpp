// tessera: the command. One line `error: ...` and exit code 2 for bad usage or input, 1 for a failure.
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "command.h"
#include "tessera/dist.h"
#include "tessera/version.h"

namespace {

int fail(int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  std::fflush(stdout);  // first what came before
  fmt::print(stderr, "error: {}\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera;
  const app::CommandLine app("Trains, samples and measures models on CPUs and GPUs.",
                             std::string("tessera ") + TESSERA_VERSION);
  app.require_command();
  app::add_train(app);
  app::add_launch(app);
  app::add_sample(app);
  app::add_data(app);
  app::add_bench(app);
  app::add_explain(app);
  app::add_simulate(app);
  app::add_profile(app);
  app::add_ops(app);
  app::add_devices(app);
  app::add_cache(app);
  app::add_selftest(app);
  app::add_run(app);
  app::add_export(app);
  app::add_info(app);
  app::add_onnx_test(app);
  try {
    app.parse(argc, argv);
    return std::fflush(stdout) == 0 ? 0 : fail(1, "cannot write to the standard output");
  } catch (const app::UsageError& e) {
    return fail(2, e.what());
  } catch (const FileError& e) {
    return fail(2, e.what());
  } catch (const dist::Aborted&) {
    return 1;  // whoever ended the run has said why
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory");
  } catch (const std::exception& e) {
    return fail(1, e.what());
  }
}
