#include "remote_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

namespace tessera::app {

int64_t parse_size(const std::string& option, const std::string& text) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  const std::string unit = text.substr(static_cast<size_t>(end - text.data()));
  const int shift = unit.empty() ? 0 : unit == "k" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || size < 1 || size >> 32 != 0)
    throw UsageError(option + " " + text + " is no size such as 64M");
  return size << shift;
}

void RemoteChoice::add_to(Command app, const std::string& before) {
  prefix = before;
  app.option(prefix + "cache", options.cache, "of an address: folder that keeps shards (default: TESSERA_CACHE_DIR)");
  app.option(prefix + "cache-limit", limit, "of an address: most bytes of shards in that folder").with_default();
  app.option(prefix + "deadline", options.deadline, "of an address: seconds until a file must be there")
      .range(0.001, 1e6)
      .with_default();
  app.option(prefix + "stall", options.stall, "of an address: seconds of silence after which it is asked again")
      .range(1.0, 1e6)
      .with_default();
}

RemoteOptions RemoteChoice::settle() const {
  RemoteOptions out = options;
  out.cache_limit = parse_size(prefix + "cache-limit", limit);
  out.on_wait = [](const std::string& line) {
    fmt::print(stderr, "{}note: {}\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", line);  // in place of a bar
  };
  return out;
}

}  // namespace tessera::app
