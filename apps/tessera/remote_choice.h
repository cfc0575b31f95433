// Options of commands that read shards of other machines.
#pragma once
#include <string>

#include "command.h"
#include "tessera/remote.h"

namespace tessera::app {

/// Bytes of a size such as 64M, of at most 2^62. Throws UsageError that names `option`.
int64_t parse_size(const std::string& option, const std::string& text);

struct RemoteChoice {
  RemoteOptions options;
  std::string limit = "64G", prefix;
  /// `before`, "--" or "--data-", begins their names.
  void add_to(Command app, const std::string& before);
  /// Throws UsageError.
  RemoteOptions settle() const;
};

}  // namespace tessera::app
