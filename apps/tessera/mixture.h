// Options that say how much an epoch has of each of several streams.
#pragma once
#include <string>
#include <vector>

#include "command.h"
#include "tessera/streaming.h"

namespace tessera::app {

struct Mixture {
  std::string proportions, repeats, chosen;
  int64_t epoch_size = 0;
  void add_to(Command app);
  /// Whether any option was given.
  bool given() const;
  /// One stream for each folder. Throws UsageError.
  std::vector<DataStream> streams(const std::vector<std::string>& folders) const;
};

}  // namespace tessera::app
