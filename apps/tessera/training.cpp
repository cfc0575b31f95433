#include "training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/stat.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tessera/parallel.h"

namespace tessera::app {
namespace {

std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "signal handlers may only touch lock-free atomics");

}  // namespace

std::atomic<bool> training_stop{false};

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) {
    stop_signal = number;
    training_stop = true;
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void exit_if_signalled() {
  if (int number = stop_signal) std::exit(128 + number);
}

void TrainingOptions::add_to(Command app, const std::string& what_is_written) {
  app.option("--out", out, "folder for " + what_is_written).required();
  app.flag("--resume", resume, "go on from what is in --out");
  app.option("--amp", amp, "mixed precision: off, bf16, or fp16, which also scales the loss")
      .one_of({"off", "bf16", "fp16"})
      .with_default();
  app.option("--stop-after", stop_after, "save and end after that many steps in all").range(1, INT_MAX);
  CommonOptions::add_to(app, true);
  add_picks_to(app);
}

void TrainingOptions::resume_after_restart(const std::string& checkpoint) {
  const char* const restarts = std::getenv("TESSERA_RESTART");
  const char* const launched = std::getenv("TESSERA_LAUNCHED");
  struct stat file {};
  if (!restarts || std::string_view(restarts) == "0" || !launched || stat(checkpoint.c_str(), &file) != 0) return;
  resume |= file.st_mtime >= std::strtoll(launched, nullptr, 10);  // an older one is of another run
}

models::Amp TrainingOptions::precision() const {
  for (models::Amp one : {models::Amp::BFloat16, models::Amp::Float16})
    if (amp == models::name(one)) return one;
  return models::Amp::Off;
}

void TrainingOptions::prepare(std::initializer_list<std::string> checkpoints) const {
  std::error_code code;
  std::filesystem::create_directories(out, code);
  if (code) throw UsageError("cannot make the folder " + out + ": " + code.message());
  bool any = false;
  for (const std::string& file : checkpoints) {
    if (!json.empty() && std::filesystem::weakly_canonical(json, code) == std::filesystem::weakly_canonical(file, code))
      throw UsageError("--json would overwrite the checkpoint");
    any |= std::filesystem::exists(file, code);
  }
  if (resume && !any)
    throw UsageError(fmt::format("nothing to resume: there is no {}", fmt::join(checkpoints, " or ")));
}

}  // namespace tessera::app
