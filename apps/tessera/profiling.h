// --profile of a command: where its time and memory go.
#pragma once
#include <functional>
#include <string>

#include "command.h"

namespace tessera::app {

struct RecordingOptions {
  std::string folder, steps;
  /// `default_steps`: which are recorded where nothing is said.
  void add_to(Command app, const std::string& default_steps);
};

/// fn(), recorded if --profile was given; `device` is the one that works; tables are printed as soon as they are
/// complete. With `interrupts` the first SIGINT ends fn() at its next operator, and what was seen until then is
/// written. Throws UsageError on bad options.
void with_profile(const RecordingOptions& options, Device device, bool interrupts, const std::function<void()>& fn);

/// Advice for people; where there is none, that there is none.
std::string advice_lines(const std::string& advice);

}  // namespace tessera::app
