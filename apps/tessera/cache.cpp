// tessera cache clear: removes what the library keeps on disk between runs.
#include <fmt/format.h>

#include <filesystem>

#include "command.h"
#include "core/util/disk_cache.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

// Only a folder that carries our mark is removed: the variable may point anywhere.
void clear() {
  const fs::path folder = cache_folder();
  if (folder.empty()) throw UsageError("no cache folder: set TESSERA_CACHE_DIR or HOME");
  std::error_code code;
  if (!fs::exists(folder, code)) return fmt::print("the cache {} is empty\n", folder.string());
  if (!fs::exists(folder / cache_mark, code))
    throw UsageError(folder.string() + " was not made by tessera (it has no file " + cache_mark + "): not removed");
  uintmax_t bytes = 0;
  for (auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied, code))
    if (entry.is_regular_file(code)) bytes += entry.file_size(code);
  fs::remove_all(folder, code);
  if (code) throw Error("cannot remove " + folder.string() + ": " + code.message());
  fmt::print("removed {} ({:.1f} MiB)\n", folder.string(), static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

void add_cache(Command app) {
  const Command command = app.command("cache", "Look after what is kept on disk between runs.");
  command.require_command();
  const Command sub = command.command("clear", "Remove compiled kernels, measured picks and shards of other machines.");
  auto options = std::make_shared<CommonOptions>();
  options->add_to(sub, false);
  sub.run([options] {
    options->apply();
    clear();
  });
}

}  // namespace tessera::app
