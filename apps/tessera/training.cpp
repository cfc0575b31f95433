#include "training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

#include "tessera/parallel.h"

namespace tessera::app {
void catch_signals() { static const train::CaughtSignals signals; }

void exit_if_signalled() {
  if (const int number = train::caught_signal()) std::exit(128 + number);
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
  resume |= train::resumes(train::Resume::AfterRestart, checkpoint);
}

void TrainingOptions::check_ranks(int ranks, int64_t accumulation) {
  if (accumulation % ranks != 0)
    throw UsageError(fmt::format("{} ranks do not divide the {} batches of a step: give an --accumulation that they do",
                                 ranks, accumulation));
}

train::Amp TrainingOptions::precision() const {
  for (train::Amp one : {train::Amp::BFloat16, train::Amp::Float16})
    if (amp == train::name(one)) return one;
  return train::Amp::Off;
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
