#include "core/util/plugin_path.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Where this library, or the program it is linked into, lies.
fs::path folder_of_library() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&folder_of_library), &info) || !info.dli_fname) return {};
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : path.parent_path();
}

std::vector<fs::path> candidates(const char* name) {
  if (const char* folder = std::getenv("TESSERA_PLUGIN_DIR"); folder && *folder) return {fs::path(folder) / name};
  const fs::path folder = folder_of_library();
  const fs::path above = folder.parent_path();  // of bin/ in an installation, of examples/ in a build
  return {folder / name, above / name, above / "lib" / name, above / TESSERA_LIBDIR / name};
}

}  // namespace

fs::path find_plugin(const char* name) {
  std::error_code error;
  for (const fs::path& candidate : candidates(name))
    if (fs::exists(candidate, error)) return candidate;
  return {};
}

}  // namespace tessera
