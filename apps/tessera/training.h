// What the training commands share: signals, precision, the folder that a run writes to.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "tessera/dist.h"
#include "tessera/trainer.h"

namespace tessera::app {

/// From here on, the first SIGINT or SIGTERM sets train::stop_requested(), and a second one kills.
void catch_signals();
/// Ends the process as the signal that was caught would have; returns if none was.
void exit_if_signalled();

struct TrainingOptions : CommonOptions {
  std::string amp = "off", out, microbatch;
  bool resume = false;
  int64_t stop_after = 0;  // 0: never
  std::string hierarchy;   // empty: one level, with local_sgd
  dist::LocalSGDOptions averaging;
  int64_t local_sgd = 0;  // steps between averages; 0: none, unless there is a hierarchy
  std::string gradient_dtype;
  bool even_alone = false;  // collectives go through an engine with one rank, too
  int64_t keep = 2;         // checkpoints, the newest and those before it

  /// A run that `tessera launch` began anew goes on from the checkpoint, if there is one by then.
  void resume_after_restart(const std::string& checkpoint);
  void add_to(Command app, const std::string& what_is_written);
  /// Throws UsageError unless so many ranks share the batches of a step evenly.
  static void check_ranks(int ranks, int64_t accumulation);
  /// How so many ranks average now and then; absent where they do not. Throws UsageError.
  std::optional<dist::LocalSGDOptions> averaging_of(int ranks) const;
  train::Amp precision() const;
  /// In which gradients travel; absent: as they are. Throws UsageError.
  std::optional<DType> gradients_travel_in() const;
  /// As train::Options have it. Throws UsageError.
  int64_t microbatch_size() const;
  /// What was found: "microbatches of 4 sequences fit, 8 do not".
  static std::string found_microbatch(int64_t samples, int64_t too_many, const std::string& what);
  /// Makes the folder and checks it for these checkpoints, of which a run that goes on needs one. Throws UsageError.
  void prepare(std::initializer_list<std::string> checkpoints) const;

 private:
  void add_averaging_to(Command app);
};

}  // namespace tessera::app
