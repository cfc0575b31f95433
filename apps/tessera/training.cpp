#include "training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
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
  app.option("--keep-checkpoints", keep, "checkpoints that stay; a run goes on from the newest that is whole")
      .range(1, 1000)
      .with_default();
  app.option("--amp", amp, "mixed precision: off, bf16, or fp16, which also scales the loss")
      .one_of({"off", "bf16", "fp16"})
      .with_default();
  app.option("--stop-after", stop_after, "save and end after that many steps in all").range(1, INT_MAX);
  add_averaging_to(app);
  app.option("--gradient-dtype", gradient_dtype, "gradients travel between ranks in bf16 or f16; else as they are")
      .one_of({"bf16", "f16"});
  app.flag("--data-parallel", even_alone,
           "gradients go through the engine of collectives with a single rank, too: what they cost");
  app.option("--microbatch", microbatch,
             "samples of a batch that go through the model at a time, or auto: as many as fit into memory");
  CommonOptions::add_to(app, true);
  add_picks_to(app);
}

void TrainingOptions::add_averaging_to(Command app) {
  const Option period =
      app.option("--local-sgd", local_sgd, "ranks step by themselves, and average after every so many steps")
          .range(1, INT_MAX);
  app.option("--hierarchy", hierarchy, "the same in levels of steps and neighbouring ranks, such as 2:8,4:32,8:128")
      .excludes(period);
  app.option("--averaging-warmup", averaging.warmup,
             "steps before that with gradients of all ranks (--warmup is the learning rate's)");
  app.option("--gradients-within", averaging.gradients_within,
             "blocks of so many neighbours, as those of a host, keep their gradients in common");
  app.option("--outer-momentum", averaging.outer_momentum, "momentum of the averages of all ranks (SlowMo)");
}

std::optional<dist::LocalSGDOptions> TrainingOptions::averaging_of(int ranks) const {
  dist::LocalSGDOptions out = averaging;
  if (local_sgd == 0 && hierarchy.empty()) {
    if (out.warmup != 0 || out.gradients_within != 1 || out.outer_momentum != 0)
      throw UsageError(
          "--averaging-warmup, --gradients-within and --outer-momentum go with --local-sgd or --hierarchy");
    return {};
  }
  try {
    out.hierarchy =
        hierarchy.empty() ? std::vector<dist::AveragingLevel>{{local_sgd, 0}} : dist::parse_hierarchy(hierarchy);
    out.check(ranks);
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  return out;
}

void TrainingOptions::resume_after_restart(const std::string& checkpoint) {
  resume |= train::resumes(train::Resume::AfterRestart, checkpoint);
}

void TrainingOptions::check_ranks(int ranks, int64_t accumulation) {
  if (accumulation % ranks != 0)
    throw UsageError(fmt::format("{} ranks do not divide the {} batches of a step: give an --accumulation that they do",
                                 ranks, accumulation));
}

std::optional<DType> TrainingOptions::gradients_travel_in() const {
  if (gradient_dtype.empty()) return {};
  if (local_sgd > 0 || !hierarchy.empty())
    throw UsageError("--gradient-dtype does not go with --local-sgd or --hierarchy");
  return parse_dtype(gradient_dtype);
}

int64_t TrainingOptions::microbatch_size() const {
  if (microbatch.empty()) return 0;
  if (microbatch == "auto") return train::kAutoMicrobatch;
  int64_t size = 0;
  const char* const last = microbatch.data() + microbatch.size();
  const auto [end, error] = std::from_chars(microbatch.data(), last, size);
  if (error != std::errc() || end != last || size < 1)
    throw UsageError(fmt::format("--microbatch: {} is neither auto nor a number of samples", microbatch));
  return size;
}

std::string TrainingOptions::found_microbatch(int64_t samples, int64_t too_many, const std::string& what) {
  return fmt::format("microbatches of {} {}{} fit{}", samples, what, samples > 1 ? "s" : "",
                     too_many ? fmt::format(", {} do not", too_many) : "");
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
