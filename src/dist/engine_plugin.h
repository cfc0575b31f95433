// Engines that are plugins: a table of functions, which one function of the file gives.
#pragma once
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "core/util/plugin_path.h"

namespace tessera::dist {

/// The functions of a file for what CMake finds as `where`; null, and then why not. `mode`: of dlopen.
template <class Functions>
const Functions* open_engine_plugin(const char* file, const char* entry, const char* where, int mode,
                                    std::string& why_not) {
  const std::filesystem::path path = find_plugin(file);
  if (path.empty()) {
    why_not = fmt::format("{} was not found beside the program or in TESSERA_PLUGIN_DIR; CMake makes it where {} is",
                          file, where);
    return nullptr;
  }
  void* const handle = dlopen(path.c_str(), RTLD_NOW | mode);
  if (!handle) {
    why_not = dlerror();
    return nullptr;
  }
  const auto get = reinterpret_cast<const Functions* (*)()>(dlsym(handle, entry));
  const Functions* const found = get ? get() : nullptr;
  if (found && found->version == Functions::kVersion) return found;
  why_not = path.string() + " belongs to another version of tessera";
  return nullptr;
}

}  // namespace tessera::dist
